"""A slow reader behind an address: searching goes on, and several questions are read at once."""

import asyncio
import threading
from typing import Any

import pytest

from serve.app import create_app
from tests.api.fakes import FakePipeline, running, settings, until

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


async def test_questions_wait_for_the_reader_and_searches_do_not():
    service = Elsewhere()
    app = create_app(settings(queue_size=32), lambda _: service)
    async with running(app=app) as client:
        replies = [
            asyncio.create_task(client.post("/v1/ask", json={"question": f"q{n}"}))
            for n in range(8)
        ]
        await until(
            lambda: (
                service.reading == 3 and app.state.engine.metrics.render().count(b"depth 5.0") == 1
            )
        )
        search = client.post("/v1/retrieve", json={"question": "a"})
        assert (await asyncio.wait_for(search, 10)).status_code == 200
        service.gate_of_reader.set()
        assert [reply.status_code for reply in await asyncio.gather(*replies)] == [200] * 8
