"""Data sets of the Hugging Face Hub, as a corpus and as questions: names, data files, errors."""

import sys
import types
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rag.core.errors import ConfigError, DataError
from rag.data.corpus import Document, read_documents
from rag.data.questions import read_questions
from rag.eval.source import QuestionSource
from tests.support.messages import refusal


def hub(monkeypatch: pytest.MonkeyPatch, result: object) -> list:
    """Stands for the hub: gives `result`, or raises it; the list of what was asked for."""
    calls: list = []

    def load_dataset(name, configuration, *, split, streaming):
        calls.append((name, configuration, split, streaming))
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    return calls


def test_data_sets_are_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = hub(monkeypatch, iter([{"id": "1", "title": "T", "text": "a"}]))
    assert list(read_documents("hf:owner/name:en:validation")) == [Document("1", "T", "a")]
    assert calls == [("owner/name", "en", "validation", True)]
    hub(monkeypatch, {"train": iter([{"text": "a"}])})
    assert [d.id for d in read_documents("hf:owner/name")] == ["owner/name:1"]
    hub(monkeypatch, {"test": iter([{"id": "s1", "question": "Where?"}])})
    assert [q.id for q in read_questions("hf:owner/squad")] == ["s1"]
    hub(monkeypatch, {"test": iter([{"answers": ["a"]}])})
    with refusal(DataError):
        list(read_questions("hf:owner/nq"))


@pytest.mark.parametrize("error", [ConnectionError("no route"), ValueError("no split")])
def test_errors_are_explained(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    hub(monkeypatch, error)
    with refusal(DataError):
        list(read_documents("hf:owner/name"))
    for name in ("hf:", "hf:a:b:c:d", "hf:a::b"):
        with refusal(ConfigError):
            list(read_documents(name))


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


@pytest.mark.usefixtures("offline")
def test_a_folder_of_data_files_stands_for_a_data_set(tmp_path: Path) -> None:
    folder = tmp_path / "nq"
    folder.mkdir()
    rows = [{"question": f"q{n}", "answer": ["a", "b"]} for n in range(3)]
    pq.write_table(pa.Table.from_pylist(rows), folder / "train.parquet")
    pq.write_table(pa.Table.from_pylist(rows[:2]), folder / "validation.parquet")
    assert [q.answers for q in read_questions(f"hf:{folder}:validation")] == [("a", "b")] * 2
    with refusal(ConfigError):
        list(read_questions(f"hf:{folder}"))
    with refusal(DataError):
        list(read_questions(f"hf:{folder}:test"))
    source = QuestionSource.of_file(f"hf:{folder}:validation")
    assert (source.name, source.split, source.sha256) == (f"{folder}:validation", "dev", "")
