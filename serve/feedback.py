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
from pydantic import BaseModel, ConfigDict, model_validator
from starlette.responses import JSONResponse, Response

from rag.core.log import get_logger
from serve.errors import ApiError
from serve.routes import AppEngine
from serve.schemas import Name, Text

log = get_logger(__name__)
router = APIRouter()
MAX_BYTES = 64 << 20  # of the file


class FeedbackRequest(BaseModel):
    """A judgement of one answer: right, wrong, or wrong with a better answer."""

    model_config = ConfigDict(extra="forbid")

    question: Text
    answer: Text
    verdict: Literal["right", "wrong"]
    better_answer: Text | None = None
    passage_id: Text | None = None
    index: Name | None = None

    @model_validator(mode="after")
    def _fits(self) -> FeedbackRequest:
        if self.better_answer is not None and self.verdict == "right":
            raise ValueError("a right answer has no 'better_answer'")
        if any("\0" in text for text in (self.question, self.answer, self.better_answer or "")):
            raise ValueError("a text holds a NUL character; remove it")
        return self


@router.post("/v1/feedback", tags=["questions"])
async def feedback(body: FeedbackRequest, engine: AppEngine) -> Response:
    """Append the judgement to the server's file of labelled questions, and return the id of its record.

    `passage_id` is the passage of the answer's evidence in `index`; for a right answer it becomes the gold
    passage.
    """
    file, index = engine.settings.feedback_file, engine.index_name(body.index)
    if file is None:
        hint = "set RAG_SERVE_FEEDBACK_FILE"
        raise ApiError(403, "feedback_disabled", "this server keeps no feedback", hint=hint)
    if body.passage_id is not None and await engine.passage(body.passage_id, index) is None:
        hint = "passage_id is that of the evidence"
        raise ApiError(404, "passage_not_found", "no passage has this id", hint=hint)
    right = body.answer if body.verdict == "right" else body.better_answer
    is_gold = body.verdict == "right" and body.passage_id is not None
    record = {
        "id": f"feedback-{uuid.uuid4().hex}",
        "question": body.question,
        "answers": [right] if right else [],
        **({"gold_passage_ids": [body.passage_id]} if is_gold else {}),
        "verdict": body.verdict,
        "shown_answer": body.answer,
        "index_version": engine.require_ready(index).index_version,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **({"index": index} if len(engine.holders) > 1 else {}),
    }
    await engine.in_thread(append_record, file, record, MAX_BYTES)
    return JSONResponse({"id": record["id"]})


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
                message, hint = "the file of feedback has reached its limit", "the operator may move it away"
                raise ApiError(507, "feedback_full", message, hint=hint)
            stream.seek(max(0, size_bytes - 1))
            if stream.read(1) not in (b"\n", b""):
                line = b"\n" + line  # a crash or a full disk has cut the last line off
            stream.write(line)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        log.error("feedback could not be written: %s", error, extra={"path": str(path)})
        message, hint = "the feedback could not be written", "the server's log has the reason"
        raise ApiError(500, "feedback_failed", message, hint=hint) from error
