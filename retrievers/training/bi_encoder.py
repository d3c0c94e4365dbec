"""The bi-encoder in training, one tower or two over any encoder: load, score, export."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from indexers.gold import CorpusTexts
from indexers.index import Index
from indexers.protocols import EncoderIdentity
from rag.core.arrays import Int64
from rag.core.errors import ConfigError, MismatchedArtifactError
from rag.core.log import get_logger
from rag.core.types import Passage, Query
from rag.runtime.backbone import reset_layers
from rag.runtime.model_files import TOWER_SEPARATOR, model_folder, tower_folders
from retrievers.encoders.export import write_encoder
from retrievers.encoders.folders import read_settings
from retrievers.encoders.open import load_like
from retrievers.encoders.settings import STATIC, TOKENS, EncoderSettings, warn_of_guesses
from retrievers.encoders.tokenization import TextTokenizer
from retrievers.encoders.tower import TokenIds, Tower
from retrievers.encoders.vectors import Vectors, score
from retrievers.training.config import BiEncoderConfig

ConfigT = TypeVar("ConfigT", bound=BiEncoderConfig)
_CPU_CHUNK = (64, 1 << 13)  # texts, tokens
_GPU_CHUNK = (1024, 1 << 16)
_KEPT_VECTORS = 1 << 16  # of passages that are not trained

log = get_logger(__name__)


class Sides(NamedTuple):
    """Settings of the question tower and of the passage tower; each holds the prefixes of both."""

    question: EncoderSettings
    passage: EncoderSettings


class RetrieverTokenizer:
    """Turns questions and passages into token ids, by the settings of either side; see
    `TextTokenizer`.
    """

    def __init__(
        self,
        question: EncoderSettings,
        passage: EncoderSettings,
        *,
        query_tokens: int | None = None,
    ) -> None:
        self.queries = TextTokenizer(question, query_tokens=query_tokens).queries
        self._passages = TextTokenizer(passage)

    def passages(self, passages: Sequence[Passage]) -> list[list[int]]:
        """Token ids of passages, in order."""
        titles = [passage.title for passage in passages]
        return self._passages.passages(titles, [passage.text for passage in passages])


class BiEncoderModel(nn.Module):
    """Question tower, passage tower (the same module if shared) and the scale of their scores.

    Parameters are named `question.…` and `passage.…` (two towers only).

    Attributes:
        question, passage: the towers.
        settings: how the towers read texts in training.
        dim: size D of the vectors.
        scale: factor on inner products, 1 / temperature.
        query_tokens: maximum length of a query with passages; None: as for questions.
    """

    def __init__(
        self,
        question: Tower,
        passage: Tower,
        settings: Sides,
        *,
        scale: float = 1.0,
        query_tokens: int | None = None,
    ) -> None:
        super().__init__()
        self.question = question
        self.passage = passage
        self.settings = settings
        self.dim = question.dim
        self.scale = scale
        self.query_tokens = query_tokens

    @property
    def shared(self) -> bool:
        """Whether one tower encodes both questions and passages."""
        return self.question is self.passage

    @property
    def device(self) -> str:
        """Where the parameters are."""
        return str(next(self.parameters()).device)

    def to_compute(self, dtype: torch.dtype) -> BiEncoderModel:
        """Compute encoders in `dtype`; pooling, projections and scores stay fp32. Returns self."""
        for tower in dict.fromkeys((self.question, self.passage)):
            tower.to_compute(dtype)
        return self

    def chunk(self, rows: int | None = None) -> tuple[int, int]:
        """Most texts and tokens that go through a tower at once; `rows` texts, if given, of any
        length.
        """
        if rows is not None:
            return rows, 1 << 62
        return _CPU_CHUNK if self.device == "cpu" else _GPU_CHUNK

    def encode_query_tokens(self, texts: Sequence[TokenIds]) -> Tensor:
        """Vectors (B, D) float32 of queries' token ids, in order; differentiable unless grad is
        off.
        """
        return self.question.encode(texts, self.chunk(), question=True).values

    def encode_passage_tokens(self, texts: Sequence[TokenIds]) -> Tensor:
        """Vectors (P, D) float32 of passages' token ids, in order; differentiable unless grad is
        off.
        """
        return self.passage.encode(texts, self.chunk()).values

    def encode_queries(self, queries: Sequence[Query]) -> Tensor:
        """Vectors (B, D) float32 of queries, in order; differentiable unless grad is off."""
        return self.encode_query_tokens(self.tokenizer.queries(queries))

    def encode_passages(self, passages: Sequence[Passage]) -> Tensor:
        """Vectors (P, D) float32 of passages, in order; differentiable unless grad is off."""
        return self.encode_passage_tokens(self.tokenizer.passages(passages))

    @cached_property
    def tokenizer(self) -> RetrieverTokenizer:
        """Turns questions and passages into the token ids that the towers read."""
        return RetrieverTokenizer(*self.settings, query_tokens=self.query_tokens)

    def score(self, questions: Vectors, passages: Vectors) -> Tensor:
        """Scores (B, P) of the vectors of B questions and P passages, over the temperature; see
        `score`.
        """
        return score(questions, passages) * self.scale


class TrainedRetriever(NamedTuple):
    """A bi-encoder in training and what it started from; made by `load_model`.

    Attributes:
        model: the towers.
        config: what they were loaded with, completed by what follows from an index.
        passage_index: an index whose vectors are the passages', so that the question tower alone is
            trained; None where the passage tower encodes them.
    """

    model: BiEncoderModel
    config: BiEncoderConfig
    passage_index: Index | None

    @property
    def encoder_settings(self) -> EncoderSettings:
        """How the finished encoder reads texts: as in training.

        One that was trained from a folder of sentence-transformers reads texts at least as long as
        that folder says. One whose passage vectors are an index's cuts passages as that index does.
        """
        settings = self.model.settings.passage
        if self.passage_index is not None:
            return settings
        length = max(self.config.longest_query, self.config.passage_tokens)
        start = model_folder(self.config.passage_encoder or self.config.question_encoder)
        start_settings = read_settings(tower_folders(start)[0])
        if start_settings.kind == "sentence-transformers":
            length = max(length, start_settings.max_length)
        return replace(settings, max_length=min(length, settings.max_length_limit()))


class FixedVectors:
    """Vectors of passages that training leaves as they are.

    Args:
        model: its passage tower, which is not trained, encodes passages that the index lacks.
        index: has the vectors of all others.
    """

    def __init__(self, model: BiEncoderModel, index: Index) -> None:
        self._model = model
        self._index = index
        self._texts = CorpusTexts(index.passages)
        self._vectors: dict[tuple[str, str], Tensor] = {}

    def of(self, passages: Sequence[Passage]) -> Vectors:
        """Vectors of passages, in order; those of the last passages are kept."""
        known = self._vectors
        if len(known) > _KEPT_VECTORS:
            known.clear()
        new = {passage.content: passage for passage in passages if passage.content not in known}
        if new:
            known.update(zip(new, self._look_up(list(new.values())), strict=True))
        vectors = [known[passage.content] for passage in passages]
        return Vectors(torch.stack(vectors).to(self._model.device))

    @torch.no_grad()
    def _look_up(self, passages: Sequence[Passage]) -> Tensor:
        """Vectors (P, D) on the CPU."""
        rows = np.array(list(map(self._row_of, passages)))
        embeddings = self._index.require_dense().embeddings
        vectors = torch.from_numpy(embeddings.rows(np.maximum(rows, 0)))
        missing = np.flatnonzero(rows < 0)
        if len(missing):
            encoded = self._model.encode_passages([passages[number] for number in missing.tolist()])
            vectors[missing] = encoded.cpu()
        return vectors

    def _row_of(self, passage: Passage) -> int:
        """The row of the index with this very title and text, or −1."""
        same = (
            row
            for row in self._texts.find(passage)
            if self._index.passages[row].content == passage.content
        )
        return max(same, default=-1)


def load_model(
    config: BiEncoderConfig,
    device: str,
    *,
    passage_index: Index | None = None,
    same_encoder: bool = False,
) -> TrainedRetriever:
    """The retriever that training starts from, in fp32 and training mode.

    An index that the configuration names gives the encoder, as the configuration's help says.

    Args:
        passage_index: an index whose settings the configuration has (`adopt_index`), and whose
            vectors are the passages'; None: that of the configuration, if it `keeps_index`.
        same_encoder: see `adopt_index`.

    Raises:
        ConfigError: the settings of the towers do not go together.
        MismatchedArtifactError: the towers' vectors differ in size, or the index was built with
            an encoder that has changed since.
    """
    if config.index is not None and config.keeps_index:
        passage_index = Index.open(config.index)
        config = adopt_index(config, passage_index, same_encoder=same_encoder)
    config = start_from_index(config)
    is_frozen = passage_index is not None or config.frozen is not None
    if is_frozen and config.shared:
        raise ConfigError(
            "a shared tower cannot be frozen for passages alone", hint="set shared=false"
        )
    sides = _read_sides(config)
    question = _load_tower(config, sides.question, config.seed, device)
    passage = question
    if is_frozen:
        # A tower that is not trained has no dropout.
        passage = _load_tower(config.replaced(dropout=0.0), sides.passage, config.seed + 1, device)
        passage.requires_grad_(False)
    elif not config.shared:
        passage = _load_tower(config, sides.passage, config.seed + 1, device)
    if question.dim != passage.dim:
        raise MismatchedArtifactError(
            f"the vectors of {sides.question.weights_dir} have {question.dim} dimensions, those of "
            f"{sides.passage.weights_dir} have {passage.dim}",
            hint="set projection_dim to bring both to one size",
        )
    temperature = config.temperature
    if temperature == "auto":
        temperature = 0.05 if sides.question.similarity == "cosine" else 1.0
    longest = config.longest_query
    if passage_index is not None:
        # The finished encoder cuts all texts as the index does.
        longest = min(longest, sides.passage.max_length)
    model = BiEncoderModel(question, passage, sides, scale=1.0 / temperature, query_tokens=longest)
    model.to(device).train()
    return TrainedRetriever(model, config, passage_index)


def _load_tower(
    config: BiEncoderConfig, settings: EncoderSettings, seed: int, device: str
) -> Tower:
    tower = Tower.load(
        settings,
        projection_dim=config.projection_dim,
        projection_norm=config.projection_norm,
        dropout=config.dropout,
        lora=config.lora,
        seed=seed,
        device=device,
    )
    reset_layers(tower.encoder, config.reset_layers, config.seed)
    return tower


def _read_sides(config: BiEncoderConfig) -> Sides:
    """The settings of both towers for training."""
    question_folder = tower_folders(model_folder(config.question_encoder))[1]
    passage_folder = question_folder
    if not config.shared:
        source = config.passage_encoder or config.question_encoder
        passage_folder = tower_folders(model_folder(source))[0]
    question = _read_side(config, question_folder, config.question_tokens)
    passage = _read_side(config, passage_folder, config.passage_tokens)
    warn_of_guesses(question, passage)
    if (question.pooling, question.normalize) != (passage.pooling, passage.normalize):
        raise ConfigError(
            f"the towers pool differently: {question.pooling}, normalised: {question.normalize}, "
            f"and {passage.pooling}, normalised: {passage.normalize}",
            hint="set pooling and normalize",
        )
    return Sides(
        replace(question, passage_prefix=passage.passage_prefix),
        replace(
            passage,
            query_prefix=question.query_prefix,
            straight_apostrophes=question.straight_apostrophes,
        ),
    )


def _read_side(config: BiEncoderConfig, folder: Path, tokens: int) -> EncoderSettings:
    """The settings of a folder, changed as the configuration says."""
    stored = read_settings(folder)
    # A network that was no encoder yet is trained on its [CLS] vector, as DPR is.
    has_no_pooling = config.pooling == "auto" and stored.kind == "transformers"
    return stored.override(
        pooling="cls" if has_no_pooling else config.pooling,
        normalize=config.normalize,
        on_tokens=config.on_tokens,
        query_prefix=config.query_prefix,
        passage_prefix=config.passage_prefix,
        layout=config.layout,
        max_length=tokens,
        query_tokens=config.question_tokens,
    )


def export_model(
    folder: Path,
    model: BiEncoderModel,
    weights: Mapping[str, Tensor],
    settings: EncoderSettings,
    *,
    question_only: bool = False,
) -> Path:
    """Write the encoder with these weights; see `write_encoder` for the layouts.

    Args:
        model: gives tokenizers and the weights that are not in `weights`.
        weights: fp32, by the model's parameter names; empty takes the model's present ones.
        question_only: write the question tower alone, as an encoder of its own.
    """
    passage = None if question_only or model.shared else model.passage
    with torch.no_grad():
        return write_encoder(folder, model.question, passage, weights, settings)


def snapshot_writer(
    model: BiEncoderModel,
    weights: Callable[[], Mapping[str, Tensor]],
    *,
    max_length: int,
) -> Callable[[Path], object]:
    """Writes the model with its present weights into the folder `encoder`, for
    `rag.training.refresh`.
    """
    settings = replace(model.settings.passage, max_length=max_length)
    return lambda folder: export_model(folder / "encoder", model, weights(), settings)


def adopt_index(config: ConfigT, index: Index, *, same_encoder: bool = False) -> ConfigT:
    """The configuration with all settings that follow from an index whose vectors are used for
    passages.

    Args:
        same_encoder: require that an encoder named in the configuration is that of the index.

    Raises:
        MismatchedArtifactError: it is not, or the index's encoder has changed since it was built.
    """
    identity = index.require_dense().encoder
    if identity.pooling == STATIC:
        raise ConfigError(
            f"{config.index} was built with {identity.name}, a static encoder, which is not trained here",
            hint="build the index with another encoder",
        )
    name = config.question_encoder
    pair = name
    passages, separator, _ = identity.name.partition(TOWER_SEPARATOR)
    if name and separator:
        pair = f"{passages}{separator}{name}"
    # Encoders that encode nothing: their settings are read, and no weights loaded.
    start = load_like(identity, pair, precision="fp32").identity
    if same_encoder or name is None:
        index.check_encoder(start)
    else:
        index.check_encoder(load_like(identity, precision="fp32").identity)
        if start.weights_sha256 != identity.weights_sha256:
            log.warning("questions start from %s, the vectors are those of %s", name, identity.name)
    settings = {**_encoders_of(config, identity), **identity.options()}
    settings["passage_tokens"] = settings.pop("max_length")
    return config.replaced(**settings)


def start_from_index(config: ConfigT) -> ConfigT:
    """The configuration, with the encoder of its index as the start of training where it names no
    other.

    Settings of how texts become vectors follow that encoder too, unless the configuration states
    them. The embedded encoder stays the start where the index has no vectors, or an encoder of
    another kind.
    """
    if config.index is None or config.question_encoder is not None or config.keeps_index:
        return config
    with Index.open(config.index) as index:
        identity = index.encoder_identity
        is_late = identity is not None and identity.pooling == TOKENS and config.pooling != TOKENS
        if identity is None or identity.pooling == STATIC or is_late:
            log.warning(
                "training starts from the embedded encoder: %s has none for this", config.index
            )
            return config
        index.check_encoder(load_like(identity, precision="fp32").identity)
    log.info("training starts from %s, the encoder of %s", identity.name, config.index)
    settings = _encoders_of(config, identity)
    # An encoder of a vector per text gives its weights alone to one of a vector per token.
    if config.pooling != TOKENS or identity.pooling == TOKENS:
        settings |= identity.options()
        del settings["max_length"]
    values = config.model_dump()
    unset = {name: value for name, value in settings.items() if values[name] in (None, "auto")}
    return config.replaced(**unset)


def _encoders_of(config: BiEncoderConfig, identity: EncoderIdentity) -> dict[str, Any]:
    """The encoders of an index."""
    passages, _, questions = identity.name.partition(TOWER_SEPARATOR)
    of_passages, of_questions = tower_folders(model_folder(passages))
    if config.shared and (questions or of_passages != of_questions):
        raise ConfigError(
            f"{identity.name} encodes questions and passages with different weights, and shared is true",
            hint="set shared=false",
        )
    return {
        "question_encoder": config.question_encoder or questions or passages,
        "passage_encoder": passages,
    }


def listed_scores(
    questions: Tensor, vectors: Tensor, positions: Tensor, scale: float = 1.0
) -> Tensor:
    """(B, K) scaled inner products of each question with the passages of its own list.

    Args:
        vectors: (U, D) of distinct passages.
        positions: (B, K) int64 rows of `vectors`; −1 where a list is shorter, which scores −inf.

    Example:
        >>> listed_scores(torch.eye(2), torch.eye(2), torch.tensor([[1, 0], [1, -1]])).tolist()
        [[0.0, 1.0], [1.0, -inf]]
    """
    positions = positions.to(vectors.device)
    scores = torch.einsum("bd,bkd->bk", questions, vectors[positions.clamp_min(0)]) * scale
    return scores.masked_fill(positions < 0, float("-inf"))


def score_rows(
    model: BiEncoderModel, index: Index, queries: Tensor, rows: Int64, *, encode: bool = False
) -> Tensor:
    """Scores (B, K), over the temperature, of queries' vectors (B, D) and the passages in `rows`
    (B, K) of an index; −inf where a row is −1. Differentiable in the queries.

    Args:
        encode: encode the passages with the model as it is, with gradient, in place of the index's
            vectors.
    """
    distinct, inverse = np.unique(np.maximum(rows, 0), return_inverse=True)
    if encode:
        vectors = model.encode_passages(index.passages.get_many(distinct))  # (U, D)
    else:
        stored = index.require_dense().embeddings.rows(distinct)
        vectors = torch.from_numpy(stored).to(queries.device)
    positions = torch.from_numpy(np.where(rows < 0, -1, inverse.reshape(rows.shape)))
    return listed_scores(queries, vectors, positions, model.scale)
