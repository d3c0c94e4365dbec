"""Convert a file into a document: recognise its format by content and name, then convert it within
limits.

`python -m rag.data.documents.convert` converts one document after another: requests and replies are
lines of JSON. Such a process ends with the one that started it, whose end closes the pipe of
requests, and enforces the limits of a conversion itself: a document that takes too long ends it.
"""

import json
import os
import queue
import resource
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import PurePath
from typing import Any

from rag.core.errors import MissingDependencyError, RagError
from rag.core.types import Metadata
from rag.data.documents import (
    archives,
    front_matter,
    html,
    mail,
    office,
    pandoc,
    pdf,
    plain,
    rst,
    tables,
)
from rag.data.documents.blocks import MAX_CHARS, Content, Unreadable, assemble
from rag.data.documents.kinds import kind_of
from rag.data.formats import kind_by_name, open_binary, strip_compression
from rag.data.metadata import GROUPS_FIELD, metadata_of_fields
from rag.data.records import Document

_READ_BYTES = 1 << 20
_MAX_FILE_BYTES = 500_000_000
# Of converters that walk a tree: pages of a few thousand nested elements exist.
_MAX_FRAMES = 20_000

_READ_BYTES_OF: dict[str, Callable[[bytes], Content]] = {
    "pdf": pdf.pdf,
    "xlsx": tables.workbook,
    "pptx": office.slides,
    "docx": office.word,
    "epub": archives.book,
    "odt": archives.open_document,
    "rtf": partial(pandoc.read, kind="rtf"),
    "mail": lambda data: mail.message(data, _read_attachment),
    "mbox": lambda data: mail.mailbox(data, _read_attachment),
}
_READ_TEXT_OF: dict[str, Callable[[str], Content]] = {
    "html": html.page,
    "markdown": plain.markdown,
    "rst": rst.rst,
    "text": plain.text,
    "csv": tables.csv_table,
    "code": plain.code,
    "latex": pandoc.latex,
}


def convert(data: bytes, name: str) -> Document:
    r"""Convert the bytes of a document; the result has neither id nor path.

    Raises:
        Unreadable: it cannot be read; states why, and what to do.

    Example:
        >>> converted = convert(b"# Guide\n\n## Linux\n\nUse *apt*.\n", "guide.md")
        >>> converted.title, [(block.kind, converted.text_of(block)) for block in converted.blocks][1:]
        ('Guide', [('heading', 'Linux'), ('paragraph', 'Use apt.')])
    """
    content = _read(data, name)
    if sum(len(piece.text) for piece in content.pieces) > MAX_CHARS:
        raise Unreadable("too long", "split it", f"more than {MAX_CHARS:,} characters")
    metadata: Metadata = ()
    notes = list(content.notes)
    for field, value in content.fields.items():
        try:
            metadata += metadata_of_fields({field: value})
        except ValueError as error:
            if field == GROUPS_FIELD:
                raise Unreadable(*front_matter.UNREADABLE_RIGHTS, str(error)) from error
            notes.append(f"front matter: {error}")
    document = assemble(content.title, content.pieces, notes, metadata)
    return replace(document, scanned=tuple(content.scanned))


def _read(data: bytes, name: str) -> Content:
    try:
        return _read_as(kind_of(data, name), data)
    except RagError:
        raise
    except MemoryError as error:
        raise Unreadable("too large", "split it", "it takes more memory than it may") from error
    except RecursionError as error:
        raise Unreadable("nested too deeply", "save it as plain text") from error
    # Libraries raise whatever they like over damaged files.
    except Exception as error:
        raise Unreadable(
            "broken file",
            "open and save it again, or get a whole copy",
            "its content is damaged, or not what its name says",
        ) from error


def _read_as(kind: str, data: bytes) -> Content:
    if kind in _READ_BYTES_OF:
        return _READ_BYTES_OF[kind](data)
    source, notes = plain.decode(data)
    metadata, body = front_matter.divide(source, kind)
    if kind in _READ_TEXT_OF:
        content = _READ_TEXT_OF[kind](body)
    else:
        content = pandoc.read(body.encode(), kind)
    content = front_matter.add_fields(content, metadata)
    return replace(content, notes=[*notes, *content.notes])


def _read_attachment(data: bytes, name: str) -> Content:
    if kind_by_name(name) is None and b"%PDF-" not in data[:1024]:
        raise Unreadable("no document", "save it beside the message")
    return _read(data, name)


def main() -> None:
    """Serve until standard input ends. What libraries print goes to standard error."""
    sys.setrecursionlimit(_MAX_FRAMES)
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(requests,), daemon=True).start()
    while True:
        request = json.loads(requests.get())
        # A lower limit of the system stays, and macOS refuses any.
        with suppress(ValueError, OSError):
            _, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (request["memory_mib"] << 20, hard_limit))
        signal.setitimer(signal.ITIMER_REAL, request["timeout_s"])
        reply = _reply(request["path"])
        signal.setitimer(signal.ITIMER_REAL, 0)
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def _receive(requests: "queue.SimpleQueue[str]") -> None:
    for line in sys.stdin:
        requests.put(line)
    # Whoever asked is gone, and with it the need for what is being converted.
    os._exit(0)


def _reply(path: str) -> dict[str, Any]:
    try:
        return asdict(convert(_load(path), PurePath(strip_compression(path)).name))
    except MissingDependencyError as error:
        return {"missing": error.message, "hint": error.hint}
    except Unreadable as error:
        return _refusal(error.reason, error.detail, error.remedy)
    # A damaged compressed file.
    except RagError as error:
        return _refusal("cannot be read", error.message, error.hint)
    except OSError as error:
        return _refusal("cannot be read", error.strerror or "", "check its permissions")


def _refusal(reason: str, detail: str, remedy: str) -> dict[str, Any]:
    return {"reason": reason, "detail": "; ".join(filter(None, [detail, remedy]))}


def _load(path: str) -> bytes:
    is_compressed = strip_compression(path) != path
    with open_binary(path) if is_compressed else open(path, "rb") as stream:
        data = bytearray()
        # To read all at once would first reserve the memory for the limit.
        while part := stream.read(_READ_BYTES):
            data += part
            if len(data) > _MAX_FILE_BYTES:
                raise Unreadable("too large", "split it", f"more than {_MAX_FILE_BYTES:,} bytes")
    return bytes(data)


if __name__ == "__main__":
    main()
