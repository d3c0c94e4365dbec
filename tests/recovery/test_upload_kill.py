"""A server that is killed makes, after its next start, every change that it accepted."""

import random
import time
from pathlib import Path

import httpx
import pytest

from indexers.index import Index
from rag.bench.server_process import ServerProcess
from tests.api.fakes import ADMIN, KEY
from tests.support.files import index_files


@pytest.mark.parametrize("seed", range(2))
def test_accepted_changes_survive_a_kill(tmp_path: Path, seed: int) -> None:
    """Send, delete and kill; then the index holds exactly what was accepted last of each id."""
    draw = random.Random(seed)
    _, place = index_files(tmp_path, {"rivers.md": "# Danube\n\nThe Danube rises.\n"})
    expected: dict[str, str] = {}
    address = ""
    for is_killed in (True, False):
        server = ServerProcess(
            place, arguments=["--retriever", "bm25"], settings={"api_keys": ADMIN[0]}
        )
        with server as running:
            url = f"http://{running.host}:{running.port}"
            for number in range(8):
                id = f"d{draw.randrange(6)}"
                if id in expected and draw.random() < 0.3:
                    del expected[id]
                    reply = httpx.delete(f"{url}/v1/documents/{id}", headers=KEY, timeout=60)
                else:
                    expected[id] = f"text {is_killed} {number}"
                    body = {"documents": [{"id": id, "text": expected[id]}]}
                    reply = httpx.post(f"{url}/v1/documents", json=body, headers=KEY, timeout=60)
                assert reply.status_code == 202, reply.text
                address = url + reply.json()["address"]
            if is_killed:
                time.sleep(draw.uniform(0.0, 5.0))
                running.process.kill()
                running.process.wait()
                continue
            version = httpx.get(address, params={"wait_s": 60}, headers=KEY, timeout=90).json()
            assert version["status"] == "made"
    with Index.open(place, verify="deep") as index:
        stored = {passage.id: passage.text for passage in index.passages}
    assert stored == {"rivers.md-0": "The Danube rises."} | {
        f"{id}-0": text for id, text in expected.items()
    }
    assert not list((place / "uploads").glob("*.json"))
