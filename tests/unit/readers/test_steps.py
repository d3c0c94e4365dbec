"""Questions for what to do get whole sentences and entries of lists."""

import pytest

from rag.core.types import Passage
from readers.answer_forms import expected_form, is_identifier
from readers.protocols import ReadAnswer, ReadResult
from readers.steps import step_around, with_steps

UNITS = [
    ("First stop it. Then [press q] twice. Wait.", "Then press q twice."),
    ("Steps:\n• open [the lid]\n• pour", "open the lid"),
    ("2. Press [the red button] long.\n3. Wait.", "Press the red button long."),
    ("To stop it, press\n[the red button] twice.\nWait.", "To stop it, press\nthe red button twice."),
    ("Use [--force] to go on.", "--force"),
    ("Then [" + "word " * 12 + "end]. Wait.", "word " * 12 + "end"),
    ("It [stops. It then waits]. End.", "It stops. It then waits."),
    ("word " * 90 + "[here] " + "word " * 90, "here"),
]


@pytest.mark.parametrize(("marked", "unit"), UNITS)
def test_the_unit_around_a_span(marked: str, unit: str) -> None:
    text = marked.replace("[", "").replace("]", "")
    start, end = step_around(text, marked.index("["), marked.index("]") - 1)
    assert text[start:end] == unit


@pytest.mark.parametrize(
    ("question", "form"),
    [
        ("How do I stop it?", "step"),
        ("I lost the key. What should I do?", "step"),
        ("what happens if the lid is open", "step"),
        ("How do birds fly?", ""),
        ("Who plays Wes in How to Get Away?", "person"),
        ("What happens in the book?", ""),
    ],
)
def test_which_questions_ask_for_steps(question: str, form: str) -> None:
    assert expected_form(question) == form


def test_spans_of_one_sentence_become_one_answer() -> None:
    text = "To stop it, press the red button. Or pull the plug."
    spans = [("red", 0.3), ("plug", 0.4), ("press", 0.2)]
    given = tuple(
        ReadAnswer(word, 1.0, share, 0, text.index(word), text.index(word) + len(word))
        for word, share in spans
    )
    shown = with_steps(ReadResult(given, 0.1), [Passage("1", "", text)], 2)
    assert [(a.text, a.confidence) for a in shown.answers] == [
        ("To stop it, press the red button.", pytest.approx(0.5)),
        ("Or pull the plug.", 0.4),
    ]
    assert all(text[a.start : a.end] == a.text for a in shown.answers)
    assert len(with_steps(ReadResult(given, 0.1), [Passage("1", "", text)], 1).answers) == 1


def test_identifiers_are_whole_answers() -> None:
    assert [is_identifier(word) for word in ("--sort", "/etc/fstab", "MAX_SIZE", "press q")] == [1, 1, 1, 0]
