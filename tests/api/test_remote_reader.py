"""A slow reader behind an address: searching goes on, and several questions are read at once."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount

from serve.app import create_app
from serve.shelves import open_pipeline
from tests.api.fakes import (
    FakePipeline,
    ask,
    found,
    listening,
    posted,
    refused,
    running,
    settings,
    until,
)
from tests.chat_server import streamed
from tests.support.files import index_files

pytestmark = pytest.mark.anyio


class Elsewhere(FakePipeline):
    """Searches at once; its reader waits for a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.reader.max_concurrent = 3
        self.gate_of_reader = threading.Event()
        self.reading = 0

    def ask_many(self, questions: Any, **options: Any) -> Any:
        self.reading += 1
        assert self.gate_of_reader.wait(30)
        return super().ask_many(questions, **options)


@pytest.mark.parametrize("status", [None, 500])
async def test_an_outage_of_the_model_stops_neither_the_start_nor_the_search(
    tmp_path: Path, status: int | None
) -> None:
    async def failing(scope: Any, receive: Any, send: Any) -> None:
        await PlainTextResponse("down", status or 500)(scope, receive, send)

    text = "# Danube\n\nThe Danube rises in the Black Forest.\n"
    _, index = index_files(tmp_path, {"a.md": text})
    with listening(Starlette(routes=[Mount("/", failing)])) as url:
        address = "http://127.0.0.1:9" if status is None else url  # where nobody listens
        reader = f"openai:{address}/v1#model,retries=0"
        given = settings(index=index, reader=reader)
        async with running(app=create_app(given, open_pipeline)) as client:
            assert (await client.get("/readyz")).status_code == 200
            question = "Where does the Danube rise?"
            assert len(await found(client, question)) == 1
            asked = await ask(client, question)
            assert refused(asked) == (502, "reader_failed")


async def test_questions_wait_for_the_reader_and_searches_do_not():
    service = Elsewhere()
    app = create_app(settings(queue_size=32), lambda _: service)
    async with running(app=app) as client:
        replies = [
            asyncio.create_task(posted(client, "/v1/ask", question=f"q{n}")) for n in range(8)
        ]
        await until(lambda: service.reading == 3)
        await until(lambda: b"depth 5.0" in app.state.engine.metrics.render())
        assert await asyncio.wait_for(found(client, "a"), 10)
        service.gate_of_reader.set()
        assert len(await asyncio.gather(*replies)) == 8


class Endless:
    """A model that begins a reply, if it is to be streamed, and never ends it."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.left = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = json.loads(await Request(scope, receive).body())
        if body.get("stream"):
            headers = [(b"content-type", b"text/event-stream")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            _, piece = streamed("It rises in ", is_whole=False)
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        self.asked.set()
        while (await receive())["type"] != "http.disconnect":
            pass
        self.left.set()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/ask", {"question": "Where?"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Where?"}]}),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "Where?"}], "stream": True},
        ),
    ],
)
async def test_a_model_stops_when_its_client_leaves(
    tmp_path: Path, path: str, body: dict[str, Any]
) -> None:
    text = "# Danube\n\nWhere the Danube rises is the Black Forest.\n"
    _, index = index_files(tmp_path, {"a.md": text})
    model = Endless()
    with listening(Starlette(routes=[Mount("/", model)])) as url:
        reader = f"openai:{url}/v1#model,parallel=1,style=cited"
        app = create_app(settings(index=index, reader=reader), open_pipeline)
        with listening(app) as address:
            # The only place for a question is free again for the second.
            for _ in range(2):
                async with httpx.AsyncClient(base_url=address, timeout=60) as client:
                    asking = asyncio.create_task(client.post(path, json=body))
                    await until(model.asked.is_set)
                    asking.cancel()
                    await asyncio.wait([asking])
                await until(model.left.is_set)
                model.asked.clear()
                model.left.clear()
