"""What a file holds, by its name and its first bytes, and how it is opened if it is compressed."""

import bz2
import codecs
import gzip
import io
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePath
from typing import Any, Literal, get_args

from rag.core.errors import DataError

RecordFormat = Literal["jsonl", "json", "tsv", "csv", "parquet"]
CorpusFormat = Literal[RecordFormat, "documents"]
RECORD_FORMATS: tuple[RecordFormat, ...] = get_args(RecordFormat)
CORPUS_FORMATS: tuple[CorpusFormat, ...] = get_args(CorpusFormat)
DOCUMENTS: Literal["documents"] = "documents"
"""The format of a file that is one document: PDF, Office, HTML, Markdown, text, …"""

_RECORD_SUFFIXES: dict[str, RecordFormat] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".tsv": "tsv",
    ".csv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_DOCUMENT_SUFFIXES = {
    "pdf": "pdf",
    "docx": "docx docm dotx dotm",
    "pptx": "pptx pptm ppsx ppsm potx potm",
    "xlsx": "xlsx xlsm xltx xltm",
    "epub": "epub",
    "html": "html htm xhtml",
    "markdown": "md markdown mdx",
    "rst": "rst rest",
    "mail": "eml",
    "mbox": "mbox",
    "text": "txt text",
    "asciidoc": "adoc asciidoc",
    "org": "org",
    "latex": "tex",
    "rtf": "rtf",
    "man": "man",
    "csv": "csv tsv",
    "ipynb": "ipynb",
    "odt": "odt ott fodt",
    "ods": "ods ots fods",
    "code": "c h cc cpp cxx hpp cs go java kt scala swift rs rb php pl pm js jsx mjs ts tsx vue lua r jl m "
    "sh bash zsh fish ps1 bat sql yaml yml toml ini cfg conf properties xml json gradle cmake mk tf proto "
    "graphql ex exs erl hs ml clj lisp el vim dart log py pyi",
    "unread": "doc dot pages wpd ppt key odp xls numbers fodp djvu ps mobi azw3 msg mht mhtml xlsb srt vtt",
}
_KIND_OF_SUFFIX = {
    suffix: kind for kind, suffixes in _DOCUMENT_SUFFIXES.items() for suffix in suffixes.split()
}
_KIND_OF_NAME = {
    "readme": "text",
    "license": "text",
    "copying": "text",
    "changelog": "text",
    "news": "text",
    "authors": "text",
    "install": "text",
    "todo": "text",
    "makefile": "code",
    "dockerfile": "code",
}
# HotpotQA's abstracts, and others of WikiExtractor's --json.
_WIKI_FILE = re.compile(r"wiki_\d+$")
_MANUAL_SECTION = re.compile(r"\.[1-9][a-z]{0,3}")

_COMPRESSED_SUFFIXES = (".gz", ".bz2", ".zst", ".xz")
_BUFFER_BYTES = 1 << 18
# The key of the list of records within one JSON object: SQuAD's "data", TriviaQA's "Data".
_RECORDS_KEY = re.compile(rb'"([dD]ata)"\s*:\s*\[')


def strip_compression(name: str) -> str:
    """Drop the suffix of a compression from a file name.

    >>> strip_compression("corpus.jsonl.gz")
    'corpus.jsonl'
    """
    for suffix in _COMPRESSED_SUFFIXES:
        if name.lower().endswith(suffix):
            return name[: -len(suffix)]
    return name


def find_in_folder(folder: Path, name: str) -> Path | None:
    """The file of this name in a folder, plain or compressed; None if there is none."""
    for suffix in ("", *_COMPRESSED_SUFFIXES):
        path = folder / f"{name}{suffix}"
        if path.is_file():
            return path
    return None


@contextmanager
def open_binary(path: str | Path) -> Iterator[io.BufferedReader]:
    """Open a file, and decompress it by its first bytes (gzip, bzip2, zstandard, xz).

    Raises:
        DataError: no such file, a directory, a damaged or truncated compressed stream.
    """
    with ExitStack() as opened:
        try:
            file: Any = opened.enter_context(open(path, "rb", _BUFFER_BYTES))
        except OSError as error:
            raise DataError(f"{path}: {str(error.strerror).lower()}") from error
        yield io.BufferedReader(_Content(file, path), _BUFFER_BYTES)


class _Content(io.RawIOBase):
    """The decompressed content of a file; only errors of reading it are errors of the file.

    Raises:
        DataError: the file cannot be read, or is damaged.
    """

    def __init__(self, file: io.BufferedReader, path: str | Path) -> None:
        self._path = path
        # As much as there is: the lines of a pipe come as they are written.
        self._read: Callable[[Any], int] = file.readinto1
        with self._naming_the_file():
            head = file.peek(6)
        for first_bytes, decompress in _DECOMPRESSORS.items():
            if head.startswith(first_bytes):
                self._read = decompress(file).readinto

    @contextmanager
    def _naming_the_file(self) -> Iterator[None]:
        try:
            yield
        except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
            raise DataError(
                f"{self._path} is damaged or truncated: {error or type(error).__name__}",
                hint="fetch or write the file again",
            ) from error

    def readable(self) -> bool:
        """See `io.RawIOBase`."""
        return True

    def readinto(self, buffer: Any) -> int:
        """See `io.RawIOBase`."""
        with self._naming_the_file():
            return self._read(buffer)


def _zstandard(file: io.BufferedReader) -> Any:
    # Few files are, and Arrow takes a while to import.
    import pyarrow as pa

    return pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd")


_DECOMPRESSORS: dict[bytes, Callable[[io.BufferedReader], Any]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ": lzma.LZMAFile,
    b"\x28\xb5\x2f\xfd": _zstandard,
}


def head_of(stream: io.BufferedReader) -> bytes:
    """The first bytes of a stream, as many as are buffered, without consuming them.

    A byte-order mark, spaces and empty lines before them are left out; a tab is not, since it
    delimits.
    """
    return stream.peek(1).removeprefix(codecs.BOM_UTF8).lstrip(b" \r\n")


def record_format_by_name(name: str) -> RecordFormat | None:
    """The format of a file of records by its name; None if the name tells none."""
    return _RECORD_SUFFIXES.get(PurePath(strip_compression(name).lower()).suffix)


def record_format(head: bytes, name: str) -> RecordFormat | Literal["markup"] | None:
    """The format of records by the first bytes (see `head_of`), otherwise by the file's name."""
    visible = head.lstrip()
    # Arrow's file, and its stream, as the library datasets saves its tables, are read with Parquet.
    if head.startswith((b"PAR1", b"ARROW1", b"\xff\xff\xff\xff")):
        return "parquet"
    if visible.startswith(b"{"):
        is_named_so = record_format_by_name(name) == "jsonl"
        return "jsonl" if _is_json_lines(visible, is_named_so=is_named_so) else "json"
    if visible.startswith(b'["'):
        return "jsonl"
    if re.match(rb"\[\s*(?:[{\[\]]|$)", visible):
        return "json"
    if visible.startswith(b"<"):
        return "markup"
    first_line = head.partition(b"\n")[0]
    is_text_file = PurePath(strip_compression(name).lower()).suffix == ".txt"
    if b"\t" in first_line and b"\x00" not in head and not is_text_file:
        return "tsv"
    return record_format_by_name(name)


def _is_json_lines(head: bytes, *, is_named_so: bool) -> bool:
    """Whether data with this head, an object, are JSON lines and not one JSON value.

    Args:
        is_named_so: by its name the file holds JSON lines.
    """
    first_line, line_end, rest = head.partition(b"\n")
    try:
        value = json.loads(first_line.decode(errors="replace"))
    except (ValueError, RecursionError):
        # Without an end the line may be longer than what was looked at.
        return not line_end and (is_named_so or records_key(first_line) is None)
    # No other value follows one that is the whole file.
    if rest.lstrip().startswith(b"{"):
        return True
    has_records = any(isinstance(value.get(key), list) for key in ("data", "Data"))
    return bool(value) and (is_named_so or not has_records)


def records_key(head: bytes) -> str | None:
    """The key of a JSON object that holds the list of records; None if the head shows none."""
    match = _RECORDS_KEY.search(head)
    return None if match is None else match[1].decode()


def joins_lines(row: Sequence[str]) -> bool:
    r"""Whether a cell of a row of a table with tabs is the end of this line and the beginning of a
    later one: the quote that it begins with is a part of its text.

    Example:
        >>> joins_lines(["1", "It is\n2\tHe said"]), joins_lines(["1", "Way 5\nOslo"])
        (True, False)
    """
    n_tabs = len(row) - 1
    return any(cell.count("\t") == n_tabs * cell.count("\n") > 0 for cell in row)


def kind_by_name(name: str) -> str | None:
    """The kind of a document by its file name, "unread" for kinds that are not read.

    Returns:
        None if the name tells none.

    >>> kind_by_name("Guide.PDF"), kind_by_name("Makefile"), kind_by_name("photo.jpg")
    ('pdf', 'code', None)
    """
    path = PurePath(name.lower())
    kind = _KIND_OF_SUFFIX.get(path.suffix[1:]) or _KIND_OF_NAME.get(path.name)
    if kind is None and _MANUAL_SECTION.fullmatch(path.suffix):
        return "man"
    return kind


def is_text(head: bytes) -> bool:
    """Whether the first bytes of a file look like text: UTF-8 without control characters."""
    try:
        # The head may end within a character.
        text = codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return bool(text.strip()) and re.search("[\0-\x07]", text) is None


def format_of_file(path: Path, *, is_alone: bool) -> str | None:
    """The format of a file in a corpus by its name, else by its first bytes; None if neither tells.

    Args:
        is_alone: it was given by itself, and is no file among others of a folder.
    """
    name = strip_compression(path.name)
    if _WIKI_FILE.search(name):
        return "jsonl"
    by_name = record_format_by_name(name)
    if by_name is not None:
        return by_name
    if kind_by_name(name):
        return DOCUMENTS
    try:
        with open_binary(path) as stream:
            head = head_of(stream)
    except DataError:
        # Its conversion says what is wrong with it.
        return DOCUMENTS
    by_content = record_format(head, name)
    # A tab alone says little about a text.
    is_trusted = is_alone or by_content != "tsv"
    if by_content in RECORD_FORMATS and is_trusted:
        return by_content
    return DOCUMENTS if is_text(head) or b"%PDF-" in head[:1024] else None
