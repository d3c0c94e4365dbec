"""The list of documents: written in batches, so that memory does not grow with it."""

from pathlib import Path

import pytest

from indexers import documents
from indexers.documents import DOCUMENTS_NAME, DocumentEntry, DocumentList, read_document_entries


def test_a_list_of_several_batches_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(documents, "_BATCH_ROWS", 4)
    listed = DocumentList()
    for number in range(5):  # before there is a file
        listed.append(str(number), "", passages=number)
    with listed.writing(tmp_path / DOCUMENTS_NAME):
        for number in range(5, 11):
            listed.append(str(number), f"{number:x}", passages=1)
            assert len(listed._last) < 6
    entries = read_document_entries(tmp_path / DOCUMENTS_NAME)
    assert list(entries) == [str(number) for number in range(11)]
    assert entries["10"] == DocumentEntry("10", "a", 1, first=15)


def test_a_failure_leaves_no_list(tmp_path: Path):
    with pytest.raises(RuntimeError, match="stopped"), DocumentList().writing(tmp_path / DOCUMENTS_NAME):
        raise RuntimeError("stopped")
    assert not list(tmp_path.iterdir())
