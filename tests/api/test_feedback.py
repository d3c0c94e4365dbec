"""Judgements that are kept as a question set."""

import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rag.data.files.rows import json_records
from rag.data.questions import read_questions
from serve import routes
from serve.errors import ApiError
from tests.api.fakes import posted, refused, running
from tests.support.limits import limited
from tests.support.messages import refusal

QUESTION = "Where does the Danube rise?"


def judged(verdict: str = "right", **fields: Any) -> dict[str, Any]:
    return {"question": QUESTION, "answer": "the Black Forest", "verdict": verdict, **fields}


@pytest.mark.anyio
async def test_judgements_are_a_question_set(tmp_path: Path) -> None:
    path = tmp_path / "feedback.jsonl"
    async with running() as client:
        reply = await client.post("/v1/feedback", json=judged())
        assert refused(reply) == (403, "feedback_disabled")
    async with running(feedback_file=path) as client:
        assert (await client.get("/page.json")).json()["feedback"] is True
        reply = await client.post("/v1/feedback", json=judged(passage_id="nowhere-1"))
        assert refused(reply) == (404, "passage_not_found")
        for body in (
            judged(passage_id="danube-1"),
            judged("wrong", passage_id="danube-1"),
            judged(
                "wrong", answer="a cited sentence. " * 100, better_answer="Donaueschingen\u2028\n😀"
            ),
        ):
            kept = await posted(client, "/v1/feedback", **body)
    right, wrong, better = read_questions(path)
    assert better.id == kept["id"]
    assert {right.text, wrong.text, better.text} == {QUESTION}
    assert (right.answers, right.gold_passage_ids) == (("the Black Forest",), ("danube-1",))
    assert (wrong.answers, wrong.gold_passage_ids) == ((), ())
    assert (better.answers, better.gold_passage_ids) == (("Donaueschingen\u2028\n😀",), ())
    assert (wrong.meta["verdict"], wrong.meta["index_version"]) == ("wrong", "v1")


def test_writers_take_turns_up_to_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "feedback.jsonl"
    record = {"question": QUESTION, "answers": ["x" * 100_000]}
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: routes.append_record(path, record, 1 << 24), range(24)))
    assert list(json_records(path)) == [record] * 24
    with refusal(ApiError):
        routes.append_record(path, record, path.stat().st_size)


def test_a_full_disk_costs_one_judgement_and_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "feedback.jsonl"
    record = {"question": QUESTION, "answers": ["x" * 200_000]}
    routes.append_record(path, record, 1 << 24)
    for room in (100_000, 0):
        with (
            limited(resource.RLIMIT_FSIZE, path.stat().st_size + room),
            refusal(ApiError) as failed,
        ):
            routes.append_record(path, record, 1 << 24)
        assert failed.value.status == 507
    routes.append_record(path, record, 1 << 24)
    assert list(json_records(path)) == [record] * 2
