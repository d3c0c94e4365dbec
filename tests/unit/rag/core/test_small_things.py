"""Types, errors, progress, logging, timing, optional imports."""

import json
import logging
import re

import pytest

from rag.core.errors import MissingDependencyError
from rag.core.log import Progress, setup_logging
from rag.core.optional import require
from rag.core.types import Answer, AnswerSet, Evidence
from tests.support.messages import refusal


def _answer_set(confidence: float, none: float) -> AnswerSet:
    evidence = Evidence("p1", "Danube", "It rises in Germany.", 12, 19, 1.5)
    answer = Answer("Germany", 3.0, confidence, evidence)
    return AnswerSet("Where?", (answer,), none, "abc123", {"total": 1.23456})


def test_answer_set_has_the_public_shape_and_compares_with_no_answer() -> None:
    assert _answer_set(0.6, 0.4).is_answered
    assert not _answer_set(0.3, 0.7).is_answered
    assert not _answer_set(0.1, 0.46).is_answered
    assert not AnswerSet("q", (), 0.0, "v", {}).is_answered
    shape = _answer_set(0.75, 0.25).to_json()
    assert json.loads(json.dumps(shape)) == {
        "question": "Where?",
        "answers": [
            {
                "text": "Germany",
                "score": 3.0,
                "confidence": 0.75,
                "evidence": {
                    "passage_id": "p1",
                    "title": "Danube",
                    "text": "It rises in Germany.",
                    "start": 12,
                    "end": 19,
                    "score": 1.5,
                },
            }
        ],
        "no_answer_confidence": 0.25,
        "index_version": "abc123",
        "certainty": "likely",
        "timings_ms": {"total": 1.235},
    }


def test_missing_package_names_the_extra() -> None:
    with refusal(MissingDependencyError):
        require("no_such_package_anywhere", extra="zstd")


def test_progress_writes_rate_and_time_left_to_a_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rag.core.log._INTERVAL_S", 0.0)
    with Progress(10, "passages", "encode", initial=2) as progress:
        progress.update(3)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("encode:  20% 2/10 [")
    assert re.fullmatch(r"encode:  50% 5/10 \[00:00<00:0\d, .+ passages/s\]", lines[-1])


@pytest.mark.parametrize(("json_lines", "times"), [(False, 1), (True, 2)])
def test_a_command_warns_once_in_the_same_words_and_a_server_each_time(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    json_lines: bool,
    times: int,
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    setup_logging("INFO", json_lines=json_lines)
    log = logging.getLogger("rag.test")
    for _ in range(2):
        log.warning("%s:2: a bar", "q.csv")
        log.info("step")
    log.error("q.csv:2: a bar")  # no warning
    log.warning("%s:2: a bar", "other.csv", extra={"path": "/v1", "color_message": "for terminals"})
    shown = capsys.readouterr().err
    assert [shown.count(words) for words in ("q.csv:2: a bar", "other.csv:2", "step")] == [
        times + 1,
        1,
        2,
    ]
    log.info("%d lines", "no")  # a mistake of a library stops nobody
    if json_lines:
        line = json.loads(shown.splitlines()[-1])
        assert (line["message"], line["level"], line["path"]) == (
            "other.csv:2: a bar",
            "WARNING",
            "/v1",
        )
        assert "color_message" not in line  # uvicorn's message again
