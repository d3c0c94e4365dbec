"""A corpus of six sentences and a system that reads them by word overlap: predictable, and fast."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rag.core.files import read_json
from rag.core.log import Timer
from rag.core.types import Answer, AnswerSet, Hit, Passage, Question, SearchResult
from rag.eval import runner
from rag.eval.settings import EvaluationSettings
from rag.eval.source import QuestionSource
from rag.eval.systems import AnswersQuestions, system_of
from readers.protocols import Reader, ReadRequest

PASSAGES = [
    Passage("p0", "Danube", "The Danube rises in the Black Forest."),
    Passage("p1", "Rhine", "The Rhine ends in the North Sea near Rotterdam."),
    Passage("p2", "Everest", "Mount Everest is 8849 metres high."),
    Passage("p3", "Hamlet", "Hamlet was written by William Shakespeare."),
    Passage("p4", "Shakespeare", "William Shakespeare was born in Stratford <upon> the Avon."),
    Passage("p5", "Photosynthesis", "Plants turn light into energy by photosynthesis."),
]
QUESTIONS = [
    Question("q0", "Where does the Danube rise?", ("Black Forest",), ("p0",)),
    Question("q1", "Where does the Rhine end?", ("North Sea",), ("p1",)),
    Question("q2", "How high is Mount Everest?", ("8849 metres", "8,849 m"), ("p2",)),
    Question("q3", "Where was the author of Hamlet born?", ("Stratford",), ("p3", "p4")),
    Question("q4", "Do plants use light?", ("yes",), ("p5",)),
    Question("q5", "Who discovered penicillin?", ("Alexander Fleming",)),
]


SOURCE = QuestionSource("toy", "toy-dev.jsonl", "dev", "0" * 64)


def settings(**changes: Any) -> EvaluationSettings:
    """Three passages are read."""
    return EvaluationSettings(**{"ks": (1, 3), "read": 3, **changes})


def evaluate(
    system: AnswersQuestions,
    questions: Iterable[Question],
    out: Path,
    given: EvaluationSettings | None = None,
    **named: Any,
) -> dict[str, Any]:
    """The metrics of an evaluation, by `settings()` and of `SOURCE` unless others are given."""
    runner.run_evaluation(
        system_of(system), questions, out, given or settings(), **{"source": SOURCE, **named}
    )
    return read_json(out / runner.METRICS_NAME)


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


class ToySystem(Reader):
    """Retrieves by shared words; answers with the last two words of the best passage."""

    index_version = "toy-1"

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.fail_after: int | None = None
        self.reader = self
        self.identity = {"index_version": self.index_version}

    def search(
        self, queries: Sequence[str], top_k: int, *, timer: Timer = None
    ) -> list[SearchResult]:
        self.asked += queries
        if self.fail_after is not None and len(self.asked) > self.fail_after:
            raise KeyboardInterrupt
        results = []
        for query in queries:
            scored = [
                (Hit(row, p.id, float(len(set(words(query)) & set(words(p.text))))), p)
                for row, p in enumerate(PASSAGES)
            ]
            best = sorted(scored, key=lambda pair: Hit.sort_key(pair[0]))[:top_k]
            results.append(SearchResult(query, best))
        return results

    def read(self, requests: Sequence[ReadRequest], n_best: int = 5) -> list[AnswerSet]:
        sets = []
        for request in requests:
            answers = []
            for number, (hit, passage) in enumerate(request.ranked[:n_best]):
                match = re.search(r"\w+ \w+(?=\.$)", passage.text)
                confidence = min(0.99, 0.2 + 0.2 * hit.score)
                evidence = request.evidence(number, match.span())
                answers.append(Answer(match[0], hit.score, confidence, evidence))
            none = 0.3 if answers and answers[0].confidence > 0.3 else 0.6
            sets.append(AnswerSet(request.question, tuple(answers), none))
        return sets


@pytest.fixture
def finds(system: ToySystem) -> Any:
    """Retrieves as the toy does, and cannot read."""
    return SimpleNamespace(search=system.search, reader=None, identity={})


@pytest.fixture
def system() -> ToySystem:
    return ToySystem()
