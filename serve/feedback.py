"""Feedback on answers, kept as a question set: one JSON object per line, appended and locked."""

from __future__ import annotations

import fcntl
import json
import os
import time
import uuid
from pathlib import Path
from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, StrictStr, model_validator
from starlette.responses import JSONResponse, Response

from rag.core.log import get_logger
from serve.errors import ApiError, invalid_request
from serve.routes import AppEngine
from serve.schemas import checked_question

log = get_logger(__name__)
router = APIRouter()


class FeedbackRequest(BaseModel):
    """A judgement of one answer: right, wrong, or wrong with a better answer."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "question": "Where does the Danube rise?",
                    "answer": "the Swiss Alps",
                    "verdict": "wrong",
                    "better_answer": "the Black Forest",
                },
            ]
        },
    )

    question: StrictStr
    answer: StrictStr
    verdict: Literal["right", "wrong"]
    better_answer: StrictStr | None = None
    passage_id: StrictStr | None = None
    index: StrictStr | None = None

    @model_validator(mode="after")
    def _fits(self) -> FeedbackRequest:
        if self.better_answer is not None and self.verdict == "right":
            raise ValueError("a right answer has no 'better_answer'")
        return self


@router.post("/v1/feedback", tags=["questions"])
async def feedback(body: FeedbackRequest, engine: AppEngine) -> Response:
    """Append the judgement to the server's file of labelled questions, and return the id of its record.

    `passage_id` is the passage of the answer's evidence in `index`; for a right answer it becomes the gold
    passage.
    """
    settings = engine.settings
    if settings.feedback_file is None:
        raise ApiError(
            403, "feedback_disabled", "this server keeps no feedback", hint="set RAG_SERVE_FEEDBACK_FILE"
        )
    texts = {
        name: checked_question(name, value, settings)
        for name in ("question", "answer", "better_answer", "passage_id")
        if (value := getattr(body, name)) is not None
    }
    if any("\0" in text for text in texts.values()):
        raise invalid_request("a text holds a NUL character", "remove it")
    index = engine.index_name(body.index)
    if "passage_id" in texts and await engine.passage(texts["passage_id"], index) is None:
        raise ApiError(
            404, "passage_not_found", "no passage has this id", hint="passage_id is that of the evidence"
        )
    record = labelled_question(texts, body.verdict, engine.require_ready(index).index_version)
    if len(engine.holders) > 1:
        record["index"] = index
    await engine.in_thread(append_record, settings.feedback_file, record, settings.feedback_max_bytes)
    return JSONResponse({"id": record["id"]})


def labelled_question(texts: dict[str, str], verdict: str, index_version: str) -> dict[str, Any]:
    """A judgement as a record of a question set.

    `answers` has the answer that is right, if it is known; question sets keep the other fields as they are.
    """
    right = texts["answer"] if verdict == "right" else texts.get("better_answer")
    is_gold = verdict == "right" and "passage_id" in texts
    return {
        "id": f"feedback-{uuid.uuid4().hex}",
        "question": texts["question"],
        "answers": [right] if right else [],
        **({"gold_passage_ids": [texts["passage_id"]]} if is_gold else {}),
        "verdict": verdict,
        "shown_answer": texts["answer"],
        "index_version": index_version,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def append_record(path: Path, record: dict[str, Any], max_bytes: int) -> None:
    """Append one line and sync it; several processes may do so at the same time.

    Raises:
        ApiError: 507 if the file would exceed `max_bytes`, 500 if writing fails.
    """
    line = json.dumps(record, ensure_ascii=False).encode() + b"\n"
    try:
        with path.open("ab+") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            size_bytes = stream.seek(0, os.SEEK_END)
            if size_bytes + len(line) > max_bytes:
                raise ApiError(
                    507, "feedback_full", "the file of feedback has reached its limit",
                    hint="the operator may move it away or raise RAG_SERVE_FEEDBACK_MAX_BYTES",
                )  # fmt: skip
            stream.seek(max(0, size_bytes - 1))
            if stream.read(1) not in (b"\n", b""):
                line = b"\n" + line  # a crash or a full disk has cut the last line off
            stream.write(line)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        log.error("feedback could not be written: %s", error, extra={"path": str(path)})
        raise ApiError(
            500,
            "feedback_failed",
            "the feedback could not be written",
            hint="the server's log has the reason",
        ) from error
