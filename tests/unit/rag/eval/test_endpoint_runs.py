"""Evaluations of a model at an address: no answer that was paid for is lost, and none is asked for
twice.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rag.core.errors import EndpointError, MismatchedArtifactError
from rag.core.types import Question
from rag.data.files.rows import json_records
from rag.eval.journal import Journal
from readers.open import open_reader
from tests.chat_server import Server, chat
from tests.support.messages import refusal
from tests.unit.rag.eval.conftest import QUESTIONS, ToySystem, evaluate
from tests.worlds import killed_at

GOOD = chat('{"answer": "Black Forest", "passages": [1]}')
DOWN = (500, b"{}")


def run(source: str, out: Path, parallel: int = 1, questions: Any = QUESTIONS) -> Any:
    system = ToySystem()
    system.reader = open_reader(source, retries=0)
    system.reader.max_concurrent = parallel
    system.identity = {"reader": "tiny"}
    return evaluate(system, iter(questions), out)


def asked(server: Server) -> list[str]:
    """The questions that the server got, and forgets them."""
    contents = [body["messages"][-1]["content"] for body in server.requests]
    server.requests.clear()
    return [content.rsplit("Question: ", 1)[1] for content in contents]


def by_question(replies: dict[str, Any]) -> Callable[[Any], Any]:
    def reply(body: dict[str, Any]) -> tuple[int, bytes]:
        content = body["messages"][-1]["content"].rsplit("Question: ", 1)[1]
        named = [reply for name, reply in replies.items() if name in content]
        return named[0] if named else GOOD

    return reply


def failures(out: Path, name: str = "per_question.jsonl") -> list[bool]:
    return ["failure" in record for record in json_records(out / name)]


def test_a_server_that_is_gone_stops_the_run_and_nothing_is_asked_twice(
    tmp_path: Path, server: Server
) -> None:
    server.replies = [GOOD, GOOD, DOWN]
    with refusal(EndpointError):
        run(server.source, tmp_path)
    assert failures(tmp_path, "per_question.jsonl.part") == [False, False]
    assert len(asked(server)) == 5
    server.replies = [GOOD]
    assert run(server.source, tmp_path)["failed"] == 0
    assert asked(server) == [question.text for question in QUESTIONS[2:]]
    assert run(server.source, tmp_path)["n"] == len(QUESTIONS)
    assert not asked(server)


@pytest.mark.parametrize("parallel", [0, 4])
def test_a_wrong_address_leaves_nothing_behind(
    tmp_path: Path, server: Server, parallel: int
) -> None:
    server.replies = [(404, b"<html>no such page</html>")]
    with refusal(EndpointError):
        run(server.source, tmp_path, parallel)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


@pytest.mark.parametrize("parallel", [1, 3])
def test_what_could_not_be_read_is_asked_again(
    tmp_path: Path, server: Server, parallel: int
) -> None:
    server.replies = [by_question({"Rhine": DOWN, "Everest": (400, b"{}"), "Hamlet": chat(None)})]
    metrics = run(server.source, tmp_path, parallel=parallel)
    assert (metrics["failed"], metrics["n"]) == (3, 6)
    assert failures(tmp_path) == [False, True, True, True, False, False]
    asked(server)
    server.replies = [GOOD]
    metrics = run(server.source, tmp_path, parallel=parallel)
    assert sorted(asked(server)) == sorted(question.text for question in QUESTIONS[1:4])
    assert failures(tmp_path) == [False] * 6
    records = json_records(tmp_path / "per_question.jsonl")
    assert [record["id"] for record in records] == [question.id for question in QUESTIONS]
    assert (metrics["failed"], metrics["figures"]["em"]["n"]) == (0, 6)


def test_a_killed_run_asks_only_for_what_is_missing(tmp_path: Path, server: Server) -> None:
    server.replies = [GOOD]
    killed_at(Journal, "append", 3, run, server.source, tmp_path)
    assert len(asked(server)) == 4
    assert failures(tmp_path, "per_question.jsonl.part") == [False] * 3
    assert run(server.source, tmp_path)["n"] == 6
    assert asked(server) == [question.text for question in QUESTIONS[3:]]


OTHER_QUESTIONS = {
    "lost": QUESTIONS[1:],
    "changed": [Question("q0", "Who?", ("x",)), *QUESTIONS[1:]],
}


@pytest.mark.parametrize("changed", OTHER_QUESTIONS.values(), ids=OTHER_QUESTIONS)
def test_other_questions_are_refused(
    tmp_path: Path, server: Server, changed: list[Question]
) -> None:
    server.replies = [GOOD, GOOD, DOWN]
    with refusal(EndpointError):
        run(server.source, tmp_path)
    with refusal(MismatchedArtifactError):
        run(server.source, tmp_path, questions=changed)
