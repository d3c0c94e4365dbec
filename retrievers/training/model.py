"""The bi-encoder as it is trained: one tower or two over any encoder, and the score between them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from rag.core.errors import ConfigError, MismatchedArtifactError
from rag.runtime.fast.packing import plan_batches
from rag.runtime.model_files import model_folder, tower_folders
from retrievers.encoders.scoring import score
from retrievers.encoders.settings import EncoderSettings, read_settings
from retrievers.encoders.vectors import Vectors
from retrievers.training.towers import TrainableTower

__all__ = ["BiEncoderModel", "Sides"]

Int32 = npt.NDArray[np.int32]

UNIT_TEMPERATURE = 0.05
_LARGEST_SCALE = 100.0
_CPU_CHUNK = (64, 1 << 13)  # texts, tokens
_GPU_CHUNK = (1024, 1 << 16)


@dataclass(frozen=True, slots=True)
class Sides:
    """What decides, beside the weights, which vectors each side's texts get; both state both prefixes."""

    question: EncoderSettings
    passage: EncoderSettings


class BiEncoderModel(nn.Module):
    """Question tower, passage tower (the same module if shared) and the scale of their scores.

    Made by `from_folder`. Parameters are named `question.…`, `passage.…` (two towers only) and `log_scale`
    (learned temperature only).

    Attributes:
        question, passage: the towers.
        shared: whether they are one.
        settings: what a finished encoder's folder has to say.
        dim: size D of the vectors.
    """

    def __init__(
        self,
        question: TrainableTower,
        passage: TrainableTower,
        settings: Sides,
        *,
        temperature: float = 1.0,
        learn_temperature: bool = False,
    ) -> None:
        super().__init__()
        self.question, self.passage = question, passage
        self.settings = settings
        self.dim = question.dim
        scale = torch.tensor(-math.log(temperature))
        self.log_scale = nn.Parameter(scale, requires_grad=learn_temperature)

    @classmethod
    def from_folder(
        cls,
        question_encoder: str | Path | None = None,
        passage_encoder: str | Path | None = None,
        *,
        shared: bool = True,
        pooling: str = "auto",
        normalize: bool | Literal["auto"] = "auto",
        temperature: float | Literal["auto"] = "auto",
        learn_temperature: bool = False,
        projection_dim: int = 0,
        projection_norm: bool = False,
        on_tokens: bool | None = None,
        segments: bool | None = None,
        query_prefix: str | None = None,
        passage_prefix: str | None = None,
        layout: str | None = None,
        question_tokens: int = 64,
        passage_tokens: int = 256,
        dropout: float | None = None,
        seed: int = 0,
        device: str = "cpu",
    ) -> BiEncoderModel:
        """Load the encoders that training starts from, in fp32 and training mode.

        Args:
            question_encoder: folder or Hugging Face name; None is the embedded all-MiniLM-L6-v2. A folder
                with two towers gives both.
            passage_encoder: another one for passages; None: the same.
            shared: one tower for both sides.
            pooling: "auto" is what the folder says, "cls" where it says nothing.
            normalize: unit vectors; "auto" is what the folder says.
            temperature: scores are divided by it; "auto" is 0.05 for unit vectors, else 1.
            learn_temperature: train it, starting from `temperature`.
            projection_dim: size of a new linear layer in the head; 0 keeps what the folder has.
            projection_norm: LayerNorm behind the new layer.
            on_tokens: the head's layers act on every token, before pooling; None is what the folder says.
            segments: second segments get the token type 1; None is what the folder says.
            query_prefix, passage_prefix, layout: replace what the folder says.
            question_tokens, passage_tokens: longest texts, special tokens included.
            dropout: replaces the configuration's probabilities, if given.
            seed: of a new layer's weights.
            device: "cpu" or "cuda:N".

        Raises:
            ArtifactError: an encoder cannot be loaded.
            MismatchedArtifactError: the towers' vectors differ in size.
            ConfigError: a setting does not fit the encoders.
        """
        question_folder = tower_folders(model_folder(question_encoder))[1]
        source = question_encoder if passage_encoder is None else passage_encoder
        passage_folder = question_folder if shared else tower_folders(model_folder(source))[0]
        if shared and passage_encoder is not None and str(passage_encoder) != str(question_encoder):
            raise ConfigError(
                f"a shared tower cannot start from two encoders ({question_encoder}, {passage_encoder})",
                hint="set shared=false for two towers",
            )
        sides = []
        for folder, tokens in ((question_folder, question_tokens), (passage_folder, passage_tokens)):
            found = read_settings(folder)
            unsaid = pooling == "auto" and found.kind == "transformers"
            sides.append(
                found.override(
                    pooling="cls" if unsaid else None if pooling == "auto" else pooling,
                    normalize=None if normalize == "auto" else normalize,
                    segments=segments,
                    on_tokens=on_tokens,
                    query_prefix=query_prefix,
                    passage_prefix=passage_prefix,
                    layout=layout,
                    max_length=tokens,
                )
            )
        of_question, of_passage = sides
        if (of_question.pooling, of_question.normalize) != (of_passage.pooling, of_passage.normalize):
            raise ConfigError(
                f"the towers pool differently: {of_question.pooling}, normalised: {of_question.normalize}, "
                f"and {of_passage.pooling}, normalised: {of_passage.normalize}",
                hint="set pooling and normalize",
            )
        question = TrainableTower.load(
            of_question,
            projection_dim=projection_dim,
            projection_norm=projection_norm,
            dropout=dropout,
            seed=seed,
            device=device,
        )
        passage = question
        if not shared:
            passage = TrainableTower.load(
                of_passage,
                projection_dim=projection_dim,
                projection_norm=projection_norm,
                dropout=dropout,
                seed=seed + 1,
                device=device,
            )
        if question.dim != passage.dim:
            raise MismatchedArtifactError(
                f"{question_folder} makes vectors of {question.dim} numbers, {passage_folder} of "
                f"{passage.dim}",
                hint="set projection_dim to bring both to one size",
            )
        if temperature == "auto":
            temperature = UNIT_TEMPERATURE if of_question.normalize else 1.0
        settings = Sides(
            replace(of_question, passage_prefix=of_passage.passage_prefix),
            replace(of_passage, query_prefix=of_question.query_prefix),
        )
        model = cls(question, passage, settings, temperature=temperature, learn_temperature=learn_temperature)
        return model.to(device).train()

    @property
    def shared(self) -> bool:
        """Whether one tower does both."""
        return self.question is self.passage

    @property
    def device(self) -> str:
        """Where the parameters are."""
        return str(self.log_scale.device)

    @property
    def temperature(self) -> float:
        """What scores are divided by at present."""
        return 1.0 / float(self.scale.detach())

    @property
    def scale(self) -> Tensor:
        """Factor on inner products, 1 / temperature; learned ones stay at or below 100."""
        scale = self.log_scale.exp()
        return scale.clamp(max=_LARGEST_SCALE) if self.log_scale.requires_grad else scale

    def score_parameters(self) -> list[nn.Parameter]:
        """Trained parameters that act on scores, not on vectors."""
        return [self.log_scale] if self.log_scale.requires_grad else []

    def to_compute(self, dtype: torch.dtype) -> BiEncoderModel:
        """Compute encoders in `dtype`; pooling, projections and scores stay fp32. Returns self."""
        for tower in dict.fromkeys((self.question, self.passage)):
            tower.to_compute(dtype)
        return self

    def freeze(self, side: Literal["question", "passage"]) -> BiEncoderModel:
        """Train the other side only. Returns self.

        Raises:
            ConfigError: there is one tower for both.
        """
        if self.shared:
            raise ConfigError(f"a shared tower cannot be frozen for {side}s alone", hint="set shared=false")
        getattr(self, side).requires_grad_(False)
        return self

    def chunk(self, rows: int | None = None) -> tuple[int, int]:
        """Most texts and most tokens that go through a tower at once; `rows` replaces the usual number."""
        usual, tokens = _CPU_CHUNK if self.device == "cpu" else _GPU_CHUNK
        return (usual, tokens) if rows is None else (rows, 1 << 62)

    def encode_questions(self, texts: Sequence[Int32]) -> Tensor:
        """Vectors (B, D) float32 of questions' token ids, in order; differentiable unless grad is off."""
        return self.vectors(self.question, texts).values

    def encode_passages(self, texts: Sequence[Int32]) -> Tensor:
        """Vectors (P, D) float32 of passages' token ids, in order; differentiable unless grad is off."""
        return self.vectors(self.passage, texts).values

    def vectors(self, tower: TrainableTower, texts: Sequence[Int32]) -> Vectors:
        """The vector or vectors of each text by one of the towers, in order."""
        rows, tokens = self.chunk()
        plan = plan_batches([len(text) for text in texts], max_rows=rows, max_tokens=tokens)
        parts = Vectors.joined([tower([texts[row] for row in chunk]) for chunk in plan])
        return parts.take(np.argsort([row for chunk in plan for row in chunk]).tolist())

    def score(self, questions: Vectors, passages: Vectors) -> Tensor:
        """Scores (B, P) of the vectors of B questions and P passages, over the temperature; see `score`."""
        return score(questions, passages) * self.scale

    def forward(self, questions: Sequence[Int32], passages: Sequence[Int32]) -> Tensor:
        """Scores (B, P) of token ids."""
        return self.score(self.vectors(self.question, questions), self.vectors(self.passage, passages))

    def towers(self) -> Iterator[tuple[str, TrainableTower]]:
        """Prefix of the parameter names and tower, once each."""
        yield "question.", self.question
        if not self.shared:
            yield "passage.", self.passage
