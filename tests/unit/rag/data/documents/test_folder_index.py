"""Indexes of folders of files: where answers stand, and what a folder may hold."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

import rag
from rag.cli.index import _state_of
from rag.core.files import read_json
from rag.core.types import Question
from rag.data.corpus import read_documents
from rag.data.records import ReadReport
from tests import document_makers as make
from tests.commands import run_command, run_successfully
from tests.support.files import index_files, write_files


def test_an_index_of_files_answers_with_file_page_and_heading(tmp_path: Path) -> None:
    make.mixed_folder(tmp_path / "in")
    (tmp_path / "q.jsonl").write_text(
        '{"id": "q", "question": "Which text?", "answers": ["some text"]}\n'
    )
    index = tmp_path / "index"
    built = run_command("index", tmp_path / "in", "--out", index, "--retriever", "bm25")
    assert built.exit_code == 0, built.err
    assert "3 bad" in built.out
    for name in ("o.json", "o.run"):
        run_successfully("retrieve", "-i", index, "-q", tmp_path / "q.jsonl", "-o", tmp_path / name)
    (hit,) = read_json(tmp_path / "o.json")[0]["ctxs"]
    assert hit["location"] == {"path": "sub/100% plan.pdf", "page": "1"}
    assert hit["id"] == "sub/100% plan.pdf-0"
    assert (tmp_path / "o.run").read_text().split()[2] == "sub/100%25%20plan.pdf-0"
    asked = [Question("q", "Which text?", gold_passage_ids=(hit["id"],))]
    scored = rag.evaluate(index, asked, run=tmp_path / "o.run", ks=(1,))
    assert scored.figures["RR"].value == 1.0


def test_an_index_in_the_folder_is_no_part_of_its_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.md").write_text("The gate opens at nine.")
    Path(os.fsdecode(bytes(tmp_path) + b"/caf\xe9.txt")).write_text("Its name is not UTF-8.")
    monkeypatch.chdir(tmp_path)
    run_successfully("index", ".", "--out", "my-index", "--retriever", "bm25")
    (tmp_path / "note.txt").write_bytes("Grüße aus Köln.".encode("cp1252"))
    update = ("index", ".", "--update", "my-index")
    assert "note.txt: read as Windows-1252" in run_successfully(*update)
    assert "3 documents, none changed" in run_successfully(*update)
    refused = run_command("index", "my-index", "--out", "another", "--retriever", "bm25")
    assert refused.exit_code == 2
    assert "my-index is an index, not a corpus" in refused.err


def test_a_folder_that_may_not_be_read_is_told_and_no_reason_to_delete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Listing such a folder fails; here it is listing it at all, since root may read everything."""
    folder = tmp_path / "in"
    write_files(folder, dict.fromkeys(("a.md", "secret/b.md", "more/c.md"), "Some text."))
    scanned = os.scandir

    def refuse(place: Any = ".") -> Any:
        if str(place).endswith("secret"):
            raise PermissionError(errno.EACCES, "Permission denied", str(place))
        return scanned(place)

    index = tmp_path / "index"
    monkeypatch.setattr("os.scandir", refuse)
    report = ReadReport()
    assert [item.id for item in read_documents(folder, report=report)] == ["a.md", "more/c.md"]
    assert "no permission" in report.faults()
    monkeypatch.setattr("os.scandir", scanned)
    run_successfully("index", folder, "--out", index, "--retriever", "bm25")
    monkeypatch.setattr("os.scandir", refuse)
    updated = run_command("index", folder, "--update", index)
    assert updated.exit_code != 0
    assert "secret: no permission (this folder may not be read), and its documents" in updated.err


def test_an_update_keeps_to_what_the_index_leaves_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = (f"# Line {number}\n\nThe gate is shut.\n" for number in range(600))
    files = {"a.md": "The gate opens at nine.", "big.md": "\n".join(lines)}
    index_files(tmp_path / "all", files)
    assert "big.md has 600 of 601 passages (100 %); a line in exclude" in caplog.text
    caplog.clear()
    exclude = ["big.md", "*.tmp"]
    folder, index = index_files(tmp_path, files, exclude=exclude)
    assert "in exclude" not in caplog.text
    (folder / "more.tmp").write_text("Nothing.")
    watched = _state_of([str(folder)], "auto", exclude)
    assert [*watched] == [str(folder / "a.md")]
    assert not rag.update(index, folder).is_changed
    (folder / "b.md").write_text("The gate shuts at ten.")
    assert rag.update(index, folder).added == 1
