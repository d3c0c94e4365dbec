"""Terminal, chat, tools and page present an answer in the words of one table."""

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest

import serve
from rag.cli.show import format_answer_set
from rag.core.types import Answer, AnswerKind, AnswerSet, Certainty, Evidence
from rag.core.wording import WITHHELD, WORDINGS, Wording
from rag.integrations.mcp import _answered
from serve.chat import _content

WEB = Path(serve.__path__[0]) / "web"
PLACES = re.compile(r"\{\w+\}")
EVIDENCE = Evidence("d", "", "In Ulm.", 3, 6, 1.0)
# The probabilities of the answer and of there being none.
PROBABILITIES: dict[Certainty, tuple[float, float]] = {
    "likely": (0.9, 0.05),
    "perhaps": (0.3, 0.4),
    "none": (0.0, 0.6),
}


@pytest.mark.parametrize("certainty", PROBABILITIES)
@pytest.mark.parametrize("kind", WORDINGS)
def test_every_door_takes_its_words_from_the_table(
    kind: AnswerKind, certainty: Certainty, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = WORDINGS[kind][certainty]
    reason = usual.reason and "ODD REASON"
    monkeypatch.setitem(WORDINGS[kind], certainty, Wording("ODD HEADING", "ODD GUESS", reason))
    confidence, none = PROBABILITIES[certainty]
    answers = AnswerSet("Where?", (Answer("Ulm", 1.0, confidence, EVIDENCE),), none, kind=kind)
    assert answers.certainty == certainty
    terminal = format_answer_set(answers.to_json(), colour=False)
    chat = _content(answers, "Where?", [], None)
    is_plain = certainty == "likely" and kind != "passage"
    for shown in (terminal.upper(), chat):
        assert ("ODD HEADING" in shown) is not is_plain
        assert ("ODD GUESS" in shown) is (certainty == "none")
        assert ("ODD REASON" in shown) is (bool(reason) and certainty != "none")
    assert _answered(answers, None).note.startswith(reason)


def table_of(language: str) -> dict[str, str]:
    table: dict[str, str] = json.loads((WEB / f"words.{language}.json").read_text())
    return table


def test_the_page_presents_an_answer_in_the_same_words() -> None:
    english = table_of("en")
    for kind in ("answer", "passage"):
        for certainty, wording in WORDINGS[kind].items():
            for part, words in asdict(wording).items():
                assert english.get(f"{kind}.{certainty}.{part}", "") == words
    assert english["withheld"] == WITHHELD


def test_the_page_has_all_words_in_each_language() -> None:
    english = table_of("en")
    german = table_of("de")
    assert english.keys() == german.keys()
    for name, words in english.items():
        assert sorted(PLACES.findall(words)) == sorted(PLACES.findall(german[name])), name
    page = "".join(file.read_text() for file in (*WEB.glob("*.js"), WEB / "index.html"))
    named = set(re.findall(r'words\("([\w.]+)"|data-words[\w-]*="([\w.]+)"', page))
    used = {"".join(names) for names in named}
    # Names of which the page knows the beginning: of a state, or for one and for several.
    families = re.findall(r'words\(`([\w.]+)\$|counted\("([\w.]+)"', page)
    begun = ("answer.", "passage.", *("".join(names) for names in families))
    assert used <= english.keys()
    assert [name for name in english.keys() - used if not name.startswith(begun)] == []
    for beginning in begun:
        assert any(name.startswith(beginning) for name in english), beginning
