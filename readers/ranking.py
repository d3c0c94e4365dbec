"""From scored rows to each question's answers, best first, and its "no answer here" score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rag.core.arrays import Bool, Float64, Int32, Int64
from rag.core.types import Passage
from rag.data.text import normalize_answer
from readers.answer_forms import (
    answer_bounds,
    can_be_polar,
    content_words,
    expected_form,
    fit_of_form,
    has_form,
)
from readers.extractive.inference import RowScores
from readers.extractive.layout import Row
from readers.extractive.settings import ReaderSettings
from readers.extractive.tokens import TokenizedTexts
from readers.protocols import ReadAnswer, ReadResult, ScoreLists
from readers.table_match import TableMatch

_USUAL_MATCH = 1.3  # of the cells of first answers, on WikiTableQuestions
_LONGEST_CELL = 8  # words
_NEAR = 15  # words on each side of an answer
_ONLY_FEATURES = ("", "date", "step")  # forms that change no order

Pair = tuple[int, int, int]
"""Number of the question, place in that question's list, index of the unique passage."""


@dataclass(frozen=True, slots=True)
class PassageRows:
    """The passages of a list of questions as rows for the network.

    Attributes:
        questions: the questions.
        pairs, unique: (question, place, unique passage) triples and the unique passages.
        texts: tokens of the unique passages' texts.
        rows: windows of the pairs.
        extend: (V,) bool, tokens that continue a word, if answers are to be extended to whole words.
    """

    questions: Sequence[str]
    pairs: list[Pair]
    unique: list[Passage]
    texts: TokenizedTexts
    rows: list[Row]
    extend: Bool | None

    def owners(self) -> tuple[Int64, Int64]:
        """For each row the number of its question, and its passage's place in that question's list."""
        owners = [self.pairs[row.group][:2] for row in self.rows]
        return tuple(np.array(owners, np.int64).reshape(-1, 2).T)  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Ranked:
    """One question's different answers, best first, and its null score (None: the model has none).

    Attributes:
        answers: without confidences.
        passages: number of passages that were read.
        place: number of these with a higher retrieval score than the first answer's passage.
        relevance: passage logit of the first answer's passage; 0 for a network without passage logits.
        question_tokens: number of tokens of the question.
        margin_over_null: in the first answer's passage, by how much the best span scores above "not here".
        best_other_margin: likewise in the best of the other passages that were read, at least −10.
        form_match: whether the first answer has the form that is asked for, see `fit_of_form`.
        question_overlap: share of the question's content words in the answer and 15 words on both sides.
        words: number of words of its passage.
        cell: how well its cell of a table fits the question, less what first answers' cells do on average; 0
            outside of tables.
    """

    answers: Sequence[ReadAnswer]
    null: float | None
    passages: int = 1
    place: int = 0
    relevance: float = 0.0
    question_tokens: int = 1
    margin_over_null: float = 0.0
    best_other_margin: float = -10.0
    form_match: int = 0
    question_overlap: float = 0.0
    words: int = 0
    cell: float = 0.0

    @property
    def scores(self) -> Float64:
        """Scores of the answers."""
        return np.array([answer.score for answer in self.answers], np.float64)

    def result(
        self, probabilities: Float64, p_no_answer: float, n_best: int, cost: Mapping[str, int] | None = None
    ) -> ReadResult:
        """The best answers with their probabilities, and that of no answer (1 if there is none)."""
        answers = tuple(
            replace(answer, confidence=float(p))
            for answer, p in zip(self.answers[:n_best], probabilities[:n_best], strict=True)
        )
        return ReadResult(answers, p_no_answer if answers else 1.0, cost or {})


class QuestionRanker:
    """Ranks the spans of one question, from as many of its rows as were read; its words are parsed once.

    Args:
        rows: the rows of all questions.
        question: number of the question.
        retrieval: the retrieval scores of its passages.
        settings: `select`, `answer_types`, `retrieval_weight`, `score_weight`, `form_weight`, `table_weight`,
            `merge`, `null` and `candidates` are read.
    """

    def __init__(
        self, rows: PassageRows, question: int, retrieval: Sequence[float], settings: ReaderSettings
    ) -> None:
        self._rows, self._settings = rows, settings
        self._retrieval = np.asarray(retrieval, np.float64)
        text = rows.questions[question]
        self.form, self._content = expected_form(text), content_words(text)
        self._says_yes_or_no = settings.answer_types and can_be_polar(text)
        self._prior = np.zeros(len(self._retrieval))
        if settings.retrieval_weight:
            self._prior = self._prior + retrieval_prior(retrieval, settings.retrieval_weight)
        if settings.score_weight:
            self._prior = self._prior + settings.score_weight * self._retrieval

    def rank(self, numbers: Int64, scores: RowScores) -> Ranked:
        """The answers from some rows of the question.

        Args:
            numbers: of the rows, ascending.
            scores: the network's, of these rows.
        """
        if len(numbers) == 0:
            return Ranked([], None)
        rows, settings = [self._rows.rows[number] for number in numbers], self._settings
        place = np.array([self._rows.pairs[row.group][1] for row in rows], np.int64)
        passages = {p: self._rows.unique[u] for _, p, u in (self._rows.pairs[row.group] for row in rows)}
        tables = self._tables(passages) if settings.table_weight else None
        answers = self._by_form(self._spans(rows, place, scores, tables))
        read = np.unique(place)
        first = answers[0].passage_index if answers else int(read[0])
        retrieval, of_first = self._retrieval[read], place == first
        margins = (scores.spans[:, 0] - scores.nulls).astype(np.float64)
        overlap, words, cell = 0.0, 0, 0.0
        if answers:
            overlap, words = self._around(answers[0], passages[first])
            match = _match(answers[0], tables)
            cell = match - _USUAL_MATCH if match else 0.0
        return Ranked(
            answers,
            self._null(place, scores, answers),
            passages=len(read),
            place=int((retrieval > retrieval[read == first]).sum()),
            relevance=float(scores.relevances[of_first].max()),
            question_tokens=rows[0].types_from,
            margin_over_null=float(margins[of_first].max()),
            best_other_margin=max(float(max(margins[~of_first], default=-10.0)), -10.0),
            form_match=fit_of_form(answers[0].text, self.form) if answers else 0,
            question_overlap=overlap,
            words=words,
            cell=cell,
        )

    def _around(self, answer: ReadAnswer, passage: Passage) -> tuple[float, int]:
        """`question_overlap` and `words` of `Ranked`."""
        text, start, end = passage.text, answer.start, answer.end
        if start is None or end is None:
            near = content_words(text)
        else:
            before, after = text[:start].split()[-_NEAR:], text[end:].split()[:_NEAR]
            near = content_words(" ".join([*before, answer.text, *after]))
        overlap = len(self._content & near) / max(1, len(self._content))
        return overlap, len(passage.title.split()) + len(text.split())

    def _tables(self, passages: Mapping[int, Passage]) -> TableMatch | None:
        """The tables in passages, if they hold any of the question's content words."""
        texts = [""] * (max(passages) + 1)
        for number, passage in passages.items():
            texts[number] = passage.text
        match = TableMatch(self._content, texts)
        return match if match else None

    def _spans(
        self, rows: Sequence[Row], place: Int64, scores: RowScores, tables: TableMatch | None
    ) -> list[ReadAnswer]:
        """The different answers of all rows, best first; `place` tells which passage each row belongs to."""
        settings, usual = self._settings, self._settings.spans_per_window
        values = scores.spans.astype(np.float64)  # (r, K)
        if tables is None:
            values = values[:, :usual]
        if settings.select:
            # the best span of each passage scores its selection logit, its other spans less by what they lack
            relevance = np.full(int(place.max()) + 1, -np.inf)
            np.maximum.at(relevance, place, scores.relevances.astype(np.float64))
            best = np.full_like(relevance, -np.inf)
            np.maximum.at(best, place, values[:, 0])
            values = values - best[place][:, None] + relevance[place][:, None]
        n_spans = values.shape[1]
        if self._says_yes_or_no:
            values = np.concatenate([values, scores.words], axis=1)
        values = values + self._prior[place][:, None]
        row_of, rank_of = np.nonzero(np.isfinite(values))
        flat = values[row_of, rank_of]
        order = np.lexsort((rank_of, place[row_of], -flat))[: 6 * settings.candidates]
        spans = []
        for i in order:
            at, number = int(row_of[i]), int(rank_of[i])
            if number < n_spans:
                start, end = scores.starts[at, number], scores.ends[at, number]
                spans.append(self._span(rows[at], int(place[at]), int(start), int(end), float(flat[i])))
            else:
                word = ("yes", "no")[number - n_spans]
                spans.append(ReadAnswer(word, float(flat[i]), 0.0, int(place[at])))
        if tables is None:
            return distinct(spans, settings)
        is_further = ((usual <= rank_of) & (rank_of < n_spans))[order]
        return self._by_table(spans, is_further, tables)

    def _span(self, row: Row, place: int, start: int, end: int, score: float) -> ReadAnswer:
        """The answer from token `start` to token `end` of a row."""
        unique = self._rows.pairs[row.group][2]
        offsets, shift = self._rows.texts.spans(unique), row.first_token - row.text_from
        first, last = start + shift, end + shift
        if self._rows.extend is not None:
            first, last = _whole_words(self._rows.texts.tokens(unique), first, last, self._rows.extend)
        text = self._rows.unique[unique].text
        begin, stop = answer_bounds(text, int(offsets[first, 0]), int(offsets[last, 1]))
        answer = text[begin:stop]
        begin += len(answer) - len(answer.lstrip())  # SentencePiece's tokens hold the blank before a word
        answer = answer.strip()
        return ReadAnswer(answer, score, 0.0, place, begin, begin + len(answer))

    def _by_table(
        self, spans: Sequence[ReadAnswer], is_further: Bool, tables: TableMatch
    ) -> list[ReadAnswer]:
        """`distinct` answers in an order in which cells of fitting rows and columns score more.

        The only cell of all tables that fits the question wholly comes first, with the score of the best
        span. In the end all scores are lowered by what the first gained: how likely it is does not grow by
        that.

        Args:
            spans: by descending score.
            is_further: spans that count only in such cells.
        """
        weight = self._settings.table_weight
        gains = [weight * _match(answer, tables) for answer in spans]
        gained = [
            replace(answer, score=answer.score + gain)
            for answer, gain, further in zip(spans, gains, is_further, strict=True)
            if gain or not further
        ]
        if spans and (only := tables.only_cell()) is not None and _can_answer(only[1].value, self.form):
            place, cell = only
            answer = ReadAnswer(cell.value, spans[0].score, 0.0, place, cell.start, cell.end)
            gained.insert(0, replace(answer, score=answer.score + weight * _match(answer, tables)))
        kept = distinct(sorted(gained, key=lambda answer: -answer.score), self._settings)
        of_first = weight * _match(kept[0], tables) if kept else 0.0
        return [replace(answer, score=answer.score - of_first) for answer in kept]

    def _by_form(self, answers: list[ReadAnswer]) -> list[ReadAnswer]:
        """The answers in a new order: those without the requested form score less by `form_weight`."""
        weight = self._settings.form_weight
        if self.form in _ONLY_FEATURES or not weight:
            return answers
        scored = [a if has_form(a.text, self.form) else replace(a, score=a.score - weight) for a in answers]
        return sorted(scored, key=lambda answer: -answer.score)

    def _null(self, place: Int64, scores: RowScores, answers: Sequence[ReadAnswer]) -> float | None:
        """Score of "none of these passages answers it"; DPR readers were not trained to say so."""
        if self._settings.select:
            return None
        lowest = np.full(int(place.max()) + 1, np.inf)  # over a passage's windows the least counts
        np.minimum.at(lowest, place, scores.nulls.astype(np.float64))
        if self._settings.null == "best":
            return float(lowest[answers[0].passage_index]) if answers else None
        finite = lowest[np.isfinite(lowest)]
        if self._settings.null == "mean":
            return float(finite.mean())
        return float(finite.max() if self._settings.null == "max" else finite.min())


def rank_all(
    rows: PassageRows,
    scores: RowScores,
    retrieval: ScoreLists,
    settings: ReaderSettings,
    used: Bool | None = None,
) -> list[Ranked]:
    """The answers to every question from all of its rows, or from those that are `used`, (R,) bool."""
    owner, _ = rows.owners()
    ranked = []
    for question in range(len(rows.questions)):
        mine = owner == question if used is None else (owner == question) & used
        numbers = np.nonzero(mine)[0]
        ranker = QuestionRanker(rows, question, retrieval[question], settings)
        ranked.append(ranker.rank(numbers, scores.take(numbers)))
    return ranked


def _can_answer(value: str, form: str) -> bool:
    return len(value.split()) <= _LONGEST_CELL and fit_of_form(value, form) >= 0


def _match(answer: ReadAnswer, tables: TableMatch | None) -> float:
    if tables is None or answer.start is None or answer.end is None:
        return 0.0
    return tables(answer.passage_index, answer.start, answer.end)


def _whole_words(tokens: Int32, first: int, last: int, continues: Bool) -> tuple[int, int]:
    """Extend a token span until it neither starts nor ends inside a word."""
    while first > 0 and continues[tokens[first]]:
        first -= 1
    while last + 1 < len(tokens) and continues[tokens[last + 1]]:
        last += 1
    return first, last


def retrieval_prior(scores: Sequence[float], weight: float) -> Float64:
    """−weight·ln(1 + rank) for each passage, rank 0 for the highest retrieval score; equal scores share a
    rank.

    Ranks are used because BM25, cosine and fused scores have different scales.

    Example:
        >>> retrieval_prior([0.2, 0.9, 0.2], 1.0).round(2).tolist()
        [-0.69, -0.0, -0.69]
    """
    values = np.asarray(scores, np.float64)
    ranks = (values[None, :] > values[:, None]).sum(axis=1)
    return np.asarray(-weight * np.log1p(ranks), np.float64)


def distinct(ordered: Sequence[ReadAnswer], settings: ReaderSettings) -> list[ReadAnswer]:
    """Different answers, best first, from spans that come best first.

    A span is dropped if it has the normalised text of a better one (under merge="sum" its score is added
    to the better one's, once per passage), overlaps a better one in the same passage, or is empty.

    Args:
        ordered: spans by descending score.
        settings: gives `candidates` and `merge`.
    """
    kept: list[ReadAnswer] = []
    by_text: dict[str, int] = {}
    counted: set[tuple[str, int]] = set()
    for span in ordered:
        key = normalize_answer(span.text) or span.text
        if not key:
            continue
        at = by_text.get(key)
        if at is not None:
            if settings.merge == "sum" and (key, span.passage_index) not in counted:
                counted.add((key, span.passage_index))
                kept[at] = replace(kept[at], score=float(np.logaddexp(kept[at].score, span.score)))
            continue
        if any(_overlap(span, other) for other in kept):
            continue
        if len(kept) < settings.candidates:
            by_text[key] = len(kept)
            counted.add((key, span.passage_index))
            kept.append(span)
    return sorted(kept, key=lambda span: -span.score)


def _overlap(span: ReadAnswer, other: ReadAnswer) -> bool:
    if span.start is None or span.end is None or other.start is None or other.end is None:
        return False
    return span.passage_index == other.passage_index and span.start < other.end and other.start < span.end
