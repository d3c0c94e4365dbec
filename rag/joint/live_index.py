"""An index that the trainer searches with the current question encoder, while a refresher builds the next
index from a snapshot of the model.

    snapshots/       encoders published by the trainer
    indexes/         embeddings of the whole corpus by such an encoder, which replace those of the trainer

A published index holds `embeddings/` (float32, searched exactly) beside what every `CorpusRefresher` writes.
"""

import hashlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
from torch import Tensor

from indexers.embedding_shards import EmbeddingShards
from indexers.embeddings import encode_corpus
from indexers.exact import FlatIndex
from indexers.index import Index
from indexers.probes import probe_texts
from indexers.protocols import EncodesCorpus
from rag.core.arrays import Int64
from rag.core.errors import MismatchedArtifactError
from rag.core.files import read_json
from rag.core.types import Passage, Query
from rag.training.distributed import World
from rag.training.precision import MasterWeights, part
from rag.training.refresh.exchange import Exchange
from rag.training.refresh.generations import Generation
from rag.training.refresh.processes import TrainerRole
from rag.training.refresh.staleness import TOP_K, Probes, ProbeSet
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.encoders.open import load_like
from retrievers.protocols import TextEncoder
from retrievers.training.bi_encoder import BiEncoderModel, adopt_index
from retrievers.training.config import CorpusTrainConfig
from retrievers.training.corpus_refresher import (
    CorpusRefresher,
    EncodedCorpus,
    corpus_exchange,
    refresh_beside,
)


def refresh_index(config: CorpusTrainConfig, encode: EncodesCorpus = encode_corpus) -> Path:
    """Rebuild the index for every new snapshot of the trainer in `config.out`; see `refresh_beside`."""
    with Index.open(config.index) as index:
        adopted = adopt_index(config, index, same_encoder=True)
        return refresh_beside(adopted, lambda: IndexRefresher(adopted, index, encode=encode))


def _key(index: Index) -> str:
    """Identifies the passages of a refreshed index, and the index version that training starts with."""
    return hashlib.sha256(f"{index.manifest['passages']['sha256']} {index.version}".encode()).hexdigest()


class LiveIndex:
    """Passages, and their vectors from the latest refresh.

    Args:
        index: index that is searched until the first refresh.

    Attributes:
        passages: the passages; row i of the index is passage i.
        version: version of the index in use.

    Raises:
        ConfigError: the index has no vectors.
    """

    def __init__(self, index: Index) -> None:
        self.passages, self.version = index.passages, index.version
        self._key = _key(index)
        self._search = index.require_dense().vectors

    def search(self, questions: Tensor, top_k: int) -> Int64:
        """Rows (B, K) of the best passages in the live index, best first; −1 where there are fewer than K.

        Args:
            questions: (B, D) vectors from the current model; the search is not differentiable.
        """
        return self._search.search(questions.detach().float().cpu().numpy(), top_k)[1]

    def passages_of(self, rows: Int64) -> list[list[Passage]]:
        """The passages of each question, from the rows that `search` returns."""
        return [self.passages.get_many(row[row >= 0]) for row in rows]

    def take_up(self, generation: Generation) -> Mapping[str, float]:
        """Load the vectors that a refresher published, and return the refresher's figures.

        Raises:
            MismatchedArtifactError: the vectors belong to another corpus.
        """
        embeddings = EmbeddingShards.open(generation.path / "embeddings")
        if generation.meta.get("key") != self._key or len(embeddings) != len(self.passages):
            raise MismatchedArtifactError(
                f"{generation.path} holds vectors of {len(embeddings)} passages of another corpus",
                hint="start trainer and refresher with the same configuration, or choose another --out",
            )
        self._search, self.version = FlatIndex(embeddings), generation.version
        figures: dict[str, float] = read_json(generation.path / "figures.json")
        return figures


class IndexRefresher(CorpusRefresher):
    """Builds indexes from snapshots; an interrupted refresh resumes after the last finished shard."""

    def __init__(
        self,
        config: CorpusTrainConfig,
        index: Index,
        *,
        device: str = "auto",
        encode: EncodesCorpus = encode_corpus,
    ) -> None:
        self._index, precision = index, config.optim.precision
        self._load_first = partial(load_like, device=device, precision=precision)
        texts = probe_texts(index.passages, config.probe_questions, config.run.seed)
        super().__init__(
            config, "indexes", index.passages, queries=[Query(text) for text in texts],
            watched=_watched(config, index), key=_key(index),
            load=partial(BiEncoder.load, device=device, precision=precision), encode=encode,
        )  # fmt: skip

    def encoded(self, encoder: TextEncoder, folder: Path) -> EncodedCorpus:
        """See `CorpusRefresher`; the passage vectors are published."""
        place = folder / "embeddings"
        return EncodedCorpus(encoder, self.encode(place, self.passages, encoder, "float32", check=self.check))

    def at_start(self) -> Probes:
        """Probe vectors and search results of the index that training starts with."""
        dense = self._index.require_dense()
        first = self._load_first(dense.encoder)
        _, rows = dense.vectors.search(first.encode_queries(self.queries), TOP_K)
        return Probes(dense.embeddings.rows(self.watched).astype(np.float32), rows)


def index_exchange(
    config: CorpusTrainConfig,
    live_index: LiveIndex,
    index: Index,
    model: BiEncoderModel,
    master: MasterWeights,
    *,
    world: World,
    role: TrainerRole,
    encode: EncodesCorpus = encode_corpus,
) -> Exchange:
    """Hooks of the fit loop that publish snapshots and load refreshed indexes; the trainer never waits.

    Args:
        live_index: its vectors are replaced.
        index: index that training starts with.
        model: the encoder; its fp32 weights are the entries `retriever.…` of `master`.
        encode: encodes the corpus when the trainer itself refreshes the index.
    """
    return corpus_exchange(
        config, index, model, lambda: part(master.state(), "retriever"), live_index.take_up,
        lambda device: IndexRefresher(config, index, device=device, encode=encode),
        payload="indexes", max_length=config.model.passage_tokens, watched=_watched(config, index),
        key=_key(index), world=world, role=role, begins_with_result=True,
    )  # fmt: skip


def _watched(config: CorpusTrainConfig, index: Index) -> Int64:
    """Rows of the passages on which drift and staleness are measured."""
    count = len(index.passages)
    return ProbeSet.draw(config, config.run.seed, questions=1, passages=count).passages
