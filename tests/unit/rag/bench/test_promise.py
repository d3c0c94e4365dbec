"""The benchmark of promised error rates, on results whose error rate is known."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rag.bench.promise import run_promise_benchmark
from rag.core.errors import ConfigError
from rag.core.files import atomic_write_json
from rag.data.files.rows import write_json_lines
from rag.metrics.significance import Interval
from tests.support.messages import refusal

COMMON = {"id": "q", "question": "Who?", "stage": None, "hits": [], "timings_ms": {}, "scores": {}}


def write_results(folder: Path, n: int, skill: float) -> str:
    draw = np.random.default_rng(5)
    logits = draw.normal(skill, 2.0, n)
    chances = (1 / (1 + np.exp(-logits))).tolist()
    nothing = {**COMMON, "scores": {"em": None}, "answers": []}
    records = [nothing] * 40
    for chance in chances:
        text = "x" if draw.random() < chance else "y"
        answer = {"text": text, "confidence": chance, "score": 0.0, "passage_id": "p"}
        records.append({**COMMON, "n_best": [answer], "answers": ["x"]})
    records.append({**nothing, "kind": "list"})
    return write_records(folder, records, "nq_open")


def write_verdicts(folder: Path, n: int) -> str:
    """Verdicts that are as often right as they are sure, also where a label joins two; one claim
    without a verdict, and one without a label.
    """
    draw = np.random.default_rng(6)
    records = [{**COMMON, "answers": ["refuted"]}]
    for chance in draw.uniform(0.5, 1.0, n).tolist():
        label = "supported" if draw.random() > chance else "not_supported"
        shares = {"supported": 1.0 - chance, "not_enough": chance}
        records.append({**COMMON, "answers": [label], "probabilities": shares})
    records.append({**records[-1], "answers": []})
    return write_records(folder, records, "claims")


def write_records(folder: Path, records: list[dict[str, Any]], profile: str) -> str:
    folder.mkdir()
    write_json_lines(folder / "per_question.jsonl", records)
    atomic_write_json(folder / "metrics.json", {"kind": "evaluation", "profile": profile})
    return str(folder)


def test_rates_are_kept_on_the_rest_and_compared_across_sets(tmp_path: Path) -> None:
    folders = [write_results(tmp_path / name, 1500, skill) for name, skill in (("a", 2), ("b", 0))]
    report = run_promise_benchmark(folders, max_error=["0.2"], max_false_answers=0.5, splits=20)
    assert list(report.rows) == ["a, 0.2", "a → b, 0.2", "b, 0.2"]
    own = report.rows["a, 0.2"]
    assert isinstance(own["kept"], Interval)
    assert own["kept"].value >= 0.8
    assert own["made"] >= 0.8
    assert (own["false answers"], own["refuted"]) == (0.0, pytest.approx(0.0, abs=0.1))
    assert own["fitted on"] == "500"
    assert isinstance(own["plain: kept"], Interval)
    assert own["plain: kept"].value < own["kept"].value


def test_an_answer_that_squad_2_counts_as_silence_is_judged_as_it_would_be_given(
    tmp_path: Path,
) -> None:
    """The scorer's figure is of the silence, the promise is about the answer."""
    answer = {"text": "x", "confidence": 0.4, "score": 0.0, "passage_id": "p"}
    common = {**COMMON, "n_best": [answer], "prediction": ""}
    absent = {**common, "answers": [], "scores": {"em": 1.0}}
    there = {**common, "answers": ["x"], "scores": {"em": 0.0}}
    folder = write_records(tmp_path / "squad2", [*[absent] * 400, *[there] * 400], "squad2")
    report = run_promise_benchmark([folder], ["0.2", "0.6"], splits=4, fitted=300)
    assert report.rows["squad2, 0.2"]["made"] == 0.0
    assert report.rows["squad2, 0.6"]["wrong"] == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("replacement", [False, True])
def test_verdicts_are_promised_on_all_fitted_claims(replacement: bool, tmp_path: Path) -> None:
    folder = write_verdicts(tmp_path / "c", 1500)
    report = run_promise_benchmark(
        [folder], ["0.2"], splits=20, fitted=300, replacement=replacement
    )
    own = report.rows["c, 0.2"]
    assert own["fitted on"] == "300"
    assert own["made"] >= 0.8
    assert own["made: kept"] >= 0.8
    assert own["wrong"] == pytest.approx(0.15, abs=0.05)


def test_verdicts_are_not_measured_beside_answers(tmp_path: Path) -> None:
    folders = [write_verdicts(tmp_path / "c", 600), write_results(tmp_path / "a", 600, 2)]
    with refusal(ConfigError):
        run_promise_benchmark(folders)


def test_sets_that_are_too_small_to_split_are_refused(tmp_path: Path) -> None:
    with refusal(ConfigError):
        run_promise_benchmark([write_results(tmp_path / "a", 100, 2)])
