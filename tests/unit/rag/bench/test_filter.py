"""The benchmark of filters over a small index of files."""

from pathlib import Path

import rag
from rag.bench.filter import run_filter_benchmark


def test_a_search_with_a_filter_is_timed_beside_one_without(tmp_path: Path):
    for name in ("guide", "notes"):
        (tmp_path / "corpus" / name).mkdir(parents=True)
        (tmp_path / "corpus" / name / "a.md").write_text(f"# Rivers\n\nThe danube of the {name}.\n")
    index = rag.index(tmp_path / "corpus", tmp_path / "index", retriever="bm25", threads=1)
    questions = tmp_path / "q.jsonl"
    questions.write_text('{"question": "Which danube?", "answers": ["the"]}\n')
    report = run_filter_benchmark(index, questions, "path=guide/*", ("bm25",), rounds=3)
    assert (report.settings["selected"], report.settings["passages"]) == (1, 2)
    assert report.figures["bm25"]["ratio"].n == 3
    assert report.tables[0].rows[0][0] == "bm25"
