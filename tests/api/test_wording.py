"""Terminal, chat, tools and page present an answer in the words of one table."""

import json
from typing import Any

import pytest

from rag.cli.show import format_answer_set
from rag.core.types import Answer, AnswerKind, AnswerSet, Certainty, Evidence
from rag.core.wording import WITHHELD, WORDINGS, Wording
from rag.integrations.mcp import _answered
from serve.app import create_app
from serve.chat import _content
from tests.api.fakes import FakePipeline, running, settings

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
    chat = _content(answers.to_json(), "Where?", [], None, is_spoken=False)
    is_plain = certainty == "likely" and kind != "passage"
    for shown in (terminal.upper(), chat):
        assert ("ODD HEADING" in shown) is not is_plain
        assert ("ODD GUESS" in shown) is (certainty == "none")
        assert ("ODD REASON" in shown) is (bool(reason) and certainty != "none")
    assert _answered(answers, None).note.startswith(reason)


@pytest.mark.anyio
async def test_the_page_gets_the_table_from_the_server() -> None:
    async with running(app=create_app(settings(), lambda _: FakePipeline())) as client:
        module = await client.get("/static/wordings.js")
        scripts = [(await client.get(f"/static/{name}.js")).text for name in ("app", "text")]
    assert module.headers["content-type"].startswith("text/javascript")
    exported: dict[str, Any] = {}
    for line in module.text.splitlines():
        name, _, value = line.removeprefix("export const ").removesuffix(";").partition(" = ")
        exported[name] = json.loads(value)
    assert exported["withheld"] == WITHHELD
    assert all(WITHHELD not in script for script in scripts)
    table = exported["wordings"]
    for kind, wordings in WORDINGS.items():
        for certainty, wording in wordings.items():
            assert Wording(**table[kind][certainty]) == wording
            for words in (wording.heading, wording.guess, wording.reason):
                assert not words or all(f'"{words}' not in script for script in scripts)
