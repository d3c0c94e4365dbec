"""A process that converts one document after another: requests and replies are lines of JSON.

It is started by `rag.data.documents.pool`, which kills it when a document takes too long.
"""

import hashlib
import json
import os
import sys
import zlib
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path, PurePath
from typing import Any

from rag.core.errors import MissingDependencyError, RagError
from rag.core.files import atomic_write_bytes
from rag.core.optional import DISTRIBUTION
from rag.data.documents.blocks import Converted, Unreadable
from rag.data.documents.convert import VERSION, convert
from rag.data.documents.limits import Limits
from rag.data.files.streams import COMPRESSED_SUFFIXES, open_binary, strip_compression

MAX_CACHE_BYTES = 2 << 30


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
        cache = Path(request["cache"]) if request["cache"] else None
        replies.write(json.dumps(_reply(request["path"], limits, request["encoding"], cache)) + "\n")
        replies.flush()


def _limit_memory(mib: int) -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    with suppress(ValueError, OSError):  # a lower limit of the system stays; macOS refuses any
        resource.setrlimit(resource.RLIMIT_AS, (mib << 20, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _reply(path: str, limits: Limits, encoding: str, cache: Path | None) -> dict[str, Any]:
    try:
        return convert_file(path, limits, encoding, cache).to_json()
    except Unreadable as error:
        return {"reason": error.reason, "remedy": error.remedy, "detail": error.detail}
    except MissingDependencyError as error:
        return {"missing": error.message, "hint": error.hint}
    except RagError as error:  # a damaged compressed file
        return {"reason": "cannot be read", "remedy": error.hint, "detail": error.message}
    except OSError as error:
        return {"reason": "cannot be read", "remedy": "check its permissions", "detail": error.strerror or ""}


def cache_folder() -> Path:
    """The folder for conversions: in `$XDG_CACHE_HOME`, or `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / DISTRIBUTION / "documents"


def convert_file(path: str, limits: Limits, encoding: str = "utf-8", cache: Path | None = None) -> Converted:
    """Convert a file, or return an earlier conversion of the same content.

    Args:
        cache: folder of earlier conversions, which gets this one.

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
    if cache is None:
        return convert(data, name, limits, encoding)
    key = json.dumps([VERSION, PurePath(name).suffix.lower(), encoding, asdict(limits)])
    digest = hashlib.sha256(key.encode() + data).hexdigest()
    place = cache / digest[:2] / digest[2:]
    try:
        known = Converted.from_json(json.loads(zlib.decompress(place.read_bytes())))
        with suppress(OSError):
            os.utime(place)  # what was used last goes last
        return known
    except (OSError, ValueError, zlib.error):  # not there, or damaged
        converted = convert(data, name, limits, encoding)
    with suppress(RagError, OSError):  # a home that may not be written, or a full disk, costs no document
        atomic_write_bytes(place, zlib.compress(json.dumps(converted.to_json()).encode(), 1))
        _trim(place.parent, place)
    return converted


def _trim(folder: Path, newest: Path) -> None:
    """Delete what was not used for longest where one of the cache's 256 folders has more than its share."""
    found = [(entry.stat(), entry.path) for entry in os.scandir(folder)]
    entries = sorted((status.st_mtime, status.st_size, path) for status, path in found)
    total = sum(size for _, size, _ in entries)
    for _, size, path in entries:
        if total > MAX_CACHE_BYTES // 256 and path != str(newest):
            total -= size
            os.unlink(path)


if __name__ == "__main__":
    main()
