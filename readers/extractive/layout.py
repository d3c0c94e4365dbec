"""Tokenised texts, and rows of tokens from question, title and text: windows, special tokens, segments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from rag.core.arrays import Bool, Int32, Int64
from rag.core.errors import ArtifactError
from readers.extractive.settings import ReaderSettings

Tokens: TypeAlias = Int32 | Int64


@dataclass(frozen=True, slots=True)
class TokenizedTexts:
    """n tokenised texts, concatenated.

    Attributes:
        ids: (T,) int32 token ids of all texts.
        offsets: (T, 2) int32 character start and end of each token in its text.
        bounds: (n + 1,) int64; text i is the slice bounds[i]:bounds[i + 1].
    """

    ids: Int32
    offsets: Int32
    bounds: Int64

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @property
    def lengths(self) -> Int64:
        """Number of tokens of each text, (n,)."""
        return np.diff(self.bounds)

    def tokens(self, index: int) -> Int32:
        """Token ids of text `index`."""
        return self.ids[self.bounds[index] : self.bounds[index + 1]]

    def spans(self, index: int) -> Int32:
        """Character offsets (L, 2) of the tokens of text `index`."""
        return self.offsets[self.bounds[index] : self.bounds[index + 1]]

    def located(
        self, index: int, places: Iterable[tuple[int, int]], most: int | None = None
    ) -> Iterator[tuple[int, int]]:
        """First and last token of each span of characters (end exclusive) in text `index`.

        Spans without a token, and those of more than `most` tokens, are left out.
        """
        offsets = self.spans(index)
        for start, end in places:
            first = int(np.searchsorted(offsets[:, 1], start, side="right"))
            last = int(np.searchsorted(offsets[:, 0], end, side="left")) - 1
            if first <= last < (len(offsets) if most is None else min(len(offsets), first + most)):
                yield first, last


def continuations(tokenizer: Any) -> Bool:
    """(V,) whether a token continues a word ("##ing")."""
    names = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    return np.array([str(name).startswith("##") for name in names])


def tokenize_texts(tokenizer: Any, texts: Sequence[str]) -> TokenizedTexts:
    """Tokenise without special tokens (a fast Hugging Face tokenizer: offsets are needed)."""
    encoded = tokenizer(
        list(texts), add_special_tokens=False, return_offsets_mapping=True, return_attention_mask=False,
        return_token_type_ids=False, verbose=False,
    ) if texts else {"input_ids": [], "offset_mapping": []}  # fmt: skip
    bounds = np.cumsum([0, *map(len, encoded["input_ids"])], dtype=np.int64)
    ids = np.fromiter((t for row in encoded["input_ids"] for t in row), np.int32, int(bounds[-1]))
    flat = np.fromiter(
        (o for row in encoded["offset_mapping"] for pair in row for o in pair), np.int32, 2 * int(bounds[-1])
    )
    return TokenizedTexts(ids, flat.reshape(-1, 2), bounds)


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

    def frame(self, question: Tokens, title: Tokens | None = None) -> RowFrame:
        """The tokens around a text that is read for a question."""
        head = [*self.before, *question.tolist(), *self.between]
        types_from = len(head) - (len(self.between) if self.types[1] != self.types[0] else 0)
        if title is not None:
            head += [*title.tolist(), self.separator]
        return RowFrame(head, list(self.after), types_from)


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


def rows_of_pairs(
    template: PairTemplate,
    settings: ReaderSettings,
    pairs: Iterable[tuple[int, int]],
    questions: TokenizedTexts,
    titles: TokenizedTexts,
    texts: TokenizedTexts,
) -> list[Row]:
    """The windows of many (question, passage) pairs; `Row.group` is the pair's place in `pairs`.

    Every token of a text is in at least one window; an empty text has none.
    """
    rows: list[Row] = []
    for group, (question, passage) in enumerate(pairs):
        title = titles.tokens(passage)[: settings.title_tokens] if settings.titled else None
        asked = questions.tokens(question)[: settings.question_tokens]
        frame = template.frame(asked, title)
        text, room = texts.tokens(passage), settings.max_tokens - frame.size
        step = max(1, room - settings.stride_tokens)
        count = 1 + max(0, -(-(len(text) - room) // step)) if len(text) else 0
        rows += [
            frame.row(text[first : first + room], group=group, first_token=first)
            for first in range(0, count * step, step)
        ]
    return rows
