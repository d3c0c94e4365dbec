"""Swapping an index for another under traffic."""

import asyncio
import gc
import threading
import weakref

import pytest

from rag.core.errors import ArtifactError
from serve.app import create_app
from serve.settings import ServeSettings, hash_api_key
from tests.api.fakes import FakePipeline, running, settings, until

pytestmark = pytest.mark.anyio
KEY = {"X-API-Key": "admin"}


class Opener:
    """Opens v1, v2, …; can be told to fail or to wait."""

    def __init__(self) -> None:
        self.opened: list[FakePipeline] = []
        self.fails, self.gate = False, threading.Event()
        self.gate.set()

    def __call__(self, _: ServeSettings) -> FakePipeline:
        assert self.gate.wait(60)
        if self.fails:
            raise ArtifactError("index/manifest.json is damaged")
        self.opened.append(FakePipeline(f"v{len(self.opened) + 1}", delay_s=0.002))
        return self.opened[-1]


def application(opener: Opener):
    return create_app(settings(api_keys=(hash_api_key("admin"),)), open_pipeline=opener)


async def test_reload_under_load_loses_nothing_and_uses_no_closed_index():
    opener = Opener()
    app = application(opener)
    async with running(app=app) as client:
        versions: list[str] = []
        is_over = False

        async def one_client() -> None:
            while not is_over:
                response = await client.post("/v1/ask", json={"question": "a"}, headers=KEY)
                assert response.status_code == 200, response.text
                versions.append(response.json()["index_version"])

        clients = [asyncio.create_task(one_client()) for _ in range(4)]
        for number in (2, 3):
            seen = len(versions)
            await until(lambda seen=seen: len(versions) > seen + 4)
            body = (await client.post("/v1/admin/reload", headers=KEY)).json()
            assert body == {
                "index_version": f"v{number}",
                "previous_index_version": f"v{number - 1}",
                "n_passages": 4,
            }
        await until(lambda: "v3" in versions)
        is_over = True
        await asyncio.gather(*clients)
        metrics = (await client.get("/metrics")).text
        await until(lambda: opener.opened[1].n_closed == 1)
    assert set(versions) == {"v1", "v2", "v3"}
    assert 'rag_index_info{index="openqa-rag",version="v3"} 1.0' in metrics
    assert 'version="v1"' not in metrics
    assert [service.n_closed for service in opener.opened] == [1, 1, 1]


async def test_a_replaced_index_leaves_memory():
    opener = Opener()
    app = application(opener)
    async with running(app=app) as client:
        old = opener.opened.pop()
        old.itself = old  # as networks and their parts refer to one another
        left = weakref.ref(old)
        del old
        gc.disable()
        try:
            await client.post("/v1/admin/reload", headers=KEY)
            assert left() is None
        finally:
            gc.enable()


async def test_a_failed_reload_keeps_the_old_index():
    opener = Opener()
    app = application(opener)
    async with running(app=app) as client:
        opener.fails = True
        response = await client.post("/v1/admin/reload", headers=KEY)
        assert response.status_code == 500
        assert response.json()["error"]["code"] == "reload_failed"
        assert "manifest" not in response.text
        assert (await client.get("/readyz")).json()["index_version"] == "v1"
        assert opener.opened[0].n_closed == 0


async def test_one_reload_at_a_time():
    opener = Opener()
    app = application(opener)
    async with running(app=app) as client:
        opener.gate.clear()
        first = asyncio.create_task(client.post("/v1/admin/reload", headers=KEY))
        await until(app.state.engine._reload_locks["openqa-rag"].locked)
        second = await client.post("/v1/admin/reload", headers=KEY)
        assert (second.status_code, second.json()["error"]["code"]) == (409, "reload_in_progress")
        opener.gate.set()
        assert (await first).json()["index_version"] == "v2"
