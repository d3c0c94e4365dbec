"""Connections that send too little, too late, or too many."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress

import httpx
import pytest

from serve import connections
from tests.api.fakes import ADMIN, serving

pytestmark = pytest.mark.anyio


@pytest.fixture
def address() -> Iterator[tuple[str, int]]:
    with serving(api_keys=ADMIN) as url:
        host, port = url.removeprefix("http://").split(":")
        yield host, int(port)


@pytest.mark.parametrize(
    "begun",
    [b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\n", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET"],
)
async def test_headers_that_do_not_arrive_end_the_connection(
    address, begun: bytes, monkeypatch
) -> None:
    monkeypatch.setattr(connections, "_HEADERS_S", 0.3)
    reader, writer = await asyncio.open_connection(*address)
    writer.write(begun)
    async with asyncio.timeout(10):
        assert (b"200 OK" in await reader.read()) == begun.endswith(b"GET")
    writer.close()


async def test_too_many_connections_cost_the_one_that_is_idle_for_longest(
    address, monkeypatch
) -> None:
    monkeypatch.setattr(connections, "most_connections", lambda: 4)
    open_ones = [await asyncio.open_connection(*address) for _ in range(8)]
    async with httpx.AsyncClient(base_url=f"http://{address[0]}:{address[1]}") as client:
        assert (await client.get("/healthz")).status_code == 200
    async with asyncio.timeout(10):
        with suppress(ConnectionError):
            assert await open_ones[0][0].read(1) == b""
    assert not open_ones[-1][0].at_eof()
    for _, writer in open_ones:
        writer.close()


async def test_a_malformed_chunk_after_the_answer_is_no_failure(address, caplog) -> None:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"POST /v1/ask HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    assert b"401" in await reader.readline()
    writer.write(b"nonsense\r\n")
    async with asyncio.timeout(10):
        await reader.read()
    writer.close()
    for record in caplog.records:
        assert not record.exc_info
        assert record.levelno < logging.ERROR


def test_repeated_lines_are_logged_once_per_minute() -> None:
    quiet = connections.OncePerMinute()
    lines = [("socket.accept() …", 100.0), ("another", 110.0), ("socket.accept() …", 130.0)]
    lines.append(("socket.accept() …", 161.0))
    records = [logging.makeLogRecord({"msg": text, "created": now}) for text, now in lines]
    assert [quiet.filter(record) for record in records] == [True, True, False, True]
