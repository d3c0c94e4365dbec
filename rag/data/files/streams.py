"""Bytes, lines and JSON values from files and standard input, decompressed on the way.

Lines and the elements of JSON lists come one at a time: a file of any length is read in the memory of its
largest element.
"""

import bz2
import codecs
import gzip
import io
import json
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from rag.core.errors import DataError
from rag.data.records import BadRecord

STDIN = "-"
COMPRESSED_SUFFIXES = (".gz", ".bz2", ".zst", ".xz")
MAX_LINE_BYTES = 256 << 20
_CHUNK_BYTES = 1 << 20
MAX_JSON_BYTES = 2 << 30
_SPACE = re.compile(r"[ \t\r\n]*")
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def strip_compression(name: str) -> str:
    """Drop one compression suffix from a file name.

    Example:
        >>> strip_compression("wiki.jsonl.gz"), strip_compression("wiki.jsonl")
        ('wiki.jsonl', 'wiki.jsonl')
    """
    for suffix in COMPRESSED_SUFFIXES:
        if name.lower().endswith(suffix):
            return name[: -len(suffix)]
    return name


@contextmanager
def open_binary(source: str | Path) -> Iterator[io.BufferedReader]:
    """Open a file, or standard input for "-", and decompress by its first bytes (gzip, bzip2, zstandard, xz).

    Raises:
        DataError: no such file, a directory, a damaged or truncated compressed stream, UTF-16 text.
    """
    name = str(source)
    try:
        # closed below, standard input is not
        raw: Any = sys.stdin.buffer if name == STDIN else open(source, "rb", buffering=1 << 18)  # noqa: SIM115
        try:
            stream = _decompressed(raw if isinstance(raw, io.BufferedReader) else io.BufferedReader(raw))
            if stream.peek(2)[:2] in _UTF16_MARKS:
                raise DataError(
                    f"{name} is UTF-16 text", hint="convert it to UTF-8 first (iconv -f utf-16 -t utf-8)"
                )
            yield stream
        finally:
            if name != STDIN:
                raw.close()
    except FileNotFoundError as error:
        raise DataError(f"{name}: no such file") from error
    except IsADirectoryError as error:
        raise DataError(f"{name} is a directory, expected a file") from error
    except PermissionError as error:
        raise DataError(f"{name}: no permission to read it") from error
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(
            f"{name} is damaged or truncated: {error or type(error).__name__}",
            hint="fetch or write the file again",
        ) from error


def _decompressed(stream: io.BufferedReader) -> io.BufferedReader:
    head = stream.peek(6)[:6]
    kind = next((kind for magic, kind in _KINDS.items() if head.startswith(magic)), None)
    return stream if kind is None else io.BufferedReader(kind(stream), 1 << 18)


_KINDS: dict[bytes, Callable[[Any], Any]] = {  # by the first bytes
    b"\x1f\x8b": lambda stream: gzip.GzipFile(fileobj=stream),
    b"BZh": bz2.BZ2File,
    b"\x28\xb5\x2f\xfd": lambda stream: pa.CompressedInputStream(pa.PythonFile(stream, "r"), "zstd"),
    b"\xfd7zXZ": lzma.LZMAFile,
}


def read_lines(
    stream: io.BufferedReader, *, encoding: str = "utf-8", max_line_bytes: int = MAX_LINE_BYTES
) -> Iterator[tuple[int, str | BadRecord]]:
    """Number and decode lines; ends (LF or CRLF) and a byte-order mark are dropped.

    A line that does not decode, or is longer than `max_line_bytes`, comes as a `BadRecord`, and the next line
    follows.
    """
    number = 0
    while line := stream.readline(max_line_bytes):
        number += 1
        if number == 1 and line.startswith(codecs.BOM_UTF8):
            line = line[len(codecs.BOM_UTF8) :]
        if len(line) >= max_line_bytes and not line.endswith(b"\n"):
            while (rest := stream.readline(max_line_bytes)) and not rest.endswith(b"\n"):
                pass
            yield number, BadRecord("line too long", f"more than {max_line_bytes:,} bytes")
            continue
        try:
            yield number, line.rstrip(b"\r\n").decode(encoding)
        except UnicodeDecodeError as error:
            yield number, bad_encoding(encoding, error)


def bad_encoding(encoding: str, error: UnicodeDecodeError) -> BadRecord:
    """The bad record for bytes that do not decode."""
    byte = error.object[error.start]
    return BadRecord(f"not valid {encoding.upper()}", f"byte 0x{byte:02x} at offset {error.start}")


def _read_chunks(stream: io.BufferedReader, *, encoding: str = "utf-8") -> Iterator[str]:
    """Decode in pieces of a mebibyte; broken bytes become surrogates, which record checks refuse."""
    decoder = codecs.getincrementaldecoder(encoding)(errors="surrogateescape")
    data = stream.read(_CHUNK_BYTES).removeprefix(codecs.BOM_UTF8)
    while data:
        yield decoder.decode(data)
        data = stream.read(_CHUNK_BYTES)
    yield decoder.decode(b"", final=True)


def parse_json(text: str) -> Any:
    """`json.loads` whose every failure is a `ValueError`.

    Raises:
        ValueError: not JSON, numbers of absurd length, or nesting too deep.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def head_of(stream: io.BufferedReader) -> bytes:
    """The first bytes of a stream, as many as are buffered, without consuming them.

    A byte-order mark, spaces and empty lines before them are left out; a tab is not, since it delimits.
    """
    return stream.peek(1).removeprefix(codecs.BOM_UTF8).lstrip(b" \r\n")


def first_line(stream: io.BufferedReader) -> str:
    """The first line that is not empty, as far as it is buffered, without consuming it."""
    return head_of(stream).partition(b"\n")[0].rstrip(b"\r").decode("utf-8", "replace")


def first_mark(stream: io.BufferedReader) -> str:
    """The first visible character, without consuming it; "" if there is none in what is buffered."""
    return head_of(stream).lstrip()[:1].decode("latin-1")


def json_lines(
    stream: io.BufferedReader, *, encoding: str = "utf-8"
) -> Iterator[tuple[int, Any | BadRecord]]:
    """(1-based line number, value) of JSON lines; blank lines are no records, broken ones a `BadRecord`."""
    for number, line in read_lines(stream, encoding=encoding):
        if isinstance(line, BadRecord):
            yield number, line
        elif line and not line.isspace():
            try:
                value = parse_json(line)
            except ValueError as error:
                value = BadRecord("malformed JSON", str(error))
            yield number, value


def load_json(stream: io.BufferedReader, source: str, *, encoding: str = "utf-8") -> Any:
    """Read one JSON value whole (at most 2 GiB).

    Raises:
        DataError: not JSON, or larger than the limit.
    """
    data = stream.read(MAX_JSON_BYTES + 1).removeprefix(codecs.BOM_UTF8)
    if len(data) > MAX_JSON_BYTES:
        raise DataError(
            f"{source}: a JSON object of more than {MAX_JSON_BYTES:,} bytes", hint="use JSON lines"
        )
    try:
        return parse_json(data.decode(encoding, errors="surrogateescape"))
    except ValueError as error:
        raise DataError(f"{source}: not valid JSON ({error})") from error


def json_values(
    stream: io.BufferedReader, source: str, *, encoding: str = "utf-8"
) -> Iterator[tuple[int, Any]]:
    """(1-based number, record) of a JSON list, which is streamed, or of an object, which is read whole.

    An object with a list under "data" (SQuAD's files) gives that list's elements. One from id to record gives
    the records with their "id"; MDR's `[title, text]` is such a record too. One of columns, each an object
    from row number to value (pandas, MS MARCO 2.1), gives its rows. Any other is itself the record.

    Raises:
        DataError: malformed or truncated JSON, or neither list nor object.
    """
    if first_mark(stream) == "[":
        yield from iter_json_array(stream, source, encoding=encoding)
        return
    value = load_json(stream, source, encoding=encoding)
    if not isinstance(value, dict):
        raise DataError(
            f"{source}: expected a list of records, SQuAD's articles, or an object from id to record"
        )
    if (listed := _listed(value)) is not None:
        yield from enumerate(listed, start=1)
    elif value and all(_is_column(item) for item in value.values()):
        rows = dict.fromkeys(key for column in value.values() for key in column)
        for number, key in enumerate(rows, start=1):
            yield number, {name: column[key] for name, column in value.items() if key in column}
    elif all(isinstance(item, dict | list) for item in value.values()):
        for number, (key, item) in enumerate(value.items(), start=1):
            named = item if isinstance(item, dict) else dict(zip(("title", "text"), item, strict=False))
            yield number, {"id": key, **named}
    else:
        yield 1, value


def _is_column(value: Any) -> bool:
    """Whether this is an object from row number to value."""
    return isinstance(value, dict) and bool(value) and all(key.isdecimal() for key in value)


def is_json_lines(head: bytes) -> bool:
    """Whether data with this head (see `head_of`) are JSON lines, not one JSON value or something else."""
    first, line_end, _ = head.lstrip().partition(b"\n")
    text = first.decode("utf-8", errors="replace")
    if not text.startswith("{"):
        return False
    if not line_end:
        # A single line without end, or longer than was looked at: SQuAD and id → record objects nest at once.
        return not re.match(r'\{\s*(?:"version"\s*:\s*[^,]*,\s*)?"[^"]*"\s*:\s*[\[{]', text)
    try:
        value = parse_json(text)
    except ValueError:
        return False
    return isinstance(value, dict) and bool(value) and _listed(value) is None


def _listed(value: dict[str, Any]) -> list[Any] | None:
    """The records of a set that is one object: SQuAD's "data", TriviaQA's "Data"."""
    return next((value[name] for name in ("data", "Data") if isinstance(value.get(name), list)), None)


def iter_json_array(
    stream: io.BufferedReader, source: str, *, encoding: str = "utf-8", max_element_chars: int = 512 << 20
) -> Iterator[tuple[int, Any]]:
    """Yield (1-based number, element) of a top-level JSON list.

    Raises:
        DataError: not a list, malformed, truncated, or an element larger than `max_element_chars`. What
            stands after a malformed element cannot be told apart from it, so this is never a matter of one
            record.
    """
    decoder, chunks = json.JSONDecoder(), _read_chunks(stream, encoding=encoding)
    text, at, number, dropped, at_end = "", 0, 0, 0, False

    def fill() -> None:
        """Drop what was used and at least double what is left, so that retries stay linear in all."""
        nonlocal text, at, dropped, at_end
        pieces = [text[at:]]
        dropped, at = dropped + at, 0
        while not at_end and sum(map(len, pieces)) < max(2 * len(pieces[0]), 1):
            piece = next(chunks, None)
            at_end = piece is None
            pieces.append(piece or "")
        text = "".join(pieces)

    def next_visible() -> str:
        nonlocal at
        while True:
            at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
            if at < len(text) or at_end:
                return text[at : at + 1]
            fill()

    def broken(what: str) -> DataError:
        place = f"after record {number}" if number else "at its start"
        return DataError(
            f"{source}: {what} {place} (character {dropped + at:,})", hint="mend or fetch the file again"
        )

    if next_visible() != "[":
        raise broken("expected a JSON list")
    at += 1
    is_open = next_visible() != "]"
    at += not is_open
    while is_open:
        next_visible()
        try:
            element, end = decoder.raw_decode(text, at)
            is_whole = end < len(text) or at_end  # a number may go on in the next chunk
        except (ValueError, RecursionError) as error:
            if at_end:
                raise broken(f"truncated or malformed JSON ({error})") from error
            is_whole = False
        if is_whole:
            number, at = number + 1, end
            yield number, element
            if (mark := next_visible()) not in (",", "]"):
                raise broken("truncated JSON list" if not mark else f"expected ',' or ']', found {mark!r},")
            is_open = mark == ","
            at += 1
        elif len(text) - at > max_element_chars:
            raise broken(f"malformed JSON, or an element of more than {max_element_chars:,} characters,")
        else:
            fill()
    if next_visible():
        raise broken("more text behind the JSON list")
