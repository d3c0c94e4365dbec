"""Damaged input is counted, shown with its place, refused above a share, and never shifts ids."""

import json
from pathlib import Path

import pytest

from rag.core.errors import ConfigError, DataError
from rag.data.corpus import Document, ReadOptions, ReadReport, read_documents

ANY_SHARE = ReadOptions(max_bad_share=1.0)
GOOD = [json.dumps({"id": str(i), "title": "T", "text": f"Text {i}."}).encode() for i in range(400)]


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("line", "reason", "detail"),
    [
        (b"{broken", "malformed JSON", "line 1 column 2"),
        (b'<doc id="1">', "malformed JSON", "--json"),
        (b"[1, 2]", "not an object", "list"),
        (b'"text"', "not an object", "str"),
        (b'{"id": "x"}', "missing field", "no text"),
        (b'{"text": "x"}', "missing field", "no id"),
        (b'{"id": "", "text": "x"}', "missing field", "id holds nothing"),
        (b'{"id": 1.5, "text": "x"}', "id is not text or a whole number", "float"),
        (b'{"id": true, "text": "x"}', "id is not text or a whole number", "bool"),
        (b'{"id": "x", "text": ""}', "empty text", "'x'"),
        (b'{"id": "x", "text": " \\n\\t "}', "empty text", "'x'"),
        (b'{"id": "x", "text": []}', "empty text", "'x'"),
        (b'{"id": "x", "text": 5}', "text is not text", "int"),
        (b'{"id": "x", "text": ["a", 5]}', "text is not text", "paragraphs"),
        (b'{"id": "x", "title": 5, "text": "a"}', "title is not text", "int"),
        (b'{"id": "x", "text": "caf\xe9 \x96 bar"}', "not valid UTF-8", "byte 0xe9 at offset"),
        (b'{"id": "x", "text": "\\ud800"}', "not valid Unicode", "'x'"),
        (b'{"id": "x", "text": "a\\u0000b"}', "NUL character", "'x'"),
        (b'{"id": "x", "text": "a\x00b"}', "malformed JSON", "control character"),
        (b'{"id": "0", "text": "again"}', "duplicate id", "'0'"),
        (b'{"id": 0, "text": "again"}', "duplicate id", "'0'"),
        (b"[" * 100_000, "malformed JSON", "nested"),
        (b'{"id": ' + b"9" * 5000 + b', "text": "x"}', "malformed JSON", "digits"),
        (b'{"id": "x", "text": "' + b"word " * 1_000_000 + b'"}', "document too long", "5,000,000"),
    ],
)
def test_every_kind_of_bad_line(tmp_path: Path, line: bytes, reason: str, detail: str) -> None:
    lines = [*GOOD[:200], line, *GOOD[200:]]
    path = write(tmp_path / "c.jsonl", b"\n".join(lines))
    report = ReadReport()
    documents = list(read_documents(path, report=report))
    assert [document.id for document in documents] == [str(i) for i in range(400)]
    (problem,) = report.problems
    assert (problem.source, problem.position, problem.reason) == (str(path), 201, reason)
    assert detail in problem.detail
    assert (report.total, report.bad) == (401, 1)
    assert report.reasons == {reason: 1}


def test_too_many_bad_records_stop_the_reading_early(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", b"\n".join([*GOOD[:98], b"{", b"{", *GOOD[98:]]))
    consumed: list[Document] = []
    with pytest.raises(DataError) as caught:
        consumed.extend(read_documents(path))
    assert len(consumed) == 98
    message = str(caught.value)
    assert "2 bad (2.00 %): 2 × malformed JSON" in message
    assert f"{path}:99: malformed JSON" in message
    assert f"{path}:100:" in message
    assert "--max-bad-share" in message


@pytest.mark.parametrize("data", [b"", b"\n\n  \n", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("name", ["c.jsonl", "c.tsv", "c.json", "c.txt", "wiki_00", "c"])
def test_empty_files_are_refused(tmp_path: Path, data: bytes, name: str) -> None:
    path = write(tmp_path / name, data)
    with pytest.raises((DataError, ConfigError)):
        list(read_documents(path))


def test_windows_files_with_mark_and_line_ends(tmp_path: Path) -> None:
    data = b"\xef\xbb\xbf" + b"\r\n".join(GOOD[:3]) + b"\r\n\r\n"
    assert [d.id for d in read_documents(write(tmp_path / "c.jsonl", data))] == ["0", "1", "2"]
    assert [d.id for d in read_documents(write(tmp_path / "c", data))] == ["0", "1", "2"]
    table = b"\xef\xbb\xbfid\ttext\ttitle\r\n1\tx\tT\r\n"
    assert [d.title for d in read_documents(write(tmp_path / "c.tsv", table))] == ["T"]
    listed = b"\xef\xbb\xbf[" + b",\r\n".join(GOOD[:3]) + b"]"
    assert len(list(read_documents(write(tmp_path / "c.json", listed)))) == 3


def test_utf16_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="UTF-16"):
        list(read_documents(write(tmp_path / "c.jsonl", '{"id": "1", "text": "x"}'.encode("utf-16"))))
    (document,) = read_documents(write(tmp_path / "c.txt", "naïve".encode("utf-16")))
    assert document.text == "naïve"


def test_broken_bytes_in_other_formats(tmp_path: Path) -> None:
    report = ReadReport()
    listed = b'[{"id": "1", "text": "ok"}, {"id": "2", "text": "caf\xe9"}, {"id": "3", "text": "ok"}]'
    with pytest.raises(DataError, match=r"after record 1 .*invalid bytes in UTF8") as caught:
        list(read_documents(write(tmp_path / "c.json", listed), options=ANY_SHARE))
    assert "--encoding" in caught.value.hint
    path = write(tmp_path / "c.tsv", b"1\tok\tT\n2\tcaf\xe9\tT\n3\tok\tT\n")
    documents = list(read_documents(path, options=ANY_SHARE, report=report))
    assert [d.id for d in documents] == ["1", "3"]
    assert (report.problems[0].position, report.problems[0].reason) == (2, "not valid UTF-8")
    (tmp_path / "folder").mkdir()
    write(tmp_path / "folder" / "a.txt", b"caf\xe9")
    write(tmp_path / "folder" / "b.md", b"fine")
    assert [d.id for d in read_documents(tmp_path / "folder", options=ANY_SHARE)] == ["b.md"]


@pytest.mark.parametrize(
    "data", [b'[{"id": "1", "text": "x"}', b'[{"id": "1", "text": "x"} {"id"', b'[{"id": "1"', b'{"a": ']
)
def test_truncated_json_is_refused_whole(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(DataError, match=r"c\.json"):
        list(read_documents(write(tmp_path / "c.json", data)))


@pytest.mark.parametrize(
    "options",
    [
        {"encoding": "utf-16"},
        {"encoding": "no-such"},
        {"max_bad_share": 2.0},
    ],
)
def test_options_are_checked(options) -> None:
    with pytest.raises(ConfigError):
        ReadOptions(**options)
