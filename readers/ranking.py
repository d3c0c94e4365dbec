"""From scored rows to each question's candidates, best first, and its "no answer here" score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rag.core.arrays import Bool, Float64, Int32, Int64
from rag.core.types import Passage
from rag.data.text import normalize_answer
from readers.answer_forms import answer_bounds, content_words, fit_of_form, has_form
from readers.extractive.inference import RowScores
from readers.extractive.layout import Row
from readers.extractive.settings import ReaderSettings
from readers.extractive.tokens import TokenizedTexts
from readers.protocols import ReadAnswer, ReadResult, ScoreLists
from readers.table_match import TableMatch

_USUAL_MATCH = 1.3  # of the cells of first answers, on WikiTableQuestions
_LONGEST_CELL = 8  # words
_NEAR = 15  # words on each side of an answer
_ONLY_SIGNS = ("", "date", "step")  # forms that change no order

Pair = tuple[int, int, int]
"""Number of the question, place in that question's list, index of the unique passage."""


@dataclass(frozen=True, slots=True)
class CandidateAnswer:
    """An answer in one passage: characters `start` to `end` (exclusive; None: it has no place), its score,
    and `weights` as in `ReadAnswer`."""

    passage_index: int
    start: int | None
    end: int | None
    text: str
    score: float
    weights: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class PassageRows:
    """The passages of a list of questions as rows for the network.

    Attributes:
        questions: number of questions.
        pairs, unique: (question, place, unique passage) triples and the unique passages.
        texts: tokens of the unique passages' texts.
        rows: windows of the pairs.
        extend: (V,) bool, tokens that continue a word, if answers are to be extended to whole words.
        polar: (questions,) bool, whether "yes" and "no" can answer the question.
        forms: for each question the form of its answers, see `expected_form`.
        contents: for each question its content words, see `content_words`.
    """

    questions: int
    pairs: list[Pair]
    unique: list[Passage]
    texts: TokenizedTexts
    rows: list[Row]
    extend: Bool | None
    polar: Bool
    forms: Sequence[str]
    contents: Sequence[frozenset[str]]

    def scored(self, numbers: Sequence[int], scores: RowScores) -> ScoredPassages:
        """The rows with these numbers, and the network's scores of each."""
        rows = [self.rows[number] for number in numbers]
        same = (self.questions, self.pairs, self.unique, self.texts)
        return ScoredPassages(*same, rows, self.extend, self.polar, self.forms, self.contents, scores=scores)


@dataclass(frozen=True, slots=True)
class ScoredPassages(PassageRows):
    """The network's whole output for a list of questions; ranking it again costs next to nothing."""

    scores: RowScores

    def only(self, numbers: Sequence[int]) -> ScoredPassages:
        """The output for the rows with these numbers alone."""
        return self.scored(numbers, self.scores.take(np.array(numbers, np.int64)))


@dataclass(frozen=True, slots=True)
class Ranked:
    """One question's different answers, best first, and its null score (None: the model has none).

    Attributes:
        passages: number of passages that were read.
        place: number of these with a higher retrieval score than the first answer's passage.
        relevance: passage logit of the first answer's passage; 0 for a network without passage logits.
        question_tokens: number of tokens of the question.
        lead: in the first answer's passage, by how much the best span scores higher than "not here".
        rival: likewise in the best of the other passages that were read, at least −10.
        fit: whether the first answer has the form that is asked for, see `fit_of_form`.
        near: share of the question's content words in the answer and 15 words on both sides; 0 if none.
        words: number of words of its passage.
        cell: how well its cell of a table fits the question, less what first answers' cells do on average; 0
            outside of tables.
    """

    candidates: list[CandidateAnswer]
    null: float | None
    passages: int = 1
    place: int = 0
    relevance: float = 0.0
    question_tokens: int = 1
    lead: float = 0.0
    rival: float = -10.0
    fit: int = 0
    near: float = 0.0
    words: int = 0
    cell: float = 0.0

    @property
    def scores(self) -> Float64:
        """Scores of the candidates."""
        return np.array([candidate.score for candidate in self.candidates], np.float64)

    def result(
        self, probabilities: Float64, none: float, n_best: int, cost: Mapping[str, int] | None = None
    ) -> ReadResult:
        """The best answers with their probabilities, and that of no answer (1 if there is none)."""
        answers = tuple(
            ReadAnswer(c.text, c.score, float(p), c.passage_index, c.start, c.end, weights=c.weights)
            for c, p in zip(self.candidates[:n_best], probabilities[:n_best], strict=True)
        )
        return ReadResult(answers, none if answers else 1.0, cost or {})


def rank(scored: ScoredPassages, retrieval: ScoreLists, settings: ReaderSettings) -> list[Ranked]:
    """Rank the spans of every question across its passages.

    Args:
        retrieval: for each question the retrieval scores of its passages.
        settings: `select`, `answer_types`, `retrieval_weight`, `score_weight`, `form_weight`, `table_weight`,
            `merge`, `null` and `candidates` are read.
    """
    mine: list[list[int]] = [[] for _ in range(scored.questions)]
    for index, row in enumerate(scored.rows):
        mine[scored.pairs[row.group][0]].append(index)
    results = []
    for question, indices in enumerate(mine):
        chosen = np.array(indices, np.int64)
        place = np.array([scored.pairs[scored.rows[i].group][1] for i in indices], np.int64)
        if len(chosen) == 0:
            results.append(Ranked([], None))
            continue
        worded = settings.answer_types and bool(scored.polar[question])
        pairs = (scored.pairs[scored.rows[i].group] for i in indices)
        passages = {number: scored.unique[unique] for _, number, unique in pairs}  # those that were read
        content, form = scored.contents[question], scored.forms[question]
        tables = _tables(content, passages) if settings.table_weight else None
        candidates = _candidates(scored, chosen, place, retrieval[question], settings, worded, form, tables)
        candidates = _by_form(candidates, form, settings.form_weight)
        null = _null(scored, chosen, place, settings, candidates)
        read = np.unique(place)
        scores = np.asarray(retrieval[question], np.float64)[read]
        first = candidates[0].passage_index if candidates else read[0]
        relevance = float(scored.scores.relevances[chosen][place == first].max())
        ahead = int((scores > scores[read == first]).sum())
        question_tokens = scored.rows[indices[0]].types_from
        leads = (scored.scores.spans[chosen, 0] - scored.scores.nulls[chosen]).astype(np.float64)
        seen = float(leads[place == first].max()), float(max(leads[place != first], default=-10.0))
        signs: tuple[int, float, int, float] = (0, 0.0, 0, 0.0)
        if candidates:
            fit = fit_of_form(candidates[0].text, form)
            around = _around(candidates[0], passages[int(first)], content)
            cell = _match(candidates[0], tables)
            signs = fit, *around, cell - _USUAL_MATCH if cell else 0.0
        signed = seen[0], max(seen[1], -10.0), *signs
        results.append(Ranked(candidates, null, len(read), ahead, relevance, question_tokens, *signed))
    return results


def _around(answer: CandidateAnswer, passage: Passage, content: frozenset[str]) -> tuple[float, int]:
    """`near` and `words` of `Ranked`."""
    text, start, end = passage.text, answer.start, answer.end
    if start is None or end is None:
        near = content_words(text)
    else:
        before, after = text[:start].split()[-_NEAR:], text[end:].split()[:_NEAR]
        near = content_words(" ".join([*before, answer.text, *after]))
    return len(content & near) / max(1, len(content)), len(passage.title.split()) + len(text.split())


def _tables(content: frozenset[str], passages: Mapping[int, Passage]) -> TableMatch | None:
    """The tables in passages, if they hold any of the question's content words."""
    texts = [""] * (max(passages) + 1)
    for number, passage in passages.items():
        texts[number] = passage.text
    match = TableMatch(content, texts)
    return match if match else None


def _candidates(
    scored: ScoredPassages,
    chosen: Int64,
    place: Int64,
    retrieval: Sequence[float],
    settings: ReaderSettings,
    worded: bool,
    form: str,
    tables: TableMatch | None,
) -> list[CandidateAnswer]:
    """`chosen` rows of one question; `place` tells which of its passages each row belongs to.

    Args:
        worded: whether "yes" and "no" are candidates.
        form: of the answers, see `expected_form`.
    """
    usual = settings.spans_per_window
    values = scored.scores.spans[chosen].astype(np.float64)  # (r, K)
    if tables is None:
        values = values[:, :usual]
    if settings.select:
        # the best span of each passage scores its selection logit, its other spans less by what they lack
        relevance = np.full(int(place.max()) + 1, -np.inf)
        np.maximum.at(relevance, place, scored.scores.relevances[chosen].astype(np.float64))
        best = np.full_like(relevance, -np.inf)
        np.maximum.at(best, place, values[:, 0])
        values = values - best[place][:, None] + relevance[place][:, None]
    n_spans = values.shape[1]
    if worded:
        values = np.concatenate([values, scored.scores.words[chosen]], axis=1)
    if settings.retrieval_weight:
        values = values + retrieval_prior(retrieval, settings.retrieval_weight)[place][:, None]
    if settings.score_weight:
        values = values + settings.score_weight * np.asarray(retrieval, np.float64)[place][:, None]
    row_of, rank_of = np.nonzero(np.isfinite(values))
    flat = values[row_of, rank_of]
    order = np.lexsort((rank_of, place[row_of], -flat))[: 6 * settings.candidates]

    def resolve(at: int, number: int) -> CandidateAnswer:
        if number >= n_spans:
            return CandidateAnswer(int(place[at]), None, None, ("yes", "no")[number - n_spans], 0.0)
        row = scored.rows[int(chosen[at])]
        unique = scored.pairs[row.group][2]
        offsets = scored.texts.spans(unique)
        shift = row.first_token - row.text_from
        first = int(scored.scores.starts[chosen[at], number]) + shift
        last = int(scored.scores.ends[chosen[at], number]) + shift
        if scored.extend is not None:
            first, last = _whole_words(scored.texts.tokens(unique), first, last, scored.extend)
        text = scored.unique[unique].text
        start, end = answer_bounds(text, int(offsets[first, 0]), int(offsets[last, 1]))
        answer = text[start:end]
        start += len(answer) - len(answer.lstrip())  # SentencePiece's tokens hold the blank before a word
        answer = answer.strip()
        return CandidateAnswer(int(place[at]), start, start + len(answer), answer, 0.0)

    found = [replace(resolve(int(row_of[i]), int(rank_of[i])), score=float(flat[i])) for i in order]
    if tables is None:
        return distinct(found, settings)
    is_further = ((usual <= rank_of) & (rank_of < n_spans))[order]
    return _by_table(found, is_further, form, tables, settings)


def _by_table(
    found: Sequence[CandidateAnswer],
    is_further: Bool,
    form: str,
    tables: TableMatch,
    settings: ReaderSettings,
) -> list[CandidateAnswer]:
    """`distinct` answers in an order in which cells of fitting rows and columns score more.

    The only cell of all tables that fits the question wholly comes first, with the score of the best span. In
    the end all scores are lowered by what the first gained: how likely it is does not grow by that.

    Args:
        found: spans by descending score.
        is_further: spans that count only in such cells.
    """
    gains = [settings.table_weight * _match(answer, tables) for answer in found]
    gained = [
        replace(answer, score=answer.score + gain)
        for answer, gain, further in zip(found, gains, is_further, strict=True)
        if gain or not further
    ]
    if found and (only := tables.only_cell()) is not None and _can_answer(only[1].value, form):
        place, cell = only
        answer = CandidateAnswer(place, cell.start, cell.end, cell.value, found[0].score)
        gain = settings.table_weight * _match(answer, tables)
        gained.insert(0, replace(answer, score=answer.score + gain))
    kept = distinct(sorted(gained, key=lambda answer: -answer.score), settings)
    of_first = settings.table_weight * _match(kept[0], tables) if kept else 0.0
    return [replace(answer, score=answer.score - of_first) for answer in kept]


def _can_answer(value: str, form: str) -> bool:
    return len(value.split()) <= _LONGEST_CELL and fit_of_form(value, form) >= 0


def _match(answer: CandidateAnswer, tables: TableMatch | None) -> float:
    if tables is None or answer.start is None or answer.end is None:
        return 0.0
    return tables(answer.passage_index, answer.start, answer.end)


def _by_form(candidates: list[CandidateAnswer], form: str, weight: float) -> list[CandidateAnswer]:
    """The candidates in a new order: the scores of those without the requested form are lower by `weight`."""
    if form in _ONLY_SIGNS or not weight:
        return candidates
    scored = [c if has_form(c.text, form) else replace(c, score=c.score - weight) for c in candidates]
    return sorted(scored, key=lambda c: -c.score)


def _null(
    scored: ScoredPassages,
    chosen: Int64,
    place: Int64,
    settings: ReaderSettings,
    candidates: Sequence[CandidateAnswer],
) -> float | None:
    """Score of "none of these passages answers it"; DPR readers were not trained to say so."""
    if settings.select:
        return None
    lowest = np.full(int(place.max()) + 1, np.inf)  # over a passage's windows the least "not here" counts
    np.minimum.at(lowest, place, scored.scores.nulls[chosen].astype(np.float64))
    if settings.null == "best":
        return float(lowest[candidates[0].passage_index]) if candidates else None
    known = lowest[np.isfinite(lowest)]
    if settings.null == "mean":
        return float(known.mean())
    return float(known.max() if settings.null == "max" else known.min())


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


def distinct(ordered: Sequence[CandidateAnswer], settings: ReaderSettings) -> list[CandidateAnswer]:
    """Different answers, best first, from spans that come best first.

    A span is dropped if it has the normalised text of a better one (under merge="sum" its score is added
    to the better one's, once per passage), overlaps a better one in the same passage, or is empty.

    Args:
        ordered: spans by descending score.
        settings: gives `candidates` and `merge`.
    """
    kept: list[CandidateAnswer] = []
    by_text: dict[str, int] = {}
    counted: set[tuple[str, int]] = set()
    for candidate in ordered:
        key = normalize_answer(candidate.text) or candidate.text
        if not key:
            continue
        at = by_text.get(key)
        if at is not None:
            if settings.merge == "sum" and (key, candidate.passage_index) not in counted:
                counted.add((key, candidate.passage_index))
                kept[at] = replace(kept[at], score=float(np.logaddexp(kept[at].score, candidate.score)))
            continue
        if any(_overlap(candidate, other) for other in kept):
            continue
        if len(kept) < settings.candidates:
            by_text[key] = len(kept)
            counted.add((key, candidate.passage_index))
            kept.append(candidate)
    return sorted(kept, key=lambda c: -c.score)


def _overlap(one: CandidateAnswer, other: CandidateAnswer) -> bool:
    if one.start is None or one.end is None or other.start is None or other.end is None:
        return False
    return one.passage_index == other.passage_index and one.start < other.end and other.start < one.end
