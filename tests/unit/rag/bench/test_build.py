from pathlib import Path

import pytest

from rag.bench.build import run_build_benchmark
from rag.core.errors import ResourceError
from rag.sample import corpus_path, questions_path


@pytest.mark.slow
def test_a_build_that_is_killed_is_continued_and_answers(tmp_path: Path) -> None:
    report = run_build_benchmark(
        [str(corpus_path())], questions_path(), tmp_path / "index", retriever="bm25", n=3, top_k=5,
        kill="bm25", kill_after=0,
    )  # fmt: skip
    assert report.figures["killed"] == ["bm25"]
    measured = report.figures["measured"]
    assert measured["build, peak resident bytes"] > measured["build, peak own bytes"] > 1e7
    assert measured["serve start, s"] > 0
    assert report.figures["answer in the top"].value > 0.5
    assert set(report.figures["measured_over_planned"]) >= {"disk, lucene", "memory, serving", "time, bm25"}
    again = run_build_benchmark(
        [str(corpus_path())], questions_path(), tmp_path / "index", retriever="bm25", n=3, top_k=5
    )
    assert "was there before" in again.notes[0]
    assert again.figures["passages"] == report.figures["passages"]


@pytest.mark.slow
def test_a_type_that_needs_no_working_space_is_compared_too(tmp_path: Path) -> None:
    report = run_build_benchmark(
        [str(corpus_path())], questions_path(), tmp_path / "index", index_type="flat", retriever="dense", n=1
    )
    shares = report.figures["measured_over_planned"]
    assert {"disk, embeddings", "memory, serving"} <= shares.keys()
    assert "disk, working space" not in shares


@pytest.mark.slow
def test_a_build_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=r"nothing\.jsonl"):
        run_build_benchmark([str(tmp_path / "nothing.jsonl")], questions_path(), tmp_path / "index")
