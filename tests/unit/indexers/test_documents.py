"""The list of documents: written in batches, so that memory does not grow with it."""

from pathlib import Path

import pytest

from indexers import documents
from indexers.documents import DOCUMENTS_NAME, DocumentEntry, Put, read_document_entries, writing_documents
from rag.core.types import Passage


def test_a_list_of_several_batches_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(documents, "_BATCH_ROWS", 4)
    with writing_documents(tmp_path / DOCUMENTS_NAME) as list_document:
        for number in range(11):
            list_document(Put(str(number), f"{number:x}", [Passage("p", "", "x")] * (number % 3)))
    entries = read_document_entries(tmp_path / DOCUMENTS_NAME)
    assert list(entries) == [str(number) for number in range(11)]
    assert entries["10"] == DocumentEntry("10", "a", 1, first=9)


def test_a_failure_leaves_no_list(tmp_path: Path):
    with pytest.raises(RuntimeError, match="stopped"), writing_documents(tmp_path / DOCUMENTS_NAME):
        raise RuntimeError("stopped")
    assert not list(tmp_path.iterdir())
