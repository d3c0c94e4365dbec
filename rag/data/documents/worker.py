"""A process that converts one document after another: requests and replies are lines of JSON.

It is started by `rag.data.documents.pool`, which kills it when a document takes too long.
"""

import json
import os
import sys
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any

from rag.core.errors import MissingDependencyError, RagError
from rag.data.documents.blocks import Converted, Unreadable
from rag.data.documents.convert import convert
from rag.data.documents.limits import Limits
from rag.data.files.streams import COMPRESSED_SUFFIXES, open_binary, strip_compression

_MAX_FRAMES = 20_000  # of converters that walk a tree: pages of a few thousand nested elements exist


def main() -> None:
    """Serve until standard input ends. What libraries print goes to standard error."""
    sys.setrecursionlimit(_MAX_FRAMES)
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        limits = Limits(**request["limits"])
        _limit_memory(limits.memory_mib)
        replies.write(json.dumps(_reply(request["path"], limits, request["encoding"])) + "\n")
        replies.flush()


def _limit_memory(mib: int) -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    with suppress(ValueError, OSError):  # a lower limit of the system stays; macOS refuses any
        resource.setrlimit(resource.RLIMIT_AS, (mib << 20, resource.getrlimit(resource.RLIMIT_AS)[1]))


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
    name = PurePath(strip_compression(path)).name
    return convert(data, name, limits, encoding)


if __name__ == "__main__":
    main()
