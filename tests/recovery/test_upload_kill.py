"""A server that is killed makes, after its next start, every change that it accepted."""

import random
import time
from pathlib import Path

import httpx
import pytest

import rag
from indexers.index import Index
from rag.bench.server_process import ServerProcess
from serve.settings import hash_api_key

KEY = {"X-API-Key": "admin"}
SETTINGS = {"api_keys": hash_api_key("admin")}


@pytest.mark.parametrize("seed", range(2))
def test_accepted_changes_survive_kills(tmp_path: Path, seed: int) -> None:
    kill_and_restart(tmp_path, seed=seed, kills=1)


def kill_and_restart(place: Path, *, seed: int, kills: int) -> None:
    """Send, delete and kill; then the index holds exactly what was accepted last of each id."""
    draw = random.Random(seed)
    (place / "folder").mkdir()
    (place / "folder/rivers.md").write_text("# Danube\n\nThe Danube rises.\n")
    rag.index(place / "folder", place / "index", retriever="bm25", threads=1, java_heap_mib=256)
    expected: dict[str, str] = {}
    address = ""
    for run in range(kills + 1):
        server = ServerProcess(
            place / "index", arguments=["--retriever", "bm25"], settings=SETTINGS
        )
        with server as running:
            url = f"http://{running.host}:{running.port}"
            for number in range(8):
                id = f"d{draw.randrange(6)}"
                if id in expected and draw.random() < 0.3:
                    del expected[id]
                    reply = httpx.delete(f"{url}/v1/documents/{id}", headers=KEY, timeout=60)
                else:
                    expected[id] = f"text {run} {number}"
                    body = {"documents": [{"id": id, "text": expected[id]}]}
                    reply = httpx.post(f"{url}/v1/documents", json=body, headers=KEY, timeout=60)
                assert reply.status_code == 202, reply.text
                address = url + reply.json()["address"]
            if run < kills:
                time.sleep(draw.uniform(0.0, 5.0))
                running.process.kill()
                running.process.wait()
                continue
            version = httpx.get(address, params={"wait_s": 60}, headers=KEY, timeout=90).json()
            assert version["status"] == "made"
    with Index.open(place / "index", verify="deep") as index:
        stored = {passage.id: passage.text for passage in index.passages}
    assert stored == {"rivers.md-0": "The Danube rises."} | {
        f"{id}-0": text for id, text in expected.items()
    }
    assert not list((place / "index/uploads").glob("*.json"))
