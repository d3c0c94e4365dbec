import bz2
import gzip
import io
import json
import lzma
import random
import sys
import types
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from rag.core.errors import ConfigError, DataError
from rag.data.corpus import Document, IdSet, ReadOptions, ReadReport, read_documents

ANY_SHARE = ReadOptions(max_bad_share=1.0)
RECORDS = [{"id": str(i), "title": f"Title {i}", "text": f"Text number {i}, é."} for i in range(5)]
EXPECTED = [Document(str(i), f"Title {i}", f"Text number {i}, é.") for i in range(5)]


def jsonl(records) -> bytes:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()


def write(path: Path, data: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def read_one(path: Path, record, **options) -> Document:
    (document,) = read_documents(write(path, jsonl([record])), options=ReadOptions(**options))
    return document


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [
        (".gz", gzip.compress),
        (".bz2", bz2.compress),
        (".xz", lzma.compress),
        (".zst", zstandard.compress),
        (".zst", lambda d: zstandard.compress(d[:90]) + zstandard.compress(d[90:])),
        (".gz", lambda d: gzip.compress(d[:90]) + gzip.compress(d[90:])),
        ("", gzip.compress),
        (".gz", bytes),
    ],
)
def test_compression_is_found_by_the_first_bytes(tmp_path: Path, suffix: str, compress) -> None:
    assert list(read_documents([write(tmp_path / f"c.jsonl{suffix}", compress(jsonl(RECORDS)))])) == EXPECTED


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, zstandard.compress, lzma.compress])
@pytest.mark.parametrize("cut", [0.5, 0.97])
def test_truncated_compressed_files_are_refused(tmp_path: Path, compress, cut: float) -> None:
    data = compress(jsonl({"id": str(i), "text": f"some text {i * 7919}"} for i in range(400)))
    path = write(tmp_path / "cut.jsonl.gz", data[: int(len(data) * cut)])
    with pytest.raises(DataError, match=r"cut\.jsonl\.gz is damaged or truncated"):
        list(read_documents([path]))


@pytest.mark.parametrize(
    "record",
    [
        {"_id": "d", "title": "T", "text": "Body"},
        {"docid": "d", "title": "T", "contents": "Body"},
        {"id": "d", "contents": '"T"\nBody'},
        {"id": "d", "contents": "T\nBody"},
        {"id": "d", "title": "T", "url": "https://x", "text": "T\n\nBody"},
        {"id": "d", "title": "T", "text": ["Body"]},
        {"id": "d", "title": "T", "passage": "Body", "score": 3},
        {"wikipedia_id": "d", "wikipedia_title": "T", "text": ["T\n", "Body\n"]},
    ],
)
def test_usual_field_names(tmp_path: Path, record) -> None:
    assert read_one(tmp_path / "c.jsonl", record) == Document("d", "T", "Body")


def test_named_fields_and_whole_number_ids(tmp_path: Path) -> None:
    record = {"id": "no", "number": 7, "head": "T", "lead": "Body", "text": "no"}
    document = read_one(
        tmp_path / "c.jsonl", record, id_field="number", title_field="head", text_field="lead"
    )
    assert document == Document("7", "T", "Body")


def test_paragraphs_sections_and_sentences(tmp_path: Path) -> None:
    kilt = {
        "wikipedia_id": "1",
        "wikipedia_title": "A",
        "text": ["A\n", "One.\n", "Section::::History.\n", "BULLET::::- x\n"],
    }
    assert read_one(tmp_path / "k.jsonl", kilt).text == "One.\nHistory.\n- x"
    sentences = {"id": "h", "title": "T", "sentences": ["One.", " Two.", "Three."]}
    assert read_one(tmp_path / "h.jsonl", sentences) == Document("h", "T", "One. Two. Three.")
    nested = {"id": "n", "title": "T", "text": [["T"], ["One.", " Two."]], "charoffset": []}
    assert read_one(tmp_path / "n.jsonl", nested).text == "T\nOne. Two."


def test_hotpot_abstracts(tmp_path: Path) -> None:
    record = {
        "id": "12",
        "url": "u",
        "title": "T",
        "text": ["One.", " Two."],
        "text_with_links": [],
        "charoffset": [],
    }
    write(tmp_path / "AA" / "wiki_00.bz2", bz2.compress(jsonl([record])))
    expected = [Document("12", "T", "One. Two.")]
    assert list(read_documents([tmp_path])) == expected


def test_wikiextractor_folder(tmp_path: Path) -> None:
    record = {"id": "3", "url": "u", "title": "C", "text": "C\n\nx"}
    write(tmp_path / "AA" / "wiki_01.gz", gzip.compress(jsonl([record])))
    write(tmp_path / "README.md", "not a document")
    report = ReadReport()
    assert list(read_documents(tmp_path, report=report)) == [Document("3", "C", "x")]
    assert [Path(name).name for name in report.ignored] == ["README.md"]


def test_json_list_objects_and_squad(tmp_path: Path) -> None:
    assert list(read_documents(write(tmp_path / "a.json", json.dumps(RECORDS, indent=1)))) == EXPECTED
    assert list(read_documents(write(tmp_path / "b.json", jsonl(RECORDS)))) == EXPECTED
    mdr = {"0": ["A", "text a"], "1": {"title": "B", "text": "text b"}}
    assert list(read_documents(write(tmp_path / "c.json", json.dumps(mdr)))) == [
        Document("0", "A", "text a"),
        Document("1", "B", "text b"),
    ]
    squad = {
        "version": "1.1",
        "data": [
            {
                "title": "Nikola_Tesla",
                "paragraphs": [{"context": "P0", "qas": []}, {"context": "P1", "qas": []}],
            }
        ],
    }
    path = write(tmp_path / "d.json", json.dumps(squad))
    assert list(read_documents(path)) == [
        Document("Nikola_Tesla-0", "Nikola Tesla", "P0"),
        Document("Nikola_Tesla-1", "Nikola Tesla", "P1"),
    ]
    assert [d.text for d in read_documents(write(tmp_path / "e.json", '{"id": "1", "text": "x"}'))] == ["x"]


def test_dpr_table_with_quotes(tmp_path: Path) -> None:
    table = (
        'id\ttext\ttitle\r\n1\t"Aaron said ""yes"" and left"\tAaron\r\n'
        '2\tplain text\t"A ""quoted"" title"\r\n3\t"two\nlines"\tT\r\n'
    )
    assert list(read_documents(write(tmp_path / "psgs_w100.tsv", table))) == [
        Document("1", "Aaron", 'Aaron said "yes" and left'),
        Document("2", 'A "quoted" title', "plain text"),
        Document("3", "T", "two\nlines"),
    ]


@pytest.mark.parametrize("stray", ['"never closed\tT', '"Plan A" was chosen\tT'])
def test_a_broken_quote_is_refused_with_its_line(tmp_path: Path, stray: str) -> None:
    rows = ["id\ttext\ttitle", '1\ttext "1"\tT', f"2\t{stray}", '3\ttext "3"\tT']
    with pytest.raises(DataError, match=r"p\.tsv:3: a quote that is not closed") as caught:
        list(read_documents(write(tmp_path / "p.tsv", "\n".join(rows) + "\n")))
    assert "JSON lines" in caught.value.hint


def test_a_table_that_was_never_quoted_keeps_its_quotes(tmp_path: Path) -> None:
    texts = [
        '"Plan A" was chosen over "Plan B"',
        '"Hello, he said and left',
        '"Quoted whole"',
        'so "they" say"',
    ]
    collection = write(tmp_path / "collection.tsv", "".join(f"{n}\t{t}\n" for n, t in enumerate(texts)))
    assert [document.text for document in read_documents(collection)] == texts


def test_wrong_number_of_columns(tmp_path: Path) -> None:
    report = ReadReport()
    path = write(tmp_path / "p.tsv", "id\ttext\ttitle\n1\tx\tT\n2\ty\n")
    assert len(list(read_documents(path, options=ANY_SHARE, report=report))) == 1
    assert report.problems[0].position == 3
    assert "found 2, expected 3" in str(report.problems[0])


def test_parquet(tmp_path: Path) -> None:
    table = pa.table(
        {
            "id": [r["id"] for r in RECORDS],
            "title": [r["title"] for r in RECORDS],
            "text": [r["text"] for r in RECORDS],
            "embedding": [[0.0]] * 5,
        }
    )
    pq.write_table(table, tmp_path / "c.parquet", row_group_size=2)
    assert list(read_documents([tmp_path])) == EXPECTED
    pq.write_table(pa.table({"text": ["a", None, "c"]}), tmp_path / "d.parquet")
    report = ReadReport()
    documents = list(read_documents(tmp_path / "d.parquet", options=ANY_SHARE, report=report))
    assert [d.id for d in documents] == ["d.parquet:1", "d.parquet:3"]
    pq.write_table(pa.table({"words": ["a"]}), tmp_path / "e.parquet")
    with pytest.raises(DataError, match="to hold the text; the fields are words"):
        list(read_documents(tmp_path / "e.parquet"))
    with pytest.raises(DataError, match="not a readable Parquet file"):
        list(read_documents(write(tmp_path / "f.parquet", b"PAR1 not at all")))


def test_beir_folder(tmp_path: Path) -> None:
    write(tmp_path / "corpus.jsonl", jsonl([{"_id": "a", "title": "T", "text": "x", "metadata": {}}]))
    write(tmp_path / "queries.jsonl", jsonl([{"_id": "q", "text": "question"}]))
    write(tmp_path / "qrels" / "test.tsv", "query-id\tcorpus-id\tscore\nq\ta\t1\n")
    assert list(read_documents(tmp_path)) == [Document("a", "T", "x")]
    assert list(read_documents(tmp_path, format="beir")) == [Document("a", "T", "x")]
    with pytest.raises(DataError, match=r"format .beir"):
        list(read_documents(tmp_path / "qrels", format="beir"))


def test_several_inputs_and_globs(tmp_path: Path) -> None:
    write(tmp_path / "1.jsonl", jsonl(RECORDS[:2]))
    write(tmp_path / "2.jsonl.gz", gzip.compress(jsonl(RECORDS[2:4])))
    write(tmp_path / "rest" / "x.tsv", "4\tText number 4, é.\tTitle 4\n")
    assert list(read_documents([f"{tmp_path}/*.jsonl*", tmp_path / "rest"])) == EXPECTED
    with pytest.raises(DataError, match="no file matches"):
        read_documents([f"{tmp_path}/*.nothing"])
    with pytest.raises(DataError, match="no such file"):
        read_documents([tmp_path / "absent.jsonl"])
    with pytest.raises(ConfigError):
        read_documents([])


@pytest.mark.parametrize("compress", [bytes, gzip.compress, bz2.compress, zstandard.compress])
@pytest.mark.parametrize("form", ["jsonl", "json", "tsv"])
def test_standard_input(monkeypatch: pytest.MonkeyPatch, compress, form: str) -> None:
    data = {
        "jsonl": jsonl(RECORDS),
        "json": json.dumps(RECORDS).encode(),
        "tsv": "".join(f"{r['id']}\t{r['text']}\t{r['title']}\n" for r in RECORDS).encode(),
    }[form]
    for format in ("auto", form):
        stdin = types.SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(compress(data))))
        monkeypatch.setattr(sys, "stdin", stdin)
        assert list(read_documents("-", format=format)) == EXPECTED


def test_standard_input_mistakes(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="more than once"):
        read_documents(["-", "-"])
    with pytest.raises(ConfigError, match="parquet"):
        read_documents("-", format="parquet")
    monkeypatch.setattr(
        sys, "stdin", types.SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(b"plain words")))
    )
    with pytest.raises(ConfigError, match="cannot be guessed"):
        list(read_documents("-"))


def test_format_is_found_by_content_or_named(tmp_path: Path) -> None:
    assert list(read_documents(write(tmp_path / "corpus", jsonl(RECORDS)))) == EXPECTED
    assert list(read_documents(write(tmp_path / "corpus.dat", jsonl(RECORDS)), format="jsonl")) == EXPECTED
    with pytest.raises(ConfigError, match="cannot be guessed"):
        read_documents(write(tmp_path / "unknown.dat", b"\x00\x01\x02"))
    with pytest.raises(ConfigError, match="unknown corpus format 'xml'"):
        read_documents(tmp_path / "corpus", format="xml")


def test_ids_are_made_from_line_numbers_when_there_are_none(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", b'{"text": "a"}\n{broken\n\n{"text": "d"}\n')
    documents = list(read_documents(path, options=ANY_SHARE))
    assert [document.id for document in documents] == ["c.jsonl:1", "c.jsonl:4"]
    path = write(tmp_path / "d.jsonl", b'{"id": "x", "text": "a"}\n{"text": "b"}\n')
    report = ReadReport()
    assert len(list(read_documents(path, options=ANY_SHARE, report=report))) == 1
    assert report.reasons == {"missing field": 1}


def test_id_set_equals_a_set() -> None:
    rng = random.Random(1)
    seen, expected = IdSet(recent=16), set()
    for _ in range(60_000):
        item = str(rng.randrange(40_000))
        assert seen.add(item) is (item not in expected)
        expected.add(item)
    assert len(seen) == len(expected)
    assert seen._sorted.nbytes >= 0.9 * 8 * len(seen)  # nearly all in the array of 8 bytes each
