from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from indexers.passages import PassageStore, PassageStoreWriter
from rag.bench.openqa import answer_missing, fill_openqa
from rag.bench.report import Report
from rag.bench.results import ResultLog
from rag.core.types import GoldPassage, Hit, Passage, Question
from readers.protocols import ReadAnswer, ReadResult

PASSAGES = [Passage(f"p{n}", "", text) for n, text in enumerate(["Oslo is in Norway.", "Rome is in Italy."])]
QUESTIONS = [
    Question(f"q{n}", f"Where is {city}?", (land,), gold=(GoldPassage(PASSAGES[n % 2]),))
    for n, (city, land) in enumerate([("Oslo", "Norway"), ("Rome", "Italy")] * 6)
]


class FirstWordReader:
    """Answers with the first word of the first passage."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def read(self, questions: Any, passages: Any, scores: Any, n_best: int) -> list[ReadResult]:
        self.asked += questions
        texts = [rows[0].text.split()[-1].rstrip(".") for rows in passages]
        return [ReadResult((ReadAnswer(text, 1.0, 0.75, 0, 0, 4),), 0.25) for text in texts]


@pytest.fixture
def pipeline(tmp_path: Path) -> Any:
    with PassageStoreWriter(tmp_path / "passages") as writer:
        writer.add_many(PASSAGES)
    store = PassageStore.open(tmp_path / "passages")

    def retrieve(questions: list[str], top_k: int) -> list[list[tuple[Hit, Passage]]]:
        row_lists = [[0, 1] if "Oslo" in question else [0] for question in questions]
        return [[(Hit(row, f"p{row}", 1.0 - row), store[row]) for row in rows] for rows in row_lists]

    return SimpleNamespace(index=SimpleNamespace(passages=store), retrieve=retrieve, reader=FirstWordReader())


def test_answers_are_scored_and_a_second_run_asks_only_what_is_missing(pipeline: Any, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    answer_missing(pipeline, QUESTIONS[:5], ResultLog(path, {}), top_k=2)
    log = ResultLog(path, {})
    answer_missing(pipeline, QUESTIONS, log, top_k=2)
    assert len(pipeline.reader.asked) == len(QUESTIONS)
    assert log.results["q0"]["gold_rank"] == 1
    assert log.results["q1"]["gold_rank"] is None
    report = Report("openqa", {})
    fill_openqa(report, QUESTIONS, [log.results[question.id] for question in QUESTIONS], "squad", 2)
    assert report.figures["em"].value == 0.5
    assert report.figures["gold_in_top_k"].value == 0.5
    assert report.figures["em_given_found"].value == 1.0
    assert report.figures["calibration"]["ece"] == pytest.approx(0.25)
    report.to_text()
