"""Which columns of a table become id, title and text, and what is refused or ignored."""

from pathlib import Path

import pytest

from rag.core.errors import DataError
from rag.core.types import Question
from rag.data.corpus import ReadOptions, ReadReport, read_documents
from rag.data.questions import read_questions
from rag.data.records import Document

OSLO = Document("7", "Oslo", "Oslo is the capital, and the largest city.")


def read(path: Path, data: str | bytes, **options: str) -> tuple[list[Document], str]:
    """The documents of a file with this content, and what the report says of the fields."""
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    report = ReadReport()
    found = list(read_documents(path, options=ReadOptions(**options), report=report))  # type: ignore[arg-type]
    return found, report.summary().rpartition("\n")[0]


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_the_delimiter_is_found(tmp_path: Path, mark: str) -> None:
    table = f'id{mark}title{mark}text\r\n7{mark}Oslo{mark}"{OSLO.text}"\r\n'
    layout = "id from id, title from title, text from text"
    assert read(tmp_path / "a.csv", table) == ([OSLO], layout)
    assert read(tmp_path / "b.csv", b"\xef\xbb\xbf" + table.encode()) == ([OSLO], layout)


def test_what_is_ignored_is_named(tmp_path: Path) -> None:
    found, layout = read(tmp_path / "a.csv", "author;text;year\nN. N.;Oslo, a city.;1\n")
    assert found == [Document("a.csv:2", "", "Oslo, a city.")]
    assert layout == "id by number, no title, text from text; ignored: author, year"


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
@pytest.mark.parametrize("header", ["DocNo,Headline,Notes", "Thema;Inhalt", "Notes\tYear"])
def test_a_header_without_a_known_text_is_refused(tmp_path: Path, name: str, header: str) -> None:
    first, *_ = header.replace(";", ",").replace("\t", ",").split(",")
    with pytest.raises(DataError, match=f"known to hold the text; the fields are {first}, ") as caught:
        read(tmp_path / name, f"{header}\n1,2,3\n")
    assert "--text-field" in str(caught.value)


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet"])
@pytest.mark.parametrize("field", ["id_field", "title_field", "text_field"])
def test_a_field_that_is_not_there_is_refused_with_those_that_are(
    tmp_path: Path, name: str, field: str
) -> None:
    rows = [{"id": str(n), "title": "T", "body": f"text {n}"} for n in range(200)]
    data: bytes
    if name.endswith("parquet"):
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(rows), tmp_path / name)
        data = (tmp_path / name).read_bytes()
    elif name.endswith("csv"):
        data = "\n".join(["id,title,body", *(",".join(row.values()) for row in rows)]).encode()
    else:
        data = "\n".join(str(row).replace("'", '"') for row in rows).encode()
    with pytest.raises(DataError, match=r"'?Bodyy'?.* id, title, body"):
        read(tmp_path / name, data, **{field: "Bodyy"})
    assert len(read(tmp_path / name, data, text_field="body")[0]) == 200


def test_a_table_without_header_says_so_and_is_not_swapped(tmp_path: Path) -> None:
    found, layout = read(tmp_path / "a.csv", f'7,"{OSLO.text}",Oslo\n')
    assert (found, layout) == ([OSLO], "no header: the columns are id, text, title")
    for row in ("7", "7,a,b,c", f'7,Oslo,"{OSLO.text}"'):
        with pytest.raises(DataError, match="no field is known to hold the text") as caught:
            read(tmp_path / "a.csv", row + "\n")
        assert "without a header" in caught.value.hint


def test_another_encoding_is_named(tmp_path: Path) -> None:
    table = "id;titel;text\n7;Köln;Köln liegt am Rhein.\n".encode("cp1252")
    with pytest.raises(DataError, match=r"(?s)not valid UTF-8.*encoding cp1252"):
        read(tmp_path / "a.csv", table)
    found, _ = read(tmp_path / "a.csv", table, encoding="cp1252")
    assert found == [Document("7", "", "Köln liegt am Rhein.")]


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_question_tables_of_any_delimiter(tmp_path: Path, mark: str) -> None:
    path = tmp_path / "q.csv"
    path.write_text(
        f'ID{mark}Question{mark}Answer\n7{mark}"Where, or when?"{mark}Oslo\n', encoding="utf-8-sig"
    )
    assert list(read_questions(path)) == [Question("7", "Where, or when?", ("Oslo",))]
    path.write_text(f"Frage{mark}Antwort\nWo?{mark}Oslo\n")
    with pytest.raises(DataError, match="no column 'question' among Frage, Antwort") as caught:
        list(read_questions(path))
    assert "the column of the questions 'question', that of the answers 'answers'" in caught.value.hint


def test_answers_between_bars_are_refused_and_ids_are_not(tmp_path: Path) -> None:
    path = tmp_path / "q.csv"
    path.write_text('question;answers;gold_passage_ids\nWho?;"[""a|b"", ""c""]";d1|d2\n')
    (question,) = read_questions(path)
    assert (question.answers, question.gold_passage_ids) == (("a|b", "c"), ("d1", "d2"))
    path.write_text("question;answers\nWho?;a|b\n")
    with pytest.raises(DataError, match=r"q\.csv:2: several answers are a list, .*'a\|b'"):
        list(read_questions(path))
