"""A question that takes two passages: its path in the answer, on the command line and in a file."""

import json

import pytest

from rag.cli.show import format_answer_set
from rag.core.types import Answer, AnswerSet, Passage
from rag.pipeline import Pipeline
from tests.commands import exit_code, run_successfully
from tests.support.reading import MadeReader

PASSAGES = [
    Passage("danube", "Danube", "The Danube is long. It rises in the Black Forest of Germany."),
    Passage("germany", "Germany", "Germany is a country. The capital of Germany is Berlin."),
    Passage("rhine", "Rhine", "The Rhine ends in the North Sea."),
]
ASKED = "What is the capital of the country where the Danube rises?"


def read_berlin(request):
    """The answer "Berlin", wherever it stands."""
    texts = [passage.text for passage in request.passages]
    number = next(n for n, text in enumerate(texts) if "Berlin" in text)
    start = texts[number].index("Berlin")
    answer = Answer("Berlin", 1.0, 0.9, request.evidence(number, (start, start + 6)))
    return AnswerSet(request.question, (answer,), 0.1)


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    out = tmp_path_factory.mktemp("paths") / "index"
    Pipeline.from_texts(PASSAGES, out=out, reader=False)
    return out


def test_an_answer_shows_how_it_follows(index):
    pipeline = Pipeline.open(index, retriever="multihop:beam=3", reader=MadeReader(read_berlin))
    told = pipeline.ask(ASKED)
    answer = told.answers[0]
    assert [step.passage_id for step in answer.path] == ["danube", "germany"]
    assert [[step.text[a:b] for a, b in step.supporting] for step in answer.path] == [
        ["It rises in the Black Forest of Germany."],
        ["The capital of Germany is Berlin."],
    ]
    assert (answer.path[0].start, answer.path[1].start) == (None, answer.evidence.start)
    assert {"hop_1", "hop_2", "read", "total"} <= set(told.timings_ms)
    shown = format_answer_set(told.to_json(), colour=False)
    assert "hop 1: Danube  It rises in the Black Forest of Germany." in shown
    assert "hop 2: Germany  The capital of Germany is Berlin." in shown
    pipeline.retriever = Pipeline.open(index, retriever="dense", reader=False).retriever
    assert pipeline.ask(ASKED).answers[0].path == ()


def test_retrieve_writes_paths(index, tmp_path):
    questions = tmp_path / "q.jsonl"
    out = tmp_path / "paths.jsonl"
    questions.write_text(json.dumps({"id": "q1", "question": ASKED}) + "\n")
    call = ("retrieve", "-i", index, "-q", questions, "-o", out, "--top-k", 2)
    run_successfully(*call, "--retriever", "multihop:beam=3")
    record = json.loads(out.read_text())
    assert [step["title"] for step in record["candidate_chains"][0]] == ["Danube", "Germany"]
    assert (record["_id"], len(record["candidate_chains"])) == ("q1", 2)
    assert exit_code(*call, "--retriever", "dense") != 0
