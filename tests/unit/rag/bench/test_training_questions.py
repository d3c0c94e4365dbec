"""Written and reworded questions: what their files hold, and the training sets made from them."""

import json
from pathlib import Path

import pytest

import rag
from rag.bench.questions import training
from rag.core.errors import DataError
from rag.data.files.rows import write_json_lines
from rag.data.text import AnswerMatcher
from readers.extractive.training.config import TrainingSet
from readers.extractive.training.data import read_set
from tests.support.messages import refusal

WRITTEN = training.read_records("written.jsonl")


def package(document: str) -> str:
    return document.split("/")[0]


def test_each_question_has_an_answer_or_is_of_the_kind_without_one():
    for record in WRITTEN:
        assert bool(record["answers"]) == (record["kind"] != "unanswerable")
        assert [i.rpartition("-")[0] for i in record["gold_passage_ids"]] == [
            record["document"]
        ] * bool(record["answers"])
    assert len({record["id"] for record in WRITTEN}) == len(WRITTEN)


def test_parts_share_no_document_and_the_test_shares_no_package():
    documents = {
        part: {record["document"] for record in WRITTEN if record["part"] == part}
        for part in training.PARTS
    }
    assert not documents["train"] & documents["validation"]
    learnt = documents["train"] | documents["validation"]
    assert not set(map(package, learnt)) & set(map(package, documents["test"]))


def test_documents_are_those_of_the_sources_and_none_of_the_sets_that_judge():
    sources = json.loads((training.FOLDER / "sources.json").read_text("utf-8"))
    assert {record["document"] for record in WRITTEN} == {row["path"] for row in sources}
    judges = set()
    for path in (training.FOLDER.parent / "documents").glob("*sources.json"):
        judges |= {row["package"] for row in json.loads(path.read_text("utf-8"))}
    assert not judges & {row["package"] for row in sources}


@pytest.fixture
def sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two sets whose questions were reworded (one without places of answers), and written ones."""
    folder = tmp_path / "questions"
    written = {"document": "tool/tool.txt", "kind": "fact", "part": "train", "model": "m"}
    records = [
        {
            "id": "w1",
            "question": "How loud?",
            "answers": ["ten"],
            "gold_passage_ids": ["tool/tool.txt-0"],
        },
        {"id": "w2", "question": "How red?", "answers": [], "gold_passage_ids": []},
    ]
    write_json_lines(folder / "written.jsonl", [record | written for record in records])
    other_words = [
        {"id": "r1", "set": "reviews", "question": "What lasts?", "model": "m"},
        {"id": "q1", "set": "open", "question": "Which river leaves the Alps?", "model": "m"},
    ]
    write_json_lines(folder / "reworded.jsonl", other_words)
    monkeypatch.setattr(training, "FOLDER", folder)
    record = {
        "id": "r1",
        "dataset": "reviews",
        "title": "Torch",
        "context": "The lamp is dim, its battery is good.",
        "question": "Which part is good?",
        "answers": [{"text": "battery", "start": 21}],
        "answerable": True,
    }
    write_json_lines(tmp_path / "sets/reviews/train.jsonl", [record])
    gold = {"title": "Alps", "text": "Of the Alps' rivers the Rhine is the longest."}
    unplaced = {"question": "rivers of the alps", "answers": ["the Rhine"], "positive_ctxs": [gold]}
    write_json_lines(tmp_path / "sets/open/train.jsonl", [unplaced])
    return tmp_path / "sets"


def write_index(folder: Path, name: str) -> Path:
    (folder / "documents/tool").mkdir(parents=True)
    (folder / "documents/tool" / name).write_text("The tool is as loud as ten others.\n")
    rag.index([folder / "documents"], folder / "index", retriever="bm25")
    return folder / "index"


def test_training_sets_have_gold_passages_and_other_words(tmp_path: Path, sets: Path):
    training.main(write_index(tmp_path, "tool.txt"), sets, tmp_path / "out")
    written = read_set(TrainingSet(questions=tmp_path / "out/written-train.jsonl"))
    assert [(e.question, [p.text for p in e.positives]) for e in written] == [
        ("How loud?", ["The tool is as loud as ten others."])
    ]
    placed, unplaced = read_set(TrainingSet(questions=tmp_path / "out/reworded-prose.jsonl"))
    assert (placed.question, placed.answer_starts) == ("What lasts?", (21,))
    assert (unplaced.question, unplaced.answer_starts) == ("Which river leaves the Alps?", ())
    assert AnswerMatcher(unplaced.answers).places(unplaced.positives[0].text) == [(20, 29)]
    assert (tmp_path / "out/reworded-tables.jsonl").read_text() == ""


def test_an_index_over_other_documents_is_refused(tmp_path: Path, sets: Path):
    with refusal(DataError):
        training.main(write_index(tmp_path, "other.txt"), sets, tmp_path / "out")
