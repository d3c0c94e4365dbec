"""The made questions over tables: files hold the cells that are asked for, and how they are judged."""

from dataclasses import replace
from pathlib import Path

import pytest

from rag.bench.table_files import FILES
from rag.bench.tables import TableQuestion, is_right, make, stands_under_headings
from rag.core.types import Passage
from rag.data.corpus import read_documents
from rag.data.split import split_documents

QUESTION = TableQuestion("?", "5 W", "a.md", False, ("Power", "Idle"), ("A1",))


def test_the_cells_of_all_questions_are_read_under_their_headings(tmp_path: Path) -> None:
    questions = make(tmp_path)
    assert len({question.question for question in questions}) == len(questions) == 120
    assert sum(question.is_held_out for question in questions) == 60
    documents = list(read_documents(tmp_path, format="documents"))
    assert len(documents) == 4 * len(FILES)
    passages = list(split_documents(documents))
    for question in questions:
        of_document = [it for it in passages if it.id.startswith(f"{question.document}-")]
        assert any(stands_under_headings(passage, question) for passage in of_document), question


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Model: A1; Power Idle: 5 W; Power Load: 9 W", True),
        ("A1: Power Idle: 5 W; Power Load: 9 W", True),
        ("Model: A1; Power Load: 5 W; Power Idle: 9 W", False),
        ("Model: A1; Power: 5 W; Idle: 9 W", False),
        ("Model: B1; Power Idle: 5 W; Power Load: 9 W", False),
        ("A1 5 W 9 W", False),
    ],
)
def test_a_cell_stands_under_exactly_its_headings(text: str, expected: bool) -> None:
    assert stands_under_headings(Passage("a", "", text), QUESTION) == expected


def test_an_answer_may_lack_its_unit() -> None:
    assert is_right("5 W", QUESTION)
    assert is_right("5", QUESTION)
    assert not is_right("9 W", QUESTION)
    assert not is_right("Ann", replace(QUESTION, answer="Ann Venbar"))
