"""Which questions are made from a passage, where their answers stand, and what becomes no question."""

import random
from collections.abc import Sequence

import pytest

from rag.adaptation.questions import Kind, MadeQuestion, make_questions
from rag.core.types import Passage

PROSE = (
    "The Danube rises in the Black Forest and passes Vienna. It ends in the sea. "
    "The bridge at Linz was opened in 1902 by the mayor. In Austria 40 bridges lead over the river."
)
FROB = (
    "Options:\n--no-wrap: leave long lines as they are. Default: off\nColour: dark green\nSee: here | there"
)
REPORT = """ |  | 2019 | 2018
 | Note | £m | £m
Fixed assets |  |  |
Net assets (1) |  | 1,220.5 | 1,365.4
Debtors | 4 | 415.9 | –
Total | 9 | 7.5 | 7.5"""


def made(text: str, *kinds: Kind, title: str = "", most: int = 50) -> list[MadeQuestion]:
    found: dict[str, MadeQuestion] = {}
    for seed in range(30):
        for one in make_questions(Passage("p", title, text), random.Random(seed), most):
            if one.kind in kinds:
                found.setdefault(one.text, one)
    for one in found.values():
        assert text.startswith(one.answer, one.start)
        assert one.answer.lower() not in one.text.lower()
    return list(found.values())


def answers(questions: Sequence[MadeQuestion]) -> set[str]:
    return {one.answer for one in questions}


def test_a_table_asks_for_cells_by_row_and_column() -> None:
    questions = made(REPORT, "table")
    assert answers(questions) == {"1,220.5", "1,365.4", "415.9"}
    texts = {one.text: one.answer for one in questions}
    assert texts["What was the net assets in 2018?"] == "1,365.4"
    assert texts["What is the debtors for 2019?"] == "415.9"


def test_no_cell_without_a_value_a_name_or_a_place_of_its_own() -> None:
    assert not {"–", "4", "9", "£m"} & answers(made(REPORT, "table"))
    assert "7.5" not in answers(made(REPORT, "table"))  # it stands in two cells


def test_rows_whose_header_is_elsewhere_give_nothing() -> None:
    assert made("Net assets | 1,220.5 | 1,365.4\nDebtors | 415.9 | 2", "table") == []
    assert made("About | 2 | words\n\nDebtors | 415.9 | 1.2", "table") == []  # a table ends at a blank line


@pytest.mark.parametrize(
    ("row", "cells"),
    [
        ("Team: Ajax; Points: 61", {"What is the points of ajax?": "61"}),
        (
            "Data: > Income: Year > 2017: $3; Year > 2016: 4 (5)",
            {"What is the income for 2017?": "$3", "What is the income for 2016?": "4 (5)"},
        ),
        ("Warning: high voltage", {}),
        ("He came; she saw: nothing", {}),
        ("| Key | Size |", {}),
        (
            "| Resource | Limit |\n| --- | --- |\n| Channel | 50 per account |",
            {"What is the limit for channel?": "50 per account"},
        ),
    ],
)
def test_rows_that_name_their_columns(row: str, cells: dict[str, str]) -> None:
    questions = {one.text: one.answer for one in made(row, "table")}
    assert cells.items() <= questions.items()
    assert set(questions.values()) == set(cells.values())


def test_sentences_lose_a_name_a_date_or_a_number() -> None:
    questions = made(PROSE, "sentence")
    assert answers(questions) == {"Danube", "Black Forest", "Vienna", "Linz", "1902", "Austria", "40"}
    texts = {one.text: one.answer for one in questions}
    assert texts["When The bridge at Linz was opened by the mayor?"] == "1902"
    assert texts["How many bridges In Austria lead over the river?"] == "40"
    assert texts["Who or what rises in the Black Forest and passes Vienna?"] == "Danube"
    assert texts["What The Danube rises in and passes Vienna?"] == "Black Forest"


@pytest.mark.parametrize(
    "text",
    [
        "It was opened in 1902 by the mayor of Linz.",  # what was?
        "Opened 1902.",
        "the end of a sentence that began in Vienna on another page.",
        "In 1902 they built it, and in 1902 it fell down again.",  # which of the two?
        "Press the Select button to turn it on again.",
    ],
)
def test_no_question_where_a_sentence_leaves_it_open(text: str) -> None:
    assert made(text, "sentence") == []


def test_definitions_and_abbreviations() -> None:
    text = (
        "A desync is a fault of the proxy that splits requests. This is a test of the whole house. "
        "It speaks the Box Exchange Protocol (BEP) with all its peers."
    )
    questions = made(text, "definition")
    assert answers(questions) == {"a fault of the proxy that splits requests", "Box Exchange Protocol"}
    assert "What is desync?" in {one.text for one in questions}


def test_lists_of_options_and_values() -> None:
    questions = made(FROB, "list", title="frob › Usage")
    assert answers(questions) == {"leave long lines as they are", "--no-wrap", "off", "dark green"}
    texts = {one.text: one.answer for one in questions}
    assert texts["What does --no-wrap do in frob?"] == "leave long lines as they are"
    assert texts["What is the Colour?"] == "dark green"


def test_headings_ask_for_what_follows() -> None:
    text = "Mirror your phone\nOpen the panel and choose a screen to mirror."
    questions = made(text, "heading", title="Phone")
    assert {one.text: one.answer for one in questions} == {
        "Mirror your phone": "Open the panel and choose a screen to mirror"
    }
    [one] = made("Open the panel and choose a screen to mirror.", "heading", title="Phone › Connect a screen")
    assert one.text == "How do I connect a screen?"
    assert made("Mirror your phone\nand\nyour screen", "heading") == []


def test_at_most_so_many_and_the_same_for_the_same_seed() -> None:
    rows = "\n".join(f"Row {letter} | {n}1 | {n}2" for n, letter in enumerate("abcdefgh", start=1))
    passage = Passage("p", "", f" | 2019 | 2018\n{rows}")
    first, again = (make_questions(passage, random.Random(3), most=4) for _ in range(2))
    assert first == again
    assert len(first) == 4
    assert make_questions(passage, random.Random(4), most=4) != first
