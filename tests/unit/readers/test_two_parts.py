"""Questions of two parts are split; others are not."""

from types import SimpleNamespace

import pytest

import rag
from rag.core.types import Answer, AnswerSet, Evidence
from readers.answer_kinds import in_parts, of_parts
from readers.extractive.settings import ReaderSettings
from readers.two_parts import two_parts

SPLIT = [
    ("When and where was Ada born?", "When was Ada born?", "Where was Ada born?"),
    ("where is bile made, and by whom", "Where is bile made?", "By whom is bile made?"),
    ("Who founded the club and in what year?", "Who founded the club?", "In what year was the club founded?"),
    ("Who sold the plates and when?", "Who sold the plates?", "When were the plates sold?"),
    ("When were A. Lincoln and C. Darwin born?", "When was A. Lincoln born?", "When was C. Darwin born?"),
    ("How tall are both K2 and Mount Elbrus?", "How tall is K2?", "How tall is Mount Elbrus?"),
    ("What does -r do and when is it needed?", "What does -r do?", "What does -r do? When is it needed?"),
    (
        "How many do I need and what does it cost?",
        "How many do I need?",
        "How many do I need? What does it cost?",
    ),
    (
        "When was Gaddafi born, and when did he die?",
        "When was Gaddafi born?",
        "When was Gaddafi born? When did he die?",
    ),
    (
        "Who was the first president and how tall was he?",
        "Who was the first president?",
        "Who was the first president? How tall was he?",
    ),
    (
        "Where is the gland located and what does it do?",
        "Where is the gland located?",
        "Where is the gland located? What does it do?",
    ),
]
WHOLE = [
    "Who wrote War and Peace?",
    "When was Procter and Gamble founded?",
    "When did Spain and Korea start relations?",
    "When were the Southern and Northern Dynasties?",
    "When did the British and Russian empires meet?",
    "Where are the Queen and Prince Philip's apartments located?",
    "What is the difference between when and where?",
    "Who is responsible for research and when?",
    "Do you know who wrote it and when it was made?",
    "What happens when I press start and stop?",
    "What did Ann paint and when?",
    "Who ran and why?",
    "",
]


@pytest.mark.parametrize(("question", "first", "second"), SPLIT)
def test_two_questions_in_one_are_split(question: str, first: str, second: str) -> None:
    assert two_parts(question) == (first, second)


@pytest.mark.parametrize("question", WHOLE)
def test_what_is_not_surely_two_questions_stays_whole(question: str) -> None:
    assert two_parts(question) is None


def _answered(question: str, text: str, confidence: float, none: float) -> AnswerSet:
    answer = Answer(text, 1.0, confidence, Evidence("1", "", text, 0, len(text), 1.0))
    return AnswerSet(question, (answer,), none, "v", {"total": 5.0}, {"passages": 3})


def test_each_part_has_its_own_answer_and_only_likely_ones_are_shown_for_the_whole() -> None:
    parts = [_answered("When?", "1815", 0.8, 0.1), _answered("Where?", "Rome", 0.1, 0.5)]
    whole = of_parts("When and where?", parts)
    assert (whole.kind, whole.question, whole.reading) == ("parts", "When and where?", {"passages": 6})
    assert [answer.text for answer in whole.answers] == ["1815"]
    assert whole.no_answer_confidence == pytest.approx(0.05)
    shown = whole.to_json()
    assert [(p["question"], p["answers"][0]["text"]) for p in shown["parts"]] == [
        ("When?", "1815"),
        ("Where?", "Rome"),
    ]
    assert of_parts("When?", parts[:1]) is parts[0]


def test_only_readers_of_spans_need_two_questions() -> None:
    question = "When and where was Ada born?"
    assert in_parts(SimpleNamespace(), [question]) == [(question,)]
    reader = SimpleNamespace(settings=ReaderSettings())
    assert in_parts(reader, [question, "Who?"]) == [("When was Ada born?", "Where was Ada born?"), ("Who?",)]


def test_a_pipeline_searches_and_reads_each_part_and_keeps_the_order_of_questions() -> None:
    texts = [
        "Ada Lovelace was born in London on 10 December 1815.",
        "Oslo is the capital of Norway.",
        "To stop the server, press q twice. Then wait.",
    ]
    questions = [
        "When and where was Ada Lovelace born?",
        "What is the capital of Norway?",
        "How do I stop the server?",
    ]
    with rag.Pipeline.from_texts(texts, retriever="bm25") as pipeline:
        two, one, step = pipeline.ask(questions, n_best=2)
    assert [part.answers[0].text for part in two.parts] == ["10 December 1815", "London"]
    assert [answer.text for answer in two.answers] == ["10 December 1815", "London"]
    assert (two.question, two.kind, one.kind) == (questions[0], "parts", "answer")
    assert one.answers[0].text == "Oslo"
    assert step.answers[0].text == "To stop the server, press q twice."
