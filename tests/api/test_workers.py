"""Several server processes on one address: what they share, follow and survive."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import httpx
import pytest

from rag.bench.server_process import ServerProcess
from rag.core.errors import ResourceError
from serve import workers
from tests.api.fakes import ADMIN, KEY
from tests.support.files import index_files
from tests.support.processes import wait_until

TWO = ["--workers", "2", "--retriever", "bm25"]


@pytest.fixture
def index(tmp_path: Path) -> Path:
    text = "# Danube\n\nThe Danube rises in the Black Forest.\n"
    _, index = index_files(tmp_path, {"rivers.md": text})
    return index


def children(server: ServerProcess) -> list[int]:
    command = ["ps", "-ww", "--ppid", str(server.process.pid), "-o", "pid=,args="]
    listed = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    return [int(line.split()[0]) for line in listed if "spawn_main" in line]


def ask_each(address: str, path: str, question: str) -> list[httpx.Response]:
    """Many answers, each over a connection of its own, so that every worker gives some."""
    body = {"question": question}
    return [httpx.post(address + path, json=body, headers=KEY, timeout=60) for _ in range(24)]


def test_workers_serve_change_and_die_together(index: Path) -> None:
    with ServerProcess(index, arguments=TWO, settings={"api_keys": ADMIN[0]}) as server:
        address = f"http://{server.host}:{server.port}"

        def loads() -> float:
            text = httpx.get(f"{address}/metrics").text
            return float(re.search(r"^rag_index_loads_total (.*)$", text, re.M)[1])  # type: ignore[index]

        wait_until(lambda: loads() == 2)
        sent = {"documents": [{"id": "elbe", "text": "The Elbe rises in the Giant Mountains."}]}
        changing = f"{address}/v1/documents?wait=true"
        changed = httpx.post(changing, json=sent, headers=KEY, timeout=60)
        version = changed.json()["index_version"]
        wait_until(lambda: loads() == 4)
        hits = ask_each(address, "/v1/retrieve", "Where does the Elbe rise?")
        assert {reply.json()["index_version"] for reply in hits} == {version}
        assert {reply.json()["hits"][0]["passage_id"] for reply in hits} == {"elbe-0"}

        before = children(server)
        assert len(before) == 2
        os.kill(before[0], signal.SIGKILL)
        wait_until(lambda: before[0] not in (now := children(server)) and len(now) == 2)
        answers = ask_each(address, "/v1/ask", "Where does the Danube rise?")
        # the new one accepts none before it is ready
        assert {reply.status_code for reply in answers} == {200}
        assert {reply.json()["answers"][0]["text"] for reply in answers} == {"in the Black Forest"}

        os.kill(
            server.process.pid, signal.SIGHUP
        )  # each is replaced by one that has opened the index anew
        wait_until(lambda: not set(before) & set(children(server)) and len(children(server)) == 2)
        assert {reply.status_code for reply in ask_each(address, "/v1/ask", "Who?")} == {200}
        left = children(server)
    for pid in left:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def command_of(index: Path) -> list[str]:
    command = [sys.executable, "-m", "rag.cli.main", "serve", "--index", str(index), "--port", "0"]
    return [*command, *TWO]


def test_a_stop_leaves_a_log_of_json_lines_alone(index: Path) -> None:
    pipe = subprocess.PIPE
    server = subprocess.Popen(command_of(index), stdout=pipe, stderr=pipe, text=True)
    address = server.stdout.readline().split()[-1]

    def is_ready() -> bool:
        with suppress(httpx.TransportError):
            return httpx.get(f"{address}/readyz").status_code == 200
        return False

    wait_until(is_ready)
    server.send_signal(signal.SIGTERM)
    _, log = server.communicate(timeout=60)
    assert server.returncode == 0
    assert [line for line in log.splitlines() if not line.startswith("{")] == []


def test_workers_end_when_the_first_process_is_killed(index: Path) -> None:
    with ServerProcess(index, arguments=TWO) as server:
        processes = children(server)
        os.kill(server.process.pid, signal.SIGKILL)
        wait_until(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in processes))


def test_a_worker_that_cannot_open_its_models_ends_the_server(index: Path) -> None:
    command = [*command_of(index), "--reader", str(index)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == ResourceError.exit_code, ended.stderr
    assert "error: a worker could not open the index" in ended.stderr


def _give_one_sign(signs: Connection) -> None:
    signs.send_bytes(b".")
    time.sleep(600)


def test_a_worker_that_gives_no_sign_of_life_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_HANGS_AFTER_S", 0.5)
    ended = list[int]()

    def on_end(pid: int) -> None:
        ended.append(pid)
        os.kill(os.getpid(), signal.SIGTERM)

    workers.Workers(_give_one_sign, 1, on_end, ends_within_s=60).run()
    # The one that hung, and its successor at the end.
    assert len(set(ended)) == 2


def _ignore_the_end(signs: Connection) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(600)


def test_a_worker_that_does_not_end_is_killed(caplog: pytest.LogCaptureFixture) -> None:
    ended = list[int]()
    workers.Workers(
        _ignore_the_end, 1, ended.append, on_stop=lambda: ended.append(0), ends_within_s=0.5
    ).run()
    assert (len(ended), ended[0]) == (2, 0)
    assert "does not end and is killed" in caplog.text
