"""Bytes and lines from files and standard input, decompressed on the way and never read whole."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from rag.core.errors import DataError
from rag.data.records import BadRecord

__all__ = [
    "COMPRESSED_SUFFIXES",
    "STDIN",
    "open_binary",
    "read_chunks",
    "read_lines",
    "strip_compression",
]

STDIN = "-"
COMPRESSED_SUFFIXES = (".gz", ".bz2", ".zst", ".xz")
MAX_LINE_BYTES = 256 << 20
_CHUNK_BYTES = 1 << 20
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
    found = error.object[error.start]
    return BadRecord(f"not valid {encoding.upper()}", f"byte 0x{found:02x} at offset {error.start}")


def read_chunks(stream: io.BufferedReader, *, encoding: str = "utf-8") -> Iterator[str]:
    """Decode in pieces of a mebibyte; broken bytes become surrogates, which record checks refuse."""
    decoder = codecs.getincrementaldecoder(encoding)(errors="surrogateescape")
    data = stream.read(_CHUNK_BYTES).removeprefix(codecs.BOM_UTF8)
    while data:
        yield decoder.decode(data)
        data = stream.read(_CHUNK_BYTES)
    yield decoder.decode(b"", final=True)
