"""Choose ranking settings and fit confidences on held-out questions with retrieved passages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np

from rag.core.arrays import Bool, Float64
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
from readers.extractive.ranking import QuestionRanker
from readers.extractive.reader import ExtractiveReader, retrieval_ranks
from readers.extractive.settings import ReaderSettings
from readers.extractive.training.data import SPAN, answer_type, is_right
from readers.manifest import Calibration

_WEIGHTS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.5, 6.0)
_TABLE_WEIGHTS = (0.0, 1.0, 2.0, 3.0)
_DEPTHS = (2, 5)  # passages read: confidences must also hold for partial readings
_EMPTY = 0.2  # share of a set's weight that cases without an answer in their passages get
_PRESENTED = (
    0.33  # the same share, when fitting whether to present "no answer"; see the note on readers
)
_EMPTIED, _OF = (
    (0, 5),
    8,
)  # of 8 questions these two, one per half, are also read without right passages
_CHUNK = 64

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
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

    @property
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
    reading = _Reading(reader, sets)
    best = reading.most_right(reader.settings, "retrieval_weight", _WEIGHTS)
    best = reading.most_right(best, "table_weight", _TABLE_WEIGHTS)
    calibration, figures = fit_and_measure(reading.cases(best))
    return best, calibration, {**reading.exact_match(best), **figures}


class _Reading:
    """The held-out questions of some sets, and the scores of all their passages, in chunks."""

    def __init__(self, reader: ExtractiveReader, sets: Mapping[str, Sequence[Example]]) -> None:
        self.examples = [example for examples in sets.values() for example in examples]
        self.labels = [label for label, examples in sets.items() for _ in examples]
        self.weights = np.array(
            [1.0 / (len(sets) * len(sets[label])) for label in self.labels]
        )  # (Q,)
        self.chunks = [self.examples[i : i + _CHUNK] for i in range(0, len(self.examples), _CHUNK)]
        self.scored = [
            reader.score([e.question for e in chunk], [e.passages for e in chunk])
            for chunk in self.chunks
        ]

    def ranked(
        self, settings: ReaderSettings, *, emptied: bool = False, depth: int | None = None
    ) -> list[tuple[Ranked, bool]]:
        """The answers to all questions, and whether what was read holds one: from all passages, or
        from those without an answer, or from the best."""
        ranked: list[tuple[Ranked, bool]] = []
        for chunk, (rows, scores) in zip(self.chunks, self.scored, strict=True):
            retrieval = [
                [np.nan if c.score is None else c.score for c in e.candidates] for e in chunk
            ]
            pairs = [rows.pairs[row.group] for row in rows.rows]
            holds = np.array(
                [bool(chunk[q].candidates[place].has_answer) for q, place in pairs], bool
            )
            used = ~holds if emptied else np.ones(len(pairs), bool)
            if depth is not None:
                used &= retrieval_ranks(rows, retrieval) < depth
            owner = rows.owners
            for question, own in enumerate(retrieval):
                numbers = np.nonzero((owner == question) & used)[0]
                ranker = QuestionRanker(rows, question, own, settings)
                ranked.append(
                    (ranker.rank(numbers, scores.take(numbers)), bool(holds[numbers].any()))
                )
        return ranked

    def right(self, settings: ReaderSettings) -> Float64:
        """(Q,) 1 where the first answer is right, else 0."""
        pairs = zip(self.ranked(settings), self.examples, strict=True)
        return np.array(
            [bool(r.answers) and is_right(r.answers[0].text, e) for (r, _), e in pairs], float
        )

    def most_right(
        self, settings: ReaderSettings, name: str, values: Sequence[float]
    ) -> ReaderSettings:
        """The settings with the value of `name` that gives most right first answers."""
        options = [settings.model_copy(update={name: value}) for value in values]
        shares = [float((self.weights * self.right(option)).sum()) for option in options]
        for value, share in zip(values, shares, strict=True):
            log.info("held-out EM %.2f  %s=%g", 100 * share, name, value)
        return options[int(np.argmax(shares))]

    def cases(self, settings: ReaderSettings) -> list[Case]:
        """Each question read whole, without the passages that hold an answer (some), and at each
        depth.
        """
        cases = []
        for emptied, depth in ((False, None), (True, None), *((False, depth) for depth in _DEPTHS)):
            ranked = self.ranked(settings, emptied=emptied, depth=depth)
            for number, (each, holds) in enumerate(ranked):
                if each.answers and (not emptied or number % _OF in _EMPTIED):
                    example, label = self.examples[number], self.labels[number]
                    cases.append(Case(each, example, number, label, emptied, holds, depth is None))
        return cases

    def exact_match(self, settings: ReaderSettings) -> dict[str, float]:
        """Right first answers in per cent: the mean of the sets, and of each set if there are
        several.
        """
        right, labels = self.right(settings), np.array(self.labels)
        names = list(dict.fromkeys(self.labels))
        figures = {"em": round(100 * float((self.weights * right).sum()), 2)}
        if len(names) > 1:
            figures |= {
                f"em {name}": round(100 * float(right[labels == name].mean()), 2) for name in names
            }
        return figures


def weigh(cases: Sequence[Case], empty: float) -> Float64:
    """Weights (Q,) under which all sets count alike, and cases without an answer have the share
    `empty`.

    How often a corpus holds no answer depends on the user's corpus and must not be learnt from the
    sets, in which the retrieved passages of 1 to 60 % of the questions hold none. A set in which
    all cases have an answer, or none has, keeps its weight.
    """
    kinds = [(case.label, case.holds) for case in cases]
    counts = {kind: kinds.count(kind) for kind in set(kinds)}
    shares = {True: 1.0 - empty, False: empty}
    return np.array(
        [
            (shares[holds] if (label, not holds) in counts else 1.0) / counts[label, holds]
            for label, holds in kinds
        ]
    )


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
    if len(values := np.unique(groups)) < 2:
        raise DataError(
            "fewer than two held-out questions to fit and to measure the confidence on",
            hint="raise held_out of a set, or name another in `calibrate`, both with `retrieved`: "
            "--set 'calibrate=[{questions: FILE, retrieved: FILE}]'",
        )
    chances = np.zeros((len(cases), 2))  # that the first answer is right, and that there is none
    for value in values:  # a question's cases stay together
        calibration = fit(list(compress(cases, groups != value)))
        for place in np.nonzero(groups == value)[0].tolist():
            probabilities, none = likelihoods(cases[place].ranked, calibration)
            chances[place] = probabilities[0], none
    right = np.array([case.right[0] for case in cases])
    shown = np.array([case.whole and not case.emptied for case in cases])
    removed = np.array([case.whole and case.emptied for case in cases])
    silent = chances[:, 1] > 0.5
    errors = {}
    for name in names:
        mine = shown & (labels == name)
        if (measured := measure_calibration(chances[mine, 0], right[mine])) is not None:
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
    scores, correct = np.full((len(whole), widest), -np.inf), np.zeros((len(whole), widest), bool)
    for row, case in enumerate(whole):
        scores[row, : len(case.right)], correct[row, : len(case.right)] = (
            case.ranked.scores,
            case.right,
        )
    nulls = np.array([-1e4 if case.ranked.null is None else case.ranked.null for case in whole])
    fitted = fit_calibration(scores, correct, nulls, weigh(whole, _EMPTY))
    if not has_null:
        return fitted
    features = np.array([case.ranked.features for case in cases])
    right, holds = (
        np.array([case.right[0] for case in cases]),
        np.array([case.holds for case in cases]),
    )
    fits: dict[str, Any] = {
        "right": fit_chance(features[:, RIGHT_FEATURES], right, weigh(cases, _EMPTY))
    }
    # "Yes" and "no" stand in no passage. With one class alone the fit would say "always" or
    # "never"; the null
    # bias then decides instead.
    spans = np.array([answer_type(case.example) == SPAN for case in cases])
    if holds[spans].any() and not holds[spans].all():
        weights = weigh(list(compress(cases, spans)), _PRESENTED)
        fits["absent"] = fit_chance(features[spans][:, ABSENT_FEATURES], ~holds[spans], weights)
    return fitted.model_copy(update=fits)


def _percent(of: Bool) -> float:
    return round(100 * float(of.mean()), 2) if len(of) else 0.0
