"""An index that a trainer holds and searches with question vectors as they are now, while a refresher makes
the next one from a snapshot of the model.

    snapshots/    encoders that the trainer publishes
    indexes/      embeddings of the whole corpus by such an encoder, which the trainer swaps in

A published index holds `embeddings/` (float32, searched exactly), `probe_rows.npy` and `figures.json`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from torch import Tensor

from indexers.embeddings import EmbeddingShards, encode_corpus, probe_texts
from indexers.exact import FlatIndex
from indexers.index import Index
from indexers.npy import load_npy, save_npy
from indexers.protocols import FloatArray, IntArray, VectorIndex
from rag.core.errors import ConfigError, MismatchedArtifactError
from rag.core.files import atomic_write_json, read_json
from rag.training.config import RefreshedConfig
from rag.training.distributed import World
from rag.training.exchange import Drift, Exchange, ExchangeSettings, Refresher
from rag.training.generations import Generation, Generations
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.encoders.layout import Query
from retrievers.protocols import TextEncoder
from retrievers.training.staleness import TOP_K, Probes, ProbeSet, compare

__all__ = ["HeldIndex", "IndexRefresher", "index_exchange", "index_key"]


def index_key(index: Index) -> str:
    """Says whose passages the rows of a refreshed index are."""
    return hashlib.sha256(str(index.manifest["passages"]["sha256"]).encode()).hexdigest()


class HeldIndex:
    """Passages, and their vectors as some step's model made them.

    Args:
        index: what is held until something newer is taken up.

    Attributes:
        passages: by row.
        version: of the index in use.

    Raises:
        ConfigError: the index has no vectors.
    """

    def __init__(self, index: Index) -> None:
        if index.dense is None:
            raise ConfigError(f"{index.directory} has no vectors", hint="build it with --retriever dense")
        self.passages, self.version = index.passages, index.version
        self._key = index_key(index)
        self._search: VectorIndex = index.dense

    def search(self, questions: Tensor, top_k: int) -> IntArray:
        """(B, K) rows of the best passages by the held vectors, best first; −1 where there are no more.

        Args:
            questions: (B, D) of the model as it is; no gradient flows back from rows.
        """
        return self._search.search(questions.detach().float().cpu().numpy(), top_k)[1]

    def take_up(self, generation: Generation) -> Mapping[str, float]:
        """Search what a refresher published from now on; returns its figures.

        Raises:
            MismatchedArtifactError: it is of another corpus.
        """
        embeddings = EmbeddingShards.open(generation.path / "embeddings")
        if generation.meta.get("key") != self._key or len(embeddings) != len(self.passages):
            raise MismatchedArtifactError(
                f"{generation.path} holds vectors of {len(embeddings)} passages of another corpus",
                hint="start trainer and refresher with the same configuration, or choose another --out",
            )
        self._search, self.version = FlatIndex(embeddings), generation.version
        found: dict[str, float] = read_json(generation.path / "figures.json")
        return found


class IndexRefresher(Refresher):
    """Makes indexes out of snapshots; a killed refresh goes on shard by shard.

    Args:
        config: of the run.
        out: its folder.
        index: whose passages are encoded again.
        temperature: the loss's, for the entropy of p(z|x).
        seed: of the probes.
        load: snapshot folder → encoder.
    """

    def __init__(
        self,
        config: RefreshedConfig,
        out: Path,
        index: Index,
        *,
        temperature: float,
        seed: int,
        load: Callable[[Path], TextEncoder] = BiEncoder.load,
    ) -> None:
        super().__init__(
            Generations(out / "snapshots"), Generations(out / "indexes"), key=index_key(index),
            keep=config.keep_generations, poll_s=config.poll_s,
        )  # fmt: skip
        self._passages, self._temperature, self._load = index.passages, temperature, load
        self._asked = probe_texts(index.passages, config.probe_questions, seed)
        self._watched = ProbeSet.draw(
            1, len(index.passages), questions=1, passages=config.probe_passages, seed=seed
        ).passages

    def build(self, snapshot: Generation, before: Generation | None, folder: Path) -> None:
        """Encode the corpus with a snapshot, and measure how far it is from the index before it."""
        encoder = self._load(snapshot.path / "encoder")
        embeddings = encode_corpus(
            folder / "embeddings", self._passages, encoder, "float32", check=self.check
        )
        scores, now = self._probe(embeddings, encoder)
        known = None
        if before is not None:
            old = EmbeddingShards.open(before.path / "embeddings").rows(self._watched)
            known = Probes(
                old, load_npy(before.path / "probe_rows.npy", dtype=np.int64, shape=now.rows.shape)
            )
        staleness = compare(
            known, now, scores, age_steps=snapshot.step - before.step if before is not None else 0,
            corpus=len(self._passages), temperature=self._temperature,
        )  # fmt: skip
        save_npy(folder / "probe_rows.npy", now.rows)
        atomic_write_json(folder / "figures.json", dict(staleness.record()))

    def _probe(self, embeddings: EmbeddingShards, encoder: TextEncoder) -> tuple[FloatArray, Probes]:
        asked = encoder.encode_queries([Query(text) for text in self._asked])
        scores, rows = FlatIndex(embeddings).search(asked, TOP_K)
        return scores, Probes(embeddings.rows(self._watched), rows)


def index_exchange(
    config: RefreshedConfig,
    out: Path,
    held: HeldIndex,
    index: Index,
    write_encoder: Callable[[Path], object],
    *,
    temperature: float,
    seed: int,
    show_steps: int,
    world: World,
    in_line: bool,
    precision: str = "auto",
    drift: Drift | None = None,
) -> Exchange:
    """Hooks of the fit loop: snapshots out, indexes in; the trainer never waits.

    Args:
        config: when, and how it is watched.
        out: folder of the run.
        held: what is swapped.
        index: what training starts with.
        write_encoder: puts the encoder as it is now into a folder; called in the main process.
        temperature: the loss's.
        precision: in which the corpus is encoded anew.
        seed: of the probes.
        show_steps: so long a refresh's figures stand in the log.
        world: the processes.
        in_line: refresh at once, in the main process; otherwise another process does (`IndexRefresher`).
        drift: measures how far the model has moved; needed if the schedule asks for it.
    """
    refresher = None
    if in_line and world.is_main:
        refresher = IndexRefresher(
            config, out, index, temperature=temperature, seed=seed,
            load=lambda folder: BiEncoder.load(folder, device=world.device, precision=precision),
        )  # fmt: skip
    return Exchange(
        ExchangeSettings(
            config.schedule_of_refresh, poll_every_steps=config.poll_every_steps, poll_s=config.poll_s,
            show_steps=show_steps, keep=config.keep_generations, in_line=in_line,
        ),
        Generations(out / "snapshots"),
        Generations(out / "indexes"),
        lambda folder: write_encoder(folder / "encoder"),
        held.take_up,
        world=world,
        key=index_key(index),
        refresher=refresher,
        drift=drift,
    )  # fmt: skip
