"""Which questions are made from a passage, where their answers stand, and what becomes no
question.
"""

import random

import pytest

from rag.adaptation.questions import MadeQuestion, make_questions
from rag.core.types import Passage

PROSE = (
    "The Danube rises in the Black Forest and passes Vienna. It ends in the sea. "
    "The bridge at Linz was opened in 1902 by the mayor. In Austria 40 bridges lead over the river."
)
FROB = "Options:\n--no-wrap: leave long lines as they are. Default: off\nColour: dark green\nSee: here | there"
REPORT = """ |  | 2019 | 2018
 | Note | £m | £m
Fixed assets |  |  |
Net assets (1) |  | 1,220.5 | 1,365.4
Debtors | 4 | 415.9 | –
Total | 9 | 7.5 | 7.5"""


def made(text: str, *kinds: str, title: str = "", most: int = 50) -> list[MadeQuestion]:
    result: dict[str, MadeQuestion] = {}
    for seed in range(30):
        for item in make_questions(Passage("p", title, text), random.Random(seed), most):
            if item.kind in kinds:
                result.setdefault(item.text, item)
    for item in result.values():
        assert text.startswith(item.answer, item.start)
        assert item.answer.lower() not in item.text.lower()
    return list(result.values())


MADE: list[
    tuple[str, str, str, set[str], dict[str, str]]
] = [  # title, text, all answers, some questions
    (
        "table",
        "",
        REPORT,
        {"1,220.5", "1,365.4", "415.9"},  # "7.5" stands in two cells
        {"What was the net assets in 2018?": "1,365.4", "What is the debtors for 2019?": "415.9"},
    ),
    ("table", "", "Team: Ajax; Points: 61", {"61"}, {"What is the points of ajax?": "61"}),
    (
        "table",
        "",
        "Pump: Oil: “daily; warm”; Belts: “from: May”",
        {"daily; warm", "from: May"},
        {"What is the oil of pump?": "daily; warm", "What is the belts of pump?": "from: May"},
    ),
    (
        "table",
        "",
        "Data: > Income: Year > 2017: $3; Year > 2016: 4 (5)",
        {"$3", "4 (5)"},
        {"What is the income for 2017?": "$3", "What is the income for 2016?": "4 (5)"},
    ),
    (
        "table",
        "",
        "| Resource | Limit |\n| --- | --- |\n| Channel | 50 per account |",
        {"50 per account"},
        {"What is the limit for channel?": "50 per account"},
    ),
    (
        "sentence",
        "",
        PROSE,
        {"Danube", "Black Forest", "Vienna", "Linz", "1902", "Austria", "40"},
        {
            "When The bridge at Linz was opened by the mayor?": "1902",
            "How many bridges In Austria lead over the river?": "40",
            "Who or what rises in the Black Forest and passes Vienna?": "Danube",
            "What The Danube rises in and passes Vienna?": "Black Forest",
        },
    ),
    (
        "definition",
        "",
        "A desync is a fault of the proxy that splits requests. This is a test of the whole house. "
        "It speaks the Box Exchange Protocol (BEP) with all its peers.",
        {"a fault of the proxy that splits requests", "Box Exchange Protocol"},
        {"What is desync?": "a fault of the proxy that splits requests"},
    ),
    (
        "list",
        "frob › Usage",
        FROB,
        {"leave long lines as they are", "--no-wrap", "off", "dark green"},
        {
            "What does --no-wrap do in frob?": "leave long lines as they are",
            "What is the Colour?": "dark green",
        },
    ),
    (
        "heading",
        "Phone › Connect a screen",
        "Open the panel and choose a screen to mirror.",
        {"Open the panel and choose a screen to mirror"},
        {"How do I connect a screen?": "Open the panel and choose a screen to mirror"},
    ),
]
NOTHING: list[tuple[str, str]] = [
    ("table", "Net assets | 1,220.5 | 1,365.4\nDebtors | 415.9 | 2"),
    ("table", "About | 2 | words\n\nDebtors | 415.9 | 1.2"),  # a table ends at a blank line
    ("table", "Warning: high voltage"),
    ("table", "He came; she saw: nothing"),
    ("table", "| Key | Size |"),
    ("sentence", "It was opened in 1902 by the mayor of Linz."),  # what was?
    ("sentence", "Opened 1902."),
    ("sentence", "the end of a sentence that began in Vienna on another page."),
    ("sentence", "In 1902 they built it, and in 1902 it fell down again."),  # which of the two?
    ("sentence", "Press the Select button to turn it on again."),
    ("heading", "Mirror your phone\nand\nyour screen"),
]


@pytest.mark.parametrize(("kind", "title", "text", "answers", "some"), MADE)
def test_questions_with_their_answers(
    kind: str, title: str, text: str, answers: set[str], some: dict[str, str]
) -> None:
    questions = {each.text: each.answer for each in made(text, kind, title=title)}
    assert set(questions.values()) == answers
    assert some.items() <= questions.items()


@pytest.mark.parametrize(("kind", "text"), NOTHING)
def test_no_question_where_the_text_leaves_it_open(kind: str, text: str) -> None:
    assert made(text, kind) == []


def test_at_most_so_many_and_the_same_for_the_same_seed() -> None:
    rows = "\n".join(f"Row {letter} | {n}1 | {n}2" for n, letter in enumerate("abcdefgh", start=1))
    passage = Passage("p", "", f" | 2019 | 2018\n{rows}")
    first, again = (make_questions(passage, random.Random(3), most=4) for _ in range(2))
    assert first == again
    assert len(first) == 4
    assert make_questions(passage, random.Random(4), most=4) != first
