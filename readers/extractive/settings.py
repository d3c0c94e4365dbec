"""What a reader folder says about itself beside its weights: `reader.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from rag.config import Config
from rag.core.errors import ArtifactError, ConfigError, DataError, IncompleteArtifactError
from rag.core.files import atomic_write_json, read_json

__all__ = [
    "READER_FILE",
    "Calibration",
    "ReaderManifest",
    "ReaderSettings",
    "read_manifest",
    "with_overrides",
]

READER_FILE = "reader.json"
FORMAT_VERSION = 1


class ReaderSettings(Config):
    """How passages are laid out, searched and ranked.

    Attributes:
        titled: the title stands before the text.
        final_separator: rows end with the tokenizer's closing tokens.
        max_tokens: longest row; a longer passage is read in windows.
        stride_tokens: tokens that neighbouring windows share.
        question_tokens, title_tokens: over-long questions and titles are cut here.
        max_answer_tokens: longest answer.
        spans_per_window: candidates taken from each window.
        candidates: different answers kept per question; confidences are relative to these.
        retrieval_weight: w in score = span score − w·ln(1 + rank of the passage by retrieval score).
        merge: the same answer in several passages counts by its best place ("max") or adds up ("sum").
        null: how the passages' "no answer here" scores become one: their "max", "mean" or "min", or that of
            the passage with the best answer ("best").
        select: passages are chosen by their own logit, spans within the chosen one (DPR), instead of by
            spans alone.
        answer_types: "yes" and "no" are answers, where the network says them.
        skim_layer: layer on which the network's early head sits; 0: it has none.
        words: answers may begin and end inside words ("any"), are searched among whole words only
            ("whole"), or are extended to whole words afterwards ("extend", as DPR does). Known for
            WordPiece tokenizers only.
    """

    titled: bool = True
    final_separator: bool = True
    max_tokens: int = Field(default=384, ge=16)
    stride_tokens: int = Field(default=96, ge=0)
    question_tokens: int = Field(default=64, ge=1)
    title_tokens: int = Field(default=16, ge=0)
    max_answer_tokens: int = Field(default=30, ge=1)
    spans_per_window: int = Field(default=8, ge=1)
    candidates: int = Field(default=20, ge=1)
    retrieval_weight: float = Field(default=0.0, ge=0)
    merge: Literal["max", "sum"] = "max"
    null: Literal["max", "mean", "min", "best"] = "max"
    select: bool = False
    answer_types: bool = False
    skim_layer: int = Field(default=0, ge=0)
    words: Literal["any", "whole", "extend"] = "whole"

    @model_validator(mode="after")
    def _cross_check(self) -> ReaderSettings:
        room = self.max_tokens - self.question_tokens - (self.title_tokens if self.titled else 0) - 6
        if room < 8:
            raise ValueError(
                f"max_tokens ({self.max_tokens}) leaves {room} tokens for the text beside a question of "
                f"{self.question_tokens} and a title of {self.title_tokens}"
            )
        return self


class Calibration(Config):
    """Temperature and null bias that turn scores into probabilities; 1 and 0 where nothing was fitted."""

    temperature: float = Field(default=1.0, gt=0)
    null_bias: float = 0.0
    questions: int = Field(default=0, ge=0, description="held-out questions it was fitted on; 0 = not fitted")


class ReaderManifest(Config):
    """The content of `reader.json`.

    `ranges_file` holds the ranges of activations that int8 inference needs; a reader without one computes in
    bf16 or fp32.
    """

    format_version: int = FORMAT_VERSION
    kind: Literal["extractive"] = "extractive"
    name: str
    weights_file: str
    weights_sha256: str
    ranges_file: str | None = None
    ranges_sha256: str | None = None
    settings: ReaderSettings = ReaderSettings()
    calibration: Calibration = Calibration()

    def save(self, folder: Path) -> None:
        """Write `reader.json` into `folder`."""
        atomic_write_json(folder / READER_FILE, self.model_dump(mode="json"))


def read_manifest(folder: Path) -> ReaderManifest:
    """Read and check `reader.json`.

    Raises:
        IncompleteArtifactError: if it is missing.
        ArtifactError: if it is damaged or of another format version.
    """
    path = folder / READER_FILE
    if not path.exists():
        raise IncompleteArtifactError(
            f"{folder} has no {READER_FILE}", hint="finish `rag train reader` first"
        )
    try:
        data = read_json(path)
    except DataError as error:
        raise ArtifactError(error.message) from error
    version = data.get("format_version") if isinstance(data, dict) else None
    if version != FORMAT_VERSION:
        raise ArtifactError(f"{path}: format version {version!r}, this program reads {FORMAT_VERSION}")
    try:
        return ReaderManifest.model_validate(data)
    except ValidationError as error:
        raise ArtifactError(f"{path}: {error.errors()[0]['loc']}: {error.errors()[0]['msg']}") from error


def with_overrides(settings: ReaderSettings, overrides: dict[str, Any]) -> ReaderSettings:
    """A checked copy of `settings` with some values replaced.

    Raises:
        ConfigError: for an unknown name or a value that does not fit.
    """
    try:
        return ReaderSettings.model_validate({**settings.model_dump(), **overrides})
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "reader settings"
        raise ConfigError(f"{place}: {first['msg']}") from error
