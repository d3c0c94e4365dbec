"""Choose ranking settings and fit confidences on held-out questions with retrieved passages."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, compress, repeat
from typing import Any

import numpy as np

from rag.core.arrays import Bool, Float64
from rag.core.errors import DataError
from rag.core.log import get_logger
from rag.data.examples import Example
from rag.metrics.calibration import measure_calibration
from readers.confidence import (
    Ranked,
    fit_calibration,
    fit_chance,
    likelihoods,
)
from readers.extractive.ranking import QuestionRanker
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
    read = _Read(reader, sets)
    best = _most_right(read, reader.settings, "retrieval_weight", _WEIGHTS)
    best = _most_right(read, best, "table_weight", _TABLE_WEIGHTS)
    right = read.right(best)
    figures = {"em": round(100 * float((read.weights * right).sum()), 2)}
    if len(sets) > 1:
        for name in sets:
            figures[f"em {name}"] = _percent(right[read.labels == name])
    calibration, of_confidence = fit_and_measure(_cases(read, best))
    return best, calibration, {**figures, **of_confidence}


class _Read:
    """Q held-out questions, and what the network says of all their passages.

    Attributes:
        labels: (Q,) names of their sets.
        weights: (Q,) each question's share of all, all sets having the same.
    """

    def __init__(self, reader: ExtractiveReader, sets: Mapping[str, Sequence[Example]]) -> None:
        self.examples = list(chain.from_iterable(sets.values()))
        sizes = np.array(list(map(len, sets.values())))
        self.labels = np.repeat(list(sets), sizes)
        self.weights = np.repeat(1.0 / (len(sets) * sizes), sizes)
        passages = [example.passages for example in self.examples]
        questions = [example.question for example in self.examples]
        self._rows = reader.score(questions, passages)
        self._retrieval = []
        for example in self.examples:
            scores = [candidate.score for candidate in example.candidates]
            self._retrieval.append(np.array(scores, float).tolist())  # None becomes NaN
        self._ranks = retrieval_ranks(self._rows, self._retrieval)
        owners = self._rows.owners
        # Where the rows of each question begin.
        self._bounds = np.searchsorted(owners[:, 0], np.arange(len(self.examples) + 1))
        holds = [self.examples[n].candidates[passage].has_answer for n, passage in owners]
        self._holds = np.array(holds, bool)

    def rank(
        self, number: int, settings: ReaderSettings, *, emptied: bool = False, depth: float = np.inf
    ) -> tuple[Ranked, bool]:
        """The answers to a question, and whether what was read holds one: from all passages, or
        from those without an answer, or from the best.
        """
        numbers = np.arange(*self._bounds[number : number + 2])
        numbers = numbers[self._ranks[numbers] < depth]
        if emptied:
            numbers = numbers[~self._holds[numbers]]
        ranker = QuestionRanker(self._rows, number, self._retrieval[number], settings)
        return ranker.rank(numbers), bool(self._holds[numbers].any())

    def right(self, settings: ReaderSettings) -> Float64:
        """(Q,) 1 where the first answer from all passages is right, else 0."""
        right = np.zeros(len(self.examples))
        for number, example in enumerate(self.examples):
            ranked, _ = self.rank(number, settings)
            right[number] = bool(ranked.answers) and is_right(ranked.answers[0].text, example)
        return right


def _most_right(
    read: _Read, settings: ReaderSettings, name: str, values: Sequence[float]
) -> ReaderSettings:
    """The settings with the value of `name` that gives most right first answers."""
    options = [settings.model_copy(update={name: value}) for value in values]
    shares = []
    for option, value in zip(options, values, strict=True):
        shares.append(float((read.weights * read.right(option)).sum()))
        log.info("held-out EM %.2f  %s=%g", 100 * shares[-1], name, value)
    return options[int(np.argmax(shares))]


def _cases(read: _Read, settings: ReaderSettings) -> list[Case]:
    """Each question read whole, without the passages that hold an answer (some), and at each
    depth.
    """
    cases = []
    for emptied, depth in ((False, np.inf), (True, np.inf), *zip(repeat(False), _DEPTHS)):
        for number, example in enumerate(read.examples):
            if emptied and number % _OF not in _EMPTIED:
                continue
            ranked, holds = read.rank(number, settings, emptied=emptied, depth=depth)
            if ranked.answers:
                label = str(read.labels[number])
                cases.append(Case(ranked, example, number, label, emptied, holds, depth == np.inf))
    return cases


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
            "[{questions: FILE, retrieved: FILE}]",
        )
    right_chances = np.zeros(len(cases))  # that the first answer is right
    no_answer_chances = np.zeros(len(cases))
    for value in values:  # a question's cases stay together
        calibration = fit(list(compress(cases, groups != value)))
        for number in np.nonzero(groups == value)[0].tolist():
            chances, no_answer_chances[number] = likelihoods(cases[number].ranked, calibration)
            right_chances[number] = chances[0]
    right = np.array([case.right[0] for case in cases])
    removed = np.array([case.emptied for case in cases])
    whole = np.array([case.whole for case in cases]) & ~removed
    silent = no_answer_chances > 0.5
    errors = {}
    for name in names:
        of_set = whole & (labels == name)
        measured = measure_calibration(right_chances[of_set], right[of_set])
        if measured is not None:
            errors[f"ece {name}"] = round(float(measured["ece"]), 4)
    figures = {
        "ece": round(float(np.mean(list(errors.values()))), 4),
        "no_answer_recall": _percent(silent[removed]),
        "no_answer_false_alarms": _percent(silent[whole & right]),
        "questions": float(whole.sum()),
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
    right = np.array([case.right[0] for case in cases])
    holds = np.array([case.holds for case in cases])
    right_features = np.array([case.ranked.features.for_right for case in cases])
    fits: dict[str, Any] = {"right": fit_chance(right_features, right, weigh(cases, _EMPTY))}
    # "Yes" and "no" stand in no passage. With one class alone the fit would say "always" or
    # "never"; the null bias then decides instead.
    spans = np.array([answer_type(case.example) == SPAN for case in cases])
    if holds[spans].any() and not holds[spans].all():
        weights = weigh(list(compress(cases, spans)), _PRESENTED)
        absent_features = np.array([case.ranked.features.for_absent for case in cases])
        fits["absent"] = fit_chance(absent_features[spans], ~holds[spans], weights)
    return fitted.model_copy(update=fits)


def _percent(of: Bool | Float64) -> float:
    return round(100 * float(of.mean()), 2) if len(of) else 0.0
