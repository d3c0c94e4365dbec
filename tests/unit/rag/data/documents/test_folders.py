"""A folder of people's own files: what is read, what is named and why, and how it goes on."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from rag.core.errors import ConfigError, DataError, MissingDependencyError
from rag.data.corpus import read_documents
from rag.data.documents.blocks import Unreadable
from rag.data.documents.convert import convert
from rag.data.documents.read import convert_files
from rag.data.records import CorpusOptions, Document, ReadReport
from rag.data.split import split_documents
from tests import document_makers as make
from tests.support.files import write_files
from tests.support.messages import refusal


def _stating(size: int, data: bytes) -> bytes:
    """An archive whose directory states this size for its first file."""
    at = data.rindex(b"PK\x01\x02") + 24
    return data[:at] + size.to_bytes(4, "little") + data[at + 4 :]


ENCRYPTED_OFFICE = (
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 99 + "EncryptedPackage".encode("utf-16-le")
)
BAD = {
    "cut.pdf": make.pdf([make.LINE])[:200],
    "junk.docx": b"junk" * 100,
    "cut.docx": make.word([("p", "x")])[:5000],
    "other.zip.docx": make.archive({"a.txt": b"x"}),
    "no-document.docx": make.archive({"word/document.xml": b"<"}),
    "locked.pdf": make.pdf([make.LINE], encrypted=True),
    "locked.docx": ENCRYPTED_OFFICE,
    "scan.pdf": make.pdf([[], []]),
    "empty.txt": b"",
    "blank.md": b" \n\n",
    "blank.csv": b"\xef\xbb\xbf\n",
    "empty.html": b"<html><body><script>x</script></body></html>",
    "empty.docx": make.word([]),
    "old.doc": b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 99,
    "empty.rtf": b"{\\rtf1\\ansi }",
    "locked.odt": make.odf("", **{"META-INF/manifest.xml": b"<manifest:encryption-data/>"}),
    "other.odt": make.archive({"mimetype": b"application/vnd.oasis.opendocument.image"}),
    "cut.odt": make.odf("")[:500],
    "mail.msg": b"text",
    "page.xls": b"<html><body><script>x</script></body></html>",  # as some programs export
    "plan.fodp": b"<office:document><text:p>Plan</text:p></office:document>",
    "plan.fodt": b"<office:document><text:p>Plan</text:p></office:document>",
    "prices.ods": make.archive({"mimetype": b"application/vnd.oasis.opendocument.spreadsheet"}),
    "binary.txt": bytes(range(256)),
    "german.txt": "Grüße aus Köln.\x01".encode("cp1252"),
    "polish.txt": "Było wiele osób.".encode("iso8859-2"),
    "czech.txt": "Uložte soubor a zavřete všechna okna.".encode("cp1250"),
    "hungarian.txt": "Nem működik, mert régi az időpont.".encode("cp1250"),
    "romanian.txt": "Şi aceasta este o ţară mică.".encode("cp1250"),
    "croatian.txt": "Večer je Petrović došao kući.".encode("cp1250"),
    "turkish.txt": "Şifreyi değiştirin, yanlış yazılmış.".encode("cp1254"),
    "lithuanian.txt": "Šiame žemėlapyje yra keturių spalvų.".encode("cp1257"),
    "greek.txt": "Καλημέρα, τι κάνεις;".encode("cp1253"),
    "mac.txt": "Grüße aus Köln, für alle schönen Tage".encode("mac-roman"),
    "russian.txt": "Привет, как дела?".encode("cp1251"),
    "liar.docx": _stating(1000, make.archive({"word/document.xml": b"\0" * 1_000_000})),
    "bomb.docx": _stating(3_000_000_000, make.word([])),
    "plain.eml": b"\n\nno header",
    "bad.ipynb": b'{"cells": 3}',
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused_with_a_reason_and_a_remedy(name: str) -> None:
    with refusal(Unreadable):
        convert(BAD[name], name)


@pytest.mark.parametrize(
    "text",
    [
        "L'été à Besançon, où la mère gèle : cœur, maïs, naïve, dîner, août, sûr.",
        "Größe, schön, Fuß: Tomáš Novotný und Slavoj Žižek fuhren über Köln, für 5 € je Stück.",
        "Não há razão: ações, põe, limões, pêssego, às três, médio, ânsia.",
        "El niño comió más jamón en el año 1990; el 1º, la 2ª: ¿qué?",
        "Perché è così: più città, cioè caffè, lunedì, virtù, però.",
        "Kærlighed på øen: blåbærgrød, miljøet, søer, ærø, træet, kødøl.",
        "Þjóðin á Íslandi: bæði ýmis þorp, maðurinn, fæðing, óður, þvílík.",
        "Sõber, mõni öö, jäääär: õhtul tõuseb võõras kõrge kuu.",
        "Història, qüestió, plaça, francès, això, després, mitjançant.",
        "Është një ditë e bukur për të gjithë që vijnë këtu në qytet.",
    ],
)
def test_western_european_text_of_any_language_is_read(text: str) -> None:
    converted = convert(text.encode("cp1252"), "a.txt")
    assert (converted.text, converted.notes) == (text, ("read as Windows-1252",))


def test_a_few_bytes_of_windows_1252_do_not_change_what_is_utf_8() -> None:
    joined = "Der Zähler in Köln steht auf 45 °C. ".encode() + "Später: 50 °C".encode("cp1252")
    converted = convert(joined, "a.log")
    assert converted.text == "Der Zähler in Köln steht auf 45 °C. Später: 50 °C"
    assert converted.notes == ("not UTF-8, read as Windows-1252: 2 bytes",)


def ids(*inputs: Path, **options: Any) -> list[str]:
    return [document.id for document in read_documents(inputs, **options)]


def test_a_mixed_folder_is_read_as_documents(tmp_path: Path) -> None:
    make.mixed_folder(tmp_path / "in")
    report = ReadReport()
    documents = list(read_documents(tmp_path / "in", report=report))
    assert [(document.id, document.title) for document in documents] == [
        ("README", "README"),
        ("my notes.md", "Notes"),
        ("rooms.csv", "rooms"),
        ("sub/100% plan.pdf", "The Plan"),
    ]
    assert [document.path for document in documents] == [document.id for document in documents]
    assert (report.total, report.files, report.unread) == (7, 7, 3)
    assert report.reasons == {"empty": 1, "encrypted": 1, "old Office format": 1}
    lines = report.faults().splitlines()
    assert lines[0].startswith("4 of 7 documents, 3 bad (42.86 %)")
    assert f"  {tmp_path}/in/locked.pdf: encrypted (save a copy without a password)" in lines
    remedy = "index it on its own, or give the format jsonl"
    assert report.ignored == [
        f"{tmp_path}/in/data.jsonl (jsonl, in a folder of documents: {remedy})",
        f"{tmp_path}/in/photo.jpg (of no known format)",
    ]
    passages = {passage.id: passage for passage in split_documents(documents)}
    assert passages["rooms.csv-0"].text == "week: 2; room: 37"
    assert str(passages["sub/100% plan.pdf-0"].location) == "sub/100% plan.pdf, page 1"


def test_files_of_the_same_name_are_different_documents(tmp_path: Path) -> None:
    names = ["README.md", "a/README.md", "a/docs/index.md", "b/docs/index.md"]
    folder = write_files(tmp_path, dict.fromkeys([*names, "b/docs/more.md"], "Text."))
    assert ids(*sorted(folder.rglob("*.md"))) == [*names, "more.md"]
    of_a = ["a/README.md", "a/docs/index.md"]
    of_b = ["docs/index.md", "docs/more.md"]
    assert ids(folder / "README.md", folder / "a") == ["README.md", *of_a]
    assert ids(folder / "b") == of_b
    assert ids(folder / "a" / "docs", folder / "b" / "docs") == [
        "a/docs/index.md",
        *(f"b/{name}" for name in of_b),
    ]


def test_records_beside_a_readme_stay_records(tmp_path: Path) -> None:
    write_files(tmp_path, {"README.md": "About the data.", "CODEOWNERS": "docs\tAnn\n"})
    assert ids(tmp_path) == ["CODEOWNERS", "README.md"]
    (tmp_path / "CODEOWNERS").unlink()
    write_files(tmp_path, {"rows.csv": "id,text\n1,One.\n"})
    report = ReadReport()
    assert ids(tmp_path, report=report) == ["1"]
    [unread] = report.ignored
    assert unread.startswith(f"{tmp_path}/README.md (documents, in a folder of records: index it")
    write_files(tmp_path, {"notes.md": "Text.", "lines.jsonl": '{"id": "r", "text": "x"}\n'})
    documents = ["README.md", "notes.md", "rows.csv"]
    assert ids(tmp_path) == documents
    assert ids(tmp_path, format="jsonl") == ["r"]
    assert ids(tmp_path, format="documents") == documents


def test_a_folder_of_tables_without_a_column_of_texts_is_one_of_documents(tmp_path: Path) -> None:
    tables = {"rooms.csv": FILES["rooms.csv"], "people.tsv": "name\tage\nAnn\t30\n"}
    write_files(tmp_path, {**tables, "README.md": "About the tables."})
    room = CorpusOptions(text_field="room")
    assert {document.id: document.text for document in read_documents(tmp_path)} == {
        "README.md": "About the tables.",
        "people.tsv": "name: Ann; age: 30",
        "rooms.csv": "week: 2; room: 37",
    }
    assert [item.text for item in read_documents(tmp_path, format="csv", options=room)] == ["37"]
    assert [item.text for item in read_documents(tmp_path, options=room)] == ["37"]
    [document] = read_documents(tmp_path / "rooms.csv", format="documents")
    assert document.text == "week: 2; room: 37"


FILES = {
    "rows.jsonl": '{"id": "1", "text": "One."}\n',
    "list.json": '[{"id": "2", "text": "Two."}]',
    "rooms.csv": "week,room\n2,37\n",
    "package.json": '{"name": "x"}',
    "settings.json": '{\n  "name": [1]\n}\n',
    "log.jsonl": '{"level": "info"}\n',
    "numbers.json": "[1, 2]",
}


@pytest.mark.parametrize(
    ("names", "read", "left_out"),
    [
        ("package.json README.md", ["README.md", "package.json"], []),
        ("package.json rooms.csv", ["package.json", "rooms.csv"], []),
        ("package.json rows.jsonl", ["1"], ["no corpus"]),
        ("package.json list.json", ["2"], ["no corpus"]),
        ("list.json settings.json", ["2"], ["no records in it"]),
        ("numbers.json rows.jsonl", ["1"], ["no corpus"]),
        ("list.json log.jsonl rooms.csv rows.jsonl", ["2", "1"], ["no corpus"] * 2),
    ],
)
def test_a_file_of_records_without_texts_is_named_and_left_out(
    tmp_path: Path, names: str, read: list[str], left_out: list[str]
) -> None:
    report = ReadReport()
    write_files(tmp_path, {name: FILES.get(name, "Text.") for name in names.split()})
    assert ids(tmp_path, report=report) == read
    assert list(report.reasons.elements()) == left_out
    assert report.unread == len(left_out)


@pytest.mark.parametrize("name", ["package.json", "log.jsonl", "rooms.csv"])
def test_a_file_without_texts_that_is_given_by_itself_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(FILES[name])
    with refusal(DataError):
        list(read_documents(tmp_path / name))


def test_a_line_that_tells_excel_the_delimiter_is_no_text() -> None:
    assert convert(b"sep=;\r\nname;price\r\nTea;3,50\r\n", "a.csv").text == "name: Tea; price: 3,50"


def test_rows_of_a_csv_with_other_lengths_get_a_note() -> None:
    lines = ["id,text,size", *(f"{n},x,{n}" for n in range(9)), "9,x", "10,x,y,z"]
    assert convert("\n".join(lines).encode(), "a.csv").notes == (
        "rows with another number of cells than 3: 2, the first is row 11",
    )
    assert convert("\n".join(lines[:10]).encode(), "a.csv").notes == ()


def test_a_single_file_and_no_readable_file(tmp_path: Path) -> None:
    write_files(tmp_path, {"NOTES": "Plain words.", "empty.pdf": ""})
    (document,) = read_documents(tmp_path / "NOTES")
    assert (document.title, document.text) == ("NOTES", "Plain words.")
    with refusal(DataError):
        ids(tmp_path / "empty.pdf")


def test_links_lead_to_documents_within_the_folder_alone(tmp_path: Path) -> None:
    names = ("docs/a.md", "secret.md", "docs/.git/config", "docs/.env")
    docs = write_files(tmp_path, dict.fromkeys(names, "Text.")) / "docs"
    for name, target in (
        ("again.md", docs / "a.md"),
        ("other.md", tmp_path / "secret.md"),
        ("gone.md", tmp_path / "nothing.md"),
        ("folder", tmp_path),
    ):
        (docs / name).symlink_to(target)
    (docs / "data.zip").write_bytes(make.archive({"a.txt": b"x"}))
    report = ReadReport()
    assert ids(docs, report=report) == ["a.md"]
    assert report.ignored == [
        f"{docs}: hidden or generated: 2 (.env, .git)",
        f"{docs}: linked folders: 1 (folder)",
        f"{docs}: links that lead nowhere: 1 (gone.md)",
        f"{docs}: links to files that are read: 1 (again.md)",
        f"{docs}/data.zip (archives are not unpacked)",
        f"{docs}/other.md (a link that leads out of the folder)",
    ]
    with refusal(ConfigError):
        read_documents(docs / "data.zip")


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
    write_files(tmp_path, dict.fromkeys(("a.md", "logs/b.md", "logs/old/c.md"), "Text."))
    if ignored:
        (tmp_path / ".ragignore").write_text(ignored)
    report = ReadReport()
    assert ids(tmp_path, options=CorpusOptions(exclude=patterns), report=report) == left
    assert len(report.ignored) == (left == ["a.md"] or "logs/old/c.md" not in left)


def test_a_pattern_that_is_none_is_refused(tmp_path: Path) -> None:
    with refusal(ConfigError):
        ids(tmp_path, options=CorpusOptions(exclude=["!"]))


def test_a_document_that_takes_too_long_is_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "slow.txt")  # nobody writes into it: reading never ends
    write_files(tmp_path, {"a.txt": "Text.", "b.txt": "Text."})
    names = ("a.txt", "slow.txt", "b.txt", "none.txt")
    started = time.monotonic()
    first, late, last, missing = convert_files(
        [(str(tmp_path / name), name) for name in names], timeout_s=20
    )
    assert time.monotonic() - started < 60
    assert [r.id for r in (first, last) if isinstance(r, Document)] == ["a.txt", "b.txt"]
    assert (late.reason, missing.reason) == ("takes too long", "cannot be read")
    assert late.detail.startswith("more than 20 s; split it")


def test_modules_that_stand_among_the_documents_are_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path, {"csv.py": "raise SystemExit", "a.txt": "Text."})
    monkeypatch.chdir(tmp_path)
    (document,) = convert_files([("a.txt", "a.txt")])
    assert isinstance(document, Document), document


def test_a_missing_package_stops_the_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not the file's fault, and an index without all such files would look complete."""
    library = {"selectolax.py": "raise ImportError('not there')"}
    monkeypatch.syspath_prepend(write_files(tmp_path / "lib", library))
    page = "<html><body><p>Text.</p></body></html>"
    folder = write_files(tmp_path / "files", {"a.txt": "Text.", "b.html": page})
    with refusal(MissingDependencyError):
        ids(folder)
