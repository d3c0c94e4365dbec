"""Messages between the processes of one server, through sockets: that an index changed, and their metrics."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from rag.core.log import get_logger

log = get_logger(__name__)
Handler = Callable[[str], Awaitable[bytes]]
_METRICS_WAIT_S, _CHANGE_WAIT_S = 1.0, 300.0
_DONE = b"done"


class Siblings:
    """The other workers of a server.

    Args:
        place: path of this worker's socket; the others' lie beside it.
    """

    def __init__(self, place: Path) -> None:
        self.place = place

    async def listen(self, handlers: Mapping[str, Handler]) -> asyncio.Server:
        """Answer requests of other processes: lines with a command, which has a handler, and an argument."""

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            command, _, argument = (await reader.readline()).decode().strip().partition(" ")
            try:
                reply = await handlers[command](argument)
            except Exception as error:
                log.error("%s %s: %s", command, argument, error)
                reply = b""
            with suppress(ConnectionError):
                writer.write(reply)
                await writer.drain()
            writer.close()

        self.place.unlink(missing_ok=True)  # left by a worker that died
        return await asyncio.start_unix_server(answer, self.place)

    async def tell(self, command: str, argument: str) -> int:
        """Have all others do something; returns how many of them failed to.

        A worker that is just starting, which will do it anyway, does not listen yet.
        """
        others = [place for place in self.place.parent.glob("*.sock") if place != self.place]
        replies = await asyncio.gather(
            *(_ask(place, f"{command} {argument}", _CHANGE_WAIT_S) for place in others)
        )
        return sum(reply is not None and reply != _DONE for reply in replies)

    async def metrics(self) -> bytes:
        """The metrics of all workers that answer in time, each sample with the label `worker`."""
        places = sorted(self.place.parent.glob("*.sock"))
        texts = await asyncio.gather(*(_ask(place, "metrics", _METRICS_WAIT_S) for place in places))
        families: dict[str, Metric] = {}
        for place, text in zip(places, texts, strict=True):
            for family in text_string_to_metric_families((text or b"").decode()):
                merged = families.setdefault(
                    family.name, Metric(family.name, family.documentation, family.type)
                )
                merged.samples += [
                    sample._replace(labels={**sample.labels, "worker": place.stem})
                    for sample in family.samples
                ]
        registry = CollectorRegistry()
        registry.register(_Collected(list(families.values())))
        return generate_latest(registry)


def after(change: Callable[[str], Awaitable[object]]) -> Handler:
    """A handler that makes a change and then confirms it."""

    async def handle(argument: str) -> bytes:
        await change(argument)
        return _DONE

    return handle


class _Collected:
    def __init__(self, families: list[Metric]) -> None:
        self.families = families

    def collect(self) -> list[Metric]:
        return self.families


async def _ask(place: Path, line: str, wait_s: float) -> bytes | None:
    """The reply of the worker at `place`, empty if it fails to; None if nobody listens there."""
    try:
        reader, writer = await asyncio.open_unix_connection(place)
    except OSError:
        return None
    try:
        async with asyncio.timeout(wait_s):
            writer.write(f"{line}\n".encode())
            await writer.drain()
            return await reader.read()
    except (OSError, TimeoutError):
        return b""
    finally:
        writer.close()
