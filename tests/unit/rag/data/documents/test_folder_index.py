"""Indexes of folders of files: where answers stand, and what a folder may hold."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

import rag
from rag.cli.index import _state_of
from rag.core.types import Question
from rag.data.corpus import read_documents
from rag.data.records import ReadReport
from tests import document_makers as make
from tests.commands import exit_code


def test_an_index_of_files_answers_with_file_page_and_heading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make.mixed_folder(tmp_path / "in")
    (tmp_path / "q.jsonl").write_text(
        '{"id": "q", "question": "Which text?", "answers": ["some text"]}\n'
    )

    index = tmp_path / "index"
    assert exit_code("index", tmp_path / "in", "--out", index, "--retriever", "bm25") == 0
    assert "3 bad" in capsys.readouterr().out
    for name in ("o.json", "o.run"):
        command = ["retrieve", "-i", index, "-q", tmp_path / "q.jsonl", "-o", tmp_path / name]
        assert exit_code(*command) == 0
    (hit,) = json.loads((tmp_path / "o.json").read_text())[0]["ctxs"]
    assert hit["location"] == {"path": "sub/100% plan.pdf", "page": "1"}
    assert hit["id"] == "sub/100% plan.pdf-0"
    assert (tmp_path / "o.run").read_text().split()[2] == "sub/100%25%20plan.pdf-0"
    asked = [Question("q", "Which text?", gold_passage_ids=(hit["id"],))]
    scored = rag.evaluate(index, asked, run=tmp_path / "o.run", ks=(1,))
    assert scored.figures["RR"].value == 1.0


def test_an_index_in_the_folder_is_no_part_of_its_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.md").write_text("The gate opens at nine.")
    Path(os.fsdecode(bytes(tmp_path) + b"/caf\xe9.txt")).write_text("Its name is not UTF-8.")
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[object, str]:
        code = exit_code("index", *arguments)
        return code, "".join(capsys.readouterr())

    assert run(".", "--out", "my-index", "--retriever", "bm25")[0] == 0
    (tmp_path / "note.txt").write_bytes("Grüße aus Köln.".encode("cp1252"))
    assert "note.txt: read as Windows-1252" in run(".", "--update", "my-index")[1]
    assert "3 documents, none changed" in run(".", "--update", "my-index")[1]
    code, shown = run("my-index", "--out", "another", "--retriever", "bm25")
    assert code == 2
    assert "my-index is an index, not a corpus" in shown


def test_a_folder_that_may_not_be_read_is_told_and_no_reason_to_delete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Listing such a folder fails; here it is listing it at all, since root may read everything."""
    folder = tmp_path / "in"
    for name in ("a.md", "secret/b.md", "more/c.md"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"Text of {name}.")
    scanned = os.scandir

    def refuse(place: Any = ".") -> Any:
        if str(place).endswith("secret"):
            raise PermissionError(errno.EACCES, "Permission denied", str(place))
        return scanned(place)

    index = str(tmp_path / "index")
    monkeypatch.setattr("os.scandir", refuse)
    report = ReadReport()
    assert [item.id for item in read_documents(folder, report=report)] == ["a.md", "more/c.md"]
    assert "no permission" in report.faults()
    monkeypatch.setattr("os.scandir", scanned)
    assert exit_code("index", folder, "--out", index, "--retriever", "bm25") == 0
    monkeypatch.setattr("os.scandir", refuse)
    assert exit_code("index", folder, "--update", index) != 0
    assert (
        "secret: no permission (this folder may not be read), and its documents"
        in capsys.readouterr().err
    )


def test_an_update_keeps_to_what_the_index_leaves_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.md").write_text("The gate opens at nine.")
    lines = (f"# Line {number}\n\nThe gate is shut.\n" for number in range(600))
    (folder / "big.md").write_text("\n".join(lines))
    rag.index(folder, tmp_path / "all", retriever="bm25", threads=1)
    assert "big.md has 600 of 601 passages (100 %); --exclude" in caplog.text
    caplog.clear()
    index = rag.index(
        folder, tmp_path / "index", retriever="bm25", threads=1, exclude=["big.md", "*.tmp"]
    )
    assert "--exclude" not in caplog.text
    (folder / "more.tmp").write_text("Nothing.")
    watched = _state_of([str(folder)], "auto", ["big.md", "*.tmp"])
    assert [*watched] == [str(folder / "a.md")]
    assert not rag.update(index, folder).is_changed
    (folder / "b.md").write_text("The gate shuts at ten.")
    assert rag.update(index, folder).added == 1
