"""The description of an extractive reader's folder, `reader.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from rag.config import Config
from readers.manifest import Manifest

_RETIRED = frozenset({"paths"})


class Effort(Config):
    """How much of a question's passages is read (`readers.extractive.waves`); by default everything.

    Attributes:
        waves: number of passages of each wave, best first by retrieval score; further passages are not read.
            Empty: one wave of all passages.
        enough: for each wave but the last, the confidence of the best answer so far at which reading stops.
        drop: from the second wave on, a passage is dropped at the early head if its score there is this many
            nats below that of the question's best passage so far; None: no passage is dropped.
        most: limit on a question's token-layers: after the first wave, passages are read only as long as they
            fit, read whole; None: no limit.
    """

    waves: tuple[Annotated[int, Field(ge=1)], ...] = ()
    enough: tuple[Annotated[float, Field(ge=0, le=1)], ...] = ()
    drop: float | None = Field(default=None, ge=0)
    most: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _fit_together(self) -> Effort:
        if len(self.enough) != max(0, len(self.waves) - 1):
            raise ValueError(
                f"{len(self.waves)} waves have {len(self.enough)} values of enough, expected one fewer"
            )
        return self


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
        retrieval_weight: w in score = span score − w·ln(1 + rank of the passage by retrieval score).
        path_weight: w for passages of a multi-hop retriever's paths, whose order, that of
            `readers.paths.hop_scores`, is more reliable.
        score_weight: w' in score = span score + w' · retrieval score, for readers that were trained together
            with their retriever.
        form_weight: penalty on the score of an answer without the form that the question asks for: a number,
            a person, an option, see `readers.answer_forms`.
        table_weight: what an answer in a table's cell gains if its row fits the question, as much if its
            column does, and as much again if both do, see `readers.table_match`.
        merge: the score of an answer that occurs in several passages: the best one ("max") or the "sum".
        null: how the passages' "no answer here" scores become one: their "max", "mean" or "min", or that of
            the passage with the best answer ("best").
        select: choose the passage by its selection logit and then a span in it (DPR), instead of the best
            span of all passages.
        answer_types: whether "yes" and "no" can be answers, for networks with these outputs.
        yes_no: what `Pipeline.ask` gives for a question that asks for yes or no: sentences of the "passage"
            that bear on it, or the "words" of the reader, where its yes and no can be trusted.
        skim_layer: layer of the network's early head; 0: it has none.
        efforts: named ways to read less; "full", which reads everything, always exists.
        effort: the default effort.
        path_effort: the default effort for passages of paths; an answer often occurs in the last of them.
        words: answers may begin and end inside words ("any"), are searched among whole words only
            ("whole"), or are extended to whole words afterwards ("extend", as DPR does). For WordPiece
            tokenizers only.
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
    path_weight: float = Field(default=6.0, ge=0)
    score_weight: float = Field(default=0.0, ge=0)
    form_weight: float = Field(default=0.0, ge=0)
    table_weight: float = Field(default=0.0, ge=0)
    merge: Literal["max", "sum"] = "max"
    null: Literal["max", "mean", "min", "best"] = "max"
    select: bool = False
    answer_types: bool = False
    yes_no: Literal["passage", "words"] = "passage"
    skim_layer: int = Field(default=0, ge=0)
    words: Literal["any", "whole", "extend"] = "whole"
    efforts: Mapping[str, Effort] = Field(default_factory=dict)
    effort: str = "full"
    path_effort: str = "full"

    @model_validator(mode="before")
    @classmethod
    def _drop_retired(cls, given: Any) -> Any:
        """Without settings of older readers that have no meaning any more."""
        return (
            {name: it for name, it in given.items() if name not in _RETIRED}
            if isinstance(given, dict)
            else given
        )

    @model_validator(mode="after")
    def _cross_check(self) -> ReaderSettings:
        room = self.max_tokens - self.question_tokens - (self.title_tokens if self.titled else 0) - 6
        if room < 8:
            raise ValueError(
                f"max_tokens ({self.max_tokens}) leaves {room} tokens for the text beside a question of "
                f"{self.question_tokens} and a title of {self.title_tokens}"
            )
        for effort in (self.effort, self.path_effort):
            if effort not in ("full", *self.efforts):
                raise ValueError(
                    f"effort is {effort!r}, but this reader has only {', '.join(('full', *self.efforts))}; "
                    "`rag train reader` chooses further ones on held-out questions"
                )
        return self

    @property
    def reading(self) -> Effort:
        """The chosen effort."""
        return Effort() if self.effort == "full" else self.efforts[self.effort]


class ReaderManifest(Manifest):
    """The content of `reader.json`.

    `ranges_file` holds the ranges of activations that int8 inference needs; a reader without one computes in
    bf16 or fp32. `word_embeddings` names the installed model that these are taken from, if the weights file
    has none. `retriever` is what a reader that counts the search's scores in was trained with: {"kind",
    "encoder"}, see `retrievers.open` and `EncoderIdentity`.
    """

    kind: Literal["extractive"] = "extractive"
    weights_file: str
    weights_sha256: str
    ranges_file: str | None = None
    ranges_sha256: str | None = None
    word_embeddings: Literal["all-MiniLM-L6-v2"] | None = None
    settings: ReaderSettings = ReaderSettings()
    retriever: dict[str, Any] | None = None
