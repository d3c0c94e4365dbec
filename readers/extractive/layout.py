"""Build rows of tokens from question, title and text: windows, special tokens, segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from rag.core.arrays import Int32, Int64
from rag.core.errors import ArtifactError
from readers.extractive.settings import ReaderSettings
from readers.extractive.tokens import TokenizedTexts

Tokens: TypeAlias = Int32 | Int64


@dataclass(frozen=True, slots=True)
class PairTemplate:
    """The special tokens a tokenizer puts around a pair: before · first · between · second · after.

    Attributes:
        before, between, after: token ids.
        types: segment of (before and first, between, second and after).
        cls_position: position of [CLS] in `before`; its logits mean "no answer here".
        separator: id of the token between title and text.
        pad: id of the padding token.
    """

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    types: tuple[int, int, int]
    cls_position: int
    separator: int
    pad: int

    def frame(self, question: Tokens, title: Tokens | None = None, *, closed: bool = True) -> RowFrame:
        """The tokens around a text that is read for a question; at its end too if rows are `closed`."""
        head = [*self.before, *question.tolist(), *self.between]
        types_from = len(head) - (len(self.between) if self.types[1] != self.types[0] else 0)
        if title is not None:
            head += [*title.tolist(), self.separator]
        return RowFrame(head, list(self.after) if closed else [], types_from)


def pair_template(tokenizer: Any) -> PairTemplate:
    """Read the template off a tokenizer by encoding a pair of one-token texts.

    Raises:
        ArtifactError: it does not put a [CLS] first, as encoders for question answering do.
    """
    pair = tokenizer("a", "b", return_token_type_ids=True)
    ids, types, parts = list(pair["input_ids"]), list(pair["token_type_ids"]), pair.sequence_ids(0)
    cls = tokenizer.cls_token_id
    if cls is None or ids[0] != cls or parts[0] is not None or {0, 1} - {*parts}:
        raise ArtifactError(
            f"{type(tokenizer).__name__} does not frame pairs as [CLS] question [SEP] text [SEP]",
            hint="use a BERT-like reader (BERT, MiniLM, RoBERTa, ELECTRA, DistilBERT, …)",
        )
    begin, follow = parts.index(0), parts.index(1)
    middle, end = begin + parts.count(0), follow + parts.count(1)
    return PairTemplate(
        before=tuple(ids[:begin]),
        between=tuple(ids[middle:follow]),
        after=tuple(ids[end:]),
        types=(types[0], types[middle], types[follow]),
        cls_position=0,
        separator=tokenizer.sep_token_id,
        pad=tokenizer.pad_token_id or 0,
    )


@dataclass(frozen=True, slots=True)
class Row:
    """One window of one passage for one question.

    Attributes:
        group: number of the (question, passage) pair it belongs to.
        ids: (L,) int64 tokens.
        types_from: position at which segment 1 begins.
        text_from: position of the first text token; text tokens run up to `text_to` (exclusive).
        first_token: number of the passage's token at `text_from`.
    """

    group: int
    ids: Int64
    types_from: int
    text_from: int
    text_to: int
    first_token: int


@dataclass(frozen=True, slots=True)
class RowFrame:
    """A row without its text: token ids before and after it, and where segment 1 begins."""

    head: list[int]
    tail: list[int]
    types_from: int

    @property
    def size(self) -> int:
        """Number of tokens that are not text."""
        return len(self.head) + len(self.tail)

    def row(self, window: Tokens | Sequence[int], *, group: int = 0, first_token: int = 0) -> Row:
        """The row of these tokens of a passage; `group` and `first_token` as in `Row`."""
        ids = np.concatenate([self.head, window, self.tail]).astype(np.int64)
        begin = len(self.head)
        return Row(group, ids, self.types_from, begin, begin + len(window), first_token)


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Builds rows of the lengths and parts that the settings state."""

    template: PairTemplate
    settings: ReaderSettings

    def rows(
        self,
        group: int,
        question: Int32,
        title: Int32,
        text: Int32,
    ) -> list[Row]:
        """All windows of one passage (none if the text is empty); every token is in at least one."""
        if len(text) == 0:
            return []
        settings = self.settings
        frame = self.template.frame(
            question[: settings.question_tokens],
            title[: settings.title_tokens] if settings.titled else None,
            closed=settings.final_separator,
        )
        room = settings.max_tokens - frame.size
        step = max(1, room - settings.stride_tokens)
        count = 1 if len(text) <= room else 1 + -(-(len(text) - room) // step)
        return [
            frame.row(text[first : first + room], group=group, first_token=first)
            for first in range(0, count * step, step)
        ]


def rows_of_pairs(
    layout: RowLayout,
    pairs: Sequence[tuple[int, int]],
    questions: TokenizedTexts,
    titles: TokenizedTexts,
    texts: TokenizedTexts,
) -> list[Row]:
    """Rows of many (question, passage) pairs; `Row.group` is the pair's place in `pairs`."""
    return [
        row
        for group, (question, passage) in enumerate(pairs)
        for row in layout.rows(
            group, questions.tokens(question), titles.tokens(passage), texts.tokens(passage)
        )
    ]
