"""Questions of a conversation that become questions of their own."""

import csv
from pathlib import Path

import pytest

from rag.core.errors import ReaderError
from readers.follow_up import Turn, rephrase, standalone_question

PAIRS = Path(__file__).with_name("follow_ups.tsv")
FRANCE = Turn("What is the capital of France?", "Paris")
FRANKENSTEIN = Turn("Who wrote Frankenstein?", "Mary Shelley")
DANUBE = Turn("Where does the Danube rise?", "the Black Forest")


@pytest.mark.parametrize(
    ("previous", "question", "expected"),
    [
        (FRANCE, "and its population?", "What is the population of Paris?"),
        (FRANCE, "How many people live there?", "How many people live in Paris?"),
        (FRANCE, "Which rivers flow through that city?", "Which rivers flow through Paris?"),
        (FRANCE, "And Germany?", "What is the capital of Germany?"),
        (FRANCE, "how about in Germany", "What is the capital of Germany?"),
        (FRANCE, "The mayor?", "What is the mayor of Paris?"),
        (FRANKENSTEIN, "When was she born?", "When was Mary Shelley born?"),
        (FRANKENSTEIN, "who was her husband", "Who was Mary Shelley's husband?"),
        (FRANKENSTEIN, "and when did it appear?", "When did Frankenstein appear?"),
        (FRANKENSTEIN, "When?", "Who wrote Frankenstein, and when?"),
        (FRANKENSTEIN, "And Dracula, when was it written?", "When was Dracula written?"),
        (DANUBE, "How long is it?", "How long is the Danube?"),
        (DANUBE, "What about the Rhine?", "Where does the Rhine rise?"),
        (DANUBE, "How many villages are there?", "How many villages are there in the Black Forest?"),
        (Turn("Who discovered it?", ""), "And where is it?", "Who discovered it? Where is it?"),
    ],
)
def test_what_was_left_out_is_filled_in(previous: Turn, question: str, expected: str) -> None:
    assert standalone_question(question, previous) == expected


@pytest.mark.parametrize(
    "question",
    [
        "Who wrote Faust?",
        "Where did Goethe write his Faust?",
        "Is it true that Goethe drew?",
        "Are there any bridges over the Rhine?",
        "faust author",
        "Name the largest moon of Saturn.",
        "?",
        "",
    ],
)
def test_a_question_of_its_own_is_left_as_it_is(question: str) -> None:
    for previous in (FRANCE, FRANKENSTEIN, DANUBE):
        assert standalone_question(question, previous) == question


def test_most_follow_ups_of_the_sample_name_what_they_are_about() -> None:
    with PAIRS.open(encoding="utf-8") as stream:
        pairs = list(csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))
    rewritten = [
        standalone_question(pair["question"], Turn(pair["previous"], pair["answer"])) for pair in pairs
    ]
    named = [pair["entity"] in question for pair, question in zip(pairs, rewritten, strict=True)]
    assert len(pairs) == 50
    assert sum(pair["entity"] in pair["question"] for pair in pairs) == 5  # without the rule
    assert sum(named) >= 41


def test_a_reader_that_is_able_to_rewrites_and_the_rule_helps_out() -> None:
    class Model:
        def __init__(self, reply: str) -> None:
            self.reply = reply

        def rephrase(self, question: str, turns: object) -> str:
            if not self.reply:
                raise ReaderError("no reply")
            return f"{self.reply} {question} {turns}"

    turns = [DANUBE, FRANCE]
    assert rephrase(Model("as the model words it"), "And its mayor?", turns).startswith("as the model words")
    assert rephrase(Model(""), "And its mayor?", turns) == "What is the mayor of Paris?"
    assert rephrase(object(), "And its mayor?", turns) == "What is the mayor of Paris?"
    assert rephrase(Model("unused"), "And its mayor?", []) == "And its mayor?"
