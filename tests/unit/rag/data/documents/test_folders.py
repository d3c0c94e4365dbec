"""A folder of people's own files: what is read, what is named and why, and how it goes on."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rag.core.errors import ConfigError, DataError, MissingDependencyError
from rag.data.corpus import read_documents
from rag.data.documents.blocks import Unreadable
from rag.data.documents.convert import convert
from rag.data.documents.read import convert_files
from rag.data.records import BadRecord, CorpusOptions, Document, ReadReport
from rag.data.split import split_documents
from tests import document_makers as make


def _stating(size: int, data: bytes) -> bytes:
    """An archive whose directory states this size for its first file."""
    at = data.rindex(b"PK\x01\x02") + 24
    return data[:at] + size.to_bytes(4, "little") + data[at + 4 :]


ENCRYPTED_OFFICE = (
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 99 + "EncryptedPackage".encode("utf-16-le")
)
BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "cut.pdf": (lambda: make.pdf([make.LINE])[:200], "broken file"),
    "junk.docx": (lambda: b"junk" * 100, "broken file"),
    "cut.docx": (lambda: make.word([("p", "x")])[:5000], "broken file"),
    "other.zip.docx": (lambda: make.archive({"a.txt": b"x"}), "format not read"),
    "no-document.docx": (lambda: make.archive({"word/document.xml": b"<"}), "broken file"),
    "locked.pdf": (lambda: make.pdf([make.LINE], encrypted=True), "encrypted"),
    "locked.docx": (lambda: ENCRYPTED_OFFICE, "encrypted"),
    "scan.pdf": (lambda: make.pdf([[], []]), "scanned"),
    "empty.txt": (lambda: b"", "empty"),
    "blank.md": (lambda: b" \n\n", "empty"),
    "blank.csv": (lambda: b"\xef\xbb\xbf\n", "empty"),
    "empty.html": (lambda: b"<html><body><script>x</script></body></html>", "empty"),
    "empty.docx": (lambda: make.word([]), "empty"),
    "old.doc": (lambda: b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 99, "old Office format"),
    "empty.rtf": (lambda: b"{\\rtf1\\ansi }", "empty"),
    "locked.odt": (
        lambda: make.odf("", **{"META-INF/manifest.xml": b"<manifest:encryption-data/>"}),
        "encrypted",
    ),
    "other.odt": (
        lambda: make.archive({"mimetype": b"application/vnd.oasis.opendocument.image"}),
        "format not read",
    ),
    "cut.odt": (lambda: make.odf("")[:500], "broken file"),
    "mail.msg": (lambda: b"text", "format not read"),
    "page.xls": (
        lambda: b"<html><body><script>x</script></body></html>",
        "empty",
    ),  # as some programs export
    "prices.ods": (
        lambda: make.archive({"mimetype": b"application/vnd.oasis.opendocument.spreadsheet"}),
        "format not read",
    ),
    "binary.txt": (lambda: bytes(range(256)), "binary data"),
    "german.txt": (lambda: "Grüße aus Köln.\x01".encode("cp1252"), "unknown encoding"),
    "russian.txt": (lambda: "Привет, как дела?".encode("cp1251"), "unknown encoding"),
    "liar.docx": (
        lambda: _stating(1000, make.archive({"word/document.xml": b"\0" * 60_000_000})),
        "broken file",
    ),
    "bomb.docx": (lambda: _stating(3_000_000_000, make.word([])), "too large when unpacked"),
    "plain.eml": (lambda: b"\n\nno header", "broken file"),
    "bad.ipynb": (lambda: b'{"cells": 3}', "broken file"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused_with_a_reason_and_a_remedy(name: str) -> None:
    data, reason = BAD[name]
    with pytest.raises(Unreadable) as caught:
        convert(data(), name)
    assert caught.value.reason == reason
    assert caught.value.remedy
    assert not caught.value.detail.partition(":")[0].endswith("Error")  # nobody is helped by it
    assert not caught.value.detail.endswith(".")  # a semicolon follows


def test_a_mixed_folder_is_read_as_documents(tmp_path: Path) -> None:
    make.mixed_folder(tmp_path / "in")
    report = ReadReport()
    documents = list(read_documents(tmp_path / "in", report=report))
    assert [(d.id, d.path, d.title) for d in documents] == [
        ("README", "README", "README"),
        ("my notes.md", "my notes.md", "Notes"),
        ("rooms.csv", "rooms.csv", "rooms"),
        ("sub/100% plan.pdf", "sub/100% plan.pdf", "The Plan"),
    ]
    assert (report.total, report.files, report.unread) == (7, 7, 3)
    assert report.reasons == {"empty": 1, "encrypted": 1, "old Office format": 1}
    lines = report.faults().splitlines()
    assert lines[0].startswith("4 of 7 documents, 3 bad (42.86 %)")
    assert f"  {tmp_path}/in/locked.pdf: encrypted (save a copy without a password)" in lines
    remedy = "index it on its own, or give --format jsonl"
    assert report.ignored == [
        f"{tmp_path}/in/data.jsonl (jsonl, in a folder of documents: {remedy})",
        f"{tmp_path}/in/photo.jpg (of no known format)",
    ]
    passages = {p.id: p for p in split_documents(documents)}
    assert passages["rooms.csv-0"].text == "week: 2; room: 37"
    place = passages["sub/100% plan.pdf-0"].location
    assert place is not None
    assert str(place) == "sub/100% plan.pdf, page 1"


def test_files_of_the_same_name_are_different_documents(tmp_path: Path) -> None:
    for name in (
        "README.md",
        "a/README.md",
        "a/docs/index.md",
        "b/docs/index.md",
        "b/docs/more.md",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"Text of {name}.")

    def ids(*inputs: Path) -> list[str]:
        return [document.id for document in read_documents(inputs)]

    assert ids(*sorted(tmp_path.rglob("*.md"))) == [
        "README.md",
        "a/README.md",
        "a/docs/index.md",
        "b/docs/index.md",
        "more.md",
    ]
    assert ids(tmp_path / "README.md", tmp_path / "a") == [
        "README.md",
        "a/README.md",
        "a/docs/index.md",
    ]
    assert ids(tmp_path / "a" / "docs", tmp_path / "b" / "docs") == [
        "a/docs/index.md",
        "b/docs/index.md",
        "b/docs/more.md",
    ]
    assert ids(tmp_path / "b") == ["docs/index.md", "docs/more.md"]


def test_records_beside_a_readme_stay_records(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("About the data.")
    (tmp_path / "CODEOWNERS").write_text("docs\tAnn\n")
    assert [d.id for d in read_documents(tmp_path)] == ["CODEOWNERS", "README.md"]
    (tmp_path / "CODEOWNERS").unlink()
    (tmp_path / "rows.csv").write_text("id,text\n1,One.\n")
    assert [d.id for d in read_documents(tmp_path)] == ["1"]
    (tmp_path / "notes.md").write_text("Not about the data.")
    assert [d.id for d in read_documents(tmp_path)] == ["README.md", "notes.md", "rows.csv"]
    for number in range(3):
        (tmp_path / f"{number}.jsonl").write_text(f'{{"id": "r{number}", "text": "x"}}\n')
    assert [d.id for d in read_documents(tmp_path)] == ["README.md", "notes.md", "rows.csv"]
    assert [d.id for d in read_documents(tmp_path, format="jsonl")] == ["r0", "r1", "r2"]
    ids = [d.id for d in read_documents(tmp_path, format="documents")]
    assert ids == ["README.md", "notes.md", "rows.csv"]


def test_a_folder_of_tables_without_a_column_of_texts_is_one_of_documents(tmp_path: Path) -> None:
    (tmp_path / "rooms.csv").write_text("week,room\n2,37\n")
    (tmp_path / "README.md").write_text("About the tables.")
    (tmp_path / "people.tsv").write_text("name\tage\nAnn\t30\n")
    documents = {d.id: d.text for d in read_documents(tmp_path)}
    assert documents == {
        "README.md": "About the tables.",
        "people.tsv": "name: Ann; age: 30",
        "rooms.csv": "week: 2; room: 37",
    }
    records = read_documents(tmp_path, format="csv", options=CorpusOptions(text_field="room"))
    assert [d.text for d in records] == ["37"]
    (tmp_path / "people.tsv").unlink()
    records = read_documents(tmp_path, options=CorpusOptions(text_field="room"))
    assert [d.text for d in records] == ["37"]
    [document] = read_documents(tmp_path / "rooms.csv", format="documents")
    assert document.text == "week: 2; room: 37"


FILES = {
    "rows.jsonl": '{"id": "1", "text": "One."}\n',
    "list.json": '[{"id": "2", "text": "Two."}]',
    "rooms.csv": "week,room\n2,37\n",
    "package.json": '{"name": "x"}',
    "settings.json": '{\n  "name": [1]\n}\n',
    "log.jsonl": '{"level": "info"}\n',
}


@pytest.mark.parametrize(
    ("names", "read", "left_out"),
    [
        ("package.json README.md", ["README.md", "package.json"], []),
        ("package.json rooms.csv", ["package.json", "rooms.csv"], []),
        ("package.json rows.jsonl", ["1"], ["no corpus"]),
        ("package.json list.json", ["2"], ["no corpus"]),
        ("list.json settings.json", ["2"], ["no records in it"]),
        ("list.json log.jsonl rooms.csv rows.jsonl", ["2", "1"], ["no corpus"] * 2),
    ],
)
def test_a_file_of_records_without_texts_is_named_and_left_out(
    tmp_path: Path, names: str, read: list[str], left_out: list[str]
) -> None:
    for name in names.split():
        (tmp_path / name).write_text(FILES.get(name, "Text."))
    report = ReadReport()
    assert [document.id for document in read_documents(tmp_path, report=report)] == read
    assert list(report.reasons.elements()) == left_out
    assert report.unread == len(left_out)


@pytest.mark.parametrize("name", ["package.json", "log.jsonl", "rooms.csv"])
def test_a_file_without_texts_that_is_given_by_itself_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(FILES[name])
    with pytest.raises(DataError, match="no field is known") as refused:
        list(read_documents(tmp_path / name))
    assert "--text-field" in refused.value.hint


def test_rows_of_a_csv_with_other_lengths_get_a_note(tmp_path: Path) -> None:
    lines = ["id,text,size", *(f"{n},x,{n}" for n in range(9)), "9,x", "10,x,y,z"]
    assert convert("\n".join(lines).encode(), "a.csv").notes == (
        "rows with another number of cells than 3: 2, the first is row 11",
    )
    assert convert("\n".join(lines[:10]).encode(), "a.csv").notes == ()


def test_a_single_file_and_no_readable_file(tmp_path: Path) -> None:
    (tmp_path / "NOTES").write_text("Plain words.")
    (document,) = read_documents(tmp_path / "NOTES")
    assert (document.title, document.text) == ("NOTES", "Plain words.")
    (tmp_path / "empty.pdf").write_bytes(b"")
    with pytest.raises(DataError, match="no usable record"):
        list(read_documents(tmp_path / "empty.pdf"))


def test_links_lead_to_documents_within_the_folder_alone(tmp_path: Path) -> None:
    inside, outside = tmp_path / "docs" / "a.md", tmp_path / "secret.md"
    inside.parent.mkdir()
    for path in (inside, outside):
        path.write_text("# Title\n\nText.\n")
    (tmp_path / "docs" / "again.md").symlink_to(inside)
    (tmp_path / "docs" / "other.md").symlink_to(outside)
    report = ReadReport()
    (tmp_path / "docs" / ".git").mkdir()
    (tmp_path / "docs" / ".env").write_text("KEY=1")
    (tmp_path / "docs" / "gone.md").symlink_to(tmp_path / "nothing.md")
    (tmp_path / "docs" / "folder").symlink_to(tmp_path)
    (tmp_path / "docs" / "data.zip").write_bytes(make.archive({"a.txt": b"x"}))
    read = [document.id for document in read_documents(tmp_path / "docs", report=report)]
    assert read == ["a.md"]
    assert report.ignored == [
        f"{tmp_path}/docs: hidden or generated: 2 (.env, .git)",
        f"{tmp_path}/docs: linked folders: 1 (folder)",
        f"{tmp_path}/docs: links that lead nowhere: 1 (gone.md)",
        f"{tmp_path}/docs: links to files that are read: 1 (again.md)",
        f"{tmp_path}/docs/data.zip (archives are not unpacked)",
        f"{tmp_path}/docs/other.md (a link that leads out of the folder)",
    ]
    with pytest.raises(ConfigError, match="archives are not unpacked"):
        read_documents(tmp_path / "docs" / "data.zip")


@pytest.mark.parametrize(
    ("patterns", "ignored", "left"),
    [
        ([], "", ["a.md", "logs/b.md", "logs/old/c.md"]),
        (["*.log", "logs/old/"], "", ["a.md", "logs/b.md"]),
        (["logs"], "", ["a.md"]),
        (["/b.md"], "", ["a.md", "logs/b.md", "logs/old/c.md"]),
        ([], "# what no one reads\nlogs/*\n!logs/b.md\n", ["a.md", "logs/b.md"]),
        (["a.md"], "logs/old\n", ["logs/b.md"]),
    ],
)
def test_patterns_leave_files_out(
    tmp_path: Path, patterns: list[str], ignored: str, left: list[str]
) -> None:
    for name in ("a.md", "logs/b.md", "logs/old/c.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("Text.")
    if ignored:
        (tmp_path / ".ragignore").write_text(ignored)
    report = ReadReport()
    options = CorpusOptions(exclude=patterns)
    read = [document.id for document in read_documents(tmp_path, options=options, report=report)]
    assert read == left
    assert len(report.ignored) == (left == ["a.md"] or "logs/old/c.md" not in left)


def test_a_pattern_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("Text.")
    with pytest.raises(ConfigError, match="pattern") as caught:
        read_documents(tmp_path, options=CorpusOptions(exclude=["!"]))
    assert ".ragignore" in caught.value.hint


def test_a_document_that_takes_too_long_is_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "slow.txt")  # nobody writes into it: reading never ends
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(f"Text of {name}.")
    files = [(str(tmp_path / name), name) for name in ("a.txt", "slow.txt", "b.txt", "none.txt")]
    started = time.monotonic()
    results = list(convert_files(files, timeout_s=20))
    assert time.monotonic() - started < 60
    assert [r.text for r in results if isinstance(r, Document)] == [
        "Text of a.txt.",
        "Text of b.txt.",
    ]
    late, missing = (result for result in results if isinstance(result, BadRecord))
    assert (late.reason, missing.reason) == ("takes too long", "cannot be read")
    assert late.detail.startswith("more than 20 s; split it")


def test_a_missing_package_stops_the_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not the file's fault, and an index without all such files would look complete."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "selectolax.py").write_text("raise ImportError('not there')")
    monkeypatch.syspath_prepend(tmp_path / "lib")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.txt").write_text("Text.")
    (tmp_path / "files" / "b.html").write_text("<html><body><p>Text.</p></body></html>")
    with pytest.raises(
        MissingDependencyError, match=r"b\.html: this needs the package 'selectolax'"
    ) as caught:
        list(read_documents(tmp_path / "files"))
    assert "openqa-rag[docs]" in caught.value.hint
