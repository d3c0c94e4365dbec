"""The table of documents: which passages are one document's, whatever their ids look like."""

from pathlib import Path

import pytest

from indexers import documents as module
from indexers.documents import DocumentEntry, Documents, InOrder, Put, writing_documents
from indexers.index import Index
from indexers.index_writer import write_index
from indexers.settings import BuildSettings
from rag.core.errors import ArtifactError, DataError
from rag.core.types import Passage
from rag.data.filters import parse_filter
from tests.support.messages import refusal

WORDS = BuildSettings(retriever="bm25", threads=1)


def put(id: str, *passages: str, sent: bool = False) -> Put:
    return Put(id, f"digest of {id}", [Passage(name, "", name) for name in passages], sent=sent)


def write(place: Path, *puts: Put) -> Documents:
    with writing_documents(place) as add:
        for document in puts:
            add(document)
    return Documents(place)


PUTS = (put("b", "b-0", "b-1"), put("empty"), put("a", "a-0", sent=True), put("c", "c-0", "c-1"))


@pytest.mark.parametrize("batch_rows", [1 << 16, 2])
def test_documents_are_found_by_id_by_row_and_page_by_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_rows: int
) -> None:
    monkeypatch.setattr(module, "TABLE_BATCH_ROWS", batch_rows)
    monkeypatch.setattr("indexers.id_table.TABLE_BATCH_ROWS", batch_rows)
    table = write(tmp_path, *PUTS)
    expected = [
        DocumentEntry("b", "digest of b", False, range(2)),
        DocumentEntry("empty", "digest of empty", False, range(2, 2)),
        DocumentEntry("a", "digest of a", True, range(2, 3)),
        DocumentEntry("c", "digest of c", False, range(3, 5)),
    ]
    assert (list(table), len(table)) == (expected, 4)
    assert [table.find(entry.id) for entry in expected] == expected
    assert [table.of_row(row).id for row in range(5)] == ["b", "b", "a", "c", "c"]
    assert (table.rows("c"), table.rows("a-0")) == (range(3, 5), range(0))
    assert table.find("\ud800") is None
    assert table.page(None, 2) == expected[:2]
    assert table.page("empty", 9) == expected[2:]
    assert table.page("c", 9) == []
    with pytest.raises(KeyError):
        table.page("nothing", 9)
    for ids in (["b", "a", "c"], ["c", "b", "nothing", "empty", "a"], ["empty", "b", "c", "c"]):
        in_order = InOrder(table)
        assert [in_order.find(id) for id in ids] == [table.find(id) for id in ids]


def test_two_documents_have_two_ids(tmp_path: Path) -> None:
    with refusal(DataError):
        write(tmp_path, PUTS[0], PUTS[1], PUTS[0])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["documents.arrow", "document_starts.npy", "document_rows.npy"])
def test_damage_is_refused_by_name(tmp_path: Path, name: str) -> None:
    write(tmp_path, *PUTS)
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:100])
    with refusal(ArtifactError):
        Documents(tmp_path)


TEXTS = [Passage(id, "", f"text {id}") for id in ("covid-19", "covid-20", "iso-9001", "iso-14001")]
PIECES = [
    put("covid-19", "covid-19-0", "covid-19-1"),
    put("covid", "covid-0"),
    put("iso-9001", "x"),
]


@pytest.mark.parametrize(
    ("content", "document", "ids", "beside"),
    [
        (TEXTS, "covid-19", ["covid-19"], []),
        (TEXTS, "covid", [], []),
        (PIECES, "covid-19", ["covid-19-0", "covid-19-1"], ["covid-19-1"]),
        (PIECES, "covid", ["covid-0"], []),
        (PIECES, "iso-9001", ["x"], []),
    ],
)
def test_a_number_at_the_end_of_an_id_means_nothing(
    tmp_path: Path, content: list, document: str, ids: list[str], beside: list[str]
) -> None:
    write_index(tmp_path / "i", content, settings=WORDS)
    with Index.open(tmp_path / "i") as index:
        selected = index.select(parse_filter({"document": document}) or ())
        assert index.passages.ids(selected.rows) == ids
        assert {index.document_of(id) for id in ids} <= {document}
        for id in ids[:1]:
            before, after = index.around(id, 5)
            assert (before, [passage.id for passage in after]) == ([], beside)
