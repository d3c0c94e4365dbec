import gzip
import json
import math
from pathlib import Path

import pytest

from rag.core.errors import DataError
from rag.core.types import Question
from rag.data.corpus import read_documents
from rag.data.questions import question_files, read_questions
from tests.support.files import write_files
from tests.support.messages import refusal

CONTEXT = {"title": "T", "text": "x", "score": 1000, "title_score": 0}
DPR_TRAIN = [
    {
        "dataset": "nq_train_psgs_w100",
        "question": "who?",
        "answers": ["A", "B"],
        "positive_ctxs": [{**CONTEXT, "passage_id": "17"}, {**CONTEXT, "psg_id": 18}],
        "negative_ctxs": [],
        "hard_negative_ctxs": [{**CONTEXT, "passage_id": "3"}],
    }
]
_ANSWERS = [{"text": "Smiljan", "answer_start": 18}, {"text": "in Smiljan", "answer_start": 15}]
_ASKED = {
    "id": "a1",
    "question": "Where?",
    "is_impossible": False,
    "answers": [*_ANSWERS, _ANSWERS[0]],
}
_IMPOSSIBLE = {"id": "a2", "question": "When?", "is_impossible": True, "answers": []}
_PARAGRAPH = {"context": "Tesla was born in Smiljan.", "qas": [_ASKED, _IMPOSSIBLE]}
SQUAD = {
    "version": "v2.0",
    "data": [
        {
            "title": "Nikola%20Tesla_%26_co",
            "paragraphs": [{"context": "Unused.", "qas": []}, _PARAGRAPH],
        }
    ],
}


def read(path: Path, data: object) -> list[Question]:
    if not isinstance(data, str | bytes):
        data = json.dumps(data)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return list(read_questions(path))


@pytest.mark.parametrize(
    ("fields", "answers"),
    [
        ({"answer": "a"}, ("a",)),
        ({"answer": ["a", "a", "b"]}, ("a", "b")),
        ({"answers": {"text": ["a"], "answer_start": [3]}}, ("a",)),
        ({"answers": [{"text": "a"}]}, ("a",)),
        ({"answers": [], "answer": "a"}, ("a",)),
        ({"answers": [1912, 2.5, 0]}, ("1912", "2.5", "0")),
        ({"answer": True}, ("yes",)),
        ({"answers": [False]}, ("no",)),
        ({"answers": '["a", "b"]'}, ("a", "b")),
        ({"answer": "['a', 'b']"}, ("a", "b")),
        ({"answers": "[]"}, ()),
        ({"answer": math.nan}, ()),
        ({"answers": [math.nan, "a"]}, ("a",)),
        ({"answers": "[sic] 1999"}, ("[sic] 1999",)),
    ],
)
def test_shapes_of_answers(tmp_path: Path, fields: dict, answers: tuple[str, ...]) -> None:
    record = {"query": "Q?", "gold_passage_ids": ["p1", "p2"], "by": "x", **fields}
    expected = Question("q1", "Q?", answers, ("p1", "p2"), meta={"by": "x"})
    assert read(tmp_path / "q.jsonl", record) == [expected]


def test_dpr(tmp_path: Path) -> None:
    (question,) = read(tmp_path / "biencoder-nq-train.json", DPR_TRAIN)
    assert (question.id, question.answers) == ("q1", ("A", "B"))
    assert question.gold_passage_ids == ("17", "18")
    assert question.meta["hard_negative_ctxs"][0]["passage_id"] == "3"


def test_squad_agrees_with_the_corpus_of_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "squad.json"
    first, second = read(path, SQUAD)
    assert (first.answers, first.answer_starts) == (("Smiljan", "in Smiljan"), (18, 15, 18))
    assert first.gold[0].passage.title == "Nikola Tesla & co"
    assert second.answers == ()
    documents = {document.id: document for document in read_documents(path)}
    document = documents[first.gold_passage_ids[0]]
    assert (document.title, document.text) == ("Nikola Tesla & co", first.gold[0].passage.text)


def test_dpr_question_table(tmp_path: Path) -> None:
    table = (
        "who wrote it\t['A', \"B's\"]\r\n"
        'says "what"\t"[""C\'s"", \'D\']"\n'
        "[odd] one\t[]\n"
        "when\t['19\\\\d\\\\d', 'x\\s']\n"
    )
    questions = read(tmp_path / "nq-test.qa.csv", table)
    expected = [("A", "B's"), ("C's", "D"), (), ("19\\d\\d", "x\\s")]
    assert [question.answers for question in questions] == expected
    assert [question.id for question in questions] == ["q1", "q2", "q3", "q4"]
    assert read(tmp_path / "x.tsv", "7\tQ?\t['a']\n") == [Question("7", "Q?", ("a",))]
    assert read(tmp_path / "y.tsv", "7\tQ?\n") == [Question("7", "Q?")]


@pytest.mark.parametrize("name", ["curatedtrec-test.csv", "CuratedTREC/test.csv"])
def test_answers_of_curatedtrec_are_expressions(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    [question] = read(tmp_path / name, "when\t['19\\d\\d']\n")
    assert (question.answers, question.answer_profile) == (("19\\d\\d",), "trec_search")


def test_tables_with_header(tmp_path: Path) -> None:
    table = "ID,question,answers,level\n1,\"Who, then?\",\"['A', 'B']\",easy\n2,When?,[sic] 1999,\n3,Why?,,\n"
    questions = read(tmp_path / "q.csv", table)
    assert [question.answers for question in questions] == [("A", "B"), ("[sic] 1999",), ()]
    assert (questions[0].id, questions[0].text) == ("1", "Who, then?")
    assert questions[0].meta == {"level": "easy"}
    table = 'question;answers;gold_passage_ids\nWho?;"[""a|b"", ""c""]";"[""d1"", ""d2""]"\n'
    (question,) = read(tmp_path / "r.csv", table)
    assert (question.answers, question.gold_passage_ids) == (("a|b", "c"), ("d1", "d2"))


def test_compressed_files_and_folders(tmp_path: Path) -> None:
    for path in (tmp_path / "x.jsonl", tmp_path):
        with refusal(DataError):
            read_questions(path)
    assert len(read(tmp_path / "h.json.gz", gzip.compress(json.dumps(DPR_TRAIN).encode()))) == 1
    (tmp_path / "queries.jsonl").write_text(
        '{"_id": "b1", "text": "Q?", "metadata": {"data": [1]}}\n'
    )
    assert list(read_questions(tmp_path)) == [
        Question("b1", "Q?", meta={"metadata": {"data": [1]}})
    ]
    lines = read(tmp_path / "q.txt.gz", gzip.compress(b"Who?\nWhen?\n"))
    assert [question.text for question in lines] == ["Who?", "When?"]


MISTAKES = {
    "no question": ("q.jsonl", b'{"question": "a"}\n{"answers": []}\n'),
    "line cut off": ("q.jsonl", b'{"question": "a"}\n{"question": \n'),
    "blank question": ("q.jsonl", b'{"question": " "}\n'),
    "answer that is null": ("q.jsonl", b'{"question": "a", "answers": [null]}\n'),
    "id that is a fraction": ("q.jsonl", b'{"question": "a", "id": 1.5}\n'),
    "passages that are a number": ("q.jsonl", b'{"question": "a", "gold_passage_ids": 0}\n'),
    "passage that is text": ("q.jsonl", b'{"question": "a", "positive_ctxs": ["p"]}\n'),
    "NUL character": ("q.jsonl", b'{"question": "a\\u0000"}\n'),
    "half a surrogate pair": ("q.jsonl", b'{"question": "a\\ud800"}\n'),
    "id twice": ("q.jsonl", b'{"id": "x", "question": "a"}\n' * 2),
    "no question in a list": ("q.json", b'[{"question": "a"}, {"answer": "b"}]'),
    "no context": ("q.json", b'{"data": [{"title": "T", "paragraphs": [{"qas": [{}]}]}]}'),
    "answers that are code": ("q.csv", b"a\t['x']\nb\t[__import__('os').getcwd()]\n"),
    "several answers in a cell": ("q.csv", b"question;answers\nWho?;a|b\n"),
    "answers that NumPy wrote": ("q.csv", b"question,answers\nWho?,['a' 'b']\n"),
    "answers that NumPy wrote in a field": (
        "q.jsonl",
        b'{"question": "a", "answers": "[\'a\' \'b\']"}\n',
    ),
    "row without answers": ("q.tsv", b"a\t['x']\nb\n"),
    "no column of questions": ("q.csv", b"Frage,Antwort\nWo?,Oslo\n"),
    "text in Latin-1": ("q.txt", b"ok\ncaf\xe9\n"),
    "empty list": ("q.json", b"[]"),
    "tags": ("topics.txt", b"<top>\n<num> Number: 301\n<title> Crime\n</top>\n"),
    "sentence that is null": (
        "q.jsonl",
        b'{"question": "Who?", "context": [["t", ["a b"]]], "supporting_facts": [["t", null]], "answer": "a"}',
    ),
    "article that is null": (
        "q.jsonl",
        b'{"question": "Who?", "context": [["t", null]], "supporting_facts": [["t", 0]], "answer": "a"}',
    ),
    "titles that are a number": (
        "q.jsonl",
        b'{"question": "Who?", "answers": ["a"], "gold_titles": 5}',
    ),
    "more sentences than titles": (
        "q.jsonl",
        b'{"question": "Who?", "supporting_facts": {"title": ["A"], "sent_id": [0, 1]}}',
    ),
    "fact without a sentence": ("q.jsonl", b'{"question": "Who?", "supporting_facts": [["A"]]}'),
    "lists in lists in a text": (
        "q.jsonl",
        b'{"question": "Who?", "context": [], "supporting_facts": "' + b"[" * 100_000 + b'"}',
    ),
}


@pytest.mark.parametrize(("name", "data"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_named_with_their_place(tmp_path: Path, name: str, data: bytes) -> None:
    with refusal(DataError):
        read(tmp_path / name, data)


def beir(folder: Path, **splits: str) -> Path:
    files = {"queries.jsonl": '{"_id": "b1", "text": "Q?"}\n{"_id": "b2", "text": "R?"}\n'}
    for name, lines in splits.items():
        files[f"qrels/{name}.tsv"] = f"query-id\tcorpus-id\tscore\n{lines}"
    return write_files(folder, files)


def test_a_beir_folder_says_which_passages_are_relevant(tmp_path: Path) -> None:
    folder = beir(
        tmp_path / "one", test="b2\td1\t1\nb2\td1\t1\nb2\tmy file.md\t2.0\nb2\td3\t0\n \n"
    )
    grades = {"my file.md": 2, "d1": 1}
    named = {
        "gold_passage_ids": tuple(grades),
        "gold_grades": grades,
        "gold_are_alternatives": True,
        "is_left_out": True,
    }
    assert list(read_questions(folder)) == [Question("b2", "R?", **named)]
    assert [file.name for file in question_files(folder)] == ["queries.jsonl", "test.tsv"]
    beir(folder, dev="b1\td4\t1\n")
    with refusal(DataError):
        read_questions(folder)
    # One of its files may be given, and be one of TREC.
    dev = folder / "qrels" / "dev.tsv"
    for lines in ("query-id\tcorpus-id\tscore\nb1\td4\t1\n", "b1 0 d4 1\n"):
        dev.write_text(lines)
        [question] = read_questions(dev)
        assert (question.gold_passage_ids, question.is_left_out) == (("d4",), True)


@pytest.mark.parametrize(
    ("qrels", "queries"),
    [
        ("qrels.dev.small.tsv", {"queries.dev.small.tsv": "7\tQ?\n8\tR?\n"}),
        ("qrels.txt", {"queries.jsonl": '{"query_id": "8", "query": "R?"}\n'}),
        ("qrels/qrels.dev.tsv", {"qrels/queries.dev.tsv": "7\tQ?\n8\tR?\n"}),
    ],
)
def test_judgements_of_trec_have_their_queries_beside_them(
    tmp_path: Path, qrels: str, queries: dict[str, str]
) -> None:
    gap = "\t" if qrels.endswith(".tsv") else "  "
    lines = [gap.join(("8", "0", *judged)) + "\n" for judged in (("d1", "1"), ("d2", "3"))]
    path = write_files(tmp_path, {**queries, qrels: "".join(lines)}) / qrels
    grades = {"d2": 3, "d1": 1}
    relevant = {"gold_passage_ids": tuple(grades), "gold_grades": grades}
    assert list(read_questions(path)) == [
        Question("8", "R?", gold_are_alternatives=True, **relevant)
    ]
    files = [str(file.relative_to(tmp_path)) for file in question_files(path)]
    assert files == [*queries, qrels]
    (tmp_path / next(iter(queries))).unlink()
    with refusal(DataError):
        read_questions(path)


BAD_JUDGEMENTS = {
    "none": "",
    "unknown question": "q7\td1\t1\n",
    "grade that is not whole": "b1\td1\t0.5\n",
    "two columns": "b1\t1\n",
    "another grade": "b1\td1\t1\nb1\td1\t2\n",
}


@pytest.mark.parametrize("rows", BAD_JUDGEMENTS.values(), ids=BAD_JUDGEMENTS)
def test_bad_judgements_are_refused(tmp_path: Path, rows: str) -> None:
    with refusal(DataError):
        list(read_questions(beir(tmp_path, test=rows)))
