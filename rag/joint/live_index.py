"""An index that a trainer holds and searches with question vectors as they are now, while a refresher makes
the next one from a snapshot of the model.

    snapshots/       encoders that the trainer publishes
    indexes/         embeddings of the whole corpus by such an encoder, which the trainer swaps in

A published index holds `embeddings/` (float32, searched exactly), `probe_rows.npy` and `figures.json`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from indexers.embeddings import EmbeddingShards, encode_corpus, probe_texts
from indexers.exact import FlatIndex
from indexers.index import Index
from indexers.protocols import FloatArray, IntArray, VectorIndex
from rag.core.errors import ConfigError, MismatchedArtifactError
from rag.core.files import atomic_write_json, read_json
from rag.core.log import get_logger
from rag.core.npy import load_npy, save_npy
from rag.core.types import Passage, Query
from rag.joint.pair import part
from rag.training.config import RefreshedConfig
from rag.training.distributed import World
from rag.training.precision import MasterWeights
from rag.training.refresh.exchange import Exchange
from rag.training.refresh.generations import Generation, Generations
from rag.training.refresh.processes import Role, refresher_process
from rag.training.refresh.refresher import Refresher
from rag.training.refresh.staleness import TOP_K, DriftMeter, Probes, ProbeSet, compare
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.training.bi_encoder import (
    BiEncoderModel,
    adopt_index,
    encoder_form,
    export_model,
    load_model,
)
from retrievers.training.config import RetrieverTrainConfig

log = get_logger(__name__)


class HeldConfig(RefreshedConfig, RetrieverTrainConfig):
    """What a recipe reads that trains over an index, and makes it anew as `refresh` says.

    Attributes:
        index: built index with vectors; its encoder is what training starts from.
    """

    index: Path


def refresh_index(config: HeldConfig) -> Path:
    """Make the index anew with every newer snapshot of the trainer in `config.out`, until it has finished.

    Returns:
        The folder of the published indexes.

    Raises:
        MismatchedArtifactError: the run there has another configuration, corpus or index.
        ResourceError: another refresher works there, or the trainer was killed or is stopped.
    """
    with Index.open(config.index) as index:
        config = adopt_index(config, index, same_encoder=True)
        with refresher_process(config) as finished:
            temperature = load_model(config, "cpu").temperature
            refresher = IndexRefresher(config, index, temperature=temperature)
            refreshes = refresher.watch(finished)
    log.info("the trainer has finished; made the index anew %d times", refreshes)
    return config.out / "indexes"


def _key(index: Index) -> str:
    """Says whose passages the rows of a refreshed index are, and what the first one follows on."""
    return hashlib.sha256(f"{index.manifest['passages']['sha256']} {index.version}".encode()).hexdigest()


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
        self._key = _key(index)
        self._search: VectorIndex = index.dense

    def search(self, questions: Tensor, top_k: int) -> IntArray:
        """(B, K) rows of the best passages by the held vectors, best first; −1 where there are no more.

        Args:
            questions: (B, D) of the model as it is; no gradient flows back from rows.
        """
        return self._search.search(questions.detach().float().cpu().numpy(), top_k)[1]

    def passages_of(self, rows: IntArray) -> list[list[Passage]]:
        """The passages of each row of what `search` gives."""
        return [self.passages.get_many(own[own >= 0]) for own in rows]

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
        temperature: the loss's, for the entropy of p(z|x).
    """

    def __init__(self, config: HeldConfig, index: Index, *, temperature: float, device: str = "auto") -> None:
        super().__init__(
            Generations(config.out / "snapshots"), Generations(config.out / "indexes"), key=_key(index),
            keep=config.keep_generations, poll_s=config.poll_s,
        )  # fmt: skip
        self._index, self._passages, self._temperature = index, index.passages, temperature
        self._device, self._precision = device, config.optim.precision
        self._asked = probe_texts(index.passages, config.probe_questions, config.run.seed)
        self._watched = _watched(config, index)

    def build(self, snapshot: Generation, before: Generation | None, folder: Path) -> None:
        """Encode the corpus with a snapshot, and measure how far it is from the index before it, which is at
        first the one that training starts with."""
        encoder = BiEncoder.load(snapshot.path / "encoder", device=self._device, precision=self._precision)
        embeddings = encode_corpus(
            folder / "embeddings", self._passages, encoder, "float32", check=self.check
        )
        scores, rows = FlatIndex(embeddings).search(self._ask(encoder), TOP_K)
        now = Probes(embeddings.rows(self._watched), rows)
        age = snapshot.step - (before.step if before is not None else 0)
        staleness = compare(
            self._probed(before, rows.shape), now, scores, age_steps=age, corpus=len(self._passages),
            temperature=self._temperature,
        )  # fmt: skip
        save_npy(folder / "probe_rows.npy", rows)
        atomic_write_json(folder / "figures.json", dict(staleness.record()))

    def _ask(self, encoder: BiEncoder) -> FloatArray:
        return encoder.encode_queries([Query(text) for text in self._asked])

    def _probed(self, before: Generation | None, shape: tuple[int, ...]) -> Probes:
        if before is not None:
            old = EmbeddingShards.open(before.path / "embeddings").rows(self._watched)
            return Probes(old, load_npy(before.path / "probe_rows.npy", dtype=np.int64, shape=shape))
        index = self._index
        assert index.embeddings is not None
        assert index.dense is not None
        assert index.encoder_identity is not None
        first = BiEncoder.load_like(index.encoder_identity, device=self._device, precision=self._precision)
        _, rows = index.dense.search(self._ask(first), TOP_K)
        return Probes(index.embeddings.rows(self._watched).astype(np.float32), rows)


def index_exchange(
    config: HeldConfig,
    held: HeldIndex,
    index: Index,
    model: BiEncoderModel,
    master: MasterWeights,
    *,
    world: World,
    role: Role,
) -> Exchange:
    """Hooks of the fit loop: snapshots out, indexes in; the trainer never waits.

    Args:
        index: what training starts with; `held` is what is swapped.
        model: the encoder; its weights in fp32 are the `retriever.…` of `master`.
    """
    refresher = drift = None
    if role == "both" and world.is_main:
        refresher = IndexRefresher(config, index, temperature=model.temperature, device=world.device)
    if config.schedule_of_refresh.watches_drift:
        drift = DriftMeter(partial(_encode, model, index.passages.get_many(_watched(config, index))))
    form = replace(encoder_form(config, model), max_length=config.model.passage_tokens)
    return Exchange(
        config,
        Generations(config.out / "snapshots"),
        Generations(config.out / "indexes"),
        lambda folder: export_model(folder / "encoder", model, part(master.state(), "retriever"), form),
        held.take_up,
        world=world,
        key=_key(index),
        refresher=refresher,
        drift=drift,
        in_line=role == "both",
        show_steps=config.run.log_every_steps,
    )


def _watched(config: HeldConfig, index: Index) -> IntArray:
    """Rows of the passages that drift and staleness are measured on."""
    count = len(index.passages)
    return ProbeSet.draw(config, config.run.seed, questions=1, passages=count).passages


@torch.no_grad()
def _encode(model: BiEncoderModel, passages: Sequence[Passage]) -> FloatArray:
    model.eval()
    vectors: FloatArray = model.read(passages).float().cpu().numpy()
    model.train()
    return vectors
