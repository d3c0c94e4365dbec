"""Rows of tokens from question, title and text: windows, special tokens; running them, searching
spans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import torch

from rag.core.arrays import Bool, Int32, Int64
from rag.core.errors import ArtifactError
from rag.runtime.backbone import pad, run_by_length
from readers.extractive.model import Logits, LogitsModel

Tokens: TypeAlias = Int32 | Int64
_MAX_ROWS = 64  # of a batch


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
        self, index: int, char_spans: Iterable[tuple[int, int]], max_tokens: int | None = None
    ) -> Iterator[tuple[int, int]]:
        """First and last token of each span of characters (end exclusive) in text `index`.

        Spans without a token, and those of more than `max_tokens` tokens, are left out.
        """
        offsets = self.spans(index)
        for start, end in char_spans:
            first = int(np.searchsorted(offsets[:, 1], start, side="right"))
            last = int(np.searchsorted(offsets[:, 0], end, side="left")) - 1
            limit = len(offsets) if max_tokens is None else min(len(offsets), first + max_tokens)
            if first <= last < limit:
                yield first, last


def continuations(tokenizer: Any) -> Bool:
    """(V,) whether a token continues a word ("##ing")."""
    names = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    return np.array([str(name).startswith("##") for name in names])


def tokenize_texts(tokenizer: Any, texts: Sequence[str]) -> TokenizedTexts:
    """Tokenise without special tokens, equal texts once.

    Args:
        tokenizer: a fast one of Hugging Face, since others give no offsets.
    """
    distinct = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    if not distinct:
        return TokenizedTexts(
            np.zeros(0, np.int32), np.zeros((0, 2), np.int32), np.zeros(1, np.int64)
        )
    encoded = tokenizer(
        list(distinct),
        add_special_tokens=False,
        return_offsets_mapping=True,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,
    )
    numbers = [distinct[text] for text in texts]
    tokens = [encoded["input_ids"][number] for number in numbers]
    offsets = [encoded["offset_mapping"][number] for number in numbers]
    bounds = np.cumsum([0, *map(len, tokens)], dtype=np.int64)
    count = int(bounds[-1])
    ids = np.fromiter(chain.from_iterable(tokens), np.int32, count)
    pairs = chain.from_iterable(offsets)
    characters = np.fromiter(chain.from_iterable(pairs), np.int32, 2 * count)
    return TokenizedTexts(ids, characters.reshape(-1, 2), bounds)


@dataclass(frozen=True, slots=True)
class PairTemplate:
    """The special tokens a tokenizer puts around a pair: before · first · between · second · after.

    The first of them is [CLS], whose logits mean "no answer here".

    Attributes:
        before, between, after: token ids.
        types: segment of (before and first, between, second and after).
        separator: id of the token between title and text.
        pad: id of the padding token.
    """

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    types: tuple[int, int, int]
    separator: int
    pad: int

    def row(
        self,
        question: Tokens,
        title: Tokens | None,
        window: Tokens | Sequence[int],
        *,
        group: int = 0,
        first_token: int = 0,
    ) -> Row:
        """The row of these tokens of a passage; `group` and `first_token` as in `Row`."""
        head = [*self.before, *question.tolist()]
        # Segment 1 begins behind the tokens between question and passage, or with them.
        types_from = len(head) + (len(self.between) if self.types[1] == self.types[0] else 0)
        head += self.between
        if title is not None:
            head += [*title.tolist(), self.separator]
        ids = np.concatenate([head, window, self.after]).astype(np.int64)
        return Row(group, ids, types_from, len(head), len(head) + len(window), first_token)

    def size(self, question: Tokens, title: Tokens | None = None) -> int:
        """Number of tokens around a text that is read for a question."""
        n_special = len(self.before) + len(self.between) + len(self.after)
        return n_special + len(question) + (0 if title is None else len(title) + 1)


def pair_template(tokenizer: Any) -> PairTemplate:
    """Read the template off a tokenizer by encoding a pair of one-token texts.

    Raises:
        ArtifactError: it does not put a [CLS] first, as encoders for question answering do.
    """
    pair = tokenizer("a", "b", return_token_type_ids=True)
    ids = list(pair["input_ids"])
    types = list(pair["token_type_ids"])
    sequence_ids = pair.sequence_ids(0)
    cls = tokenizer.cls_token_id
    separator = tokenizer.sep_token_id
    begins_with_cls = cls is not None and ids[0] == cls and sequence_ids[0] is None
    if separator is None or not begins_with_cls or not {0, 1} <= {*sequence_ids}:
        raise ArtifactError(
            f"{type(tokenizer).__name__} does not frame pairs as [CLS] question [SEP] text [SEP]",
            hint="use a BERT-like reader (BERT, MiniLM, RoBERTa, ELECTRA, DistilBERT, …)",
        )
    first_start = sequence_ids.index(0)
    first_end = first_start + sequence_ids.count(0)
    second_start = sequence_ids.index(1)
    second_end = second_start + sequence_ids.count(1)
    return PairTemplate(
        before=tuple(ids[:first_start]),
        between=tuple(ids[first_end:second_start]),
        after=tuple(ids[second_end:]),
        types=(types[0], types[first_end], types[second_start]),
        separator=separator,
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


class RowScores:
    """What a network says of R rows, in the order the rows were given; K spans per row.

    Rows that are still to be read have no span.

    Attributes:
        spans: (R, K) float32 start + end logit, descending, -inf where a row has fewer spans.
        starts, ends: (R, K) int64 positions in the row, ends inclusive.
        nulls: (R,) float32 start + end logit of [CLS].
        relevances: (R,) float32 passage logits, zero for a network without passage selection.
        words: (R, 2) float32 scores of "yes" and "no", comparable with `spans`; -inf for networks
            without these answers.
    """

    def __init__(self, rows: int, spans: int) -> None:
        self.spans = np.full((rows, spans), -np.inf, np.float32)
        self.starts = np.zeros((rows, spans), np.int64)
        self.ends = np.zeros((rows, spans), np.int64)
        self.nulls = np.zeros(rows, np.float32)
        self.relevances = np.zeros(rows, np.float32)
        self.words = np.full((rows, 2), -np.inf, np.float32)

    def enter(
        self,
        numbers: Int64,
        ids: torch.Tensor,
        text: torch.Tensor,
        logits: Logits,
        *,
        continues: torch.Tensor,
        max_tokens: int,
    ) -> None:
        """Enter what a network says of some rows; their best spans consist of whole words.

        Args:
            numbers, ids, text, logits: see `map_rows`.
            continues: (V,) bool whether a token continues a word.
            max_tokens: of a span.
        """
        start = logits.start.float().cpu()
        end = logits.end.float().cpu()
        is_inside_word = continues[ids] & text
        is_word_end = ~torch.nn.functional.pad(is_inside_word[:, 1:], (0, 1))
        spans, starts, ends = best_spans(
            start,
            end,
            text & ~is_inside_word,
            text & is_word_end,
            max_tokens,
            self.spans.shape[1],
        )
        # A short row has fewer spans.
        columns = np.s_[numbers, : spans.shape[1]]
        self.spans[columns] = spans.numpy()
        self.starts[columns] = starts.numpy()
        self.ends[columns] = ends.numpy()
        self.nulls[numbers] = (start[:, 0] + end[:, 0]).numpy()
        if logits.relevance is not None:
            self.relevances[numbers] = logits.relevance.float().cpu().numpy()
        if logits.words is not None:  # once as a start and once as an end logit
            self.words[numbers] = 2.0 * logits.words.float().cpu().numpy()


def map_rows(
    model: LogitsModel,
    template: PairTemplate,
    rows: Sequence[Row],
    numbers: Int64,
    use: Callable[[Int64, torch.Tensor, torch.Tensor, Logits], None],
    *,
    device: str = "cpu",
) -> None:
    """Run the rows with these numbers, longest first, in even batches of about `model.batch_tokens`
    tokens.

    Args:
        use: called for each batch of r rows, in any order and possibly from several threads, with
            the rows' numbers (r,), token ids (r, L), a mask of text tokens (r, L) bool, and the
            logits.
    """

    @torch.inference_mode()
    def run(part: list[int]) -> None:
        batch = numbers[part]
        ids, mask, types, text = row_tensors(template, [rows[number] for number in batch])
        use(batch, ids, text, model.logits(ids.to(device), mask.to(device), types.to(device)))

    # Batches of nearly equal size, a multiple of the workers in number: all workers end at nearly
    # the same time.
    lengths = [len(rows[number].ids) for number in numbers]
    workers = 1 if model.pool is None else torch.get_num_threads()
    count = max(1, workers * -(-sum(lengths) // (workers * model.batch_tokens)))
    batch_tokens = sum(lengths) // count + max(lengths, default=0) // 2
    map_batches = map if model.pool is None else model.pool.map
    run_by_length(run, lengths, (_MAX_ROWS, batch_tokens), map_batches=map_batches)


def row_tensors(
    template: PairTemplate, rows: Sequence[Row]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Token ids, mask and segments (R, L) int64, and a mask of text tokens (R, L) bool."""
    ids, mask = pad([row.ids for row in rows], template.pad)
    column = torch.arange(ids.shape[1])
    bounds = torch.tensor([(row.types_from, row.text_from, row.text_to) for row in rows])  # (R, 3)
    types_from, text_from, text_to = bounds.T[:, :, None]  # (R, 1) each
    first_type, _, second_type = template.types
    types = torch.where((column >= types_from) & mask.bool(), second_type, first_type)
    return ids, mask, types, (column >= text_from) & (column < text_to)


def span_scores(
    start_logits: torch.Tensor,
    end_logits: torch.Tensor,
    start_allowed: torch.Tensor,
    end_allowed: torch.Tensor,
    width: int,
) -> torch.Tensor:
    """Start + end logits (…, L, width) of every span, by first token and length − 1; −inf where not
    allowed.

    Args:
        start_logits, end_logits, start_allowed, end_allowed: (…, L); bool where an answer may start
            or end.
        width: longest span in tokens.
    """
    floor = float("-inf")
    start = start_logits.masked_fill(~start_allowed, floor)
    end = end_logits.masked_fill(~end_allowed, floor)
    padded = torch.nn.functional.pad(end, (0, width - 1), value=floor)
    return start.unsqueeze(-1) + padded.unfold(-1, width, 1)


def best_spans(
    start_logits: torch.Tensor,
    end_logits: torch.Tensor,
    start_allowed: torch.Tensor,
    end_allowed: torch.Tensor,
    max_tokens: int,
    top_k: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The `top_k` spans with the highest start + end logit in every row, of at most `max_tokens`
    tokens.

    Returns:
        scores (R, K) float32, descending, -inf where a row has fewer spans; starts and ends (R, K)
        int64, the end inclusive; K is `top_k`, or fewer if no row can have so many.
    """
    width = min(max_tokens, start_logits.shape[1])
    scores = span_scores(start_logits, end_logits, start_allowed, end_allowed, width)
    scores = scores.flatten(1)  # (R, L·width)
    values, flat = scores.topk(min(top_k, scores.shape[1]), dim=-1)
    return values, flat // width, flat // width + flat % width
