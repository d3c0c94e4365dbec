"""Progress, and the log of commands and of servers."""

import json
import logging
import re

import pytest

from rag.core.log import Progress, setup_logging


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
