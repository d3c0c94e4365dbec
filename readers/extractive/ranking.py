"""From scored rows to each question's answers, best first, and its "no answer here" score."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain

import numpy as np

from rag.core.arrays import Float64, Int64
from rag.core.types import Passage
from rag.data.table_text import TextRow, table_rows
from rag.data.text import normalize_answer
from readers.answer_kinds import asks_yes_no
from readers.borders import is_function_word, one_unit, whole_tokens
from readers.confidence import AnswerFeatures, Ranked, Span
from readers.extractive.layout import Row, RowScores, TokenizedTexts
from readers.extractive.settings import ReaderSettings
from readers.words import content_words

_NEAR_WORDS = 15  # on each side of an answer
_LARGEST_MARGIN = 20.0  # where margins are cut; also the lead of an only answer
_BORDERS = ":|-–—=_ "  # between the cells of a table in plain text
_SPANS_PER_CANDIDATE = 6  # spans compared for each answer that may be returned

Pair = tuple[int, int]
"""Number of the question, and of a passage in that question's list."""


@dataclass(frozen=True, slots=True)
class PassageRows:
    """The passages of a list of questions as R rows for the network.

    Attributes:
        pairs: of each passage the number of its question, and its own in that question's list.
        passages, texts: the passages, and the tokens of their texts.
        rows: windows of the passages.
        owners: (R, 2) the pair of each row's passage.
        scores: what the network says of the rows that were read.
    """

    questions: Sequence[str]
    pairs: list[Pair]
    passages: list[Passage]
    texts: TokenizedTexts
    rows: list[Row]
    owners: Int64
    scores: RowScores


class QuestionRanker:
    """Ranks the spans of one question, given by its number, from as many of its rows as were read.

    Args:
        rows: the rows of all questions.
        retrieval: the retrieval scores of its passages.
    """

    def __init__(
        self, rows: PassageRows, question: int, retrieval: Sequence[float], settings: ReaderSettings
    ) -> None:
        self._rows = rows
        self._settings = settings
        self._content = content_words(rows.questions[question])
        has_types = settings.answer_types and settings.english_rules
        self._is_yes_no = has_types and asks_yes_no(rows.questions[question])
        scores = np.asarray(retrieval, np.float64)
        by_rank = retrieval_prior(scores, settings.retrieval_weight)
        self._prior = by_rank + settings.score_weight * scores

    def rank(self, numbers: Int64) -> Ranked:
        """The answers from the rows with these numbers (R,), ascending, which were read."""
        scores = self._rows.scores
        owners = self._rows.owners[numbers, 1]
        texts = {}
        for owner, number in zip(owners.tolist(), numbers.tolist(), strict=True):
            texts[owner] = self._rows.passages[self._rows.rows[number].group].text
        answers = self._answers(numbers, owners, texts)
        if not answers:
            return Ranked([], None)
        first = answers[0]
        first_rows = numbers[owners == first.passage_index]
        # DPR readers were not trained to say that a passage holds no answer; of windows the least
        # counts.
        null = None if self._settings.select else float(scores.nulls[first_rows].min())
        lead = first.score - answers[1].score if len(answers) > 1 else _LARGEST_MARGIN
        margins = (scores.spans[first_rows, 0] - scores.nulls[first_rows]).astype(np.float64)
        features = AnswerFeatures(
            lead=min(lead, _LARGEST_MARGIN),
            margin=max(float(margins.max()), -_LARGEST_MARGIN),
            relevance=float(scores.relevances[first_rows].max()),
            length=float(np.log1p(len(first.text.split()))),
            overlap=self._share_near(first, texts[first.passage_index]),
        )
        return Ranked(answers, null, features)

    def _share_near(self, answer: Span, text: str) -> float:
        """Share of the question's content words in and near an answer; of one without a place, in
        its passage.
        """
        if answer.bounds is not None:
            start, end = answer.bounds
            before = text[:start].split()[-_NEAR_WORDS:]
            behind = text[end:].split()[:_NEAR_WORDS]
            text = " ".join([*before, answer.text, *behind])
        return len(self._content & content_words(text)) / max(1, len(self._content))

    def _answers(self, numbers: Int64, owners: Int64, texts: Mapping[int, str]) -> list[Span]:
        """The different answers of the rows that were read, best first.

        Cells of fitting rows and columns score more, and spans beyond `spans_per_window` count only
        in such cells. In the end the first answer's gain is taken off all scores, so that tables
        decide on the order and not on the confidence.

        Args:
            owners: (R,) for each row the number of its passage in the question's list.
            texts: of these passages, by their numbers.
        """
        settings = self._settings
        scores = self._rows.scores
        per_window = settings.spans_per_window
        has_tables = settings.table_weight > 0 and settings.english_rules
        tables = TableMatch(self._content, texts if has_tables else {})
        n_spans = scores.spans.shape[1]
        if not tables:
            n_spans = min(per_window, n_spans)
        values = self._values(numbers, owners, n_spans)
        rows, ranks = np.nonzero(np.isfinite(values))
        flat_scores = values[rows, ranks]
        # Best first; equal scores by passage, then by rank in the row.
        order = np.lexsort((ranks, owners[rows], -flat_scores))
        order = order[: _SPANS_PER_CANDIDATE * settings.candidates]
        gains: dict[Span, float] = {}
        for row, rank, score in zip(
            rows[order].tolist(), ranks[order].tolist(), flat_scores[order].tolist(), strict=True
        ):
            owner = int(owners[row])
            # Behind the spans, `_values` has "yes" and "no".
            if rank >= n_spans:
                word = ("yes", "no")[rank - n_spans]
                gains[Span(word, score, owner)] = 0.0
                continue
            number = numbers[row]
            start = scores.starts[number, rank]
            end = scores.ends[number, rank]
            text, bounds = self._span_text(self._rows.rows[number], start, end)
            gain = settings.table_weight * tables(owner, *bounds)
            if gain or rank < per_window:
                gains[Span(text, score + gain, owner, bounds)] = gain
        ordered = distinct(sorted(gains, key=lambda span: -span.score), settings)
        first_gain = gains[ordered[0]] if ordered else 0.0
        return [replace(span, score=span.score - first_gain) for span in ordered]

    def _values(self, numbers: Int64, owners: Int64, n_spans: int) -> Float64:
        """Scores (R, K) of the best spans of each row, then of "yes" and "no" if these are
        answers.
        """
        scores = self._rows.scores
        values = scores.spans[numbers, :n_spans].astype(np.float64)
        if self._settings.select and len(owners):
            # The best span of each passage scores its selection logit, its other spans less by what
            # they lack.
            relevance, best = np.full((2, int(owners.max()) + 1), -np.inf)
            np.maximum.at(relevance, owners, scores.relevances[numbers].astype(np.float64))
            np.maximum.at(best, owners, values[:, 0])
            values = values - best[owners][:, None] + relevance[owners][:, None]
        if self._is_yes_no:
            values = np.concatenate([values, scores.words[numbers]], axis=1)
        return np.asarray(values + self._prior[owners][:, None], np.float64)

    def _span_text(self, row: Row, start: int, end: int) -> tuple[str, tuple[int, int]]:
        """The answer from token `start` to token `end` of a row, and its place in the passage."""
        offsets = self._rows.texts.spans(row.group)
        # From positions in the row to numbers of the passage's tokens.
        shift = row.first_token - row.text_from
        text = self._rows.passages[row.group].text
        first, last = int(offsets[start + shift, 0]), int(offsets[end + shift, 1])
        first, last = one_unit(text, *whole_tokens(text, first, last))
        answer = text[first:last]
        # SentencePiece's tokens hold the blank before a word.
        first += len(answer) - len(answer.lstrip())
        answer = answer.strip()
        return answer, (first, first + len(answer))


def retrieval_prior(scores: Float64, weight: float) -> Float64:
    """−weight·ln(1 + rank) of passages, rank 0 for the highest retrieval score; equal scores share
    one.

    Ranks are used because BM25, cosine and fused scores have different scales.

    Example:
        >>> retrieval_prior(np.array([0.2, 0.9, 0.2]), 1.0).round(2).tolist()
        [-0.69, -0.0, -0.69]
    """
    return np.asarray(-weight * np.log1p((scores > scores[:, None]).sum(axis=1)), np.float64)


def distinct(ordered: Sequence[Span], settings: ReaderSettings) -> list[Span]:
    """Different answers, best first, from spans that come best first; at most
    `settings.candidates`.

    A span is dropped if it has the normalised text of a better one, overlaps a better one in the
    same passage, or is nothing but the border of a table's cell or a function word.
    """
    unique: dict[str, Span] = {}
    for span in ordered:
        key = normalize_answer(span.text) or span.text
        is_empty = settings.english_rules and is_function_word(span.text)
        is_known = key in unique or any(_overlap(span, better) for better in unique.values())
        if not is_empty and not is_known and key.strip(_BORDERS):
            unique[key] = span
        if len(unique) == settings.candidates:
            break
    return list(unique.values())


def _overlap(span: Span, other: Span) -> bool:
    if span.bounds is None or other.bounds is None or span.passage_index != other.passage_index:
        return False
    return span.bounds[0] < other.bounds[1] and other.bounds[0] < span.bounds[1]


class TableMatch:
    """The tables in the passages of one question: how well their cells fit it, by the words of their
    rows and columns.

    A reader trained on prose does not see that a value belongs to what stands left of it and above
    it. Cells whose row and column hold the question's words therefore rank higher.

    Args:
        content: the question's content words, see `content_words`.
        texts: the texts of the passages, by the passage's number.
    """

    def __init__(self, content: frozenset[str], texts: Mapping[int, str]) -> None:
        self._content = content
        self._rows = {number: _rows_of(text) for number, text in texts.items()}
        columns = set[str]()
        counts = Counter[str]()
        rows = list(chain.from_iterable(self._rows.values()))
        for row in rows:
            counts.update(content & content_words(row.line))
            columns.update(cell.column for cell in row.cells)
        self._is_asked = bool(counts or content & content_words(" ".join(columns)))
        # A word of few rows tells more.
        self._weights = {
            word: math.log((len(rows) + 1) / (count + 0.5)) for word, count in counts.items()
        }
        self._total = math.fsum(self._weights.values()) or 1.0

    def __bool__(self) -> bool:
        """Whether a question's word stands in a table."""
        return self._is_asked

    def __call__(self, passage: int, start: int, end: int) -> float:
        """How well the cell fits that characters `start` to `end` of a passage's text are in, from
        0 to 3.

        r + c + r·c, where r is the share of the question's words that the row holds outside of the
        cell, rare words weighing more, and c the share of the words of the column's name that the
        question holds. 0 outside of tables.

        Example:
            >>> text = " | 2019 | 2018\\nSales | 5 | 4\\nCosts | 3 | 2"
            >>> content = content_words("What were the sales in 2018?")
            >>> match = TableMatch(content, {0: text})
            >>> [round(match(0, at, at + 1), 1) for at in map(text.rindex, "5432")]
            [1.0, 3.0, 0.0, 1.0]
        """
        rows = self._rows.get(passage, ())
        number = bisect_right(rows, start, key=lambda row: row.start) - 1
        if number < 0:
            return 0.0
        row = rows[number]
        for cell in row.cells:
            if cell.start <= start < end <= cell.end:
                break
        else:
            return 0.0
        before = row.line[: cell.start - row.start]
        behind = row.line[cell.end - row.start :]
        shared = self._content & content_words(f"{before} {behind}")
        row_fit = math.fsum(self._weights[word] for word in shared) / self._total
        names = content_words(cell.column)
        column_fit = len(self._content & names) / max(1, len(names))
        return row_fit + column_fit + row_fit * column_fit


@lru_cache(maxsize=256)
def _rows_of(text: str) -> tuple[TextRow, ...]:
    """The rows of tables in a text, which is read again in every wave."""
    return tuple(table_rows(text))
