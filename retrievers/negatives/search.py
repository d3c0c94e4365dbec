"""Candidates for a block of questions: BM25, the index's model, or both; and the model's scores."""

from collections.abc import Sequence

import numpy as np

from indexers.index import Index
from rag.core.arrays import Float32
from rag.core.errors import ConfigError
from rag.core.types import Hit, Passage, Query
from retrievers.dense import DenseRetriever
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.negatives.settings import MiningSettings
from retrievers.open import open_encoder
from retrievers.sparse import SparseRetriever


class MiningSearch:
    """Searches an index for mining.

    Args:
        settings: sources, search depth, and whether the model must score candidates.
        encoder: the index's encoder, if it was moved: a folder, a name, or a loaded one.

    Raises:
        ConfigError: the index was built without what the settings need.
        MismatchedArtifactError: the encoder is not the one the index was built with.
    """

    def __init__(
        self, index: Index, settings: MiningSettings, *, encoder: str | BiEncoder | None = None
    ) -> None:
        wanted = ("bm25", "dense") if settings.source == "both" else (settings.source,)
        for part in wanted:
            if part not in index.parts:
                raise ConfigError(
                    f"source {settings.source} needs a {part} index, which {index.directory} lacks",
                    hint="build it with `rag index … --retriever hybrid`, or mine from what there is",
                )
        if settings.margin is not None and "dense" not in index.parts:
            raise ConfigError(
                f"margin compares scores of a model, and {index.directory} has no vectors",
                hint="build the index with --retriever hybrid, or leave margin out",
            )
        self.index, self._top_k = index, settings.top_k
        self._sparse: SparseRetriever | None = None
        self._dense: DenseRetriever | None = None
        if "bm25" in wanted:
            assert index.lucene is not None
            self._sparse = SparseRetriever(index.lucene, index.passages)
        if "dense" in wanted or settings.margin is not None:
            self._encoder = open_encoder(index, encoder=encoder)
            self._dense = DenseRetriever(index.require_dense().vectors, index.passages, self._encoder)
        self._asks_dense = "dense" in wanted

    def search(self, queries: Sequence[Query]) -> tuple[dict[str, list[list[Hit]]], Float32 | None]:
        """Hits by source, one list per query; and query vectors (B, D), if there is a model."""
        hits: dict[str, list[list[Hit]]] = {}
        if self._sparse is not None:
            texts = [" ".join([query.question, *(p.text for p in query.passages)]) for query in queries]
            hits["bm25"] = self._sparse.search(texts, self._top_k)
        if self._dense is None:
            return hits, None
        vectors = self._encoder.encode_queries(queries)
        if self._asks_dense:
            hits["dense"] = self._dense.search_vectors(vectors, self._top_k)
        return hits, vectors

    def near(self, texts: Sequence[str], top_k: int) -> list[list[Hit]]:
        """Passages similar to these texts, by BM25 if the index has it."""
        searcher = self._sparse or self._dense
        assert searcher is not None
        return searcher.search(texts, top_k)

    def scores(self, vector: Float32, rows: Sequence[int]) -> Float32:
        """The model's scores (n,) of passages for a question's vector (D,)."""
        vectors = self.index.require_dense().embeddings.rows(np.asarray(rows, np.int64))
        return np.asarray(vectors @ vector, np.float32)

    def scores_of(self, vectors: Float32, passages: Sequence[Passage]) -> Float32:
        """The model's scores (n,) of passages that are not in the corpus, for the vectors (n, D)."""
        encoded = self._encoder.encode_passages([p.title for p in passages], [p.text for p in passages])
        return np.asarray((encoded * vectors).sum(axis=1), np.float32)
