"""Evaluations end to end on a toy system: figures, files, resuming, refusals."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rag.core.errors import ConfigError, DataError, MismatchedArtifactError, RagError, ResourceError
from rag.core.files import directory_lock, read_json
from rag.core.types import Question
from rag.data.files.rows import json_records
from rag.eval.report import render_report
from rag.eval.results import load_evaluation
from rag.eval.settings import EvaluationSettings
from rag.eval.source import QuestionSource
from tests.support.messages import refusal
from tests.unit.rag.eval.conftest import QUESTIONS, SOURCE, ToySystem, evaluate, settings


def records(out: Path) -> list[dict[str, Any]]:
    return list(json_records(out / "per_question.jsonl"))


def without_times(out: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in record.items() if k != "timings_ms"} for record in records(out)]


def test_figures_files_and_stages(tmp_path: Path, system: Any) -> None:
    metrics = evaluate(system, QUESTIONS, tmp_path, command="rag evaluate …")
    figures = metrics["figures"]
    assert (figures["em"]["value"], figures["em"]["n"]) == (pytest.approx(1 / 6), 6)
    assert figures["top1"]["n"] == 5  # the yes/no question cannot be found in a text
    assert figures["RR"]["n"] == 5
    assert figures["passage_em@3"]["n"] == 1
    by_id = {record["id"]: record for record in records(tmp_path)}
    stages = [by_id[name]["stage"] for name in ("q0", "q1", "q4", "q5")]
    assert stages == ["correct", "reading", "unknown", "retrieval"]
    evidence = by_id["q0"]["evidence"]
    assert evidence["text"][evidence["start"] : evidence["end"]] == "Black Forest"
    best = by_id["q0"]["hits"][0]
    assert best["is_gold"]
    assert best["has_answer"]
    assert sum(metrics["stages"].values()) == metrics["n"] == 6
    assert (metrics["profile"], metrics["command"]) == ("squad", "rag evaluate …")
    assert metrics["question_set"]["sha256"] == "0" * 64
    assert "numpy" in metrics["versions"]
    assert metrics["curve"][0]["k"] == 1
    assert metrics["calibration"]["n"] == 6
    assert read_json(tmp_path / "metrics.json") == metrics
    assert read_json(tmp_path / "predictions.squad.json")["q0"] == "Black Forest"
    first = next(json_records(tmp_path / "predictions.nq_open.jsonl"))
    assert first == {"question": "Where does the Danube rise?", "prediction": "Black Forest"}
    assert (tmp_path / "run.trec").read_text().startswith("q0 Q0 p0 1 2.0 rag\n")
    assert not (tmp_path / "state.json").exists()
    assert not (tmp_path / "per_question.jsonl.part").exists()


@pytest.mark.parametrize("torn", [b"", b'{"id": "q4", "half'])
def test_a_killed_run_continues_and_ends_equal(tmp_path: Path, system: Any, torn: bytes) -> None:
    by_two = settings(batch_size=2)
    whole = tmp_path / "whole"
    evaluate(ToySystem(), QUESTIONS, whole, by_two)
    out = tmp_path / "killed"
    system.fail_after = 4
    with pytest.raises(KeyboardInterrupt):
        evaluate(system, iter(QUESTIONS), out, by_two)
    system.fail_after = None
    with open(out / "per_question.jsonl.part", "ab") as file:
        file.write(torn)
    system.asked = []
    metrics = evaluate(system, iter(QUESTIONS), out, by_two)
    assert len(system.asked) == 2  # only what was missing
    assert without_times(out) == without_times(whole)
    assert metrics["figures"] == read_json(whole / "metrics.json")["figures"]
    system.asked = []
    assert evaluate(system, QUESTIONS, out, by_two) == metrics
    assert system.asked == []


def test_other_settings_questions_or_system_are_refused(tmp_path: Path, system: Any) -> None:
    evaluate(system, QUESTIONS, tmp_path)
    for changed, source in (
        (settings(profile="nq_open"), SOURCE),
        (settings(), QuestionSource("other")),
    ):
        with refusal(MismatchedArtifactError):
            evaluate(system, QUESTIONS, tmp_path, changed, source=source)
    system.identity = {"reader": "new"}
    with refusal(MismatchedArtifactError):
        evaluate(system, QUESTIONS, tmp_path)


def test_bad_requests_are_refused(tmp_path: Path, system: Any, finds: Any) -> None:
    pattern = Question(
        "t", "How high is Mount Everest?", (r"8,?849",), answer_profile="trec_search"
    )
    refused: list[tuple[Any, list[Question], EvaluationSettings, type[RagError]]] = [
        (system, [], settings(), DataError),
        (system, QUESTIONS[:1] * 2, settings(), DataError),
        (finds, QUESTIONS, settings(gold=True), ConfigError),
        (system, [pattern], settings(), ConfigError),
    ]
    for number, (asked, listed, given, error) in enumerate(refused):
        with refusal(error):
            evaluate(asked, listed, tmp_path / str(number), given)
    assert [path.name for path in (tmp_path / "1").iterdir()] == [".lock"]
    with directory_lock(tmp_path / "e"), refusal(ResourceError):
        evaluate(system, QUESTIONS, tmp_path / "e")


def test_silence_is_right_where_squad_2_has_no_answer(tmp_path: Path, system: Any) -> None:
    mixed = [
        # Answered with a confidence of 0.6, and not answered with 0.6.
        Question("a", "Where does the Danube rise?", ("Black Forest",)),
        Question("b", "Who painted Guernica?", is_impossible=True),
        # Answered all the same.
        Question("c", "Where does the Rhine end near the North Sea?", is_impossible=True),
        # Not said to be impossible: not judged.
        Question("d", "Who discovered gravity?", ()),
        # Silent, and should not be.
        Question("e", "Who discovered penicillin?", ("Alexander Fleming",)),
    ]
    for profile, n, names in (("squad", 2, ("em",)), ("squad2", 4, ("em", "f1"))):
        out = tmp_path / profile
        metrics = evaluate(system, mixed, out, settings(profile=profile))
        for name in names:
            figure = metrics["figures"][name]
            assert (figure["n"], figure["value"]) == (n, 0.5)
    confidences = {r["id"]: r["confidence"] for r in records(tmp_path / "squad2")}
    assert (confidences["b"], confidences["a"]) == (0.6, pytest.approx(0.6))
    predictions = read_json(tmp_path / "squad2" / "predictions.squad.json")
    assert [bool(predictions[name]) for name in "abcde"] == [True, False, True, False, False]
    assert all(read_json(tmp_path / "squad" / "predictions.squad.json").values())


def test_paths_are_judged_where_the_retriever_finds_them(
    tmp_path: Path, system: Any, finds: Any
) -> None:
    def search(texts: Any, top_k: int, *, timer: Any = None) -> Any:
        results = []
        for result in system.search(texts, top_k):
            row = {hit.passage_id: (hit, passage) for hit, passage in result.passages}
            paths = [[row["p4"], row["p0"]], [row["p4"], row["p3"]]]
            results.append(replace(result, paths=paths))
        return results

    plain = evaluate(finds, QUESTIONS, tmp_path / "b")
    finds.search = search
    figures = evaluate(finds, QUESTIONS, tmp_path / "a", settings(ks=(1, 6)))["figures"]
    assert (figures["path_em@1"]["value"], figures["path_em@6"]["value"]) == (0.0, 1.0)
    assert figures["path_em@1"]["n"] == 1  # only q3 needs two passages
    assert (figures["hop1_recall@1"]["value"], figures["hop2_recall@1"]["value"]) == (0.0, 1.0)
    [record] = [r for r in records(tmp_path / "a") if r["id"] == "q3"]
    assert record["paths"] == [["p4", "p0"], ["p4", "p3"]]
    assert not any(name.startswith(("path_", "hop")) for name in plain["figures"])


def test_figures_by_fields_of_the_questions(tmp_path: Path, finds: Any) -> None:
    marked = [
        replace(question, meta={"format": "pdf" if number < 2 else None, "page": 1})
        for number, question in enumerate(QUESTIONS[:3])
    ]
    metrics = evaluate(finds, marked, tmp_path / "a", settings(by=("format",)))
    assert list(metrics["groups"]) == ["format"]
    rows = metrics["groups"]["format"]
    assert [(row["value"], row["n"]) for row in rows] == [("pdf", 2), ("none", 1)]
    alone = evaluate(finds, marked[:2], tmp_path / "b")
    assert rows[0]["figures"]["top1"] == alone["figures"]["top1"]
    evaluation = load_evaluation(tmp_path / "a")
    table = str(evaluation).splitlines()
    [head] = [number for number, line in enumerate(table) if line.startswith("format")]
    assert table[head + 1].split()[:2] == ["pdf", "2"]
    assert '<th scope="row">pdf</th><td>2</td>' in render_report([evaluation])
    with refusal(DataError):
        evaluate(finds, marked, tmp_path / "c", settings(by=("Format",)))


def test_groups_without_figures_are_counted(tmp_path: Path, finds: Any) -> None:
    asked = []
    for number in range(34):
        row = {"id": f"n{number}", "meta": {"page": max(number, 2)}}
        asked.append(replace(QUESTIONS[0], **row))
    metrics = evaluate(finds, asked, tmp_path / "a", settings(by=("page",)))
    assert [row["n"] for row in metrics["groups"]["page"]] == [3] + [1] * 29
    [note] = metrics["notes"]
    assert "page has 32 values" in note
    assert "of 2 questions" in note


def test_kilt_profile(tmp_path: Path, system: Any) -> None:
    question = Question("k", "Where?", ("Black Forest",), provenance=[[{"wikipedia_id": "p0"}]])
    metrics = evaluate(system, [question], tmp_path, settings(profile="kilt"))
    for name in ("r_precision", "recall@3", "kilt_em"):
        assert metrics["figures"][name]["value"] == 1.0
