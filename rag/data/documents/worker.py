"""A process that converts one document after another: requests and replies are lines of JSON.

It ends with the process that started it, whose end closes the pipe of requests, and enforces the limits of a
conversion itself: a document that takes too long ends it.
"""

import json
import os
import queue
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any

from rag.core.errors import MissingDependencyError, RagError
from rag.data.documents.blocks import Converted, Unreadable
from rag.data.documents.convert import convert
from rag.data.documents.limits import Limits
from rag.data.files.rows import COMPRESSED_SUFFIXES, open_binary, strip_compression

_MAX_FRAMES = 20_000  # of converters that walk a tree: pages of a few thousand nested elements exist


def main() -> None:
    """Serve until standard input ends. What libraries print goes to standard error."""
    sys.setrecursionlimit(_MAX_FRAMES)
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(requests,), daemon=True).start()
    while True:
        request = json.loads(requests.get())
        limits = Limits(**request["limits"])
        limit_process(limits)
        reply = _reply(request["path"], limits, request["encoding"])
        _set_timer(0)
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def _receive(requests: "queue.SimpleQueue[str]") -> None:
    for line in sys.stdin:
        requests.put(line)
    os._exit(0)  # whoever asked is gone, and with it the need for what is being converted


def limit_process(limits: Limits) -> None:
    """Limit this process: its memory, and the time until a signal ends it."""
    _set_timer(limits.timeout_s + 1)  # a little more than the parent allows, which names the file
    try:
        import resource
    except ImportError:  # Windows
        return
    with suppress(ValueError, OSError):  # a lower limit of the system stays; macOS refuses any
        size = limits.memory_mib << 20
        resource.setrlimit(resource.RLIMIT_AS, (size, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _set_timer(seconds: float) -> None:
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _reply(path: str, limits: Limits, encoding: str) -> dict[str, Any]:
    try:
        return convert_file(path, limits, encoding).to_json()
    except Unreadable as error:
        return {"reason": error.reason, "remedy": error.remedy, "detail": error.detail}
    except MissingDependencyError as error:
        return {"missing": error.message, "hint": error.hint}
    except RagError as error:  # a damaged compressed file
        return {"reason": "cannot be read", "remedy": error.hint, "detail": error.message}
    except OSError as error:
        return {"reason": "cannot be read", "remedy": "check its permissions", "detail": error.strerror or ""}


def convert_file(path: str, limits: Limits, encoding: str = "utf-8") -> Converted:
    """Convert a file.

    Raises:
        Unreadable: the file cannot be read as a document.
    """
    if os.path.getsize(path) > limits.max_bytes:
        raise Unreadable("too large", "split it", f"{os.path.getsize(path):,} bytes")
    if path.lower().endswith(COMPRESSED_SUFFIXES):
        with open_binary(path) as stream:
            data = stream.read(limits.max_bytes + 1)
        if len(data) > limits.max_bytes:
            raise Unreadable("unpacks to too much", "split it", f"more than {limits.max_bytes:,} bytes")
    else:
        data = Path(path).read_bytes()
    return convert(data, PurePath(strip_compression(path)).name, limits, encoding)


if __name__ == "__main__":
    main()
