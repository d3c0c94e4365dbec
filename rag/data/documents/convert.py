"""Convert a file into a document: recognise its format by content and name, then convert it within
limits.

`python -m rag.data.documents.convert` converts one document after another: requests and replies are
lines of JSON. Such a process ends with the one that started it, whose end closes the pipe of
requests, and enforces the limits of a conversion itself: a document that takes too long ends it.
"""

import json
import os
import queue
import re
import resource
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from itertools import chain, islice
from pathlib import PurePath
from typing import Any

from rag.core.errors import MissingDependencyError, RagError
from rag.core.types import Metadata
from rag.data.documents import archives, html, mail, office, pandoc, pdf, plain, rst, tables
from rag.data.documents.blocks import MAX_CHARS, Piece, Unreadable, assemble
from rag.data.documents.kinds import kind_of
from rag.data.formats import kind_by_name, open_binary, strip_compression
from rag.data.metadata import metadata_of_fields
from rag.data.records import Document

_PIECE = 1 << 20
_MAX_BYTES = 500_000_000  # of a file
_LATEX_HEADING = re.compile(r"^\\(?:part|chapter|(?:sub)*section)\*?\{(.*)\}\s*$", re.MULTILINE)
_MAX_FRAMES = (
    20_000  # of converters that walk a tree: pages of a few thousand nested elements exist
)

_FROM_BYTES: dict[str, Callable[[bytes], tuple[Any, ...]]] = {
    "pdf": pdf.pdf,
    "xlsx": tables.workbook,
    "pptx": office.slides,
    "docx": office.word,
    "epub": archives.book,
    "odt": archives.text,
    "rtf": partial(pandoc.read, kind="rtf"),  # 7-bit characters
    "mail": lambda data: mail.message(data, _attached),
    "mbox": lambda data: mail.mailbox(data, _attached),
}
_FROM_TEXT: dict[str, Callable[[str], tuple[Any, ...]]] = {
    "html": html.page,
    "markdown": plain.markdown,
    "rst": rst.rst,
    "text": plain.text,
    "csv": tables.csv_table,
    "code": plain.code,
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
    title, pieces, notes = _read(data, name)
    if sum(len(piece.text) for piece in pieces) > MAX_CHARS:
        raise Unreadable("too long", "split it", f"more than {MAX_CHARS:,} characters")
    metadata, unfit = _metadata(data, name)
    return replace(assemble(title, pieces, (*notes, *unfit)), metadata=metadata)


def _metadata(data: bytes, name: str) -> tuple[Metadata, list[str]]:
    """The front matter of a Markdown file as metadata, and notes about what filters cannot name."""
    metadata, notes = list[Any](), list[str]()
    if kind_of(data, name) == "markdown":
        fields = dict[str, Any]()
        with suppress(ValueError):  # which reading has noted
            fields = plain.stated_fields(plain.decode(data)[0])
        for field, value in fields.items():
            try:
                metadata += metadata_of_fields({field: value})
            except ValueError as error:
                notes.append(f"front matter: {error}")
    return tuple(metadata), notes


def _read(data: bytes, name: str) -> tuple[str, list[Piece], tuple[str, ...]]:
    try:
        return _read_as(kind_of(data, name), data)
    except RagError:
        raise
    except MemoryError as error:
        raise Unreadable("too large", "split it", "it takes more memory than it may") from error
    except RecursionError as error:
        raise Unreadable("nested too deeply", "save it as plain text") from error
    except Exception as error:  # whatever the libraries raise over damaged files
        raise Unreadable(
            "broken file",
            "open and save it again, or get a whole copy",
            "its content is damaged, or not what its name says",
        ) from error


def _read_as(kind: str, data: bytes) -> tuple[str, list[Piece], tuple[str, ...]]:
    if read := _FROM_BYTES.get(kind):
        title, pieces, *more = read(data)
        return title, pieces, tuple(*more)
    source, notes = plain.decode(data)
    if kind not in pandoc.FORMATS:
        title, pieces, *more = _FROM_TEXT[kind](source)
        return title, pieces, (*notes, *chain(*more))
    try:
        return *pandoc.read(source.encode(), kind), notes
    except Unreadable as error:
        if kind != "latex" or error.reason != "broken file":
            raise
        marked = _LATEX_HEADING.sub(lambda line: f"\n\n{line[1]}\n{'=' * len(line[1])}\n\n", source)
        return *plain.text(marked), (*notes, f"read as plain text ({error.detail})")


def _attached(data: bytes, name: str) -> tuple[list[Piece], tuple[str, ...]]:
    is_document = kind_by_name(name) is not None or b"%PDF-" in data[:1024]
    return _read(data, name)[1:] if is_document else ([], ())


def main() -> None:
    """Serve until standard input ends. What libraries print goes to standard error."""
    sys.setrecursionlimit(_MAX_FRAMES)
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(requests,), daemon=True).start()
    while True:
        request = json.loads(requests.get())
        with suppress(ValueError, OSError):  # a lower limit of the system stays; macOS refuses any
            most = resource.getrlimit(resource.RLIMIT_AS)[1]
            resource.setrlimit(resource.RLIMIT_AS, (request["memory_mib"] << 20, most))
        signal.setitimer(signal.ITIMER_REAL, request["timeout_s"])
        reply = _reply(request["path"])
        signal.setitimer(signal.ITIMER_REAL, 0)
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def _receive(requests: "queue.SimpleQueue[str]") -> None:
    for line in sys.stdin:
        requests.put(line)
    os._exit(0)  # whoever asked is gone, and with it the need for what is being converted


def _reply(path: str) -> dict[str, Any]:
    name = strip_compression(path)
    try:
        with open(path, "rb") if name == path else open_binary(path) as stream:
            parts = iter(
                partial(stream.read, _PIECE), b""
            )  # one read of all would first take the limit
            data = b"".join(islice(parts, _MAX_BYTES // _PIECE + 2))
        if len(data) > _MAX_BYTES:
            raise Unreadable("too large", "split it", f"more than {_MAX_BYTES:,} bytes")
        return asdict(convert(data, PurePath(name).name))
    except MissingDependencyError as error:
        return {"missing": error.message, "hint": error.hint}
    except Unreadable as error:
        reason, detail = error.reason, (error.detail, error.remedy)
    except RagError as error:  # a damaged compressed file
        reason, detail = "cannot be read", (error.message, error.hint)
    except OSError as error:
        reason, detail = "cannot be read", (error.strerror or "", "check its permissions")
    return {"reason": reason, "detail": "; ".join(filter(None, detail))}


if __name__ == "__main__":
    main()
