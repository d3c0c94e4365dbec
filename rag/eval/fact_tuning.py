"""Fit the weights of the rule for supporting facts on training questions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from rag.core.errors import DataError
from rag.core.files import atomic_write_json
from rag.core.progress import Progress
from rag.core.types import Question
from rag.data.text import supporting_fact_overlap
from rag.eval.facts import FactFinder
from rag.eval.gold import gold_facts
from rag.eval.settings import EvaluationSettings
from rag.eval.source import QuestionSource
from rag.eval.systems import AnswersQuestions
from rag.metrics.multihop import Fact
from readers.facts import FactSettings, FactSigns, choose_facts

SETTINGS_NAME, TUNING_NAME = "facts.json", "tuning.json"

_STEP, _LARGEST = 0.35, 8.0


@dataclass(frozen=True, slots=True)
class FactExample:
    """Features of one question's sentences, and its gold facts."""

    signs: FactSigns
    gold: frozenset[Fact]


@dataclass(frozen=True, slots=True)
class FactTuning:
    """Outcome of the search for the best settings.

    Attributes:
        settings: the best settings over all examples.
        before: mean (EM, F1) of the settings the search started from.
        after: mean (EM, F1) of `settings` over the examples they were chosen on: optimistic.
        held_out: mean (EM, F1) over the two halves, each with settings chosen on the other.
    """

    settings: FactSettings
    n: int
    before: tuple[float, float]
    after: tuple[float, float]
    held_out: tuple[float, float]

    def to_json(self) -> dict[str, Any]:
        """A dict ready for `json.dumps`."""
        pairs = {"before": self.before, "after": self.after, "held_out": self.held_out}
        return {"n": self.n, **{name: {"sp_em": em, "sp_f1": f1} for name, (em, f1) in pairs.items()}}


def collect_examples(
    system: AnswersQuestions,
    questions: Iterable[Question],
    finder: FactFinder,
    settings: EvaluationSettings,
) -> list[FactExample]:
    """Retrieve and read for every question that has gold facts, and keep the features.

    Raises:
        DataError: no question has supporting facts.
    """
    examples = []
    stream = islice((question for question in questions if gold_facts(question)), settings.limit)
    with Progress(settings.limit, "questions", "collect signs") as progress:
        while batch := list(islice(stream, settings.batch_size)):
            texts = [question.text for question in batch]
            retrieved, paths = system.retrieve_paths(texts, settings.read)
            answers = system.read(texts, retrieved, settings.n_best, paths)
            for question, answer, pairs, own in zip(batch, answers, retrieved, paths, strict=True):
                signs, _ = finder.signs(question, answer, pairs, own)
                examples.append(FactExample(signs, frozenset(gold_facts(question))))
            progress.update(len(batch))
    if not examples:
        raise DataError("no question has supporting facts", hint="give HotpotQA's training questions")
    return examples


def tune_facts(
    examples: Sequence[FactExample], start: FactSettings | None = None, *, steps: int = 400, seed: int = 0
) -> FactTuning:
    """Random local search for the settings with the highest sum of mean EM and F1.

    Args:
        examples: from training questions; a few hundred are enough for eight weights.
        steps: settings tried in each of the three searches (all examples, and the two halves).

    Raises:
        DataError: fewer than two examples.
    """
    if len(examples) < 2:
        raise DataError(f"found {len(examples)} question with supporting facts, expected a few hundred")
    begin = start or FactSettings()
    found = _search(examples, begin, steps, seed)
    halves = examples[::2], examples[1::2]
    crossed = [_search(half, begin, steps, seed) for half in halves]
    held_out = (
        _score(halves[1], crossed[0]) * len(halves[1]) + _score(halves[0], crossed[1]) * len(halves[0])
    ) / len(examples)
    before, after = _score(examples, begin), _score(examples, found)
    return FactTuning(found, len(examples), _pair(before), _pair(after), _pair(held_out))


def write_tuning(
    tuning: FactTuning, out: str | Path, source: QuestionSource, identity: Mapping[str, Any]
) -> Path:
    """Write the settings as `facts.json`, and how they were chosen as `tuning.json` beside it.

    Returns:
        Path of the settings, for `rag evaluate --facts`.
    """
    place = Path(out)
    place.mkdir(parents=True, exist_ok=True)
    made = {"question_set": source.to_json(), "system": dict(identity), "figures": tuning.to_json()}
    atomic_write_json(place / TUNING_NAME, made)
    atomic_write_json(place / SETTINGS_NAME, tuning.settings.model_dump(mode="json"))
    return place / SETTINGS_NAME


def _search(examples: Sequence[FactExample], start: FactSettings, steps: int, seed: int) -> FactSettings:
    rng = np.random.default_rng(seed)
    names = list(FactSettings.model_fields)
    best = np.array([getattr(start, name) for name in names])
    best_score = _score(examples, start).sum()
    for _ in range(steps):
        moves = rng.normal(0.0, _STEP, len(names)) * (rng.random(len(names)) < 0.4)
        tried = np.clip(best + moves * np.maximum(best, 0.5), 0.0, _LARGEST).round(3)
        score = _score(examples, _settings(names, tried)).sum()
        if score >= best_score:
            best, best_score = tried, score
    return _settings(names, best)


def _settings(names: Sequence[str], values: np.ndarray) -> FactSettings:
    return FactSettings(**dict(zip(names, map(float, values), strict=True)))


def _score(examples: Sequence[FactExample], settings: FactSettings) -> np.ndarray:
    """Mean supporting-fact EM and F1, (2,)."""
    total = np.zeros(2)
    for example in examples:
        facts = [(example.signs.titles[n], at) for n, at in choose_facts(example.signs, settings)]
        same, part = supporting_fact_overlap(facts, example.gold)
        total += (float(same), part.f1)
    return total / len(examples)


def _pair(values: np.ndarray) -> tuple[float, float]:
    return round(float(values[0]), 4), round(float(values[1]), 4)
