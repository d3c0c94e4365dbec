"""Corpora of every format; damaged input is counted, shown with its place, and never shifts ids."""

import bz2
import errno
import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from rag.core.errors import ConfigError, DataError, RagError
from rag.data.corpus import read_documents
from rag.data.files.rows import read_rows
from rag.data.formats import open_binary
from rag.data.records import CorpusOptions, Document, ReadReport
from tests.support.files import write_files
from tests.support.messages import refusal

ANY_SHARE = CorpusOptions(max_bad_share=1.0)
RECORDS = [{"id": str(i), "title": f"Title {i}", "text": f"Text number {i}, é."} for i in range(5)]
EXPECTED = [Document(str(i), f"Title {i}", f"Text number {i}, é.") for i in range(5)]
GOOD = [json.dumps({"id": str(i), "title": "T", "text": f"Text {i}."}).encode() for i in range(400)]


def jsonl(records: Any) -> bytes:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()


def write(path: Path, data: bytes | str) -> Path:
    return write_files(path.parent, {path.name: data}) / path.name


def read(path: Path, data: bytes | str | None = None, **options: Any) -> list[Document]:
    """The documents of a file, which gets this content, if any."""
    if data is not None:
        write(path, data)
    return list(read_documents(path, options=CorpusOptions(**options)))


_KILT = ["A\n", "One.\n", "Section::::History.\n", "BULLET::::- x\n"]


@pytest.mark.parametrize(
    ("record", "options", "expected"),
    [
        ({"_id": "d", "title": "T", "text": "Body"}, {}, ("d", "T", "Body")),
        ({"docid": "d", "title": "T", "contents": "Body"}, {}, ("d", "T", "Body")),
        ({"id": 7, "contents": '"The "T""\nBody "of"\nit'}, {}, ("7", 'The "T"', 'Body "of"\nit')),
        ({"id": 7, "contents": '"Only"\n'}, {}, ("7", "", '"Only"\n')),
        ({"id": 7, "text": '"Said"\nby'}, {}, ("7", "", '"Said"\nby')),
        ({"id": 7, "head": "T", "text": ["Body"]}, {"title_field": "head"}, ("7", "T", "Body")),
        ({"id": "d", "lead": "Body", "text": "no"}, {"text_field": "lead"}, ("d", "", "Body")),
        (
            {"wikipedia_id": "1", "wikipedia_title": "A", "text": _KILT},
            {},
            ("1", "A", "One.\nHistory.\n- x"),
        ),
        (
            {"id": "12", "title": "T", "text": ["One.", " Two."], "text_with_links": []},
            {},
            ("12", "T", "One. Two."),
        ),
        ({"id": "h", "sentences": ["One.", " Two.", "Three."]}, {}, ("h", "", "One. Two. Three.")),
        (
            {"id": "n", "text": [["T"], ["One.", " Two."]], "charoffset": []},
            {},
            ("n", "", "T\nOne. Two."),
        ),
    ],
)
def test_usual_and_named_fields(tmp_path: Path, record: Any, options: Any, expected: Any) -> None:
    assert read(tmp_path / "c.jsonl", jsonl([record]), **options) == [Document(*expected)]


_DPR = (
    'id\ttext\ttitle\r\n1\t"Aaron said ""yes"" and left"\tAaron\r\n'
    '2\tplain text\t"A ""quoted"" title"\r\n3\t"two\nlines"\tT\r\n'
)
_SQUAD = """{"version": "1.1", "data": [{"title": "Nikola_Tesla", "paragraphs": [
    {"context": "P0", "qas": []}, {"context": "P1", "qas": []}]}]}"""
_MARK = b"\xef\xbb\xbf"


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("c.jsonl.gz", gzip.compress(jsonl(RECORDS)), EXPECTED),
        ("c.jsonl.bz2", bz2.compress(jsonl(RECORDS)), EXPECTED),
        ("c.jsonl.xz", lzma.compress(jsonl(RECORDS)), EXPECTED),
        ("c.jsonl.zst", zstandard.compress(jsonl(RECORDS)), EXPECTED),
        ("c.jsonl", gzip.compress(jsonl(RECORDS)), EXPECTED),
        ("c.jsonl.gz", jsonl(RECORDS), EXPECTED),
        ("corpus", jsonl(RECORDS), EXPECTED),
        ("a.json", json.dumps(RECORDS, indent=1), EXPECTED),
        ("b.json", jsonl(RECORDS), EXPECTED),
        ("c.jsonl", _MARK + jsonl(RECORDS).replace(b"\n", b"\r\n"), EXPECTED),
        ("c", _MARK + jsonl(RECORDS).replace(b"\n", b"\r\n\r\n"), EXPECTED),
        ("c.json", _MARK + json.dumps(RECORDS).encode(), EXPECTED),
        ("d.json", '{"id": "1", "text": "x"}', [Document("1", "", "x")]),
        (
            "squad.json",
            _SQUAD,
            [
                Document("Nikola_Tesla-0", "Nikola Tesla", "P0"),
                Document("Nikola_Tesla-1", "Nikola Tesla", "P1"),
            ],
        ),
        (
            "psgs_w100.tsv",
            _DPR,
            [
                Document("1", "Aaron", 'Aaron said "yes" and left'),
                Document("2", 'A "quoted" title', "plain text"),
                Document("3", "T", "two\nlines"),
            ],
        ),
    ],
)
def test_the_format_is_found_by_the_first_bytes_and_the_name(
    tmp_path: Path, name: str, data: bytes | str, expected: list[Document]
) -> None:
    assert read(tmp_path / name, data) == expected


def test_lines_may_have_a_list_that_is_called_data(tmp_path: Path) -> None:
    records = [{**record, "data": [1, 2]} for record in RECORDS]
    assert read(tmp_path / "c.json", jsonl(records)) == EXPECTED
    for n_lines in (1, 5):
        path = write(tmp_path / "c.jsonl", jsonl(records[:n_lines]))
        assert [row.value for row in read_rows(str(path))] == records[:n_lines]
    squad = json.dumps(json.loads(_SQUAD))
    assert len(read(tmp_path / "squad.json", f"{squad}\n")) == 2


def test_only_errors_of_reading_a_file_blame_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl.gz", gzip.compress(jsonl(RECORDS))[:-20])
    with pytest.raises(OSError, match="No space left"), open_binary(path):
        raise OSError(errno.ENOSPC, "No space left on device")
    with refusal(DataError), open_binary(path) as stream:
        stream.read()


def test_a_format_can_be_named(tmp_path: Path) -> None:
    path = write(tmp_path / "corpus.dat", jsonl(RECORDS))
    assert list(read_documents(path, format="jsonl")) == EXPECTED
    with refusal(ConfigError):
        read_documents(path, format="xml")


def test_a_bad_line_changes_the_id_of_no_other(tmp_path: Path) -> None:
    lines = '{"text": "a"}\n{broken\n\n{"text": "d"}\n'
    ids = [document.id for document in read(tmp_path / "c.jsonl", lines, max_bad_share=1.0)]
    assert ids == ["c.jsonl:1", "c.jsonl:4"]


_OSLO = 'id{0}title{0}text{0}year\r\n7{0}Oslo{0}"Oslo, a city."{0}1\r\n'
_OSLO_LAYOUT = "id from id, title from title, text from text; ignored: year"
_QUOTES = ['"Plan A" was chosen over "Plan B"', '"Hello, he said and left', 'so "they" say"']


@pytest.mark.parametrize(
    ("name", "data", "texts", "layout"),
    [
        *(("a.csv", _OSLO.format(mark), ["Oslo, a city."], _OSLO_LAYOUT) for mark in ",;\t"),
        ("a.csv", _MARK + _OSLO.format(",").encode(), ["Oslo, a city."], _OSLO_LAYOUT),
        (
            "collection.tsv",
            "".join(f"{n}\t{text}\n" for n, text in enumerate(_QUOTES)),
            _QUOTES,
            "no header: the columns are id, text",
        ),
        (
            "a.jsonl",
            jsonl([{"id": "1", "text": "a", "metadata": {"year": 2020}, "other": 1}]),
            ["a"],
            "id from id, text from text, metadata from year; ignored: other",
        ),
        (
            "a.jsonl",
            jsonl([{"id": "1", "contents": '"T"\na'}]),
            ["a"],
            "id from id, title from a first line in quotes, text from contents",
        ),
    ],
)
def test_the_report_says_which_fields_are_used(
    tmp_path: Path, name: str, data: bytes | str, texts: list[str], layout: str
) -> None:
    report = ReadReport()
    options = CorpusOptions(metadata=["year"] * ("other" in layout))
    documents = read_documents(write(tmp_path / name, data), options=options, report=report)
    assert [document.text for document in documents] == texts
    assert report.notes == [layout]


_UNREADABLE = {
    "quote that is not closed": ("c.tsv", b'id\ttext\n1\ta "b"\n2\t"never closed\n3\tc\n'),
    "quote closed within a field": ("c.tsv", b'id\ttext\n1\ta "b"\n2\t"Plan A" was\n3\tc\n'),
    "quote closed in another line": (
        "c.tsv",
        b'id\ttext\ttitle\n0\t0\t0\n1\t"So it is\tA\n2\tB is\tB\n3\tAs told."\tC\n',
    ),
    "unknown columns": ("c.csv", b"DocNo,Headline,Notes\n1,2,3\n"),
    "no header": ("c.csv", b"7\tOslo\tOslo is the capital.\n1\t2\t3\n"),
    "unknown fields": ("c.jsonl", b'{"id": 1, "body": "x"}\n'),
    "damaged Parquet": ("c.parquet", b"PAR1 not at all"),
    "text in Latin-1": (
        "c.json",
        b'[{"id": "1", "text": "ok"}, {"id": "2", "text": "caf\xe9"}, {"id": "3", "text": "ok"}]',
    ),
    "list cut off": ("c.json", b'[{"id": "1", "text": "x"}'),
    "mapping cut off": ("c.json", b'{"a": '),
    "bytes": ("c.dat", b"\x00\x01\x02"),
}
for _compress in (gzip.compress, bz2.compress, zstandard.compress, lzma.compress):
    _squeezed = _compress(jsonl({"id": str(i), "text": f"text {i * 7919}"} for i in range(400)))
    _UNREADABLE[f"{_compress.__module__} cut off"] = (
        "c.jsonl.gz",
        _squeezed[: int(len(_squeezed) * 0.97)],
    )
for _name in ("c.jsonl", "c.tsv", "c.json", "c.txt", "wiki_00", "c"):
    _UNREADABLE[f"blank {_name}"] = (_name, b"\n\n  \n")
    _UNREADABLE[f"empty {_name}"] = (_name, b"")


@pytest.mark.parametrize(("name", "data"), _UNREADABLE.values(), ids=_UNREADABLE)
def test_damaged_and_unknown_files_are_refused(tmp_path: Path, name: str, data: bytes) -> None:
    with refusal(RagError):
        list(read_documents(write(tmp_path / name, data), options=ANY_SHARE))


@pytest.mark.parametrize("field", ["id_field", "title_field", "text_field"])
def test_a_field_that_is_not_there_is_refused_with_those_that_are(
    tmp_path: Path, field: str
) -> None:
    rows = [{"id": str(n), "title": "T", "body": f"text {n}"} for n in range(3)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    write(tmp_path / "a.csv", "id,title,body\n0,T,text 0\n1,T,text 1\n2,T,text 2\n")
    write(tmp_path / "a.jsonl", jsonl(rows))
    for path in sorted(tmp_path.iterdir()):
        with refusal(DataError):
            read(path, **{field: "Bodyy"})
        assert len(read(path, text_field="body")) == 3


def test_parquet(tmp_path: Path) -> None:
    rows = [{**record, "embedding": [0.0]} for record in RECORDS]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "c.parquet", row_group_size=2)
    assert list(read_documents([tmp_path])) == EXPECTED
    stream = tmp_path / "saved" / "data-00000-of-00001.arrow"
    stream.parent.mkdir()
    with pa.ipc.new_stream(stream, pa.Table.from_pylist(rows).schema) as written:
        written.write_table(pa.Table.from_pylist(rows), 2)
    (stream.parent / "state.json").write_text("{}")
    assert list(read_documents([stream.parent])) == list(read_documents([stream])) == EXPECTED
    with pa.ipc.new_file(tmp_path / "c.arrow", pa.Table.from_pylist(rows).schema) as written:
        written.write_table(pa.Table.from_pylist(rows), 2)
    assert list(read_documents([tmp_path / "c.arrow"])) == EXPECTED
    (tmp_path / "c.arrow").unlink()
    stream.write_bytes(stream.read_bytes()[:-300])
    with refusal(DataError):
        list(read_documents([stream]))
    pq.write_table(pa.table({"text": ["a", None, "c"]}), tmp_path / "d.parquet")
    documents = read(tmp_path / "d.parquet", max_bad_share=1.0)
    assert [d.id for d in documents] == ["d.parquet:1", "d.parquet:3"]


@pytest.mark.parametrize("name", ["Groups", "GROUPS"])
def test_groups_count_in_letters_of_any_case(tmp_path: Path, name: str) -> None:
    record = {"id": "1", "text": "Salaries"}
    report = ReadReport()
    path = write(tmp_path / "a.jsonl", jsonl([{**record, name: ["hr"]}]))
    [document] = read_documents(path, report=report)
    assert document.metadata == (("groups", ("hr",)),)
    assert report.notes == [f"id from id, text from text, rights from {name}"]
    [document] = read(tmp_path / "b.csv", f"id,text,{name}\n1,Salaries,hr\n")
    assert document.metadata == (("groups", ("hr",)),)
    stated = {**record, "groups": None, "metadata": {name: "hr"}}
    [document] = read(tmp_path / "c.jsonl", jsonl([stated]))
    assert document.metadata == (("groups", ("hr",)),)
    with refusal(DataError):
        read(tmp_path / "d.jsonl", jsonl([{**record, name: ["hr"], "groups": ["all"]}]))


def test_a_whole_number_that_is_too_large_is_named(tmp_path: Path) -> None:
    records = [{"id": "1", "text": "a", "size": 2**70}]
    with refusal(DataError):
        read(tmp_path / "a.json", json.dumps(records))
    [document] = read(tmp_path / "a.jsonl", jsonl(records), metadata=["size"])
    assert document.metadata == (("size", 2**70),)


def test_several_inputs_and_a_beir_folder(tmp_path: Path) -> None:
    files = {
        "corpus.jsonl": '{"_id": "a", "title": "T", "text": "x", "metadata": {}}',
        "queries.jsonl": '{"_id": "q", "text": "question"}',
        "qrels/test.tsv": "query-id\tcorpus-id\tscore\nq\ta\t1\n",
    }
    folder = write_files(tmp_path / "beir", files)
    assert read(folder) == [Document("a", "T", "x")]
    with refusal(DataError):
        list(read_documents(folder / "qrels", format="parquet"))
    write(tmp_path / "1.jsonl", jsonl(RECORDS[:2]))
    write(tmp_path / "2.jsonl.gz", gzip.compress(jsonl(RECORDS[2:4])))
    write(tmp_path / "rest" / "x.tsv", "id\ttext\ttitle\n4\tText number 4, é.\tTitle 4\n")
    assert list(read_documents([*sorted(tmp_path.glob("*.jsonl*")), tmp_path / "rest"])) == EXPECTED
    with refusal(DataError):
        read_documents([tmp_path / "absent.jsonl"])
    with refusal(ConfigError):
        read_documents([])


@pytest.mark.parametrize(
    ("line", "reason", "detail"),
    [
        (b"{broken", "malformed JSON", "line 1 column 2"),
        (b"[1, 2]", "not an object", "list"),
        (b'"text"', "not an object", "str"),
        (b'{"id": "x"}', "missing field", "no text"),
        (b'{"text": "x"}', "missing field", "no id"),
        (b'{"id": "", "text": "x"}', "missing field", "no id"),
        (b'{"id": 1.5, "text": "x"}', "id is not text or a whole number", "float"),
        (b'{"id": true, "text": "x"}', "id is not text or a whole number", "bool"),
        (b'{"id": "x", "text": " \\n\\t "}', "empty text", "'x'"),
        (b'{"id": "x", "text": []}', "empty text", "'x'"),
        (b'{"id": "x", "text": 5}', "text is not text", "expected text"),
        (b'{"id": "x", "text": ["a", 5]}', "text is not text", "paragraphs"),
        (b'{"id": "x", "title": 5, "text": "a"}', "title is not text", "int"),
        (b'{"id": "x", "text": "caf\xe9 \x96 bar"}', "not valid UTF-8", "byte 0xe9 at offset"),
        (b'{"id": "x", "text": "\\ud800"}', "not valid Unicode", "'x'"),
        (b'{"id": "x", "text": "a\\u0000b"}', "not valid Unicode", "'x'"),
        (b'{"id": 0, "text": "again"}', "duplicate id", "'0'"),
        (b"[" * 100_000, "malformed JSON", "recursion"),
        (b'{"id": ' + b"9" * 5000 + b', "text": "x"}', "malformed JSON", "digits"),
        (b'{"id": "x", "text": "' + b"word " * 1_000_000 + b'"}', "document too long", "5,000,000"),
    ],
)
def test_every_kind_of_bad_line(tmp_path: Path, line: bytes, reason: str, detail: str) -> None:
    path = write(tmp_path / "c.jsonl", b"\n".join([*GOOD[:200], line, *GOOD[200:]]))
    report = ReadReport()
    documents = list(read_documents(path, report=report))
    assert [document.id for document in documents] == [str(i) for i in range(400)]
    (problem,) = report.problems
    assert problem.startswith(f"{path}:201: {reason} (")
    assert detail in problem
    assert (report.total, report.bad, report.reasons) == (401, 1, {reason: 1})


def test_too_many_bad_records_stop_the_reading_early(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", b"\n".join([*GOOD[:98], b"{", b"{", *GOOD[98:]]))
    consumed: list[Document] = []
    with refusal(DataError):
        consumed.extend(read_documents(path))
    assert len(consumed) == 98


def test_bad_records_that_are_not_named_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "c.jsonl", b"\n".join([*GOOD, *[b"{"] * 11]))
    assert len(list(read_documents(path, options=ANY_SHARE))) == len(GOOD)
    assert (caplog.text.count("malformed JSON ("), caplog.text.count("11 bad")) == (10, 1)


def test_broken_bytes_in_a_table(tmp_path: Path) -> None:
    table = write(
        tmp_path / "c.tsv", b"id\ttext\ttitle\n1\tok\tT\n2\tcaf\xe9\tT\n3\tok\n4\tok\tT\n"
    )
    report = ReadReport()
    assert [d.id for d in read_documents(table, options=ANY_SHARE, report=report)] == ["1", "4"]
    assert [problem.partition("tsv:")[2].partition(" (")[0] for problem in report.problems] == [
        "3: not valid Unicode",
        "4: wrong number of columns",
    ]
    with refusal(DataError):
        list(read_documents(table))
