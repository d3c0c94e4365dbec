"""Convert a file into a document: recognise its format by content and name, then convert it within limits.

`python -m rag.data.documents.convert` converts one document after another: requests and replies are lines of
JSON. Such a process ends with the one that started it, whose end closes the pipe of requests, and enforces
the limits of a conversion itself: a document that takes too long ends it.
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
from functools import partial
from itertools import islice
from pathlib import PurePath
from typing import Any

from rag.core.errors import MissingDependencyError, RagError
from rag.data.documents import epub, html, mail, markdown, odf, office, pandoc, pdf, plain, rst, sheets
from rag.data.documents.blocks import Converted, Piece, Unreadable, assemble, clean
from rag.data.documents.kinds import kind_by_name, kind_of
from rag.data.documents.limits import MAX_BYTES, Limits
from rag.data.files.rows import open_binary, strip_compression

_PIECE = 1 << 20
_LATEX_HEADING = re.compile(r"^\\(?:part|chapter|(?:sub)*section)\*?\{(.*)\}\s*$", re.MULTILINE)
_MAX_FRAMES = 20_000  # of converters that walk a tree: pages of a few thousand nested elements exist


def convert(data: bytes, name: str, limits: Limits | None = None, encoding: str = "utf-8") -> Converted:
    r"""Convert a document.

    Args:
        data: the whole file.
        name: its name, for the format.
        encoding: encoding of text that is not UTF-8 and does not declare one.

    Raises:
        Unreadable: it cannot be read; states why, and what to do.

    Example:
        >>> converted = convert(b"# Guide\n\n## Linux\n\nUse *apt*.\n", "guide.md")
        >>> converted.title, [(block.kind, converted.text_of(block)) for block in converted.blocks][1:]
        ('Guide', [('heading', 'Linux'), ('paragraph', 'Use apt.')])
    """
    limits = limits or Limits()
    try:
        title, pieces, notes = _read(data, name, limits, encoding, depth=0)
    except RagError:
        raise
    except MemoryError as error:
        raise Unreadable("too large", "split it", f"over {limits.memory_mib} MiB of memory") from error
    except RecursionError as error:
        raise Unreadable(
            "nested too deeply", "save it as plain text", "its elements hold one another"
        ) from error
    except Exception as error:  # whatever the libraries raise over damaged files
        detail = f"{type(error).__name__}: {clean(str(error))[:120]}"
        raise Unreadable(
            "broken file", "open and save it again, or get a whole copy of it", detail
        ) from error
    if sum(len(piece.text) for piece in pieces) > limits.max_chars:
        raise Unreadable("too long", "split it", f"more than {limits.max_chars:,} characters")
    return assemble(title, pieces, notes)


def _read(
    data: bytes, name: str, limits: Limits, encoding: str, depth: int
) -> tuple[str, list[Piece], tuple[str, ...]]:
    kind = kind_of(data, name)
    if read := _LIMITED.get(kind):
        return read(data, limits)
    if read_archive := _ARCHIVES.get(kind):
        return *read_archive(data), ()
    if kind == "rtf":  # in 7-bit characters
        return *pandoc.read(data, kind, limits), ()
    if read_mail := _MAIL.get(kind):

        def attached(part: bytes, part_name: str) -> list[Piece]:
            if depth or not part_name or (kind_by_name(part_name) is None and b"%PDF-" not in part[:1024]):
                return []
            try:
                return _read(part, part_name, limits, encoding, depth + 1)[1]
            except (RagError, MemoryError):
                raise
            except Exception as error:  # one damaged attachment does not cost the message
                raise Unreadable("broken file", "ask for it again", type(error).__name__) from error

        return *read_mail(data, attached), ()
    source, notes = plain.decode(data, encoding)
    if kind in pandoc.FORMATS:
        try:
            return *pandoc.read(source.encode(), kind, limits), notes
        except Unreadable as error:
            if kind != "latex" or error.reason != "broken file":
                raise
            marked = _LATEX_HEADING.sub(lambda line: f"\n\n{line[1]}\n{'=' * len(line[1])}\n\n", source)
            return *plain.text(marked), (*notes, f"read as plain text ({error.detail})")
    return *_TEXTS[kind](source), notes


_LIMITED = {"pdf": pdf.pdf, "xlsx": sheets.workbook, "pptx": office.slides}
_ARCHIVES = {"docx": office.word, "epub": epub.book, "odt": odf.text}
_MAIL = {"mail": mail.message, "mbox": mail.mailbox}
_TEXTS: dict[str, Callable[[str], tuple[str, list[Piece]]]] = {
    "html": html.page, "markdown": markdown.markdown, "rst": rst.rst, "text": plain.text,
    "csv": sheets.csv_table, "notebook": markdown.notebook, "code": plain.code,
}  # fmt: skip


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
        with suppress(ValueError, OSError):  # a lower limit of the system stays; macOS refuses any
            most = resource.getrlimit(resource.RLIMIT_AS)[1]
            resource.setrlimit(resource.RLIMIT_AS, (limits.memory_mib << 20, most))
        signal.setitimer(signal.ITIMER_REAL, limits.timeout_s)
        reply = _reply(request["path"], limits, request["encoding"])
        signal.setitimer(signal.ITIMER_REAL, 0)
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def _receive(requests: "queue.SimpleQueue[str]") -> None:
    for line in sys.stdin:
        requests.put(line)
    os._exit(0)  # whoever asked is gone, and with it the need for what is being converted


def _reply(path: str, limits: Limits, encoding: str) -> dict[str, Any]:
    try:
        return _convert_file(path, limits, encoding).to_json()
    except Unreadable as error:
        return {"reason": error.reason, "remedy": error.remedy, "detail": error.detail}
    except MissingDependencyError as error:
        return {"missing": error.message, "hint": error.hint}
    except RagError as error:  # a damaged compressed file
        return {"reason": "cannot be read", "remedy": error.hint, "detail": error.message}
    except OSError as error:
        return {"reason": "cannot be read", "remedy": "check its permissions", "detail": error.strerror or ""}


def _convert_file(path: str, limits: Limits, encoding: str) -> Converted:
    plain_name = strip_compression(path)
    with open(path, "rb") if plain_name == path else open_binary(path) as stream:
        pieces = iter(partial(stream.read, _PIECE), b"")  # one read of all would first take the limit
        data = b"".join(islice(pieces, MAX_BYTES // _PIECE + 2))
    if len(data) > MAX_BYTES:
        raise Unreadable("too large", "split it", f"more than {MAX_BYTES:,} bytes")
    return convert(data, PurePath(plain_name).name, limits, encoding)


if __name__ == "__main__":
    main()
