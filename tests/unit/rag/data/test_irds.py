"""Data sets of ir_datasets by name; a local one is registered, nothing is fetched."""

from collections.abc import Iterator
from pathlib import Path

import ir_datasets
import pytest
from ir_datasets.datasets.base import Dataset
from ir_datasets.formats import JsonlDocs, TrecQrels, TsvQueries
from ir_datasets.util import LocalDownload

from rag.core.errors import DataError
from rag.core.types import Question
from rag.data.corpus import read_documents
from rag.data.files.named import corpus_of
from rag.data.questions import read_questions
from rag.data.records import Document
from rag.eval.source import QuestionSource
from tests.commands import exit_code, run_successfully
from tests.support.messages import refusal


@pytest.fixture
def rivers(tmp_path: Path) -> Iterator[str]:
    lines = ('{"doc_id": "d1", "text": "It rises."}', '{"doc_id": "d2", "text": "It ends."}')
    (tmp_path / "docs.jsonl").write_text("\n".join(lines))
    (tmp_path / "queries.tsv").write_text("q1\twhere does it rise\nq2\tnot judged\n")
    # Two parts of a question are judged apart.
    (tmp_path / "qrels").write_text("q1 0 d1 2\nq1 0 d2 0\nq1 1 d1 0\n")
    docs = JsonlDocs(LocalDownload(tmp_path / "docs.jsonl"), docstore_path=str(tmp_path / "store"))
    queries = TsvQueries(LocalDownload(tmp_path / "queries.tsv"))
    qrels = TrecQrels(LocalDownload(tmp_path / "qrels"), {2: "best", 0: "not"})
    names = {"rivers": Dataset(docs), "rivers/test": Dataset(docs, queries, qrels)}
    for name, dataset in names.items():
        ir_datasets.registry.register(name, dataset)
    yield "irds:rivers"
    for name in names:
        ir_datasets.registry._registered.pop(name)


def test_corpus_and_judged_questions_are_read(rivers: str) -> None:
    assert list(read_documents(rivers)) == [
        Document("d1", "", "It rises."),
        Document("d2", "", "It ends."),
    ]
    judged = {"gold_passage_ids": ("d1",), "gold_are_alternatives": True, "gold_grades": {"d1": 2}}
    expected = Question("q1", "where does it rise", **judged)
    assert list(read_questions(f"{rivers}/test")) == [expected]
    expected_source = QuestionSource("rivers/test", "irds:rivers/test", "test")
    assert QuestionSource.of_file(f"{rivers}/test") == expected_source


def test_names_of_corpora_and_unknown_ones() -> None:
    assert corpus_of("irds:beir/scifact/test") == "irds:beir/scifact"
    with refusal(DataError):
        list(read_questions("irds:no/such"))


def test_a_set_is_indexed_and_evaluated_by_one_command(rivers: str, tmp_path: Path) -> None:
    words = [
        "evaluate",
        "--dataset",
        f"{rivers}/test",
        "--retriever",
        "bm25",
        "-o",
        tmp_path / "out",
    ]
    for _ in range(2):  # the second finds both
        assert "nDCG at 10                       100.0 %" in run_successfully(*words)
    assert (tmp_path / "out.index" / "manifest.json").is_file()
    words = ["evaluate", "--dataset", f"{rivers}/test", "-i", tmp_path / "out.index"]
    run_successfully(*words, "--retriever", "bm25", "--read", "1", "-o", tmp_path / "read")
    assert (tmp_path / "read" / "predictions.squad.json").is_file()
    assert exit_code("evaluate", "-o", tmp_path / "no") != 0
