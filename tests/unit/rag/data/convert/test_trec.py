"""TREC runs and qrels, to and from other formats."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rag.core.errors import ConfigError, DataError
from rag.core.types import Passage, Question
from rag.data.files.convert import convert, guess_format
from tests.unit.rag.data.convert.test_convert import read, write_json


def test_run_to_results_with_questions_and_passages(tmp_path: Path) -> None:
    run = tmp_path / "run.trec"
    run.write_text("q1 Q0 7 1 2.5 mine\nq1 Q0 9 2 0.1 mine\n")
    again = convert(run, "trec-run", tmp_path / "again", "trec-run")
    assert (tmp_path / "again").read_text() == run.read_text()
    assert again.records == 1
    with pytest.raises(DataError, match=r"no passage texts, no question(.|\n)*give questions and index"):
        convert(run, "trec-run", tmp_path / "x", "dpr-results")
    assert not (tmp_path / "x").exists()
    passages = {"7": Passage("7", "Hamlet", "By Shakespeare."), "9": Passage("9", "Emma", "By Austen.")}
    questions = {"q1": Question("q1", "who wrote hamlet", ("Shakespeare",))}
    convert(run, "trec-run", tmp_path / "full", "dpr-results", questions=questions, passages=passages.get)
    assert read(tmp_path / "full")[0]["ctxs"][0]["has_answer"] is True
    assert read(tmp_path / "full")[0]["ctxs"][1] == {
        "id": "9",
        "title": "Emma",
        "text": "By Austen.",
        "score": 0.1,
        "has_answer": False,
    }
    convert(run, "trec-run", tmp_path / "train", "dpr-train", questions=questions, passages=passages.get)
    record = read(tmp_path / "train")[0]
    assert [c["passage_id"] for c in record["positive_ctxs"]] == ["7"]
    assert [c["passage_id"] for c in record["hard_negative_ctxs"]] == ["9"]


def test_a_run_is_read_by_score(tmp_path: Path) -> None:
    run, again = tmp_path / "run.trec", tmp_path / "again.trec"
    run.write_text("q1 Q0 low 3 1.0 t\nq1 Q0 high 1 9 t\nq1 Q0 b 2 5 t\nq1 Q0 a 2 5 t\nq2 Q0 z 1 -3 t\n")
    convert(run, "trec-run", again, "trec-run")
    ranked = [line.split()[2:4] for line in again.read_text().splitlines()]
    assert ranked == [["high", "1"], ["b", "2"], ["a", "3"], ["low", "4"], ["z", "1"]]


@pytest.mark.parametrize(
    ("lines", "scores"),
    [
        ("q1\t7\t1\t21.5\nq1\t9\t2\t20.0\n", [21.5, 20.0]),  # ColBERT
        ("q1\t7\t9.5\nq1\t9\t3.0\n", [9.5, 3.0]),  # Tevatron
        ("q1\t7\t1\nq1\t9\t2\n", [-1.0, -2.0]),  # MS MARCO: ranks
    ],
)
def test_rankings_of_other_systems_are_read_as_runs(tmp_path: Path, lines: str, scores: list[float]) -> None:
    run = tmp_path / "run.tsv"
    run.write_text(lines)
    if scores[0] > 0:
        assert guess_format(run) == "trec-run"
    else:
        with pytest.raises(DataError, match="3 columns without a header"):
            guess_format(run)
    convert(run, "trec-run", tmp_path / "out", "trec-run", strict=True)
    ranked = [line.split() for line in (tmp_path / "out").read_text().splitlines()]
    assert [(fields[2], float(fields[4])) for fields in ranked] == [("7", scores[0]), ("9", scores[1])]


def test_a_tag_is_kept_and_counted_as_kept(tmp_path: Path) -> None:
    run = tmp_path / "run.trec"
    run.write_text("q1 Q0 7 1 2.5 mine\n")
    assert not convert(run, "trec-run", tmp_path / "again", "trec-run", strict=True).dropped
    assert (tmp_path / "again").read_text() == run.read_text()


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("q1 Q0 7 1 2.5\n", "trec-run"),  # which is then refused: a field is missing
        ("q1 0 7 1\n", "trec-qrels"),
        ("who won 1999\n", "questions"),
        ("when began it\t1939\n", "questions"),
    ],
)
def test_a_first_line_tells_runs_judgements_and_questions_apart(
    tmp_path: Path, line: str, found: str
) -> None:
    (tmp_path / "file").write_text(line)
    assert guess_format(tmp_path / "file") == found


def test_scores_survive_a_run_exactly_and_strings_become_numbers(tmp_path: Path) -> None:
    score = 0.1 + 0.2
    source = write_json(
        tmp_path / "in",
        [
            {
                "question": "x",
                "answers": ["y"],
                "ctxs": [{"id": "wiki:1", "title": "", "text": "t", "score": str(score)}],
            }
        ],
    )
    report = convert(source, "dpr-results", tmp_path / "run", "trec-run")
    assert (tmp_path / "run").read_text() == f"q1 Q0 wiki:1 1 {score!r} rag\n"
    assert set(report.dropped) == {"question", "answers", "passage texts"}
    assert "no place" in report.summary()
    with pytest.raises(DataError, match="has no place"):
        convert(source, "dpr-results", tmp_path / "run2", "trec-run", strict=True)
    assert not (tmp_path / "run2").exists()


def test_qrels_and_beir(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    qrels = tmp_path / "qrels"
    qrels.write_text("q1 0 7 2\nq1 0 9 0\n")
    convert(qrels, "trec-qrels", tmp_path / "same", "trec-qrels", strict=True)
    assert (tmp_path / "same").read_text() == qrels.read_text()
    passages = {"7": Passage("7", "Hamlet", "A\ttab."), "9": Passage("9", "", "By Austen.")}
    questions = {"q1": Question("q1", "who", ("S",))}
    convert(qrels, "trec-qrels", tmp_path / "beir", "beir", questions=questions, passages=passages.get)
    assert (
        tmp_path / "beir/qrels/test.tsv"
    ).read_text() == "query-id\tcorpus-id\tscore\nq1\t7\t2\nq1\t9\t0\n"
    convert(tmp_path / "beir", "beir", tmp_path / "beir2", "beir", strict=True)
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"):
        assert (tmp_path / "beir" / name).read_text() == (tmp_path / "beir2" / name).read_text()
    convert(tmp_path / "beir", "beir", tmp_path / "train", "dpr-train")
    assert read(tmp_path / "train")[0]["negative_ctxs"][0]["text"] == "By Austen."
    with pytest.raises(ConfigError, match="exists and is not empty"):
        convert(tmp_path / "beir", "beir", tmp_path / "beir2", "beir")
    with (tmp_path / "beir" / "qrels" / "test.tsv").open("a") as judgements:
        judgements.write("q9\t7\t1\n")
    assert convert(tmp_path / "beir", "beir", tmp_path / "q1", "nq-open").records == 1
    assert "1 of 2 questions of qrels are not in queries.jsonl, the first 'q9'" in caplog.text
    (tmp_path / "beir" / "qrels" / "test.tsv").write_text("q9\t7\t1\n")
    with pytest.raises(DataError, match=r"1 of 1 questions of qrels are not in queries\.jsonl"):
        convert(tmp_path / "beir", "beir", tmp_path / "nq", "nq-open")
    (tmp_path / "none").touch()
    with pytest.raises(DataError, match="no questions in it"):
        convert(tmp_path / "none", "trec-qrels", tmp_path / "nq", "nq-open")
    assert not (tmp_path / "nq").exists()


def test_what_a_run_cannot_say_is_refused(tmp_path: Path) -> None:
    def results(**changes: Any) -> Path:
        context = {"id": "1", "title": "", "text": "t", "score": 1.0, **changes}
        return write_json(
            tmp_path / "in",
            [{"question": "x", "answers": [], "ctxs": [{"id": "0", "text": "t", "score": 1.5}, context]}],
        )

    checks: list[tuple[Callable[[], Path], str]] = [
        (lambda: results(id="a b"), "white space"),
        (lambda: results(score=3.0), "score rises"),
    ]
    for make, message in checks:
        with pytest.raises(DataError, match=message):
            convert(make(), "dpr-results", tmp_path / "out", "trec-run")
