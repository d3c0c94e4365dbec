"""The question set over real documents: shape, counts, frozen hash, and how documents are
unpacked.
"""

import gzip
import hashlib
import json
import re
import zipfile
from pathlib import Path

import pytest

from rag.bench.documents import fetch
from rag.core.errors import DataError
from tests.support.messages import refusal

FOLDER = fetch.SOURCES.parent
QUESTIONS = FOLDER / "questions.jsonl"
COLLEAGUES = FOLDER / "colleagues.jsonl"


def test_the_questions_are_those_that_were_frozen():
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (QUESTIONS, COLLEAGUES)]
    assert re.findall(r"\b[0-9a-f]{64}\b", (FOLDER / "README.md").read_text("utf-8")) == digests


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One source: a compressed file of a wheel, which `cp` "downloads"."""
    wheel = tmp_path / "guide-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("guide/faq.txt.gz", gzip.compress(b"Ask early.\n"))
    monkeypatch.setitem(fetch._DOWNLOADS, "wheel", ("cp", str(wheel), "."))
    row = {
        "path": "text/faq.txt",
        "registry": "wheel",
        "package": "guide",
        "version": "1.0",
        "file": "guide/faq.txt.gz",
        "sha256": hashlib.sha256(b"Ask early.\n").hexdigest(),
    }
    path = tmp_path / "sources.json"
    path.write_text(json.dumps([row]))
    return path


def test_documents_are_unpacked_checked_and_fetched_once(tmp_path: Path, sources: Path):
    assert fetch.fetch(tmp_path / "out", sources) == 1
    assert (tmp_path / "out/text/faq.txt").read_bytes() == b"Ask early.\n"
    assert fetch.fetch(tmp_path / "out", sources) == 0


ODD_SOURCES = {
    "other checksum": ("sha256", "0" * 64),
    "absent file": ("file", "guide/none.txt"),
    "absent package": ("registry", "deb"),
}


@pytest.mark.parametrize(("field", "value"), ODD_SOURCES.values(), ids=ODD_SOURCES)
def test_what_does_not_fit_is_named_and_the_rest_is_fetched(
    tmp_path: Path, sources: Path, monkeypatch: pytest.MonkeyPatch, field, value
):
    for kind in ("deb", "deb of today"):
        monkeypatch.setitem(fetch._DOWNLOADS, kind, ("false",))
    (row,) = json.loads(sources.read_text())
    odd = row | {field: value, "path": "text/odd.txt", "version": "0"}
    sources.write_text(json.dumps([odd, row]))
    with refusal(DataError):
        fetch.fetch(tmp_path / "out", sources)
    assert [path.name for path in (tmp_path / "out").rglob("*.txt")] == ["faq.txt"]
