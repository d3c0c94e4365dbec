"""The server as a process: address, signals, failures at start."""

import fcntl
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from rag.core.errors import ArtifactError, ConfigError, ResourceError
from serve.app import RUN_PREFIX
from serve.run import bind, run_folder, run_server
from tests.api.fakes import empty_index, refused, settings
from tests.commands import run_command
from tests.support.messages import refusal
from tests.support.processes import wait_until, with_packages

ROOT = Path(__file__).parents[2]
BEGIN = """
import sys, threading
import serve.engine, serve.run
from serve.run import leave, run_server
from tests.api.fakes import FakePipeline, settings
class Asked(FakePipeline):
    def ask_many(self, questions, **limits):
        print("asked", flush=True)
        return super().ask_many(questions, **limits)
version, index = 0, sys.argv[1]
serve.engine.FOLLOW_S = 1e6  # the manifest is of another index
def opened(_):
    global version
    version += 1
    return Asked(f"v{version}", delay_s=0.5)
serve.run.open_pipeline = opened
"""
PROGRAM = f"""{BEGIN}
run_server(settings(port=0, index=index))
print("ended normally")
"""
STUCK = f"""{BEGIN}
serve.run.open_pipeline = lambda _: Asked(gate=threading.Event())
run_server(settings(port=0, index=index, drain_timeout_s=3.0))
leave()
"""


@pytest.fixture
def process(request, tmp_path):
    program = getattr(request, "param", PROGRAM)
    started = subprocess.Popen(
        [sys.executable, "-c", program, str(empty_index(tmp_path / "index"))],
        cwd=ROOT,
        env=with_packages(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield started
    started.kill()
    started.communicate()


@pytest.fixture
def client(process):
    url = process.stdout.readline().removeprefix("listening on ").strip()
    assert url.startswith("http://127.0.0.1:")
    with httpx.Client(base_url=url, timeout=60) as client:
        yield client


def has_version(client: httpx.Client, version: str) -> bool:
    with suppress(httpx.TransportError):
        response = client.get("/readyz")
        return response.status_code == 200 and response.json()["index_version"] == version
    return False


def refuses_connections(client: httpx.Client) -> bool:
    try:
        socket.create_connection((client.base_url.host, client.base_url.port)).close()
    except ConnectionRefusedError:
        return True
    return False


def stop_while_asked(
    process, client: httpx.Client
) -> tuple[threading.Thread, list[httpx.Response]]:
    """SIGTERM once a question was accepted; the thread that waits for its answer, and where that
    will be.
    """
    answers: list[httpx.Response] = []
    thread = threading.Thread(
        target=lambda: answers.append(client.post("/v1/ask", json={"question": "a"})), daemon=True
    )
    thread.start()
    assert process.stdout.readline() == "asked\n"
    process.send_signal(signal.SIGTERM)
    return thread, answers


def test_hangup_reloads_and_termination_finishes_what_was_accepted(process, client):
    wait_until(lambda: has_version(client, "v1"))
    process.send_signal(signal.SIGHUP)
    wait_until(lambda: has_version(client, "v2"))
    thread, answers = stop_while_asked(process, client)
    thread.join(60)
    assert answers[0].status_code == 200
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "ended normally" in out
    assert '"route": "/v1/ask", "status": 200' in err
    assert re.search(r"index in use: /.*/index", err)


@pytest.mark.parametrize("process", [STUCK], indirect=True)
def test_what_outlives_the_drain_is_refused_and_the_process_ends(process, client):
    wait_until(lambda: has_version(client, "v1"))
    thread, answers = stop_while_asked(process, client)
    wait_until(lambda: refuses_connections(client))
    assert thread.is_alive()
    thread.join(60)
    assert refused(answers[0]) == (503, "shutting_down")
    _, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "Traceback" not in err


def test_a_server_without_an_index_asks_for_one():
    with refusal(ConfigError, "index"):
        run_server(settings(port=0))


def test_an_index_that_is_not_there_is_named_before_the_server_listens(tmp_path, capsys):
    with refusal(ArtifactError):
        run_server(settings(port=0, index=tmp_path / "none"))
    assert "listening" not in capsys.readouterr().out


def test_what_a_killed_server_left_is_deleted(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / f"{RUN_PREFIX}left"
    left.mkdir()
    (left / "run.lock").touch()
    with run_folder() as first, run_folder() as second:
        assert {*tmp_path.iterdir()} == {first, second}


def test_a_server_that_starts_leaves_the_folder_of_another_that_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    lock = fcntl.flock

    def start_another_before(file, operation):
        monkeypatch.setattr(fcntl, "flock", lock)
        with run_folder():
            lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", start_another_before)
    with run_folder() as folder:
        assert [path.name for path in folder.iterdir()] == ["run.lock"]


def test_an_address_that_cannot_be_had_is_explained(tmp_path):
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        index = empty_index(tmp_path / "index")
        message = rf"port {port} of '127\.0\.0\.1': Address already in use"
        with pytest.raises(ResourceError, match=message):
            run_server(settings(port=port, index=index))
        ran = run_command("mcp", "--index", index, "--http", "--port", port)
        assert (ran.exit_code, f"port {port}" in ran.err) == (ResourceError.exit_code, True)
    for host in ("127.0..1", "192.0.2.1"):
        with pytest.raises(ResourceError, match=f"cannot listen on port 0 of '{host}'"):
            bind(host, 0)


def test_an_index_that_cannot_be_opened_ends_the_server_with_its_own_error(
    capsys, tmp_path, monkeypatch
):
    index = empty_index(tmp_path / "index")

    def fail(_):
        raise ArtifactError("index has no manifest.json")

    def crash(_):
        raise KeyError("odd")

    monkeypatch.setattr("serve.run.open_pipeline", fail)
    with refusal(ArtifactError):
        run_server(settings(port=0, index=index))
    logged = capsys.readouterr().err
    assert "no manifest.json" in logged
    assert "Traceback" not in logged
    monkeypatch.setattr("serve.run.open_pipeline", crash)
    with pytest.raises(KeyError, match="odd"):
        run_server(settings(port=0, index=index))
    assert "Traceback" in capsys.readouterr().err
