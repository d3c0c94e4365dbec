"""Limits on whole HTTP replies: a client's read timeout limits only the wait for each of their pieces."""

import time
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

MAX_REPLY_BYTES = 16 << 20
_ENDS = "rag_ends_s"


def reply_limits() -> Mapping[str, list[Callable[[Any], None]]]:
    """Event hooks of a client of httpx: the read timeout of a request then holds for its whole reply, which a
    server may send piece by piece, and the reply has at most 16 MiB.
    """
    return {"request": [_begin], "response": [_bound]}


def _begin(request: Any) -> None:
    request.extensions[_ENDS] = time.monotonic() + request.extensions["timeout"]["read"]


def _bound(response: Any) -> None:
    http = import_module(type(response).__module__.partition(".")[0])  # httpx, or the fork that openai takes
    stream, request = response.stream, response.request

    class Bounded(http.SyncByteStream):  # type: ignore[name-defined]
        def __iter__(self) -> Iterator[bytes]:
            size_bytes = 0
            for piece in stream:
                size_bytes += len(piece)
                if time.monotonic() > request.extensions[_ENDS]:
                    raise http.ReadTimeout("the reply takes too long", request=request)
                if size_bytes > MAX_REPLY_BYTES:
                    raise http.ReadError(f"the reply exceeds {MAX_REPLY_BYTES:,} bytes", request=request)
                yield piece

        def close(self) -> None:
            stream.close()

    response.stream = Bounded()
