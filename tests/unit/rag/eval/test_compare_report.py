"""Comparisons of finished evaluations and the report page."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rag
from rag.core.errors import ConfigError, DataError, MismatchedArtifactError
from rag.core.types import AnswerSet, Question
from rag.eval.compare import compare_evaluations
from rag.eval.records import QuestionRecord
from rag.eval.report import render_report, worst_records
from rag.eval.results import Evaluation, load_evaluation, load_evaluations, with_interval
from rag.eval.source import QuestionSource
from tests.support.messages import refusal
from tests.support.reading import MadeReader
from tests.unit.rag.eval.conftest import QUESTIONS, evaluate, settings

NASTY = '<script>alert("x")</script>'


def silent(system: Any) -> Any:
    """Searches as a system does; never answers."""
    reader = MadeReader(lambda request: AnswerSet(request.question, (), 1.0))
    return SimpleNamespace(search=system.search, reader=reader, identity=system.identity)


def run(system: Any, questions: list[Question], out: Path, **changes: Any) -> Evaluation:
    source = QuestionSource(f"toy {NASTY}", split="dev")
    evaluate(system, questions, out, settings(**changes), source=source, command=f"rag {NASTY}")
    return load_evaluation(out)


@pytest.fixture
def pair(tmp_path: Path, system: Any) -> list[Evaluation]:
    return [
        run(silent(system), QUESTIONS, tmp_path / "silent"),
        run(system, QUESTIONS[::-1], tmp_path / f"b{NASTY.replace('/', '')}"),
    ]


def test_comparison_aligns_questions_and_corrects_p_values(pair: list[Evaluation]) -> None:
    rows = {row.figure: row for row in compare_evaluations(pair)}
    assert set(rows) == {"em", "f1", "top1", "mrr", "RR"}
    em = rows["em"]
    assert (em.value_a, em.value_b) == (0.0, pytest.approx(1 / 6))
    result = em.result
    assert (result.gained, result.ties, result.lost, result.test) == (1, 5, 0, "mcnemar")
    assert all(row.p_holm >= row.result.p_value for row in rows.values())
    assert rows["top1"].p_holm == 1.0
    page = render_report(pair)
    check_page(page)
    assert "p, corrected" in page
    assert "1 / 5 / 0" in page


def test_folders_with_equal_names_are_named_by_what_differs(tmp_path: Path, system: Any) -> None:
    places = [tmp_path / name / "dev" for name in ("bm25", "dense")]
    for place in places:
        run(system, QUESTIONS, place)
    evaluations = load_evaluations(places)
    assert [evaluation.name for evaluation in evaluations] == ["bm25/dev", "dense/dev"]
    assert compare_evaluations(evaluations)[0].b == "dense/dev"
    with refusal(ConfigError):
        load_evaluations([places[0], tmp_path / "bm25" / ".." / "bm25" / "dev"])


def test_figures_of_other_depths_are_not_compared(tmp_path: Path, system: Any) -> None:
    places = [tmp_path / str(depth) for depth in (2, 3)]
    for depth, place in zip((2, 3), places, strict=True):
        evaluate(system, QUESTIONS, place, settings(ks=(1, depth), read=depth))
    pair = load_evaluations(places)
    assert {"top1", "em"} <= {row.figure for row in compare_evaluations(pair)}
    assert "mrr" not in {row.figure for row in compare_evaluations(pair)}
    for ordered in (pair, pair[::-1]):
        page = render_report(ordered)
        check_page(page)
        assert "Answer in top 1<" in page
        assert "Answer in top 2<" in page  # asked of both, stated by one
        assert "Answer in top 3<" not in page  # the other looked at two passages


def test_a_figure_of_one_side_alone_has_its_own_number_of_questions(
    pair: list[Evaluation], finds: Any, tmp_path: Path
) -> None:
    searched = run(finds, QUESTIONS, tmp_path / "searched")
    for ordered in ([searched, pair[1]], [pair[1], searched]):
        assert "Exact match<" in render_report(ordered)


def test_comparisons_that_make_no_sense_are_refused(
    tmp_path: Path, pair: list[Evaluation], system: Any
) -> None:
    for alike in (pair[:1], [pair[0], pair[0]]):
        with refusal(ConfigError):
            compare_evaluations(alike)
    with refusal(ConfigError):
        rag.compare([])
    other = Question("q6", "Who?", ("x",))
    changed = Question("q5", "Who discovered penicillin?", ("Someone else",))
    for number, (asked, options) in enumerate(
        (
            (QUESTIONS[:3], {}),
            ([*QUESTIONS[:5], other], {}),
            ([*QUESTIONS[:5], changed], {}),
            (QUESTIONS, {"profile": "nq_open"}),
        )
    ):
        with refusal(MismatchedArtifactError):
            odd = run(system, asked, tmp_path / str(number), **options)
            compare_evaluations([pair[0], odd])
    with refusal(DataError):
        load_evaluation(tmp_path / "nothing")


def check_page(text: str) -> None:
    """Nothing of a question set runs, and nothing is loaded from elsewhere."""
    assert NASTY not in text
    unsafe = r"""<(script|link|img|iframe|image)\b|<[^>]*\s(on\w+=|(src|href)="[^#])|url\(http"""
    assert re.search(unsafe, text) is None


def test_report_of_one_system(tmp_path: Path, system: Any) -> None:
    nasty = Question("x", f"{NASTY} Danube?", (NASTY, "Forest & Co"), ("p0",))
    evaluation = run(system, [*QUESTIONS, nasty], tmp_path / "one")
    text = render_report([evaluation])
    check_page(text)
    assert "&lt;script&gt;" in text
    assert "Exact match" in text
    assert with_interval(evaluation.metrics["figures"]["em"]) in text
    assert text.count("<svg") == 2
    assert "<mark>near Rotterdam</mark>" in text
    assert "against" not in text


def test_one_question_has_figures_without_intervals(tmp_path: Path, system: Any) -> None:
    evaluation = run(system, QUESTIONS[:1], tmp_path)
    assert with_interval(evaluation.metrics["figures"]["em"]) in ("0.0 %", "100.0 %")
    assert "nan" not in f"{evaluation}{render_report([evaluation])}"


def test_worst_questions_are_the_most_confident_mistakes() -> None:
    common = {"question": "Who?", "answers": ["x"], "stage": None, "hits": [], "timings_ms": {}}
    outcomes = [(1.0, 0.9), (0.0, 0.2), (0.0, 0.8), (None, 0.99), (0.0, 0.8)]
    rows = [
        QuestionRecord(id=str(number), scores={"em": em}, confidence=confidence, **common)
        for number, (em, confidence) in enumerate(outcomes)
    ]
    assert [row.id for row in worst_records(rows, 3)] == ["2", "4", "1"]


def test_without_matplotlib_the_page_has_tables_alone(
    pair: list[Evaluation], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    text = render_report(pair)
    assert "<svg" not in text
    assert "Exact match" in text


def test_questions_that_name_passages_alone_are_shown_and_compared_by_these(
    tmp_path: Path, finds: Any
) -> None:
    judged = [Question(q.id, q.text, gold_passage_ids=("0",)) for q in QUESTIONS]
    for name in ("a", "b"):
        evaluate(finds, judged, tmp_path / name, settings(read=20))
    both = load_evaluations([tmp_path / "a", tmp_path / "b"])
    assert str(both[0]).splitlines()[0].startswith("nDCG at 10")
    assert {row.figure for row in compare_evaluations(both)} >= {"nDCG@10", "RR"}
