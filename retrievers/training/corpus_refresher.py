"""Refreshing what is made of a whole corpus with the encoder in training: mined negatives, an index.

snapshots/      encoders that the trainer publishes
(a payload)/    what is made with them; beside that, each generation holds

probe_vectors.npy       (m, D) vectors of the probe passages
probe_rows.npy          (n, K) best rows of the probe queries, -1 where there are no more
figures.json            staleness, and what else was measured
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from indexers.embeddings import EmbeddingShards, VectorDtype, encode_corpus
from indexers.exact import exact_search
from indexers.index import Index
from indexers.passages import PassageStore
from indexers.protocols import FloatArray, IntArray, PassageEncoder
from rag.core.files import atomic_write_json
from rag.core.log import get_logger
from rag.core.types import Passage, Query
from rag.training.distributed import World
from rag.training.refresh.exchange import Exchange
from rag.training.refresh.generations import Generation, Generations
from rag.training.refresh.processes import Role, refresher_process
from rag.training.refresh.refresher import Refresher
from rag.training.refresh.staleness import TOP_K, DriftMeter, Probes, compare
from retrievers.protocols import TextEncoder
from retrievers.training.bi_encoder import BiEncoderModel, encoder_form, export_model
from retrievers.training.config import CorpusTrainConfig

_QUERIES_AT_ONCE = 2048

log = get_logger(__name__)


class EncodesCorpus(Protocol):
    """Encodes all passages, in this process (`encode_corpus`) or on other machines."""

    def __call__(
        self,
        place: Path,
        passages: PassageStore,
        encoder: PassageEncoder,
        dtype: VectorDtype,
        *,
        check: Callable[[], None],
    ) -> EmbeddingShards:
        """Vectors of all passages in `place`; a killed attempt is continued there. See `encode_corpus`."""
        ...


class EncodedCorpus:
    """The corpus as one snapshot encoded it, searched exactly."""

    def __init__(self, encoder: TextEncoder, embeddings: EmbeddingShards) -> None:
        self._encoder, self._embeddings = encoder, embeddings

    def search(self, queries: Sequence[Query], top_k: int) -> tuple[FloatArray, IntArray]:
        """Scores (n, K) and rows (n, K), best first."""
        return exact_search(self._embeddings, self._encoder.encode_queries(queries), top_k)

    def vectors(self, rows: IntArray) -> FloatArray:
        """Vectors (m, D) of some passages, to see how they move."""
        return self._embeddings.rows(rows)


class CorpusRefresher(Refresher):
    """Encodes the corpus with a snapshot, makes something of it, and measures how far it has moved.

    Derive from it and write `encoded` and, for more than the vectors, `make`.

    Args:
        payload: folder of what is published, in `config.out`.
        passages: the corpus.
        queries: of the probes.
        watched: rows of the passages whose vectors are compared.
        top_k: passages that are searched for each probe query.
        key: says what the run is about (examples, corpus), the same in the trainer.
        load: snapshot's encoder folder → encoder.
        encode: encodes the corpus.
    """

    def __init__(
        self,
        config: CorpusTrainConfig,
        payload: str,
        passages: PassageStore,
        *,
        queries: Sequence[Query],
        watched: IntArray,
        key: str,
        load: Callable[[Path], TextEncoder],
        top_k: int = TOP_K,
        encode: EncodesCorpus = encode_corpus,
    ) -> None:
        super().__init__(
            Generations(config.out / "snapshots"), Generations(config.out / payload), key=key,
            keep=config.keep_generations, poll_s=config.poll_s,
        )  # fmt: skip
        self.passages, self._temperature_of = passages, config.model.temperature_of
        self.queries, self.watched, self._top_k = queries, watched, top_k
        self._load, self.encode = load, encode

    @abstractmethod
    def encoded(self, encoder: TextEncoder, folder: Path) -> EncodedCorpus:
        """The corpus under an encoder; shards that a killed attempt finished are kept.

        Args:
            folder: of the generation in the making.
        """

    def make(self, corpus: EncodedCorpus, before: Generation | None, folder: Path) -> Mapping[str, float]:
        """Put more into `folder` than vectors; returns figures of it. See `build`."""
        return {}

    def at_start(self) -> Probes | None:
        """What the first refresh is compared with; None: with itself."""
        return None

    def build(self, snapshot: Generation, before: Generation | None, folder: Path) -> None:
        """Encode, make, measure; alarms are logged."""
        encoder = self._load(snapshot.path / "encoder")
        corpus = self.encoded(encoder, folder)
        figures = self.make(corpus, before, folder)
        scores, rows = self.search(corpus, self.queries, self._top_k)
        after = Probes(np.asarray(corpus.vectors(self.watched), np.float32), rows)
        known = Probes.read(before.path) if before is not None else self.at_start()
        age = snapshot.step - (before.step if before is not None else 0)
        staleness = compare(
            known, after, scores, age_steps=0 if known is None else age, corpus=len(self.passages),
            temperature=self._temperature_of(encoder.identity.similarity),
        )  # fmt: skip
        after.write(folder)
        figures = {**figures, **staleness.record()}
        atomic_write_json(folder / "figures.json", figures)
        shown = [f"{name} {value:.4g}" for name, value in figures.items() if "mined/" not in name]
        log.info("%s", "  ".join(shown))

    def search(
        self, corpus: EncodedCorpus, queries: Sequence[Query], top_k: int
    ) -> tuple[FloatArray, IntArray]:
        """Scores (n, K) and rows (n, K), best first; given up when the trainer has finished."""
        parts = []
        for start in range(0, len(queries), _QUERIES_AT_ONCE):
            parts.append(corpus.search(queries[start : start + _QUERIES_AT_ONCE], top_k))
            self.check()
        scores, rows = (np.concatenate(column) for column in zip(*parts, strict=True))
        return scores, rows


def refresh_beside(config: CorpusTrainConfig, make: Callable[[], CorpusRefresher]) -> Path:
    """Refresh with every newer snapshot of the trainer in `config.out`, until it has finished.

    Args:
        config: what the trainer's run is claimed for.
        make: gives the refresher.

    Returns:
        The folder of what was published.

    Raises:
        MismatchedArtifactError: the run there has another configuration, other examples or another corpus.
        ResourceError: another refresher works there, or the trainer was killed or is stopped.
    """
    with refresher_process(config) as finished:
        refresher = make()
        refreshes = refresher.watch(finished)
    log.info("the trainer has finished; refreshed %d times", refreshes)
    return refresher.payloads.directory


def corpus_exchange(
    config: CorpusTrainConfig,
    index: Index,
    model: BiEncoderModel,
    weights: Callable[[], Mapping[str, Tensor]],
    take_up: Callable[[Generation], Mapping[str, float]],
    refresher: Callable[[str], CorpusRefresher],
    *,
    payload: str,
    max_length: int,
    watched: IntArray,
    key: str,
    world: World,
    role: Role,
    must_wait: Callable[[], bool] = lambda: False,
) -> Exchange:
    """Hooks of the fit loop: encoders go out, and what a `CorpusRefresher` made of them comes in.

    Args:
        model: in training; `weights` gives its weights in fp32.
        refresher: makes one for a device; called where this process refreshes.
        payload, watched, key: see `CorpusRefresher`.
        max_length: longest text of the encoder that goes out.
        take_up, must_wait: see `Exchange`.
    """
    form = replace(encoder_form(config, model), max_length=max_length)
    drift, in_line = None, role == "both"
    if config.schedule_of_refresh.watches_drift:
        drift = DriftMeter(partial(_vectors, model, index.passages.get_many(watched)))
    return Exchange(
        config,
        Generations(config.out / "snapshots"),
        Generations(config.out / payload),
        lambda folder: export_model(folder / "encoder", model, weights(), form),
        take_up,
        world=world,
        key=key,
        refresher=refresher(world.device) if in_line and world.is_main else None,
        drift=drift,
        must_wait=must_wait,
        in_line=in_line,
        show_steps=config.run.log_every_steps,
    )


@torch.no_grad()
def _vectors(model: BiEncoderModel, passages: Sequence[Passage]) -> FloatArray:
    model.eval()
    vectors: FloatArray = model.read(passages).float().cpu().numpy()
    model.train()
    return vectors
