"""Tables of text: DPR's `psgs_w100.tsv` and other TSV and CSV files."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from rag.data.files.base import ReadOptions, Records, Source, open_source
from rag.data.files.fields import ID_FIELDS, TEXT_FIELDS, TITLE_FIELDS, DocumentFields
from rag.data.files.streams import read_lines
from rag.data.records import BadRecord

__all__ = ["format_row", "read_rows", "read_table", "split_row"]

_MAX_ROW_LINES = 1_000


def split_row(line: str, delimiter: str) -> list[str] | None:
    """Split one row by CSV rules (fields may be quoted with `"`, doubled inside); None if a quote stays open.

    Example:
        >>> split_row('1\\t"He said ""no""."\\tTitle', chr(9))
        ['1', 'He said "no".', 'Title']
    """
    if '"' not in line:
        return line.split(delimiter)
    fields: list[str] = []
    position = 0
    while True:
        value = ""
        if line.startswith('"', position):
            close = position + 1
            while True:
                close = line.find('"', close)
                if close < 0:
                    return None
                if not line.startswith('"', close + 1):
                    break
                close += 2
            value = line[position + 1 : close].replace('""', '"')
            position = close + 1
        end = line.find(delimiter, position)
        if end < 0:
            fields.append(value + line[position:])
            return fields
        fields.append(value + line[position:end])
        position = end + len(delimiter)


def format_row(fields: Sequence[str], delimiter: str = "\t") -> str:
    """Write one row so that `split_row`, and any CSV reader, gives the same fields back.

    Example:
        >>> print(format_row(["1", 'He said "no".', "Title"], ","))
        1,"He said ""no"".",Title
    """
    special = ('"', delimiter, "\n", "\r")
    return delimiter.join(
        '"' + field.replace('"', '""') + '"' if any(mark in field for mark in special) else field
        for field in fields
    )


def read_rows(
    lines: Iterator[tuple[int, str | BadRecord]], delimiter: str
) -> Iterator[tuple[int, list[str] | BadRecord]]:
    """Rows with the number of their first line; a quoted field may hold line ends.

    A stray quote does not swallow the rows behind it: if a line that would continue a quoted field has by
    itself as many fields as the rows before, only the line with the open quote is bad.
    """
    waiting: deque[tuple[int, str | BadRecord]] = deque()
    n_fields = 0
    while True:
        item = waiting.popleft() if waiting else next(lines, None)
        if item is None:
            return
        number, line = item
        if isinstance(line, BadRecord):
            yield number, line
            continue
        if not line or line.isspace():
            continue
        row = split_row(line, delimiter)
        taken: list[tuple[int, str | BadRecord]] = []
        joined = [line]
        while row is None and len(taken) < _MAX_ROW_LINES:
            following = waiting.popleft() if waiting else next(lines, None)
            if following is None:
                break
            taken.append(following)
            text = following[1]
            if isinstance(text, BadRecord) or (n_fields > 1 and text.count(delimiter) >= n_fields - 1):
                break
            joined.append(text)
            if '"' in text:
                row = split_row("\n".join(joined), delimiter)
        if row is None:
            waiting.extendleft(reversed(taken))
            yield number, BadRecord("unbalanced quote", line[:60])
            continue
        n_fields = n_fields or len(row)
        yield number, row


def read_table(source: Source, options: ReadOptions, delimiter: str) -> Records:
    """With a header its names decide; without one the columns are id, text, title (title may be missing)."""
    fields = DocumentFields(options, source.name)
    columns: list[str] | None = None
    with open_source(source) as stream:
        for number, row in read_rows(read_lines(stream, encoding=options.encoding), delimiter):
            if isinstance(row, BadRecord):
                yield number, row
                continue
            if columns is None:
                columns = _header(row, options)
                if columns is not None:
                    continue
                columns = ["id", "text", "title"][: max(2, len(row))]
            if len(row) != len(columns):
                found = f"found {len(row)}, expected {len(columns)}"
                yield number, BadRecord("wrong number of columns", found)
                continue
            yield number, fields.document(dict(zip(columns, row, strict=True)), number)


def _header(row: list[str], options: ReadOptions) -> list[str] | None:
    """The column names, if the row looks like names: a text column and another known one."""
    given = {options.id_field, options.title_field, options.text_field} - {None}
    if given & set(row):
        return row
    names = [cell.strip().lower() for cell in row]
    if set(names) & set(TEXT_FIELDS) and (set(names) & {*ID_FIELDS, *TITLE_FIELDS} or len(names) == 1):
        return names
    return None
