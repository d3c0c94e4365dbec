"""Uploads are converted apart: limits of the whole server, and nobody else waits for them."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from serve import conversions
from serve.app import create_app
from serve.conversions import Conversions
from serve.errors import ApiError
from tests.api.fakes import ADMIN, KEY, FakePipeline, listening, running, settings, until
from tests.support.messages import refusal

pytestmark = pytest.mark.anyio
STUCK = (sys.executable, "-c", "import time; time.sleep(600)")
FILES = [("a.md", b"# Title\n\nWords.")]


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """Conversions that do not end."""
    monkeypatch.setattr("rag.data.documents.read.CONVERTER", STUCK)


async def start(*calls: Any) -> list[asyncio.Task[Any]]:
    tasks = [asyncio.create_task(call) for call in calls]
    await asyncio.sleep(0.3)
    return tasks


async def end(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_file_that_ends_its_converter_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dies = (
        "import sys, os, rag.data.documents.convert as w; run = w.convert; "
        "w.convert = lambda data, *rest: os._exit(9) if b'bomb' in data else run(data, *rest); w.main()"
    )
    monkeypatch.setattr("rag.data.documents.read.CONVERTER", (sys.executable, "-c", dies))
    service = Conversions(tmp_path, 4)
    documents, remarks = await service.convert("1", [("x.md", b"bomb"), *FILES])
    assert dict(service.uploads) == {}
    assert ([each.id for each in documents], len(remarks["unreadable"])) == (["a.md"], 1)


@pytest.mark.usefixtures("stuck")
async def test_all_workers_share_the_slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversions, "_SLOT_WAIT_S", 0.2)
    workers = [Conversions(tmp_path, 1) for _ in range(2)]
    (first,) = await start(workers[0].convert("1", FILES))
    with refusal(ApiError) as refused:
        await workers[1].convert("1", FILES)
    assert (refused.value.status, refused.value.headers["Retry-After"]) == (503, "10")
    await end(first)
    monkeypatch.undo()
    assert await workers[1].convert("1", FILES)


@pytest.mark.usefixtures("stuck")
async def test_a_key_that_sends_many_leaves_room_for_others(tmp_path: Path) -> None:
    queue = Conversions(tmp_path, 1)
    tasks = await start(*(queue.convert("1", FILES) for _ in range(4)))
    with refusal(ApiError):
        await queue.convert("1", FILES)
    (other,) = await start(queue.convert("2", FILES))
    assert not other.done()
    await end(*tasks, other)
    assert {path.name for path in tmp_path.iterdir()} == {"slot-0"}


@pytest.mark.usefixtures("stuck")
async def test_reads_do_not_wait_for_conversions(tmp_path: Path) -> None:
    async with running(api_keys=ADMIN, index=str(tmp_path)) as client:
        sending = [client.post("/v1/documents", files={"f": FILES[0]}) for _ in range(6)]
        uploads = await start(*sending)
        reply = await client.get("/v1/passages/danube-1")
        assert reply.status_code == 200
        await until(lambda: sum(upload.done() for upload in uploads) == 2)
        refused = [upload.result() for upload in uploads if upload.done()]
        await end(*uploads)
    assert {(reply.status_code, reply.headers["retry-after"]) for reply in refused} == {(503, "10")}


@pytest.mark.usefixtures("stuck")
async def test_a_client_that_leaves_ends_its_conversion(tmp_path: Path) -> None:
    app = create_app(settings(api_keys=ADMIN, index=str(tmp_path)), lambda _: FakePipeline())
    with listening(app) as url:
        timeout = httpx.Timeout(20, read=1.0)
        async with httpx.AsyncClient(base_url=url, headers=KEY, timeout=timeout) as client:
            with pytest.raises(httpx.ReadTimeout):
                await client.post("/v1/documents", files={"f": FILES[0]})
        await until(lambda: app.state.engine.conversions.uploads.total() == 0, 10)
