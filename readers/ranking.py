"""From scored rows to each question's answers, best first, and its "no answer here" score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rag.core.arrays import Float64, Int64
from rag.core.types import Answer, AnswerSet, Passage
from rag.data.text import normalize_answer
from readers.answer_kinds import asks_yes_no
from readers.borders import is_function_word, one_unit, whole_tokens
from readers.extractive.layout import Row, RowScores, TokenizedTexts
from readers.extractive.settings import ReaderSettings
from readers.protocols import ReadRequest
from readers.table_match import TableMatch, content_words

_NEAR, _FURTHER = (
    15,
    20.0,
)  # words on each side of an answer; margin of a first answer without a second
_BORDERS = ":|-–—=_ "  # between the cells of a table in plain text

Pair = tuple[int, int]
"""Number of the question, and place of a passage in that question's list."""


@dataclass(frozen=True, slots=True)
class PassageRows:
    """The passages of a list of questions as rows for the network: windows of the pairs, the
    passage of each pair, and the tokens of these passages' texts."""

    questions: Sequence[str]
    pairs: list[Pair]
    passages: list[Passage]
    texts: TokenizedTexts
    rows: list[Row]

    @property
    def owners(self) -> Int64:
        """(R,) for each row the number of its question."""
        return np.array([self.pairs[row.group][0] for row in self.rows], np.int64)


@dataclass(frozen=True, slots=True)
class Span:
    """An answer before its confidence is known.

    Attributes:
        passage_index: number of its passage in the question's list.
        place: first character of that passage's text and one past the last; None if the answer does
            not stand there literally ("yes", or the words of a generator).
    """

    text: str
    score: float
    passage_index: int
    place: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Ranked:
    """One question's different answers, best first, and its null score (None: the model has none).

    Attributes:
        features: (5,) what predicts whether the first answer is right; empty without answers. 0: by
            how much it scores above the second; 1: in its passage, by how much the best span scores
            above "not here";
            2: the passage logit of its passage, 0 for a network without it; 3: logarithm of the
                answer's
            length in words plus 1; 4: share of the question's content words in and near the answer.
        reading: what was read for it, if that is counted: "passages", how many of these were
            "dropped" early, "token_layers", and the passages left unread because of the effort's
            limit ("over_limit").
    """

    answers: Sequence[Span]
    null: float | None
    features: Float64 = field(default_factory=lambda: np.zeros(0))
    reading: Mapping[str, int] = field(default_factory=dict)

    @property
    def scores(self) -> Float64:
        """Scores of the answers."""
        return np.array([answer.score for answer in self.answers], np.float64)

    def answer_set(
        self, request: ReadRequest, likelihoods: tuple[Float64, float], n_best: int
    ) -> AnswerSet:
        """The best answers with their `likelihoods`, and that of no answer (1 if there is none)."""
        of_answers, of_none = likelihoods
        answers = []
        for span, p in zip(self.answers[:n_best], of_answers[:n_best].tolist(), strict=True):
            evidence = request.evidence(span.passage_index, span.place)
            answers.append(Answer(span.text, span.score, p, evidence))
        none = of_none if answers else 1.0
        return AnswerSet(request.question, tuple(answers), none, reading=self.reading)


class QuestionRanker:
    """Ranks the spans of one question, given by its number, from as many of its rows as were read.

    Args:
        rows: the rows of all questions.
        retrieval: the retrieval scores of its passages.
    """

    def __init__(
        self, rows: PassageRows, question: int, retrieval: Sequence[float], settings: ReaderSettings
    ) -> None:
        self._rows, self._settings = rows, settings
        self._content = content_words(rows.questions[question])
        self._is_yes_no = settings.answer_types and asks_yes_no(rows.questions[question])
        scores = np.asarray(retrieval, np.float64)
        self._prior = (
            retrieval_prior(scores, settings.retrieval_weight) + settings.score_weight * scores
        )

    def rank(self, numbers: Int64, scores: RowScores) -> Ranked:
        """The answers from the rows with these numbers, ascending, and the network's scores of
        them.
        """
        rows = [self._rows.rows[number] for number in numbers]
        place = np.array([self._rows.pairs[row.group][1] for row in rows], np.int64)
        passages = {
            at: self._rows.passages[row.group] for at, row in zip(place.tolist(), rows, strict=True)
        }
        answers = self._answers(rows, place, passages, scores)
        if not answers:
            return Ranked([], None)
        of_first = place == answers[0].passage_index
        margins = (scores.spans[of_first, 0] - scores.nulls[of_first]).astype(np.float64)
        near = passages[answers[0].passage_index].text
        if answers[0].place is not None:
            start, end = answers[0].place
            near = " ".join(
                [*near[:start].split()[-_NEAR:], answers[0].text, *near[end:].split()[:_NEAR]]
            )
        features = [
            min(answers[0].score - answers[1].score, _FURTHER) if len(answers) > 1 else _FURTHER,
            max(margins.max(), -_FURTHER),
            scores.relevances[of_first].max(),
            np.log1p(len(answers[0].text.split())),
            len(self._content & content_words(near)) / max(1, len(self._content)),
        ]
        # DPR readers were not trained to say that a passage holds no answer; of windows the least
        # counts
        null = None if self._settings.select else float(scores.nulls[of_first].min())
        return Ranked(answers, null, np.array(features, np.float64))

    def _answers(
        self, rows: Sequence[Row], place: Int64, passages: Mapping[int, Passage], scores: RowScores
    ) -> list[Span]:
        """The different answers of all rows, best first; `place` tells which passage each row
        belongs to.

        Cells of fitting rows and columns score more, and further spans count only in such cells. In
        the end all scores are lowered by what the first gained: how likely it is does not grow by
        that.
        """
        settings, usual = self._settings, self._settings.spans_per_window
        weight = settings.table_weight
        texts = {p: passage.text for p, passage in passages.items()} if weight else {}
        tables = TableMatch(self._content, texts)
        n_spans = scores.spans.shape[1] if tables else min(usual, scores.spans.shape[1])
        values = self._values(place, scores, n_spans)
        row_of, rank_of = np.nonzero(np.isfinite(values))
        flat = values[row_of, rank_of]
        order = np.lexsort((rank_of, place[row_of], -flat))[: 6 * settings.candidates]
        gains: dict[Span, float] = {}
        best = row_of[order], rank_of[order].tolist(), flat[order].tolist()
        for at, number, score in zip(*best, strict=True):
            passage = int(place[at])
            if number >= n_spans:
                gains[Span(("yes", "no")[number - n_spans], score, passage)] = 0.0
                continue
            text, spot = self._cut(rows[at], scores.starts[at, number], scores.ends[at, number])
            gain = weight * tables(passage, *spot)
            if gain or number < usual:
                gains[Span(text, score + gain, passage, spot)] = gain
        ordered = distinct(sorted(gains, key=lambda span: -span.score), settings)
        of_first = gains[ordered[0]] if ordered else 0.0
        return [replace(span, score=span.score - of_first) for span in ordered]

    def _values(self, place: Int64, scores: RowScores, n_spans: int) -> Float64:
        """Scores (r, K) of the best spans of each row, then of "yes" and "no" if these are
        answers.
        """
        values = scores.spans.astype(np.float64)[:, :n_spans]
        if self._settings.select and len(place):
            # the best span of each passage scores its selection logit, its other spans less by what
            # they lack
            relevance, best = np.full((2, int(place.max()) + 1), -np.inf)
            np.maximum.at(relevance, place, scores.relevances.astype(np.float64))
            np.maximum.at(best, place, values[:, 0])
            values = values - best[place][:, None] + relevance[place][:, None]
        if self._is_yes_no:
            values = np.concatenate([values, scores.words], axis=1)
        return np.asarray(values + self._prior[place][:, None], np.float64)

    def _cut(self, row: Row, start: int, end: int) -> tuple[str, tuple[int, int]]:
        """The answer from token `start` to token `end` of a row, and its place in the passage."""
        offsets, shift = self._rows.texts.spans(row.group), row.first_token - row.text_from
        text = self._rows.passages[row.group].text
        marked = int(offsets[start + shift, 0]), int(offsets[end + shift, 1])
        begin, stop = one_unit(text, *whole_tokens(text, *marked))
        answer = text[begin:stop]
        begin += len(answer) - len(
            answer.lstrip()
        )  # SentencePiece's tokens hold the blank before a word
        answer = answer.strip()
        return answer, (begin, begin + len(answer))


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
        is_other = key not in unique and not any(_overlap(span, other) for other in unique.values())
        if is_other and key.strip(_BORDERS) and not is_function_word(span.text):
            unique[key] = span
            if len(unique) == settings.candidates:
                break
    return list(unique.values())


def _overlap(span: Span, other: Span) -> bool:
    if span.place is None or other.place is None or span.passage_index != other.passage_index:
        return False
    return span.place[0] < other.place[1] and other.place[0] < span.place[1]
