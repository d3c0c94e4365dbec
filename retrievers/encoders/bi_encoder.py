"""Bi-encoders: questions and passages become vectors whose inner product says how well they fit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from indexers.protocols import EncoderIdentity
from rag.core.arrays import Float32
from rag.core.errors import ConfigError, MismatchedArtifactError
from rag.core.log import get_logger
from rag.core.types import Query
from rag.runtime.backbone import run_by_length
from rag.runtime.hardware import core_pool, resolve_device, resolve_precision
from rag.runtime.model_files import (
    EMBEDDED_ENCODER_NAMES,
    TOWER_SEPARATOR,
    model_folder,
    tower_folders,
)
from retrievers.encoders.base import Encoder
from retrievers.encoders.folders import read_settings
from retrievers.encoders.guesses import is_named
from retrievers.encoders.settings import STATIC, EncoderSettings, findable_name, warn_of_guesses
from retrievers.encoders.tokenization import TextTokenizer
from retrievers.encoders.tower import Tower
from retrievers.encoders.vectors import Vectors

WINDOW_ROWS = 8192  # passages that are sorted by length together
CPU_BATCH_TOKENS = 2048  # tokens per core at a time; more do not fit its cache
GPU_BATCH_TOKENS = 1 << 16
# Parts of published names of a passage tower and its question tower.
_PUBLISHED_TOWERS = (
    ("ctx_encoder", "question_encoder"),
    ("context-encoder", "query-encoder"),
    ("dpr-context", "dpr-question"),
)

log = get_logger(__name__)


class BiEncoder(Encoder):
    """Any Hugging Face bi-encoder, one shared tower or two. Made by `load`.

    Texts are sorted by length within windows of 8,192 and cut into batches by token count; each
    core computes whole batches. Vectors come back in the order of the texts. The same call gives
    the same bytes, however many cores there are.

    Attributes:
        precision: "fp32" or "bf16" for passages, with "auto" resolved.
        query_precision: "fp32" or "bf16" for questions.
    """

    def __init__(
        self, passage: LazyTower, query: LazyTower, identity: EncoderIdentity, *, batch_size: int
    ) -> None:
        super().__init__(identity)
        self._passage = passage
        self._query = query
        self.precision = passage.precision
        self.query_precision = query.precision
        self.batch_size = batch_size

    @classmethod
    def load(
        cls,
        name_or_path: str | Path | None = None,
        *,
        device: str = "auto",
        precision: str = "auto",
        batch_size: int | None = None,
        **changes: Any,
    ) -> BiEncoder:
        """Load a bi-encoder.

        Args:
            name_or_path: a folder, a Hugging Face name, or None for the embedded all-MiniLM-L6-v2.
                A folder with two sub-folders, such as `passage_encoder` and `query_encoder`, holds
                both towers; "PASSAGES + QUESTIONS" names two.
            device: "auto", "cpu", "cuda" or "cuda:N".
            precision: "fp32", "bf16", or "auto": bf16 for passages where the hardware multiplies it
                faster, fp32 for questions.
            batch_size: most texts in a batch; default 32 on CPU, 256 on a GPU.
            changes: in place of the folder's settings, see `EncoderOptions`.

        Raises:
            ConfigError: a setting is not one of the above.
            ArtifactError: the model is not there, lacks weights, or has unknown parts.
            MismatchedArtifactError: the towers' vectors do not fit together, or it is one tower of
                two.
        """
        device = resolve_device(device)
        is_bf16 = resolve_precision(precision, device) == torch.bfloat16
        of_passages = "bf16" if is_bf16 else "fp32"
        # Questions are short, and rounding both sides moves twice as many passages over the edge of
        # the best ten as rounding one.
        of_queries = "fp32" if precision == "auto" else of_passages
        names = str(name_or_path or EMBEDDED_ENCODER_NAMES[0]).split(TOWER_SEPARATOR, 1)
        passage_settings, query_settings = _read_sides(names, changes)
        is_shared = query_settings is passage_settings
        passage = LazyTower(passage_settings, device, of_passages)
        query = passage
        if not is_shared or of_passages != of_queries:
            query = LazyTower(query_settings, device, of_queries)
        name = TOWER_SEPARATOR.join(map(findable_name, names))
        identity = passage_settings.identity(name, None if is_shared else query_settings)
        if batch_size is None:
            batch_size = 256 if device.startswith("cuda") else 32
        return cls(passage, query, identity, batch_size=batch_size)

    def encode_passages(self, titles: Sequence[str], texts: Sequence[str]) -> Float32:
        """Vectors (n, D) float32 of passages, in order.

        Raises:
            ConfigError: the encoder makes several vectors per text.
        """
        return self._one_per_text(self.passage_tokens(titles, texts))

    def encode_queries(self, queries: Sequence[Query]) -> Float32:
        """Vectors (n, D) float32 of questions with the passages retrieved for them so far, in
        order.
        """
        return self._one_per_text(self._encode_queries(queries))

    def passage_tokens(self, titles: Sequence[str], texts: Sequence[str]) -> Vectors:
        """All vectors of passages, for an encoder with several vectors per text (pooling
        "tokens").
        """
        tokenizer = self._passage.tokenizer
        windows = (tokenizer.passages(titles[rows], texts[rows]) for rows in _windows(len(texts)))
        return self._encode(self._passage, windows, question=False)

    def question_tokens(self, questions: Sequence[str]) -> Vectors:
        """All vectors of questions, for an encoder with several vectors per text."""
        return self._encode_queries(list(map(Query, questions)))

    def _encode_queries(self, queries: Sequence[Query]) -> Vectors:
        tokenizer = self._query.tokenizer
        windows = (tokenizer.queries(queries[rows]) for rows in _windows(len(queries)))
        return self._encode(self._query, windows, question=True)

    def _one_per_text(self, vectors: Vectors) -> Float32:
        if vectors.lengths is not None:
            raise ConfigError(
                f"{self.identity.name} makes one vector per token, expected one per text",
                hint="use a pooling such as cls or mean, or an index of token vectors",
            )
        return np.asarray(vectors.values.numpy(), dtype=np.float32)

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return core_pool()

    def _encode(
        self, tower: LazyTower, windows: Iterable[list[list[int]]], *, question: bool
    ) -> Vectors:
        texts = "questions" if question else "passages"
        has_warned = tower.tokenizer.cut[texts] > 0
        count = 0
        parts = []
        for sequences in windows:
            count += len(sequences)
            parts.append(self._encode_window(tower, sequences, question=question))
        cut = tower.tokenizer.cut[texts]
        if cut and not has_warned:
            log.warning(
                "%d of %d %s are longer than the %d tokens that %s reads: their ends do not count "
                "(later ones are not reported; the split words100 makes shorter passages)",
                cut,
                count,
                texts,
                tower.tokenizer.question_limit if question else self.identity.max_length,
                self.identity.name,
            )
        return Vectors.joined(parts) if parts else Vectors(torch.empty(0, self.dim))

    def _encode_window(
        self, tower: LazyTower, sequences: list[list[int]], *, question: bool
    ) -> Vectors:
        """The vectors of some texts on the CPU; a GPU is parallel inside one batch."""
        network = tower.network

        @torch.inference_mode()
        def run(rows: list[int]) -> Vectors:
            return network([sequences[row] for row in rows], question=question).cpu()

        limits = (self.batch_size, GPU_BATCH_TOKENS)
        map_batches: Callable[..., Iterable[Vectors]] = map
        if tower.device == "cpu":
            limits = (self.batch_size, CPU_BATCH_TOKENS)
            map_batches = self._pool.map
        lengths = list(map(len, sequences))
        parts, order = run_by_length(
            run, lengths, limits, map_batches=map_batches, done=self._report
        )
        return Vectors.joined(parts).take(order)


@dataclass(eq=False)
class LazyTower:
    """A tower with its tokenizer; the tower's weights are loaded when the first text comes.

    Indexing then never holds a question tower, nor serving a passage tower.
    """

    settings: EncoderSettings
    device: str
    precision: str

    def __post_init__(self) -> None:
        self.tokenizer = TextTokenizer(self.settings)
        self._network: Tower | None = None
        self._lock = threading.Lock()

    @property
    def network(self) -> Tower:
        """The tower, for inference."""
        with self._lock:
            if self._network is None:
                self._network = Tower.load(
                    self.settings, device=self.device, train=False, precision=self.precision
                ).requires_grad_(False)
            return self._network


def _windows(count: int) -> Iterator[slice]:
    """The places of the texts that are sorted by length together."""
    for start in range(0, count, WINDOW_ROWS):
        yield slice(start, start + WINDOW_ROWS)


def _read_sides(
    names: Sequence[str], changes: Mapping[str, Any]
) -> tuple[EncoderSettings, EncoderSettings]:
    """The settings of passage tower and question tower, which are one object where the tower is
    shared.
    """
    passage_folder, query_folder = tower_folders(model_folder(names[0]))
    if len(names) > 1:
        query_folder = tower_folders(model_folder(names[1]))[1]
    passage = read_settings(passage_folder).override(**changes)
    query = passage
    if query_folder.resolve() != passage_folder.resolve():
        query = read_settings(query_folder)
        limit = min(passage.max_length, query.max_length_limit())
        query = query.override(**{**changes, "max_length": limit})
        if changes.get("query_prefix") is None and not query.query_prefix:
            query = query.override(query_prefix=passage.query_prefix or None)
    if STATIC in (passage.pooling, query.pooling):
        name = TOWER_SEPARATOR.join(names)
        raise ConfigError(f"{name}: a static encoder is no tower", hint="give its folder alone")
    _check_towers(passage, query, names, is_new=changes.get("layout") is None)
    warn_of_guesses(passage, query)
    if (passage.dim, passage.normalize) != (query.dim, query.normalize):
        raise MismatchedArtifactError(
            f"the vectors of {passage.weights_dir} have {passage.dim} dimensions, normalised: "
            f"{passage.normalize}; those of {query.weights_dir} have {query.dim}, normalised: "
            f"{query.normalize}",
            hint="give the two towers of one model",
        )
    return passage, query


def _check_towers(
    passage: EncoderSettings, query: EncoderSettings, names: Sequence[str], *, is_new: bool
) -> None:
    """Refuse one tower of two for both sides, and two in the wrong order.

    Args:
        is_new: an index's encoder, whose settings are known, is not warned about again.
    """
    if passage.tower in ("", "passage") and query.tower in ("", "question"):
        if is_new and passage is query and is_named(Path(names[0]), "tower"):
            log.warning(
                "%s is one tower of two by its name, and reads questions and passages; both: %s",
                names[0],
                _pair_of(names[0]),
            )
        return
    found = f"{names[0]} is the {passage.tower} tower of a model that has two"
    if passage is not query:
        found = (
            f"{passage.weights_dir} comes first and is a {passage.tower or 'passage'} tower, "
            f"{query.weights_dir} comes second and is a {query.tower or 'question'} tower"
        )
    hint = f"give both, the passage tower first: {_pair_of(names[0])}"
    raise MismatchedArtifactError(found, hint=hint)


def _pair_of(name: str) -> str:
    """The names of both towers in quotes, where the name of one says the other's."""
    for passage, question in _PUBLISHED_TOWERS:
        pair = [name.replace(question, passage), name.replace(passage, question)]
        is_folder = Path(name).is_dir()
        if pair[0] != pair[1] and all(Path(side).is_dir() == is_folder for side in pair):
            return f'"{TOWER_SEPARATOR.join(pair)}"'
    return f'"PASSAGES{TOWER_SEPARATOR}QUESTIONS"'
