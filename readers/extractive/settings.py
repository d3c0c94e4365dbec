"""The description of an extractive reader's folder, `reader.json`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import Field, model_validator

from rag.config import Config
from readers.manifest import Manifest

EffortName = Literal["full", "normal"]


@dataclass(frozen=True, slots=True)
class Effort:
    """How much of a question's passages is read (`readers.extractive.reader`); by default
    everything.

    Attributes:
        waves: number of passages of each wave, best first by retrieval score; further passages are
            not read. Empty: one wave of all passages.
        enough: for each wave but the last, the confidence of the best answer so far at which
            reading stops.
    """

    waves: tuple[int, ...] = ()
    enough: tuple[float, ...] = ()


EFFORTS = {"full": Effort(), "normal": Effort(waves=(2, 2, 4), enough=(0.45, 0.05))}
"""Chosen on held-out questions of the reader that ships: "normal" takes a fifth of the token-layers
of full reading, with 96 % of its right answers."""


class ReaderSettings(Config):
    """How passages are laid out, searched and ranked.

    Attributes:
        titled: whether the title stands before the text.
        final_separator: whether rows end with the tokenizer's closing tokens.
        max_tokens: maximum input length; a longer passage is read in windows.
        stride_tokens: tokens that neighbouring windows share.
        question_tokens, title_tokens: lengths to which questions and titles are truncated.
        max_answer_tokens: maximum answer length.
        spans_per_window: candidates taken from each window.
        table_spans: candidates taken from each window for the cells of tables, if more.
        candidates: different answers kept per question; confidences are relative to these.
        retrieval_weight: w in score = span score − w·ln(1 + rank of the passage by retrieval
            score).
        score_weight: w' in score = span score + w' · retrieval score, for readers that were trained
            together with their retriever.
        table_weight: what an answer in a table's cell gains if its row fits the question, as much
            if its column does, and as much again if both do, see
            `readers.extractive.ranking.TableMatch`.
        select: choose the passage by its selection logit and then a span in it (DPR), instead of
            the best span of all passages.
        answer_types: whether "yes" and "no" can be answers to questions that ask for them, for
            networks with these outputs.
        english_rules: whether questions of yes or no, lists that are asked for, function words and
            words of tables are told by rules for English.
        effort: how much is read: "full" reads everything, see `EFFORTS`; passages of paths are
            always all read, as an answer often occurs in the last of them.
    """

    titled: bool = True
    final_separator: bool = True
    max_tokens: int = Field(default=384, ge=16)
    stride_tokens: int = Field(default=96, ge=0)
    question_tokens: int = Field(default=64, ge=1)
    title_tokens: int = Field(default=16, ge=0)
    max_answer_tokens: int = Field(default=30, ge=1)
    spans_per_window: int = Field(default=8, ge=1)
    table_spans: int = Field(default=0, ge=0)
    candidates: int = Field(default=20, ge=1)
    retrieval_weight: float = Field(default=0.0, ge=0)
    score_weight: float = Field(default=0.0, ge=0)
    table_weight: float = Field(default=0.0, ge=0)
    select: bool = False
    answer_types: bool = False
    english_rules: bool = True
    effort: EffortName = "full"

    @model_validator(mode="after")
    def _cross_check(self) -> ReaderSettings:
        title_tokens = self.title_tokens if self.titled else 0
        room = self.max_tokens - self.question_tokens - title_tokens - 6
        if room < 8:
            raise ValueError(
                f"max_tokens ({self.max_tokens}) leaves {room} tokens for the text beside a question of "
                f"{self.question_tokens} and a title of {self.title_tokens}"
            )
        return self


class ReaderManifest(Manifest):
    """The content of `reader.json`.

    `ranges_file` holds the ranges of activations that int8 inference needs; a reader without one
    computes in bf16 or fp32. `word_embeddings` names the installed model that these are taken from,
    if the weights file has none.
    """

    kind: Literal["extractive"] = "extractive"
    weights_file: str
    ranges_file: str | None = None
    word_embeddings: Literal["all-MiniLM-L6-v2"] | None = None
    settings: ReaderSettings = ReaderSettings()
