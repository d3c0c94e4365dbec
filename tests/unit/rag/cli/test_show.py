"""How answers are shown in a terminal."""

import unicodedata
from typing import Any
from unittest.mock import Mock

import pytest

from rag.cli.show import format_answer_set, format_verdict, highlight, shows_colours
from rag.core.types import Evidence, Location, Promise, Verdict, VerdictLabel


def _shown(**given: Any) -> str:
    usual = {
        "question": "Q?",
        "no_answer_confidence": 0.1,
        "certainty": "likely",
        "index_version": "v",
        "timings_ms": {},
    }
    return format_answer_set({**usual, **given}, colour=False)


def _answer(
    text: str,
    confidence: float,
    passage: str = "It is long.",
    span: tuple[int | None, int | None] = (6, 10),
    **evidence: str,
) -> dict[str, Any]:
    start, end = span
    given = {"passage_id": "p", "title": "Danube", "text": passage, **evidence}
    return {
        "text": text,
        "confidence": confidence,
        "evidence": {**given, "start": start, "end": end},
    }


@pytest.mark.parametrize(
    ("variables", "expected"),
    [({}, True), ({"NO_COLOR": ""}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)
def test_colours_are_shown_where_they_are_wanted(
    variables: dict[str, str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout", Mock(isatty=lambda: True))
    monkeypatch.setattr("os.environ", variables)
    assert shows_colours() is expected


def test_highlight_cuts_at_words_and_marks_the_span() -> None:
    text = "word " * 60 + "ANSWER" + " tail" * 60
    start = text.index("ANSWER")
    shown = highlight(text, start, start + 6, colour=False)
    assert shown == f"… {'word ' * 31}[[ANSWER]]{' tail' * 31} …"
    assert "\x1b[" in highlight(text, start, start + 6, colour=True)
    assert highlight("A city.", None, None, colour=True) == "A city."
    assert highlight("word " * 100, None, None, colour=False) == "word " * 64 + "…"


def test_an_answer_in_the_models_own_words_is_shown_with_its_passage() -> None:
    shown = _shown(answers=[_answer("yes,\nit is", 0.8, span=(None, None))])
    assert "1. yes, it is  (confidence 80%)" in shown
    assert "It is long.\n     answer worded by the model" in shown
    winner = _answer("the river Danube", 0.8, span=(None, None))
    winner["evidence"]["supporting"] = [[0, 11]]
    assert "worded by the model" not in _shown(answers=[winner])


def test_control_characters_of_the_corpus_do_not_reach_the_terminal() -> None:
    text = "It is \x1b]0;owned\x07 \x9b2Jlong.\r\nVery\tlong."
    names = {"passage_id": "p\x1b", "title": "\x1b[2JDanube"}
    answer = _answer("lo\x7fng", 0.8, text, (19, 23), **names)
    step = {"passage_id": "p", "title": "Hop\x1b", "text": text, "supporting": [[0, 10]]}
    shown = _shown(question="Q?\x1b", answers=[{**answer, "path": (step,)}])
    assert "It is \ufffd]0;owned\ufffd \ufffd2[[Jlon]]g.\n     Very\tlong." in shown
    assert all(char in "\t\n" or unicodedata.category(char) != "Cc" for char in shown)


def test_no_answer_is_said_where_it_is_likelier_than_not() -> None:
    shown = _shown(answers=[], no_answer_confidence=0.9, certainty="none")
    assert "no answer found (confidence that there is none: 90%)" in shown
    for confidence, none, certainty, line in (
        (0.2, 0.6, "none", "no answer found (confidence that there is none: 60%)\n  best guess:"),
        (0.3, 0.5, "perhaps", "perhaps (confidence that there is no answer: 50%)\n  1. long"),
        (0.6, 0.1, "likely", "Q?\n  1. long"),
    ):
        answers = [_answer("long", confidence)]
        assert line in _shown(answers=answers, no_answer_confidence=none, certainty=certainty)


def test_a_question_for_yes_or_no_shows_the_passage_that_bears_on_it() -> None:
    answer = _answer("It is long.", 0.3, "Wet. It is long.", (5, 16))
    shown = _shown(kind="passage", answers=[answer])
    assert (
        "which the reader cannot tell; the passage that bears on it:\n  1. (confidence 30%)"
        in shown
    )
    assert "Wet. [[It is long.]]" in shown
    doubted = _shown(kind="passage", answers=[answer], no_answer_confidence=0.7, certainty="none")
    assert "nearest passage:" in doubted


def test_verdicts_are_shown_with_the_sentence_that_decides() -> None:
    text = "The town is old. Ulm lies on the Danube."
    location = Location("guide.pdf", "3", ("Towns",))
    deciding = Evidence("a", "Towns", text, None, None, 2.0, ((17, 40),), location=location)
    other = Evidence("b", "", "Ulm is\x1b big.", None, None, 1.0, ((0, 12),))
    probabilities: dict[VerdictLabel, float] = {
        "supported": 0.9,
        "refuted": 0.04,
        "not_enough": 0.06,
    }
    judged = Verdict(
        "Ulm lies on the Danube.", "supported", probabilities, deciding, (deciding, other), "", "v1"
    )
    assert format_verdict(judged.to_json(), colour=False) == (
        "Ulm lies on the Danube.\n"
        "  supported  (supported 90%, refuted 4%, not enough to tell 6%)\n"
        "     Towns · guide.pdf, page 3\n"
        "     The town is old. [[Ulm lies on the Danube.]]\n"
        "     also judged by: b\n"
        "  0 ms · index v1"
    )
    asked = Verdict("Is it?", "not_judged", notice="a question is no claim")
    assert format_verdict(asked.to_json(), colour=False) == (
        "Is it?\n  not judged\n  a question is no claim\n  0 ms · index "
    )


def test_a_promise_is_told_and_withholds_what_is_not_sure_enough() -> None:
    promise = Promise(0.125, 0.95, coverage=0.61, n=150, threshold=0.7).to_json()
    shown = _shown(answers=[_answer("long", 0.6)], certainty="none", promise=promise)
    assert "  no answer is sure enough for what is promised\n" in shown
    assert "promised: at most 12.5% of the given answers are wrong (95% sure, 61% of 150" in shown
    assert "best guess:" in shown
