import json
from collections import Counter
from pathlib import Path

import pytest

from rag.bench.codes import RECORDS, make_codes, run_codes_benchmark


@pytest.fixture
def few_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A twentieth of the records, so that an index takes a second."""
    described = json.loads(RECORDS.read_text(encoding="utf-8"))
    for kind in described["kinds"]:
        kind["count"] //= 20
    small = tmp_path / "few.json"
    small.write_text(json.dumps(described), encoding="utf-8")
    monkeypatch.setattr("rag.bench.codes.RECORDS", small)


def test_a_seed_makes_the_same_files_and_questions(tmp_path: Path) -> None:
    first = tmp_path / "first"
    second = tmp_path / "second"
    questions = make_codes(first)
    assert questions == make_codes(second)
    assert make_codes(second, seed=1) != questions
    assert len({question.id for question in questions}) == len(questions) == 400
    halves = Counter(question.half for question in questions)
    assert min(halves["read"], halves["unread"]) > 190
    files = {file.name: file.read_text(encoding="utf-8") for file in first.iterdir()}
    for question in questions:
        assert sum(text.count(question.record) for text in files.values()) == 1


@pytest.mark.usefixtures("few_records")
def test_the_table_counts_what_is_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rag.bench.codes.PER_KIND", 10)
    report = run_codes_benchmark(tmp_path, encoder="static")
    assert run_codes_benchmark(tmp_path, encoder="static").rows == report.rows
    assert list(report.rows) == ["bm25", "dense", "hybrid"]
    all_questions, that_bm25_finds = report.rows["bm25"].values()
    assert all_questions.value > 50
    assert that_bm25_finds.value == 100
