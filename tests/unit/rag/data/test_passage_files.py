"""Passages written to files come back as they were."""

from pathlib import Path

import pytest

from rag.core.errors import ConfigError, DataError
from rag.core.types import Passage
from rag.data.corpus import read_documents
from rag.data.files.results import write_passages

PASSAGES = [
    Passage("1", 'The "Quoted" Title', "A text with\ta tab,\nan end of line and “quotes”."),
    Passage("2", "", "Ünïcode 北京 \u2028 inside."),
]


@pytest.mark.parametrize("name", ["p.jsonl", "p.tsv", "p.jsonl.gz", "p.tsv.gz"])
def test_what_is_written_is_read_back(tmp_path: Path, name: str) -> None:
    assert write_passages(tmp_path / name, iter(PASSAGES)) == 2
    found = [Passage(d.id, d.title, d.text) for d in read_documents([str(tmp_path / name)])]
    assert found[1] == PASSAGES[1]
    assert (found[0].id, found[0].title) == (PASSAGES[0].id, PASSAGES[0].title)
    assert found[0].text.split() == PASSAGES[0].text.split()


def test_same_passages_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        write_passages(tmp_path / name, PASSAGES)
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()


def test_a_failure_half_way_leaves_nothing(tmp_path: Path) -> None:
    def broken():  # type: ignore[no-untyped-def]
        yield PASSAGES[0]
        raise DataError("line 2 is not JSON")

    with pytest.raises(DataError, match="line 2"):
        write_passages(tmp_path / "p.jsonl.gz", broken())
    assert list(tmp_path.iterdir()) == []


def test_wrong_name_and_empty_input_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"p\.parquet"):
        write_passages(tmp_path / "p.parquet", PASSAGES)
    with pytest.raises(DataError, match="no passages"):
        write_passages(tmp_path / "p.tsv", [])
    assert list(tmp_path.iterdir()) == []
