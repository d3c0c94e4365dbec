"""Swapping an index for another under traffic."""

import asyncio
import gc
import weakref

import pytest

from rag.core.errors import ArtifactError
from serve.app import create_app
from serve.settings import ServeSettings
from tests.api.fakes import FakePipeline, running, settings, until

pytestmark = pytest.mark.anyio


class Opener:
    """Opens v1, v2, …; can be told to fail."""

    def __init__(self) -> None:
        self.opened: list[FakePipeline] = []
        self.fails = False

    def __call__(self, _: ServeSettings) -> FakePipeline:
        if self.fails:
            raise ArtifactError("index/manifest.json is damaged")
        self.opened.append(FakePipeline(f"v{len(self.opened) + 1}", delay_s=0.002))
        return self.opened[-1]


async def test_a_swap_under_load_loses_nothing_and_uses_no_closed_index():
    opener = Opener()
    app = create_app(settings(), open_pipeline=opener)
    async with running(app=app) as client:
        versions: list[str] = []
        is_over = False

        async def ask_on() -> None:
            while not is_over:
                response = await client.post("/v1/ask", json={"question": "a"})
                assert response.status_code == 200, response.text
                versions.append(response.json()["index_version"])

        clients = [asyncio.create_task(ask_on()) for _ in range(4)]
        for number in (2, 3):
            seen = len(versions)
            await until(lambda seen=seen: len(versions) > seen + 4)
            await app.state.engine.replace(anew=True)
            assert (await client.get("/readyz")).json()["index_version"] == f"v{number}"
        await until(lambda: "v3" in versions)
        is_over = True
        await asyncio.gather(*clients)
        metrics = (await client.get("/metrics")).text
        await until(lambda: opener.opened[1].n_closed == 1)
    assert set(versions) == {"v1", "v2", "v3"}
    assert 'rag_index_info{version="v3"} 1.0' in metrics
    assert 'version="v1"' not in metrics
    assert [service.n_closed for service in opener.opened] == [1, 1, 1]


async def test_a_replaced_index_leaves_memory():
    opener = Opener()
    app = create_app(settings(), open_pipeline=opener)
    async with running(app=app):
        old = opener.opened.pop()
        old.itself = old  # as networks and their parts refer to one another
        left = weakref.ref(old)
        del old
        gc.disable()
        try:
            await app.state.engine.replace(anew=True)
            assert left() is None
        finally:
            gc.enable()


async def test_an_index_that_cannot_be_opened_again_stays_in_use(caplog):
    opener = Opener()
    app = create_app(settings(), open_pipeline=opener)
    async with running(app=app) as client:
        opener.fails = True
        await app.state.engine.replace(anew=True)
        assert (await client.get("/readyz")).json()["index_version"] == "v1"
        assert opener.opened[0].n_closed == 0
    assert "the one in use stays" in caplog.text
