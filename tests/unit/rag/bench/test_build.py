import json
from pathlib import Path

import pytest

from rag.bench.build import run_build_benchmark
from rag.bench.growth import run_growth_benchmark
from rag.core.errors import ConfigError, DataError, ResourceError
from rag.sample import corpus_path, questions_path


def report_of(path: Path, passages: int, index_type: str = "ivf") -> Path:
    settings = {"encoder": "static", "index_type": index_type, "retriever": "hybrid"}
    growth = {"build, s": 2.0 + 0.001 * passages, "serve start, s": 3.0, "disk, bytes": 700.0 * passages}
    path.write_text(json.dumps({"settings": settings, "figures": {"passages": passages, "growth": growth}}))
    return path


def test_growth_is_read_off_three_sizes(tmp_path: Path) -> None:
    reports = [report_of(tmp_path / f"{size}.json", size) for size in (1000, 4000, 16_000)]
    found = run_growth_benchmark(reports, passages=1_000_000).figures
    assert found["build, s"]["extrapolated"].value == pytest.approx(1002.0)
    assert found["build, s"]["extrapolated"].low < 500
    constant = found["serve start, s"]["extrapolated"]
    assert (constant.low, constant.high) == pytest.approx((3.0, 3.0))
    assert found["disk, bytes"]["exponent"] == pytest.approx(1.0)
    with pytest.raises(ConfigError, match="2 sizes"):
        run_growth_benchmark([*reports[:2], reports[0]])
    with pytest.raises(ConfigError, match="different kinds"):
        run_growth_benchmark([*reports, report_of(tmp_path / "other.json", 5, "sq8")])
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(DataError, match="no report"):
        run_growth_benchmark([tmp_path / "bad.json"])


@pytest.mark.slow
def test_a_build_that_is_killed_is_continued_and_answers(tmp_path: Path) -> None:
    report = run_build_benchmark(
        [str(corpus_path())], questions_path(), tmp_path / "index", retriever="bm25", n=3, top_k=5,
        kill="bm25", kill_after=0,
    )  # fmt: skip
    assert report.figures["killed"] == ["bm25"]
    growth = report.figures["growth"]
    assert growth["build, peak resident bytes"] > growth["build, peak own bytes"] > 1e7
    assert growth["serve start, s"] > 0
    assert report.figures["answer in the top"].value > 0.5
    assert set(report.figures["measured_over_planned"]) >= {"disk, lucene", "memory, serving", "time, bm25"}
    again = run_build_benchmark(
        [str(corpus_path())], questions_path(), tmp_path / "index", retriever="bm25", n=3, top_k=5
    )
    assert "was there before" in again.notes[0]
    assert again.figures["passages"] == report.figures["passages"]


@pytest.mark.slow
def test_a_build_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=r"nothing\.jsonl"):
        run_build_benchmark([str(tmp_path / "nothing.jsonl")], questions_path(), tmp_path / "index")
