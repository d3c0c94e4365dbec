"""Recompute what depends on the encoding of a whole corpus (mined negatives, an index) during training.

snapshots/      encoders that the trainer publishes
(a payload)/    what is made with them; beside that, each generation holds

probe_vectors.npy       (m, D) vectors of the probe passages
probe_rows.npy          (n, K) best rows of the probe queries, -1 where there are no more
figures.json            staleness, and what else was measured
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from indexers.embedding_shards import EmbeddingShards
from indexers.embeddings import encode_corpus
from indexers.exact import exact_search
from indexers.index import Index
from indexers.passages import PassageStore
from indexers.protocols import EncodesCorpus
from rag.core.arrays import Float32, Int64
from rag.core.files import atomic_write_json
from rag.core.log import get_logger
from rag.core.types import Query
from rag.training.config import LOG_EVERY_STEPS
from rag.training.distributed import World
from rag.training.refresh.exchange import Exchange
from rag.training.refresh.generations import Generation, Generations
from rag.training.refresh.processes import TrainerRole, refresher_process
from rag.training.refresh.refresher import Refresher
from rag.training.refresh.staleness import TOP_K, DriftMeter, Probes, compare
from retrievers.protocols import TextEncoder
from retrievers.training.bi_encoder import BiEncoderModel, encoder_form, export_model
from retrievers.training.config import CorpusTrainConfig
from retrievers.training.static_config import StaticTrainConfig

_QUERIES_AT_ONCE = 2048

log = get_logger(__name__)


class EncodedCorpus:
    """Exact search over the vectors that one snapshot of the encoder gives the corpus."""

    def __init__(self, encoder: TextEncoder, embeddings: EmbeddingShards) -> None:
        self._encoder, self._embeddings = encoder, embeddings

    def search(self, queries: Sequence[Query], top_k: int) -> tuple[Float32, Int64]:
        """Scores (n, K) and rows (n, K), best first."""
        return exact_search(self._embeddings, self._encoder.encode_queries(queries), top_k)

    def vectors(self, rows: Int64) -> Float32:
        """Vectors (m, D) of the passages in `rows`, to measure how they change between snapshots."""
        return self._embeddings.rows(rows)


class CorpusRefresher(Refresher):
    """Encodes the corpus with a snapshot, builds what training needs, and measures how far vectors moved.

    Subclasses implement `encoded` and, if they publish more than the vectors, `make`.

    Args:
        payload: name of the folder in `config.out` that the results are published in.
        passages: the corpus.
        queries: the probe queries; see `ProbeSet`.
        watched: rows of the passages whose vectors are compared.
        top_k: number of passages to retrieve for each probe query.
        key: identifies the run's examples and corpus; the trainer must use the same key.
        load: opens the encoder in the folder of a snapshot.
        encode: encodes the corpus.
    """

    def __init__(
        self,
        config: CorpusTrainConfig | StaticTrainConfig,
        payload: str,
        passages: PassageStore,
        *,
        queries: Sequence[Query],
        watched: Int64,
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
        """Encode the corpus with an encoder, keeping the shards that an interrupted attempt finished.

        Args:
            folder: folder of the generation that is being built.
        """

    def make(self, corpus: EncodedCorpus, before: Generation | None, folder: Path) -> Mapping[str, float]:
        """Write further results to `folder` and return their metrics; `build` calls this."""
        return {}

    def at_start(self) -> Probes | None:
        """Probes that the first refresh is compared with; if None, it is compared with itself."""
        return None

    def build(self, snapshot: Generation, before: Generation | None, folder: Path) -> None:
        """Encode the corpus, call `make`, measure staleness and log any alarms."""
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

    def search(self, corpus: EncodedCorpus, queries: Sequence[Query], top_k: int) -> tuple[Float32, Int64]:
        """Scores (n, K) and rows (n, K), best first; the search stops when the trainer has finished."""
        parts = []
        for start in range(0, len(queries), _QUERIES_AT_ONCE):
            parts.append(corpus.search(queries[start : start + _QUERIES_AT_ONCE], top_k))
            self.check()
        scores, rows = (np.concatenate(column) for column in zip(*parts, strict=True))
        return scores, rows


def refresh_beside(config: CorpusTrainConfig, make: Callable[[], CorpusRefresher]) -> Path:
    """Refresh with each new snapshot that the trainer writes to `config.out`, until training has finished.

    Args:
        config: the configuration of the trainer's run.
        make: creates the refresher.

    Returns:
        The folder that the results were published in.

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
    max_length: int,
    watched: Int64,
    **others: Any,
) -> Exchange:
    """`snapshot_exchange` for a bi-encoder.

    Args:
        model: the model in training.
        weights: returns the weights of `model` in fp32.
        max_length: maximum text length, in tokens, of the published encoders.
        watched: see `CorpusRefresher`.
        take_up, refresher, others: see `snapshot_exchange`.
    """
    form = replace(encoder_form(config, model), max_length=max_length)
    return snapshot_exchange(
        config,
        lambda folder: export_model(folder / "encoder", model, weights(), form),
        partial(_vectors, model, index, watched),
        take_up,
        refresher,
        **others,
    )


def snapshot_exchange(
    config: CorpusTrainConfig | StaticTrainConfig,
    write_snapshot: Callable[[Path], object],
    vectors: Callable[[], Float32],
    take_up: Callable[[Generation], Mapping[str, float]],
    refresher: Callable[[str], CorpusRefresher],
    *,
    payload: str,
    key: str,
    world: World,
    role: TrainerRole = "both",
    **others: Any,
) -> Exchange:
    """Hooks of the fit loop that publish encoders and load what a `CorpusRefresher` built with them.

    Args:
        write_snapshot: writes the present encoder as the folder `encoder` of the folder it is given.
        vectors: returns the present vectors (m, D) of the passages on which drift is measured.
        refresher: creates a `CorpusRefresher` on a device; called only in a process that also refreshes.
        payload, key: see `CorpusRefresher`.
        take_up, others: see `Exchange`.
    """
    in_line = role == "both"
    return Exchange(
        config,
        Generations(config.out / "snapshots"),
        Generations(config.out / payload),
        write_snapshot,
        take_up,
        world=world,
        key=key,
        refresher=refresher(world.device) if in_line and world.is_main else None,
        drift=DriftMeter(vectors) if config.schedule_of_refresh.watches_drift else None,
        in_line=in_line,
        show_steps=config.run.log_every_steps or LOG_EVERY_STEPS,
        **others,
    )


@torch.no_grad()
def _vectors(model: BiEncoderModel, index: Index, watched: Int64) -> Float32:
    model.eval()
    vectors: Float32 = model.read(index.passages.get_many(watched)).float().cpu().numpy()
    model.train()
    return vectors
