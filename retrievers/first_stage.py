"""First-stage retrieval by one index: vectors, vectors of tokens, or BM25; hits with the index's
scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from indexers.lucene import LuceneIndex
from indexers.protocols import VectorIndex
from indexers.token_index import TokenIndex
from rag.core.arrays import Float32, Int64
from rag.core.errors import ConfigError, RetrievalError
from rag.core.log import Timer, stage
from rag.core.types import Hit, Query
from retrievers.protocols import HitLists, Retriever, Selected, TextEncoder

if TYPE_CHECKING:
    from indexers.index import Index
    from indexers.passages import PassageStore
    from retrievers.encoders.bi_encoder import BiEncoder


@dataclass(eq=False)
class DenseRetriever(Retriever):
    """Searches a vector index with a bi-encoder's question vectors."""

    vectors: VectorIndex
    passages: PassageStore
    encoder: TextEncoder

    def search(
        self,
        questions: Sequence[str],
        top_k: int,
        *,
        timer: Timer = None,
        selected: Selected = None,
    ) -> HitLists:
        """Best passages of each question; see `Retriever.search`."""
        if not questions:
            return []
        with stage(timer, "encode_question"):
            queries = self.encoder.encode_queries(list(map(Query, questions)))  # (B, D)
        with stage(timer, "search_dense"):
            return self.search_vectors(queries, top_k, selected)

    def search_vectors(self, queries: Float32, top_k: int, selected: Selected = None) -> HitLists:
        """`search` by question vectors (B, D) float32 instead of texts."""
        if not np.isfinite(queries).all():
            raise RetrievalError("a question vector holds NaN or infinity")
        scores, rows = self.vectors.search(queries, top_k, selected)
        return to_hits(scores, rows, self.passages)

    def with_index(self, index: Index) -> DenseRetriever:
        """See `Retriever.with_index`."""
        return replace(self, vectors=index.require_dense().vectors, passages=index.passages)


@dataclass(eq=False)
class LateInteractionRetriever(Retriever):
    """Searches token vectors; scores are MaxSim."""

    tokens: TokenIndex
    passages: PassageStore
    encoder: BiEncoder

    def search(
        self,
        questions: Sequence[str],
        top_k: int,
        *,
        timer: Timer = None,
        selected: Selected = None,
    ) -> HitLists:
        """Best passages of each question; see `Retriever.search`."""
        if not questions:
            return []
        with stage(timer, "encode_question"):
            vectors = self.encoder.question_tokens(questions)
        with stage(timer, "search_tokens"):
            scores, rows = self.tokens.search(
                np.asarray(vectors.values, np.float32),
                np.asarray(vectors.lengths),
                top_k,
                selected=selected,
            )
            return to_hits(scores, rows, self.passages)

    def with_index(self, index: Index) -> LateInteractionRetriever:
        """See `Retriever.with_index`."""
        if index.tokens is None:
            raise ConfigError(f"{index.directory} has no token vectors", hint="build it with plaid")
        return replace(self, tokens=index.tokens, passages=index.passages)


@dataclass(eq=False)
class SparseRetriever(Retriever):
    """Searches the Lucene index by BM25."""

    terms: LuceneIndex
    passages: PassageStore

    absent_score = 0.0

    @classmethod
    def of(cls, index: Index) -> SparseRetriever:
        """Search the BM25 part of an index."""
        assert index.lucene is not None
        return cls(index.lucene, index.passages)

    def with_index(self, index: Index) -> SparseRetriever:
        """See `Retriever.with_index`."""
        return self.of(index)

    def search(
        self,
        questions: Sequence[str],
        top_k: int,
        *,
        timer: Timer = None,
        selected: Selected = None,
    ) -> HitLists:
        """Best passages of each question; see `Retriever.search`."""
        if not questions:
            return []
        with stage(timer, "search_bm25"):
            return _hits_of_pairs(self.terms.search(questions, top_k, selected), self.passages)


def to_hits(scores: Float32, rows: Int64, passages: PassageStore) -> HitLists:
    """Hits from scores (B, K) and rows (B, K), leaving out rows of -1; ties are ordered by passage
    id.
    """
    pairs = []
    for row_list, score_list in zip(rows.tolist(), scores.tolist(), strict=True):
        found = zip(row_list, score_list, strict=True)
        pairs.append([(row, score) for row, score in found if row >= 0])
    return _hits_of_pairs(pairs, passages)


def _hits_of_pairs(
    lists: Sequence[Sequence[tuple[int, float]]], passages: PassageStore
) -> HitLists:
    """Hits of rows and scores; the ids of all lists are read together."""
    rows = [row for pairs in lists for row, _ in pairs]
    ids = iter(passages.ids(rows))
    hit_lists = []
    for pairs in lists:
        hits = [Hit(int(row), next(ids), float(score)) for row, score in pairs]
        hit_lists.append(sorted(hits, key=Hit.sort_key))
    return hit_lists
