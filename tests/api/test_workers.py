"""Several server processes on one address: what they share, tell each other, and survive."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

import rag
from rag.bench.server_process import ServerProcess
from rag.core.errors import ArtifactError, ResourceError
from serve.settings import hash_api_key
from serve.siblings import Siblings, after

KEY = {"X-API-Key": "admin"}
TWO = ["--workers", "2", "--retriever", "bm25"]


@pytest.fixture
def index(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "rivers.md").write_text("# Danube\n\nThe Danube rises in the Black Forest.\n")
    rag.index(folder, tmp_path / "index", retriever="bm25", threads=1)
    return tmp_path / "index"


def children(pid: int) -> list[int]:
    command = ["ps", "-ww", "--ppid", str(pid), "-o", "pid=,args="]
    listed = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    return [int(line.split()[0]) for line in listed if "spawn_main" in line]


def ask_each(address: str, path: str, question: str) -> list[httpx.Response]:
    """Many answers, each over a connection of its own, so that every worker gives some."""
    body = {"question": question}
    return [httpx.post(address + path, json=body, headers=KEY, timeout=60) for _ in range(24)]


def test_workers_serve_change_and_die_together(index: Path) -> None:
    settings = {"api_keys": hash_api_key("admin"), "follow_updates_s": 0}
    with ServerProcess(index, arguments=TWO, settings=settings) as server:
        address = f"http://{server.host}:{server.port}"
        deadline = time.monotonic() + 120
        while (text := httpx.get(f"{address}/metrics", headers=KEY).text).count("rag_index_passages{") < 2:
            assert time.monotonic() < deadline, text
            time.sleep(0.2)
        assert 'rag_index_passages{index="openqa-rag",worker="1"} 1.0' in text

        sent = {"documents": [{"id": "elbe", "text": "The Elbe rises in the Giant Mountains."}]}
        changed = httpx.post(f"{address}/v1/documents", json=sent, headers=KEY, timeout=60)
        version = changed.json()["index_version"]
        found = ask_each(address, "/v1/retrieve", "Where does the Elbe rise?")
        assert {(one.status_code, one.json()["index_version"]) for one in found} == {(200, version)}
        assert all(one.json()["hits"][0]["passage_id"] == "elbe-0" for one in found)

        reloaded = httpx.post(f"{address}/v1/admin/reload", headers=KEY, timeout=120)
        assert reloaded.status_code == 200, reloaded.text
        loads = re.findall(r"index_loads_total{.*} (.*)", httpx.get(f"{address}/metrics", headers=KEY).text)
        assert loads == ["3.0", "3.0"]  # at first, by the update, by the reload

        before = children(server.pid)
        assert len(before) == 2
        os.kill(before[0], signal.SIGKILL)
        while before[0] in (now := children(server.pid)) or len(now) < 2:
            assert time.monotonic() < deadline + 60
            time.sleep(0.1)
        answers = ask_each(address, "/v1/ask", "Where does the Danube rise?")
        assert {one.status_code for one in answers} == {200}  # the new one accepts none before it is ready
        assert {one.json()["answers"][0]["text"] for one in answers} == {"the Black Forest"}
        left = children(server.pid)
    for pid in left:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_workers_end_when_the_first_process_is_killed(index: Path) -> None:
    with ServerProcess(index, arguments=TWO) as server:
        workers = children(server.pid)
        os.kill(server.pid, signal.SIGKILL)
        deadline = time.monotonic() + 60
        while any(Path(f"/proc/{pid}/cmdline").exists() for pid in workers):
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_an_index_that_is_not_there_ends_the_server(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rag.cli.main", "serve", "--index", str(tmp_path / "none")]
    command += ["--workers", "2", "--port", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == ArtifactError.exit_code, ended.stderr
    assert "error: " in ended.stderr
    assert "none: no such directory" in ended.stderr


@pytest.mark.anyio
async def test_siblings_do_what_they_are_told_or_say_that_they_failed(tmp_path: Path) -> None:
    first, second, third = (Siblings(tmp_path / f"{number}.sock") for number in range(3))
    done: list[str] = []

    async def change(name: str) -> None:
        done.append(name)

    async def fail(name: str) -> None:
        raise ResourceError("no memory")

    async def metrics(_: str) -> bytes:
        return b'# HELP rag_x_total X.\n# TYPE rag_x_total counter\nrag_x_total{index="a"} 3.0\n'

    servers = [
        await first.listen({"reload": after(fail), "metrics": metrics}),
        await second.listen({"reload": after(change), "metrics": metrics}),
        await third.listen({"reload": after(fail)}),
    ]
    assert await first.tell("reload", "wiki") == 1
    assert done == ["wiki"]
    lines = [line for line in (await second.metrics()).decode().splitlines() if not line.startswith("#")]
    assert lines == ['rag_x_total{index="a",worker="0"} 3.0', 'rag_x_total{index="a",worker="1"} 3.0']
    servers[2].close()
    await asyncio.sleep(0)
    assert await second.tell("reload", "wiki") == 1  # nobody listens in the place of the third
    for server in servers:
        server.close()
