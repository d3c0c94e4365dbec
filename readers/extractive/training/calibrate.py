"""Choose ranking settings, temperature and null bias on held-out questions with retrieved passages."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt

from rag.core.arrays import Bool, Float64
from rag.core.errors import DataError
from rag.core.log import get_logger
from rag.data.examples import Example
from rag.metrics.calibration import measure_calibration
from readers.calibration import fit_calibration, fit_chance
from readers.confidence import NO_ANSWER_FEATURES, confidence_features, confidences, likelihoods
from readers.extractive.reader import ExtractiveReader
from readers.extractive.settings import ReaderSettings
from readers.extractive.training.data import SPAN, answer_type, is_right
from readers.extractive.waves import retrieval_ranks
from readers.manifest import Calibration
from readers.ranking import PassageRows, Ranked, rank_all

_WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
_RULE_WEIGHTS = (0.0, 1.0, 2.0, 3.0)
_DEPTHS = (2, 5, 10)  # passages read: confidences must also hold for partial readings
_EMPTY = 0.2  # share of a set's weight that questions without an answer in their passages get
_PRESENTED = 0.33  # the same share, when fitting whether to present "no answer"; see the note on readers
_EMPTIED, _OF = (0, 5), 8  # of 8 questions these two, one per half, are also read without right passages
_CHUNK = 64

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Tuned:
    """The chosen settings, with their figures on the held-out questions (per cent, except "ece")."""

    settings: ReaderSettings
    calibration: Calibration
    figures: dict[str, float]


@dataclass(frozen=True, slots=True)
class Case:
    """The reader's output for a held-out question.

    Attributes:
        number: number of the question; a question's cases are fitted or measured together.
        label: name of its question set.
        weight: weight in the fit.
        answerable: False for cases from which the passages with an answer were removed.
        holds: whether any of the passages, read or not, contains an answer.
        whole: whether all passages were read, not only the best few.
    """

    found: Ranked
    example: Example
    number: int
    label: str = ""
    weight: float = 1.0
    answerable: bool = True
    holds: bool = True
    whole: bool = True


def tune(reader: ExtractiveReader, sets: Mapping[str, Sequence[Example]]) -> Tuned:
    """Choose retrieval weight, merging and the weights of rules by exact match, then the null rule and
    calibration by likelihood.

    The network reads each question once, with all its passages. Its scores also serve as cases in which only
    the best few passages are read. Every fourth question gives one more case without the passages that hold
    an answer, so that "no answer" is fitted too; cases without an answer have a fifth of the weight in every
    set. All sets have the same total weight, however many questions they have.

    Args:
        reader: gives the network and the settings to start from.
        sets: held-out questions with their retrieved passages, by name of the set.

    Raises:
        DataError: there are fewer than two questions.
    """
    reading = _Reading(reader, sets)
    merged = [{"merge": merge, "retrieval_weight": w} for merge in ("max", "sum") for w in _WEIGHTS]
    best = reading.most_right(reader.settings, merged)
    for name in ("form_weight", "table_weight"):
        best = reading.most_right(best, [{name: weight} for weight in _RULE_WEIGHTS])

    outcomes: list[tuple[ReaderSettings, float, Calibration, dict[str, float]]] = []
    for null in ("max", "mean", "min", "best"):
        settings = best.model_copy(update={"null": null})
        cases = with_empty_share(reading.cases(settings))
        outcomes.append((settings, *fit_and_measure(cases, settings.candidates)))
        log.info("null %s: %s", null, outcomes[-1][3])
    settings, _, calibration, figures = min(outcomes, key=lambda outcome: outcome[1])

    return Tuned(settings, calibration, {**reading.exact_match(settings), **figures})


class _Reading:
    """The held-out questions of some sets, and the scores of all their passages, in chunks."""

    def __init__(self, reader: ExtractiveReader, sets: Mapping[str, Sequence[Example]]) -> None:
        self.examples = [example for examples in sets.values() for example in examples]
        self.labels = [label for label, examples in sets.items() for _ in examples]
        self.weights = np.array([1.0 / (len(sets) * len(sets[label])) for label in self.labels])  # (Q,)
        self.chunks = [self.examples[i : i + _CHUNK] for i in range(0, len(self.examples), _CHUNK)]
        self.scored = [
            reader.score([e.question for e in chunk], [e.passages for e in chunk]) for chunk in self.chunks
        ]

    def ranked(
        self, settings: ReaderSettings, *, without_answers: bool = False, depth: int | None = None
    ) -> list[Ranked]:
        """The answers to all questions, from all passages, or from those without an answer, or the best."""
        found: list[Ranked] = []
        for chunk, scored in zip(self.chunks, self.scored, strict=True):
            retrieval = [e.scores for e in chunk]
            rows, scores = scored
            used = np.ones(len(rows.rows), bool)
            if without_answers:
                used &= ~_holds_answer(rows, chunk)
            if depth is not None:
                used &= retrieval_ranks(rows, retrieval) < depth
            found += rank_all(rows, scores, retrieval, settings, used)
        return found

    def right(self, settings: ReaderSettings) -> Float64:
        """(Q,) 1 where the first answer is right, else 0."""
        pairs = zip(self.ranked(settings), self.examples, strict=True)
        return np.array([bool(r.answers) and is_right(r.answers[0].text, e) for r, e in pairs], float)

    def most_right(self, settings: ReaderSettings, changes: Sequence[Mapping[str, Any]]) -> ReaderSettings:
        """The settings with that change which gives most right first answers."""
        options = [settings.model_copy(update=change) for change in changes]
        shares = [float((self.weights * self.right(option)).sum()) for option in options]
        for change, share in zip(changes, shares, strict=True):
            log.info("held-out EM %.2f  %s", 100 * share, change)
        return options[int(np.argmax(shares))]

    def cases(self, settings: ReaderSettings) -> list[Case]:
        """Each question read whole, without the passages that hold an answer (some), and at each depth."""
        cases = []
        for answerable, depth in ((True, None), (False, None), *((True, depth) for depth in _DEPTHS)):
            for number, found in enumerate(
                self.ranked(settings, without_answers=not answerable, depth=depth)
            ):
                if found.answers and (answerable or number % _OF in _EMPTIED):
                    example = self.examples[number]
                    holds = answerable and any(c.has_answer for c in example.candidates)
                    given = (example, number, self.labels[number], self.weights[number])
                    cases.append(Case(found, *given, answerable, holds, depth is None))
        return cases

    def exact_match(self, settings: ReaderSettings) -> dict[str, float]:
        """Right first answers in per cent: the mean of the sets, and of each set if there are several."""
        right, labels = self.right(settings), np.array(self.labels)
        names = list(dict.fromkeys(self.labels))
        figures = {"em": round(100 * float((self.weights * right).sum()), 2)}
        if len(names) > 1:
            figures |= {f"em {name}": round(100 * float(right[labels == name].mean()), 2) for name in names}
        return figures


def with_empty_share(cases: Sequence[Case], empty: float = _EMPTY) -> list[Case]:
    """Weigh the cases so that in every set those without an answer have the share `empty` of the weight.

    How often a corpus holds no answer depends on the user's corpus and must not be learnt from the sets, in
    which the retrieved passages of 1 to 60 % of the questions hold none. A set in which all cases have an
    answer, or none has, keeps its weights.
    """
    totals: dict[tuple[str, bool], float] = defaultdict(float)
    for case in cases:
        totals[case.label, case.holds] += case.weight
    weighted = []
    for case in cases:
        here, other = totals[case.label, case.holds], totals[case.label, not case.holds]
        share = (1 - empty if case.holds else empty) if other else 1.0
        weighted.append(replace(case, weight=case.weight * share * (here + other) / here))
    return weighted


def fit_and_measure(cases: Sequence[Case], candidates: int) -> tuple[float, Calibration, dict[str, float]]:
    """Negative log-likelihood, calibration and figures of one null rule.

    The calibration is fitted on all cases, the figures are measured on each half of the questions with a fit
    on the other half: on the very questions it was fitted on, a confidence looks better than it is. Figures
    named "unseen" are measured on each set with a fit on the other sets.

    Args:
        cases: the cases of all sets.
        candidates: largest number of answers per question.

    Raises:
        DataError: there are fewer than two questions.
    """
    correct = np.zeros((len(cases), candidates), bool)
    for row, case in zip(correct, cases, strict=True):
        if case.answerable:
            found = case.found.answers
            row[: len(found)] = [is_right(answer.text, case.example) for answer in found]
    number = np.array([case.number for case in cases])
    weight = np.array([case.weight for case in cases])
    whole = np.array([case.whole for case in cases])
    answerable = whole & np.array([case.answerable for case in cases])
    calibration = _fit(cases, correct)
    loss = -np.log(_chances(cases, correct, calibration)[:, 2])
    crossed = _crossed(cases, correct, number % 2)  # a question's cases stay together
    if crossed is None:
        raise too_few()
    top, none, right = crossed.T
    silent, removed = none > top, whole & ~answerable
    figures = {
        "nll": round(float(-np.log(right[whole]).mean()), 4),
        "ece": _error(top[answerable], correct[answerable, 0]),
        "no_answer_recall": _percent(silent[removed]),
        "no_answer_false_alarms": _percent(silent[answerable & correct[:, 0]]),
        "questions": float(answerable.sum()),
        "without_answer": float(removed.sum()),
    }
    labels = np.array([case.label for case in cases])
    unseen = _crossed(cases, correct, labels)
    if unseen is not None:
        own = {label: answerable & (labels == label) for label in dict.fromkeys(labels.tolist())}
        figures |= {f"ece {label}": _error(top[mine], correct[mine, 0]) for label, mine in own.items()}
        top, none, _ = unseen.T
        errors = {f"ece unseen {label}": _error(top[mine], correct[mine, 0]) for label, mine in own.items()}
        figures |= errors | {
            "ece unseen": round(float(np.mean(list(errors.values()))), 4),
            "no_answer_recall unseen": _percent((none > top)[removed]),
            "no_answer_false_alarms unseen": _percent((none > top)[answerable & correct[:, 0]]),
        }
    return float((weight * loss)[whole].sum() / weight[whole].sum()), calibration, figures


def _crossed(cases: Sequence[Case], correct: Bool, parts: npt.NDArray[Any]) -> Float64 | None:
    """The chances of the cases of each part, fitted on the others, (Q, 3); None if there is a single part."""
    chances = np.zeros((len(cases), 3))
    values = np.unique(parts)
    for value in values:
        here, there = parts == value, parts != value
        if there.any():
            fitted = _fit(list(compress(cases, there)), correct[there])
            chances[here] = _chances(list(compress(cases, here)), correct[here], fitted)
    return chances if len(values) > 1 else None


def too_few() -> DataError:
    """The error for too few held-out questions with retrieved passages."""
    return DataError(
        "fewer than two held-out questions to fit and to measure the confidence on",
        hint="raise held_out of a set (--set 'train=[{questions: FILE, retrieved: FILE, held_out: 0.2}]'), "
        "or name another (--set 'calibrate=[{questions: FILE, retrieved: FILE}]')",
    )


def _fit(cases: Sequence[Case], correct: Bool) -> Calibration:
    """Temperature and bias on all that was read whole; the chances of the first answer and of none on what a
    user would meet, whole or less."""
    scores = np.full(correct.shape, -np.inf)
    for row, case in zip(scores, cases, strict=True):
        row[: len(case.found.answers)] = case.found.scores
    nulls = np.array([-1e4 if case.found.null is None else case.found.null for case in cases])
    weight = np.array([case.weight for case in cases])
    whole = np.array([case.whole for case in cases])
    fits, without_null = whole, nulls <= -1e4
    if without_null.all():  # without "no answer", only questions with a right answer can be fitted
        fits = whole & correct.any(axis=1)
        if not fits.any():
            return Calibration()
    fitted = fit_calibration(scores[fits], correct[fits], nulls[fits], weight[fits])
    answerable = np.array([case.answerable for case in cases])
    if without_null.any() or not answerable.any():
        return fitted
    signs = np.array(
        [confidence_features(c.found, *confidences(c.found.scores, c.found.null, fitted)) for c in cases]
    )
    first = fit_chance(signs[answerable], correct[answerable, 0], weight[answerable])
    # "yes" and "no" stand in no passage
    spans = np.array([answer_type(case.example) == SPAN for case in cases])
    empty = np.array([not case.holds for case in cases])
    # With one class alone the fit would say "always" or "never"; the null bias then decides instead.
    if not empty[spans].any() or empty[spans].all():
        return fitted.model_copy(update={"first": first})
    shares = np.array([case.weight for case in with_empty_share(cases, _PRESENTED)])
    bias, *slopes = fit_chance(signs[spans][:, NO_ANSWER_FEATURES], empty[spans], shares[spans])
    spread = np.zeros(signs.shape[1])
    spread[list(NO_ANSWER_FEATURES)] = slopes
    return fitted.model_copy(update={"first": first, "empty": (bias, *spread.tolist())})


def _percent(of: Bool) -> float:
    return round(100 * float(of.mean()), 2) if len(of) else 0.0


def _error(confidence: Float64, correct: Bool) -> float:
    measured = measure_calibration(confidence, correct)
    return round(measured.ece, 4) if measured is not None else 0.0


def _chances(cases: Sequence[Case], correct: Bool, calibration: Calibration) -> Float64:
    """Probability of each case's first answer, of "no answer", and of what is right, (Q, 3)."""
    rows = []
    for case, hit in zip(cases, correct, strict=True):
        chances, none = likelihoods(case.found, calibration)
        right = float((chances * hit[: len(chances)]).sum()) if hit.any() else none
        rows.append((chances[0], none, max(right, 1e-12)))
    return np.array(rows)


def _holds_answer(rows: PassageRows, part: Sequence[Example]) -> Bool:
    """(R,) whether the passage of each row holds an answer."""
    pairs = (rows.pairs[row.group] for row in rows.rows)
    return np.array([bool(part[q].candidates[place].has_answer) for q, place, _ in pairs], bool)
