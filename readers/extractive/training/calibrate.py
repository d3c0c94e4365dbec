"""Choose ranking settings and fit confidences on held-out questions with retrieved passages."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from typing import Any

import numpy as np

from rag.core.arrays import Bool, Float64, Int64
from rag.core.errors import DataError
from rag.core.log import get_logger
from rag.data.examples import Example
from rag.metrics.calibration import measure_calibration
from readers.answer import Ranked
from readers.confidence import (
    ABSENT_FEATURES,
    RIGHT_FEATURES,
    fit_calibration,
    fit_chance,
    likelihoods,
)
from readers.extractive.layout import RowScores
from readers.extractive.ranking import PassageRows, QuestionRanker
from readers.extractive.reader import ExtractiveReader, retrieval_ranks
from readers.extractive.settings import ReaderSettings
from readers.extractive.training.data import SPAN, answer_type, is_right
from readers.manifest import Calibration

_WEIGHTS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.5, 6.0)
_TABLE_WEIGHTS = (0.0, 1.0, 2.0, 3.0)
_DEPTHS = (2, 5)  # passages read: confidences must also hold for partial readings
_EMPTY = 0.2  # share of a set's weight that cases without an answer in their passages get
# The same share, when fitting whether to present "no answer"; see the note on readers.
_PRESENTED = 0.33
# Of 8 questions these two, one per half, are also read without right passages.
_EMPTIED = (0, 5)
_OF = 8

log = get_logger(__name__)


@dataclass(frozen=True)
class Case:
    """The reader's output for a held-out question.

    Attributes:
        number: number of the question; a question's cases are fitted or measured together.
        label: name of its question set.
        emptied: whether the passages with an answer were taken away.
        holds: whether a passage that was read holds an answer.
        whole: whether all passages were read, not only the best few.
    """

    ranked: Ranked
    example: Example
    number: int
    label: str = ""
    emptied: bool = False
    holds: bool = True
    whole: bool = True

    @cached_property
    def right(self) -> list[bool]:
        """Which of the answers are right."""
        return [
            not self.emptied and is_right(answer.text, self.example)
            for answer in self.ranked.answers
        ]


def tune(
    reader: ExtractiveReader, sets: Mapping[str, Sequence[Example]]
) -> tuple[ReaderSettings, Calibration, dict[str, float]]:
    """Choose the weights of a passage's rank and of tables by exact match, then fit confidences.

    The network reads each question once, with all its passages. Its scores also serve as cases in
    which only the best few passages are read. Every fourth question gives one more case without the
    passages that hold an answer, so that "no answer" is fitted too. All sets have the same total
    weight, however many questions they have.

    Args:
        reader: gives the network and the settings to start from.
        sets: held-out questions with their retrieved passages, by name of the set.

    Returns:
        Settings, calibration, and figures on these questions (per cent, except "ece").

    Raises:
        DataError: there are fewer than two questions.
    """
    questions = _read(reader, sets)
    best = _most_right(questions, reader.settings, "retrieval_weight", _WEIGHTS)
    best = _most_right(questions, best, "table_weight", _TABLE_WEIGHTS)
    calibration, figures = fit_and_measure(_cases(questions, best))
    return best, calibration, {**_exact_match(questions, best), **figures}


@dataclass(frozen=True, slots=True)
class _Question:
    """A held-out question, and what the network says of the R rows of all its passages.

    Attributes:
        weight: its share of all questions, all sets having the same.
        holds: (R,) whether the row's passage holds an answer.
        ranks: (R,) how many of its passages rank before the row's.
    """

    example: Example
    label: str
    weight: float
    rows: PassageRows
    scores: RowScores
    holds: Bool
    ranks: Int64

    def rank(
        self, settings: ReaderSettings, *, emptied: bool = False, depth: int | None = None
    ) -> tuple[Ranked, bool]:
        """The answers, and whether what was read holds one: from all passages, or from those without
        an answer, or from the best.
        """
        used = ~self.holds if emptied else np.ones(len(self.holds), bool)
        if depth is not None:
            used &= self.ranks < depth
        ranker = QuestionRanker(self.rows, 0, _search_scores(self.example), settings)
        ranked = ranker.rank(np.nonzero(used)[0], self.scores)
        return ranked, bool(self.holds[used].any())

    def is_right(self, settings: ReaderSettings) -> bool:
        """Whether the first answer from all passages is right."""
        ranked, _ = self.rank(settings)
        return bool(ranked.answers) and is_right(ranked.answers[0].text, self.example)


def _search_scores(example: Example) -> list[float]:
    scores = [candidate.score for candidate in example.candidates]
    return [np.nan if score is None else score for score in scores]


def _read(reader: ExtractiveReader, sets: Mapping[str, Sequence[Example]]) -> list[_Question]:
    """Read the passages of all questions."""
    questions = []
    for label, examples in sets.items():
        weight = 1.0 / (len(sets) * len(examples))
        for example in examples:
            rows, scores = reader.score([example.question], [example.passages])
            holds = []
            for row in rows.rows:
                _, number = rows.pairs[row.group]
                holds.append(bool(example.candidates[number].has_answer))
            ranks = retrieval_ranks(rows, [_search_scores(example)])
            question = _Question(example, label, weight, rows, scores, np.array(holds, bool), ranks)
            questions.append(question)
    return questions


def _most_right(
    questions: Sequence[_Question], settings: ReaderSettings, name: str, values: Sequence[float]
) -> ReaderSettings:
    """The settings with the value of `name` that gives most right first answers."""
    weights = np.array([question.weight for question in questions])
    options = [settings.model_copy(update={name: value}) for value in values]
    shares = []
    for option, value in zip(options, values, strict=True):
        right = np.array([question.is_right(option) for question in questions], float)
        shares.append(float((weights * right).sum()))
        log.info("held-out EM %.2f  %s=%g", 100 * shares[-1], name, value)
    return options[int(np.argmax(shares))]


def _cases(questions: Sequence[_Question], settings: ReaderSettings) -> list[Case]:
    """Each question read whole, without the passages that hold an answer (some), and at each
    depth.
    """
    cases = []
    for emptied, depth in ((False, None), (True, None), *((False, depth) for depth in _DEPTHS)):
        for number, question in enumerate(questions):
            if emptied and number % _OF not in _EMPTIED:
                continue
            ranked, holds = question.rank(settings, emptied=emptied, depth=depth)
            if ranked.answers:
                label = question.label
                case = Case(ranked, question.example, number, label, emptied, holds, depth is None)
                cases.append(case)
    return cases


def _exact_match(questions: Sequence[_Question], settings: ReaderSettings) -> dict[str, float]:
    """Right first answers in per cent: the mean of the sets, and of each set if there are
    several.
    """
    right = np.array([question.is_right(settings) for question in questions], float)
    weights = np.array([question.weight for question in questions])
    labels = np.array([question.label for question in questions])
    figures = {"em": round(100 * float((weights * right).sum()), 2)}
    names = list(dict.fromkeys(labels.tolist()))
    if len(names) > 1:
        for name in names:
            figures[f"em {name}"] = round(100 * float(right[labels == name].mean()), 2)
    return figures


def weigh(cases: Sequence[Case], empty: float) -> Float64:
    """Weights (Q,) under which all sets count alike, and cases without an answer have the share
    `empty`.

    How often a corpus holds no answer depends on the user's corpus and must not be learnt from the
    sets, in which the retrieved passages of 1 to 60 % of the questions hold none. A set in which
    all cases have an answer, or none has, keeps its weight.
    """
    counts = Counter((case.label, case.holds) for case in cases)
    shares = {True: 1.0 - empty, False: empty}
    weights = []
    for case in cases:
        has_both = (case.label, not case.holds) in counts
        share = shares[case.holds] if has_both else 1.0
        weights.append(share / counts[case.label, case.holds])
    return np.array(weights)


def fit_and_measure(cases: Sequence[Case]) -> tuple[Calibration, dict[str, float]]:
    """The calibration fitted on all cases, and figures.

    On the questions it was fitted on a confidence looks better than it is. So the figures of each
    set are measured with a fit on the other sets; those of a single set on each half, with a fit on
    the other half.

    Raises:
        DataError: there are fewer than two questions.
    """
    labels = np.array([case.label for case in cases])
    names = list(dict.fromkeys(labels.tolist()))
    groups = labels if len(names) > 1 else np.array([case.number % 2 for case in cases])
    values = np.unique(groups)
    if len(values) < 2:
        raise DataError(
            "fewer than two held-out questions to fit and to measure the confidence on",
            hint="raise held_out of a set, or name another in `calibrate`, both with `retrieved`: "
            "--set 'calibrate=[{questions: FILE, retrieved: FILE}]'",
        )
    right_chances = np.zeros(len(cases))  # that the first answer is right
    no_answer_chances = np.zeros(len(cases))
    for value in values:  # a question's cases stay together
        calibration = fit(list(compress(cases, groups != value)))
        for number in np.nonzero(groups == value)[0].tolist():
            chances, no_answer_chances[number] = likelihoods(cases[number].ranked, calibration)
            right_chances[number] = chances[0]
    right = np.array([case.right[0] for case in cases])
    shown = np.array([case.whole and not case.emptied for case in cases])
    removed = np.array([case.whole and case.emptied for case in cases])
    silent = no_answer_chances > 0.5
    errors = {}
    for name in names:
        of_set = shown & (labels == name)
        measured = measure_calibration(right_chances[of_set], right[of_set])
        if measured is not None:
            errors[f"ece {name}"] = round(float(measured["ece"]), 4)
    figures = {
        "ece": round(float(np.mean(list(errors.values()))), 4),
        "no_answer_recall": _percent(silent[removed]),
        "no_answer_false_alarms": _percent(silent[shown & right]),
        "questions": float(shown.sum()),
        "without_answer": float(removed.sum()),
        **(errors if len(names) > 1 else {}),
    }
    return fit(cases), figures


def fit(cases: Sequence[Case]) -> Calibration:
    """Temperature and null bias of all candidates on what was read whole; then, for readers that
    say "no answer", two logistic regressions on all cases: that the first answer is right, and that
    there is none."""
    whole = [case for case in cases if case.whole]
    has_null = all(case.ranked.null is not None for case in cases)
    if not has_null:  # without "no answer", only questions with a right answer can be fitted
        whole = [case for case in whole if any(case.right)]
        if not whole:
            return Calibration()
    widest = max(len(case.ranked.answers) for case in whole)
    scores = np.full((len(whole), widest), -np.inf)
    correct = np.zeros((len(whole), widest), bool)
    for row, case in enumerate(whole):
        scores[row, : len(case.right)] = case.ranked.scores
        correct[row, : len(case.right)] = case.right
    nulls = np.array([-1e4 if case.ranked.null is None else case.ranked.null for case in whole])
    fitted = fit_calibration(scores, correct, nulls, weigh(whole, _EMPTY))
    if not has_null:
        return fitted
    features = np.array([case.ranked.features for case in cases])
    right = np.array([case.right[0] for case in cases])
    holds = np.array([case.holds for case in cases])
    right_features = features[:, RIGHT_FEATURES]
    fits: dict[str, Any] = {"right": fit_chance(right_features, right, weigh(cases, _EMPTY))}
    # "Yes" and "no" stand in no passage. With one class alone the fit would say "always" or
    # "never"; the null bias then decides instead.
    spans = np.array([answer_type(case.example) == SPAN for case in cases])
    if holds[spans].any() and not holds[spans].all():
        weights = weigh(list(compress(cases, spans)), _PRESENTED)
        fits["absent"] = fit_chance(features[spans][:, ABSENT_FEATURES], ~holds[spans], weights)
    return fitted.model_copy(update=fits)


def _percent(of: Bool) -> float:
    return round(100 * float(of.mean()), 2) if len(of) else 0.0
