"""`rag questions` with a model that a local server plays: kept, rejected, killed, refused."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from indexers.index_writer import write_index
from indexers.settings import BuildSettings
from rag.adaptation import writing as module
from rag.adaptation.drafts import (
    Draft,
    copied_share,
    draft_messages,
    fault_of,
    kinds_of,
    parse_draft,
    place_answer,
)
from rag.adaptation.writing import Answers, write_questions
from rag.core.errors import ConfigError, DataError, MismatchedArtifactError, ReaderError
from rag.core.types import Passage
from rag.data.files.rows import json_records
from rag.data.questions import read_questions
from tests.chat_server import Server, chat
from tests.commands import run_successfully
from tests.support.messages import refusal
from tests.worlds import killed_at

NAMES = ("otter", "heron", "badger", "lynx", "marten", "beaver")
HELD_OUT = ("walrus", "narwhal")


def passages_of(names: tuple[str, ...]) -> list[Passage]:
    return [
        Passage(name, f"Animals › {name}", TEXT.format(name=name, code=f"{name[:3].upper()}_{at}7"))
        for at, name in enumerate(names)
    ]


TEXT = (
    "The {name} that lives beside our river was seen again last week by three visitors who walked "
    "along the bank in the evening. The register of the reserve marks this animal with {code} "
    "and nobody else may use it."
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two indexes: of six animals, and of two others."""
    folder = tmp_path_factory.mktemp("writing")
    for name, animals in (("index", NAMES), ("held-out", HELD_OUT)):
        settings = BuildSettings(retriever="bm25")
        write_index(folder / name, passages_of(animals), settings=settings)
    return folder


def ask_of(body: dict[str, Any]) -> str:
    """The last message of a request: passages and wish, or passages and question."""
    return str(body["messages"][-1]["content"])


def is_second_look(body: dict[str, Any]) -> bool:
    return "Question: " in ask_of(body)


def reply(question: str, answer: str) -> tuple[int, bytes]:
    return chat(json.dumps({"answer": answer, "question": question}))


def second_look(answer: str) -> tuple[int, bytes]:
    return chat(json.dumps({"answer": answer, "passages": [1]}))


def good(body: dict[str, Any]) -> tuple[int, bytes]:
    """A good question about each passage, or the code in it as the second look's answer."""
    code = re.findall(r"[A-Z]{3}_\d7", ask_of(body))[0]
    if is_second_look(body):
        return second_look(code)
    names = re.findall(r"Animals › (\w+)", ask_of(body))
    return reply(f"Which sign identifies {' beside '.join(names)} officially?", code)


def run(world: Path, server: Server, out: Path, **settings: Any) -> dict[str, int]:
    source = f"{server.source},retries=0"
    named = {"reader": source, **settings}
    return dict(write_questions(world / "index", source, out, **named))


def rows(path: Path) -> list[dict[str, Any]]:
    return list(json_records(path))


def test_questions_are_kept_with_passage_kind_and_writer_and_can_be_evaluated(
    world: Path, server: Server, tmp_path: Path
) -> None:
    server.replies = [good]
    out = tmp_path / "q.jsonl"
    source = f"{server.source},retries=0"
    options = ("--index", world / "index", "--writer", source, "--reader", source, "--out", out)
    assert "3 questions kept" in run_successfully("questions", *options, "--count", 3)
    asked = [body for body in server.requests if not is_second_look(body)]
    assert all(body["response_format"]["type"] == "json_schema" for body in asked)
    questions = list(read_questions(out))
    assert len(questions) == 3
    for question, row in zip(questions, rows(out), strict=True):
        assert all(gold in question.text for gold in question.gold_passage_ids)
        assert row["writer"].startswith("tiny at http://127.0.0.1")
        assert len(question.gold_passage_ids) == 1 + (row["kind"] == "comparison")
    evaluate = ("--index", world / "index", "--questions", out, "--read", 0)
    run_successfully("evaluate", *evaluate, "--out", tmp_path / "results")


@pytest.mark.parametrize(
    ("drafted", "second", "reason"),
    [
        (chat("I cannot."), "", "no JSON with question and answer"),
        (chat('{"answer": 7, "question": "Which sign?"}'), "", "no JSON with question and answer"),
        (reply("Which sign has it officially?", "XYZ-99"), "", "answer not in the passage"),
        (reply("Tell me the sign it has", "{code}"), "", "no question"),
        (reply("Why does it have {code} officially?", "{code}"), "", "answer in the question"),
        (reply("Which sign does the passage give?", "{code}"), "", "mentions the passage"),
        (
            reply("Which code was seen again last week by visitors?", "{code}"),
            "",
            "in the passage's words",
        ),
        (
            reply("Which sign identifies the {name} officially?", "{code}"),
            "evening",
            "the second look finds another answer",
        ),
        (
            reply("Which sign identifies zebras officially?", "{code}"),
            "{code}",
            "not found by a search",
        ),
    ],
)
def test_what_is_no_good_question_is_rejected_with_the_reason(
    world: Path,
    server: Server,
    tmp_path: Path,
    drafted: tuple[int, bytes],
    second: str,
    reason: str,
) -> None:
    def act(body: dict[str, Any]) -> tuple[int, bytes]:
        code = re.findall(r"[A-Z]{3}_\d7", ask_of(body))[-1]
        if is_second_look(body):
            return second_look(second.replace("{code}", code))
        name = re.findall(r"Animals › (\w+)", ask_of(body))[-1]
        text = drafted[1].decode().replace("{code}", code).replace("{name}", name)
        return 200, text.encode()

    server.replies = [act]
    out = tmp_path / "q.jsonl"
    assert run(world, server, out) == {"kept": 0, reason: len(NAMES)}
    rejected = rows(tmp_path / "q.jsonl.writing" / "rejected.jsonl")
    assert {row["reason"] for row in rejected} == {reason}
    assert not rows(out)


def test_a_killed_run_ends_in_the_same_questions(
    world: Path, server: Server, tmp_path: Path
) -> None:
    server.replies = [good]
    whole = tmp_path / "whole.jsonl"
    run(world, server, whole, count=5)
    out = tmp_path / "q.jsonl"
    source = f"{server.source},retries=0"

    def write() -> None:
        write_questions(world / "index", source, out, count=5, reader=source)

    killed_at(module.Journal, "append", 2, write)
    assert len(rows(out)) == 2
    with open(out, "a") as file:
        file.write('{"id": "torn')
    asked = len(server.requests)
    write()
    assert len(server.requests) < 2 * asked
    assert out.read_bytes() == whole.read_bytes()
    with refusal(MismatchedArtifactError):
        run(world, server, out, count=5, seed=14)


def test_held_out_documents_give_questions_without_an_answer(
    world: Path, server: Server, tmp_path: Path
) -> None:
    server.replies = [good]
    out = tmp_path / "q.jsonl"
    figures = run(world, server, out, count=50, held_out=world / "held-out")
    assert figures == {"kept": len(NAMES) + len(HELD_OUT)}
    unanswerable = [question for question in read_questions(out) if question.is_impossible]
    assert {question.meta["made_from"]["passages"][0] for question in unanswerable} == set(HELD_OUT)
    assert not any(question.answers for question in unanswerable)
    figures = run(world, server, tmp_path / "same.jsonl", count=50, held_out=world / "index")
    assert figures["answered without the held out document"] == len(NAMES)


def test_a_writer_may_say_the_questions_of_rules_in_better_words(
    world: Path, server: Server, tmp_path: Path
) -> None:
    server.replies = [good]
    out = tmp_path / "q.jsonl"
    kept = run(world, server, out, count=50, answers="rules")["kept"]
    assert kept >= 1
    assert len(rows(out)) == kept
    asked = [ask_of(body) for body in server.requests if not is_second_look(body)]
    for request in asked:
        shown, wish = request.rsplit("\n\n", 1)
        clumsy = re.fullmatch(r"Say in better words: .+ \((.+)\)", wish)
        assert clumsy
        assert clumsy[1] in shown


GONE = {
    "page of HTML": (200, b"<html><body>Welcome</body></html>"),
    "failure of the server": (500, b"{}"),
    "no server": None,
}


@pytest.mark.parametrize("answer", GONE.values(), ids=GONE)
def test_a_server_that_is_gone_or_is_another_ends_the_run_and_loses_nothing(
    world: Path, server: Server, tmp_path: Path, answer: tuple[int, bytes] | None
) -> None:
    server.replies = [good]
    out = tmp_path / "q.jsonl"
    run(world, server, out, count=1)
    kept = out.read_bytes()
    server.replies = [answer or (500, b"{}")]
    if answer is None:
        server.close()
    with refusal(ReaderError):
        run(world, server, out, count=5)
    assert out.read_bytes() == kept


def test_what_cannot_work_is_refused(world: Path, server: Server, tmp_path: Path) -> None:
    out = tmp_path / "q.jsonl"
    with refusal(ConfigError):
        write_questions(world / "index", "qwen", out)
    with refusal(ConfigError):
        run(world, server, out, count=0)
    out.write_text("mine\n")
    with refusal(ConfigError):
        run(world, server, out)
    assert out.read_text() == "mine\n"
    assert not server.requests


GERMAN = "Der Otter wohnt seit vielen Jahren an unserem Fluss. " * 4


@pytest.mark.parametrize(
    ("text", "answers", "gives_questions"),
    [("Too short.", "writer", False), (GERMAN, "rules", False), (GERMAN, "writer", True)],
)
def test_a_text_that_gives_no_question_is_refused(
    server: Server, tmp_path: Path, text: str, answers: Answers, gives_questions: bool
) -> None:
    server.replies = [reply("Wer wohnt hier?", "Der Otter")]
    settings = BuildSettings(retriever="bm25")
    write_index(tmp_path / "index", [Passage("1", "", text)], settings=settings)
    out = tmp_path / "q.jsonl"
    if gives_questions:
        run(tmp_path, server, out, answers=answers)
        assert server.requests
        return
    with refusal(DataError):
        run(tmp_path, server, out, answers=answers)
    assert not server.requests


def test_an_endpoint_without_schemas_is_asked_without_them(
    world: Path, server: Server, tmp_path: Path
) -> None:
    def refuse(body: dict[str, Any]) -> tuple[int, bytes]:
        if "response_format" in body:
            return 400, b'{"error": {"message": "unknown parameter: response_format"}}'
        return good(body)

    server.replies = [refuse]
    assert run(world, server, tmp_path / "q.jsonl", count=2)["kept"] == 2


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("Only prose stands here.", ["fact"]),
        ("A coypu is a rodent. It weighs 9 kg.", ["fact", "number", "definition"]),
        ("Use --quiet, or press Enter.", ["fact", "option", "step"]),
        ("City | Limit\nVienna | 160 EUR", ["table cell"]),
    ],
)
def test_the_kind_follows_what_stands_in_the_passage(text: str, kinds: list[str]) -> None:
    assert kinds_of(text) == kinds


def test_requests_begin_alike_so_that_a_server_computes_the_beginning_once() -> None:
    first, second = passages_of(NAMES)[:2]
    one = draft_messages([first], "fact")
    other = draft_messages([second], "step")
    assert one[:-1] == other[:-1]
    both = draft_messages([first, second], "comparison")[-1]["content"]
    assert both.index(first.text) < both.index(second.text) < both.index("Ask for")


def test_an_answer_is_the_text_of_its_passage() -> None:
    passages = passages_of(NAMES)[:2]
    draft = Draft(question="Who saw it?", answer="Three  Visitors")
    placed = place_answer(draft, passages)
    assert placed
    assert placed.answer == "three visitors"
    assert place_answer(Draft(question="Who saw it?", answer="four visitors"), passages) is None
    assert parse_draft('["answer", "question"]') is None


def test_names_and_titles_are_no_copied_words() -> None:
    passage = Passage("1", "The Coypu", "The coypu weighs nine kilograms, says Dr Miller in Oslo.")
    assert copied_share("How heavy is a coypu, says Miller in Oslo?", [passage]) == 0.5
    assert copied_share("Is it true what the coypu weighs nine times?", [passage]) == 2 / 4
    copied = "Who says that the coypu weighs nine kilograms?"
    assert copied_share(copied, [passage]) == 1.0
    assert (
        fault_of(Draft(question=copied, answer="Dr Miller"), [passage]) == "in the passage's words"
    )
