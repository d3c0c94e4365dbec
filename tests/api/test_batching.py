"""The micro-batcher by itself and behind the API."""

import asyncio
import threading
import time
from collections.abc import Hashable

import pytest

from serve.app import create_app
from serve.batching import ItemFailed, MicroBatcher
from serve.errors import ApiError
from serve.metrics import ServerMetrics
from tests.api.fakes import (
    FakePipeline,
    ask,
    engine_of,
    listening,
    refused,
    running,
    settings,
    until,
)

pytestmark = pytest.mark.anyio


class Panic(BaseException):
    """Like a panic of a library in Rust, which is no Exception."""


class Worker:
    """Doubles numbers; keeps what it saw."""

    def __init__(self, delay_s: float = 0.0, gate: threading.Event | None = None) -> None:
        self.delay_s = delay_s
        self.gate = gate
        self.batches: list[tuple[Hashable, list[int]]] = []

    def __call__(self, key: Hashable, items: list[int]) -> list[int]:
        self.batches.append((key, list(items)))
        if self.gate is not None:
            assert self.gate.wait(10)
        time.sleep(self.delay_s)
        if 13 in items:
            raise ValueError("13")
        if 99 in items:
            raise StopIteration
        if 66 in items:
            raise Panic
        return [2 * item for item in items]


def batcher(worker: Worker, *, wait_s: float = 0.0, queue: int = 100) -> MicroBatcher:
    made = MicroBatcher(
        worker, max_size=8, max_wait_s=wait_s, queue_size=queue, metrics=ServerMetrics()
    )
    made.start()
    return made


async def values(made: MicroBatcher, *items: int, key: Hashable = "k") -> list[int]:
    return [value for value, _ in await made.submit(key, items)]


async def test_a_lone_item_does_not_wait():
    made = batcher(Worker(), wait_s=5.0)
    await asyncio.sleep(0.01)
    for number in range(3):
        started = time.monotonic()
        assert await values(made, number) == [2 * number]
        assert time.monotonic() - started < 4.0
    await made.close(1)


async def test_askers_that_come_back_at_different_times_are_gathered_again():
    worker = Worker(delay_s=0.02)
    made = batcher(worker, wait_s=1.0)

    async def loop(number: int) -> None:
        for _ in range(5):
            await values(made, number)
            await asyncio.sleep(0.002 * number)

    await asyncio.gather(*(loop(number) for number in range(6)))
    sizes = [len(items) for _, items in worker.batches]
    assert sum(sizes) == 30
    assert sizes[1:-1].count(6) >= 3
    assert len(sizes) <= 9
    await made.close(1)


async def test_only_equal_keys_share_a_batch_and_the_oldest_goes_first():
    gate = threading.Event()
    worker = Worker(gate=gate)
    made = batcher(worker)
    tasks = [asyncio.create_task(values(made, 0))]
    await until(lambda: worker.batches)
    for number, key in enumerate("abab", start=1):
        tasks.append(asyncio.create_task(values(made, number, key=key)))
    await until(lambda: len(made.queue) == 4)
    gate.set()
    await asyncio.gather(*tasks)
    assert worker.batches[1:] == [("a", [1, 3]), ("b", [2, 4])]
    await made.close(1)


async def test_a_bad_item_fails_alone():
    gate = threading.Event()
    worker = Worker(gate=gate)
    made = batcher(worker)
    tasks = [asyncio.create_task(values(made, number)) for number in (0, 1, 13, 99, 66, 2)]
    await until(lambda: worker.batches)
    gate.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert results[:2] == [[0], [2]]
    assert isinstance(results[2].__cause__, ValueError)
    assert isinstance(results[3].__cause__, StopIteration)
    assert isinstance(results[4].__cause__, Panic)
    assert results[5] == [4]
    with pytest.raises(ItemFailed) as failed:
        await values(made, 1, 13)
    assert failed.value.number == 1
    assert await values(made, 5) == [10]
    await made.close(1)


async def test_a_lone_item_that_ends_its_thread_leaves_the_next_one_alone():
    made = batcher(Worker())
    with pytest.raises(ItemFailed):
        await values(made, 66)
    assert await asyncio.wait_for(values(made, 5), 10) == [10]
    assert await made.close(1)


async def test_all_items_fail_at_once_if_dispatching_fails(monkeypatch):
    gate = threading.Event()
    worker = Worker(gate=gate)
    made = batcher(worker)
    running = asyncio.create_task(values(made, 0))
    await until(lambda: worker.batches)
    waiting = asyncio.create_task(values(made, 1))
    await until(lambda: len(made.queue) == 1)
    monkeypatch.setattr(made, "_take", lambda: 1 / 0)
    gate.set()
    assert await asyncio.wait_for(running, 10) == [0]
    for answer in (waiting, values(made, 2)):
        with pytest.raises(ApiError, match="shutting down"):
            await asyncio.wait_for(answer, 10)
    assert made.has_failed
    assert not made.queue
    assert not await made.close(1)


async def test_cancelled_items_leave_the_queue_and_never_run():
    gate = threading.Event()
    worker = Worker(gate=gate)
    made = batcher(worker, queue=4)
    first = asyncio.create_task(values(made, 0))
    await until(lambda: worker.batches)
    leaving = asyncio.create_task(values(made, 1, 2, 3))
    staying = asyncio.create_task(values(made, 4))
    await until(lambda: len(made.queue) == 4)
    leaving.cancel()
    await until(lambda: len(made.queue) == 1)
    gate.set()
    assert await first == [0]
    assert await staying == [8]
    assert worker.batches == [("k", [0]), ("k", [4])]
    await made.close(1)


# --- behind the API
# ---------------------------------------------------------------------------------------


async def test_a_full_queue_answers_503_with_retry_after():
    gate = threading.Event()
    service = FakePipeline(gate=gate)
    async with running(service, queue_size=2) as client:
        tasks = [asyncio.create_task(ask(client, "first"))]
        await until(service.started.is_set)
        tasks.append(asyncio.create_task(client.post("/v1/ask", json={"questions": ["a", "b"]})))
        await until(lambda: len(engine_of(client).batcher.queue) == 2)
        reply = await ask(client, "one too many")
        assert refused(reply) == (503, "overloaded")
        assert 1 <= int(reply.headers["retry-after"]) <= 60
        assert 'rag_rejected_total{reason="overloaded"} 1.0' in (await client.get("/metrics")).text
        gate.set()
        assert [response.status_code for response in await asyncio.gather(*tasks)] == [200, 200]
        assert (await ask(client)).status_code == 200


async def test_a_server_that_can_run_nothing_any_more_is_not_ready(monkeypatch):
    async with running(FakePipeline()) as client:
        engine = client._transport.app.state.engine
        monkeypatch.setattr(engine.batcher, "_take", lambda: 1 / 0)
        assert (await ask(client)).status_code == 503
        assert refused(await client.get("/readyz")) == (503, "failed")
        assert (await client.get("/healthz")).status_code == 200


async def test_a_client_that_leaves_is_dropped_before_its_question_runs():
    gate = threading.Event()
    service = FakePipeline(gate=gate)
    app = create_app(settings(), lambda _: service)
    with listening(app) as url:
        host, port = url.removeprefix("http://").split(":")

        async def send(question: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection(host, int(port))
            body = f'{{"question": "{question}"}}'
            writer.write(
                f"POST /v1/ask HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
            )
            await writer.drain()
            return reader, writer

        reader, writer = await send("stays")
        await until(service.started.is_set)
        _, leaving = await send("leaves")
        await until(lambda: len(app.state.engine.batcher.queue) == 1)
        leaving.close()
        await until(lambda: len(app.state.engine.batcher.queue) == 0)
        gate.set()
        assert b"200 OK" in await reader.readline()
        writer.close()
    assert service.batches == [["stays"]]
    assert b'route="/v1/ask",status="499"} 1.0' in app.state.engine.metrics.render()
