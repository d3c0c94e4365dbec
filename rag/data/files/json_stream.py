"""JSON lists, one element at a time: a list of any length is read in the memory of its largest element."""

from __future__ import annotations

import io
import json
import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from typing import Any

from rag.core.errors import DataError
from rag.data.files.streams import read_chunks, read_lines
from rag.data.records import BadRecord

__all__ = [
    "first_mark",
    "is_json_record",
    "iter_json_array",
    "json_lines",
    "json_values",
    "load_json",
    "parse_json",
]

MAX_JSON_BYTES = 2 << 30
_SPACE = re.compile(r"[ \t\r\n]*")


def parse_json(text: str) -> Any:
    """`json.loads` whose every failure is a `ValueError`.

    Raises:
        ValueError: not JSON, numbers of absurd length, or nesting too deep.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def first_mark(stream: Any) -> str:
    """The first visible character of a buffered binary stream, which stays unread.

    Only what is buffered is looked at, which is enough for any file not made to deceive.
    """
    head: bytes = stream.peek(4096)[:4096]
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1].decode("latin-1")


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
    data = stream.read(MAX_JSON_BYTES + 1).removeprefix(BOM_UTF8)
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
    the records with their "id"; MDR's `[title, text]` is such a record too. Any other is itself the record.

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
    if isinstance(value.get("data"), list):
        yield from enumerate(value["data"], start=1)
    elif all(isinstance(item, dict | list) for item in value.values()):
        for number, (key, item) in enumerate(value.items(), start=1):
            named = item if isinstance(item, dict) else dict(zip(("title", "text"), item, strict=False))
            yield number, {"id": key, **named}
    else:
        yield 1, value


def is_json_record(line: bytes, *, is_whole: bool) -> bool:
    """Whether this first line is a record of JSON lines rather than the start of one JSON object."""
    text = line.decode("utf-8", errors="replace")
    if not is_whole:
        # A single line without end, or longer than was looked at: SQuAD and id → record objects nest at once.
        return not re.match(r'\{\s*(?:"version"\s*:\s*[^,]*,\s*)?"[^"]*"\s*:\s*[\[{]', text)
    try:
        value = parse_json(text)
    except ValueError:
        return False
    return isinstance(value, dict) and bool(value) and not isinstance(value.get("data"), list)


def iter_json_array(
    stream: io.BufferedReader, source: str, *, encoding: str = "utf-8", max_element_chars: int = 512 << 20
) -> Iterator[tuple[int, Any]]:
    """Yield (1-based number, element) of a top-level JSON list.

    Raises:
        DataError: not a list, malformed, truncated, or an element larger than `max_element_chars`. What
            stands after a malformed element cannot be told apart from it, so this is never a matter of one
            record.
    """
    decoder, chunks = json.JSONDecoder(), read_chunks(stream, encoding=encoding)
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
