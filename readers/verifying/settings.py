"""What is stated of a verifier: the settings of its training, and its `reader.json`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from rag.training.config import Count, Rate, Share, Warmup
from readers.manifest import Manifest
from readers.training import TaughtConfig

Parts = Literal["both", "claim", "evidence"]


class VerifierManifest(Manifest):
    """The content of a verifier's `reader.json`.

    Attributes:
        weights_file: int8 weights; with a `base` what is added to its weights.
        base: "shipped" if the weights, configuration and tokenizer are those of the reader that
            ships, but for what the weights file adds.
        base_sha256: of that reader's weights file.
        max_tokens: tokens of claim and evidence that are read together.
    """

    kind: Literal["verifier"] = "verifier"
    weights_file: str
    base: Literal["shipped"] | None = None
    base_sha256: str = ""
    max_tokens: int = Field(default=512, ge=16)


class VerifierTrainConfig(TaughtConfig):
    """The whole configuration of `rag train verifier`.

    Attributes:
        train_files: claims with labels and evidence; see `rag.data.claims.read_claims`. A label
            "not_supported" stands for "refuted or not enough".
        encoder: Hugging Face name or folder of an encoder, of a reader or of a verifier to go on
            from, or "shipped" for the reader that ships; None is the embedded
            `all-MiniLM-L6-v2`.
        max_tokens: tokens of a row in training: claim and evidence.
        tokens_per_batch: tokens of one step, estimated from the number of characters.
        exchanged: further claims, as a share of all: each has the evidence of another claim, which
            is not enough.
        parts: what the network reads; with "claim" or "evidence" alone it is a baseline, which shows
            what gives a label away without the other.
        held_out: share of the evidence texts that is held out, with their claims, for validation
            and calibration.
        validation_claims: number of held-out claims that are judged during training.
        rank: of a verifier that started from "shipped": each matrix is stored as the reader's plus a
            product of two matrices of this many columns and rows; 0 stores all weights.
    """

    recipe: ClassVar[str] = "verifier"
    measured: ClassVar[tuple[str, ...]] = ("accuracy", "nll")

    train_files: tuple[Path, ...] = Field(min_length=1)
    name: str = "verifier"
    encoder: str | None = "shipped"
    max_tokens: int = Field(default=192, ge=16, le=512)
    tokens_per_batch: int = Field(default=4096, ge=64)
    exchanged: float = Field(default=0.1, ge=0, le=1)
    parts: Parts = "both"
    held_out: Share = 0.05
    validation_claims: Count = 600
    rank: int = Field(default=0, ge=0)
    learning_rate: Rate = 1e-4
    warmup_steps: Warmup = 0.06

    def train_model(self) -> Path:
        """See `readers.verifying.training.build`."""
        from rag.training.run import train
        from readers.verifying.training import build

        return train(self, partial(build, self), "verifier")
