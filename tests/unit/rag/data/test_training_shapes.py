"""Training files of other libraries are read for training and for evaluation."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rag.core.errors import DataError
from rag.data.examples import read_examples
from rag.data.questions import question_files, read_questions

ASKED, RIGHT, WRONG = (
    "where does the Danube rise",
    "The Danube rises in a forest.",
    "The Rhine ends in a sea.",
)
TEVATRON = {
    "query_id": "7",
    "query": ASKED,
    "positive_passages": [{"docid": "d1", "title": "Danube", "text": RIGHT}],
    "negative_passages": [{"docid": "d2", "title": "Rhine", "text": WRONG}],
}
TRIPLET = {"anchor": ASKED, "positive": RIGHT, "negative": WRONG}
FILES = {
    "tevatron.jsonl": json.dumps(TEVATRON),
    "triplets.jsonl": json.dumps(TRIPLET),
    "triplets.json": json.dumps([TRIPLET]),
    "lists.jsonl": json.dumps([ASKED, RIGHT, WRONG]),
    "several.jsonl": json.dumps({"query": ASKED, "positive": RIGHT, "negative_1": WRONG, "negative_2": ""}),
    "flag.jsonl": json.dumps({"query": ASKED, "pos": [RIGHT], "neg": [WRONG]}),
    "triplets.csv": f"anchor,positive,negative\n{ASKED},{RIGHT},{WRONG}\n",
    "triplets.tsv": f"query\tpositive\tnegative\n{ASKED}\t{RIGHT}\t{WRONG}\n",
    "triples.train.small.tsv": f"{ASKED}\t{RIGHT}\t{WRONG}\n",
}


def write(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder / name


@pytest.mark.parametrize("name", [*FILES, "t.parquet"])
def test_pairs_and_triplets_are_examples_and_questions(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "t.parquet":
        pq.write_table(pa.Table.from_pylist([TRIPLET]), path)
    else:
        write(tmp_path, name, FILES[name])
    [example] = read_examples(path)
    assert (example.question, [p.text for p in example.positives]) == (ASKED, [RIGHT])
    assert [candidate.passage.text for candidate in example.negatives] == [WRONG]
    if name.startswith("tevatron"):
        assert (example.id, example.positives[0].id, example.positives[0].title) == ("7", "d1", "Danube")
    if name == "lists.jsonl":
        return  # JSON lines of lists are no question set
    [question] = read_questions(path)
    assert (question.text, [gold.passage.text for gold in question.gold]) == (ASKED, [RIGHT])
    assert question.gold_are_alternatives


def test_questions_without_a_positive_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    unjudged = {**TEVATRON, "query_id": "8", "positive_passages": []}
    lines = [TEVATRON, unjudged, {"query": ASKED, "pos": None, "neg": [WRONG]}, {**TRIPLET, "positive": ""}]
    path = write(tmp_path, "a.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    assert [example.id for example in read_examples(path)] == ["7"]
    assert "3 questions without a positive passage left out" in caplog.text
    assert [len(question.gold) for question in read_questions(path)] == [1, 0, 0, 0]


def test_answers_may_be_numbers(tmp_path: Path) -> None:
    passages = [{"title": "", "text": RIGHT}]
    for given, expected in (
        ([1912, 2.5, "x"], ("1912", "2.5", "x")),
        (1912, ("1912",)),
        (0, ("0",)),
        ("", ()),
    ):
        record = {"question": ASKED, "answers": given, "positive_ctxs": passages}
        path = write(tmp_path, "a.json", json.dumps([record]))
        [example], [question] = read_examples(path), read_questions(path)
        assert example.answers == expected
        if expected:
            assert question.answers == expected
    path = write(tmp_path, "a.json", json.dumps([{**record, "answers": [True]}]))
    with pytest.raises(DataError, match="an answer is not text"):
        list(read_examples(path))


def test_what_fid_says_of_its_passages_is_read(tmp_path: Path) -> None:
    contexts = [
        {"title": "", "text": RIGHT, "hasanswer": True},
        {"title": "", "text": WRONG, "hasanswer": False},
    ]
    path = write(tmp_path, "a.jsonl", json.dumps({"question": ASKED, "answers": ["x"], "ctxs": contexts}))
    [example] = read_examples(path, needs="passages")
    assert [candidate.has_answer for candidate in example.candidates] == [True, False]
    assert [dict(candidate.extra) for candidate in example.candidates] == [{}, {}]


@pytest.mark.parametrize("row", ["7\t8", f"{ASKED}\t['a forest']", f"7\t{ASKED}"])
def test_a_table_of_something_else_is_no_training_file(tmp_path: Path, row: str) -> None:
    with pytest.raises(DataError, match="no question with a positive passage"):
        list(read_examples(write(tmp_path, "a.tsv", row + "\n")))


@pytest.mark.parametrize("given", ["queries.dev.tsv", ""])
def test_judgements_beside_queries_are_read(tmp_path: Path, given: str) -> None:
    name = given or "queries.tsv"
    write(tmp_path, name, f"7\t{ASKED}\n8\tnot judged\n")
    write(tmp_path, name.replace("queries", "qrels"), "7\t0\td1\t1\n7\t0\td2\t0\n")
    [question] = read_questions(tmp_path / given)
    assert (question.id, question.text, question.gold_passage_ids) == ("7", ASKED, ("d1",))
    assert [file.name for file in question_files(tmp_path / given)] == [
        name,
        name.replace("queries", "qrels"),
    ]


def test_judgements_may_have_ids_with_blanks_and_decimal_grades(tmp_path: Path) -> None:
    write(tmp_path, "queries.tsv", f"7\t{ASKED}\n")
    write(tmp_path, "qrels.tsv", "query-id\tcorpus-id\tscore\n7\tmy file.md\t2.0\n7\td2\t0\n \n7 0 d3 1\n")
    [question] = read_questions(tmp_path)
    assert question.gold_grades == {"my file.md": 2, "d3": 1}
    write(tmp_path, "qrels.tsv", "7\td1\t0.5\n")
    with pytest.raises(DataError, match=r"qrels\.tsv:1: grade '0\.5' is not a whole number"):
        list(read_questions(tmp_path))


@pytest.mark.parametrize(("rows", "found"), [("", "it has 0, the first 'none'"), ("q7\td1\t1\n", "'q7'")])
def test_judgements_of_other_questions_are_refused(tmp_path: Path, rows: str, found: str) -> None:
    write(tmp_path, "queries.tsv", f"7\t{ASKED}\n")
    write(tmp_path, "qrels.tsv", f"query-id\tcorpus-id\tscore\n{rows}")
    with pytest.raises(DataError, match=f"judges none of the questions of .*{found}"):
        list(read_questions(tmp_path))


def test_triples_of_ids_take_their_texts_from_the_files_beside_them(tmp_path: Path) -> None:
    path = write(tmp_path, "qidpidtriples.train.small.tsv", "7\t1\t2\n7\t1\t3\n")
    with pytest.raises(DataError, match=r"collection\.tsv is not there"):
        list(read_examples(path))
    write(tmp_path, "queries.train.tsv", f"7\t{ASKED}\n8\tother\n")
    write(tmp_path, "collection.tsv", f'1\t{RIGHT}\n2\t{WRONG}\n3\t"A" quote\n4\tother\n')
    examples = list(read_examples(path))
    assert [example.question for example in examples] == [ASKED, ASKED]
    assert [(p.id, p.text) for p in examples[0].positives] == [("1", RIGHT)]
    assert [example.negatives[0].passage.text for example in examples] == [WRONG, '"A" quote']
    write(tmp_path, "qidpidtriples.train.small.tsv", "9\t1\t2\n")
    with pytest.raises(DataError, match="no text for question 9"):
        list(read_examples(path))
