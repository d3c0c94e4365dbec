"""Read documents of every corpus format: rows of a file, which `DocumentFields` turns into documents."""

import html
import io
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rag.core.errors import DataError
from rag.data.files.delimited import (
    delimiter_of,
    looks_like_header,
    named_rows,
    parquet_rows,
    split_row,
)
from rag.data.files.fields import DocumentFields
from rag.data.files.huggingface import stream_rows
from rag.data.files.sources import ReadOptions, Source, sniff_bytes
from rag.data.files.squad import is_article, squad_paragraphs, squad_title
from rag.data.files.streams import (
    first_line,
    first_mark,
    head_of,
    json_lines,
    json_values,
    open_binary,
    read_lines,
)
from rag.data.records import BadRecord, Document, ReadReport

Rows = Iterator[tuple[int, Any]]  # 1-based line or record number; a mapping, a document or a bad record

_HEAD_ROWS = 20
_HEADING = re.compile(r"\s{0,3}#{1,6}\s+(.+?)\s*#*\s*$")
_ID = re.compile(r'\bid="([^"]*)"')
_TITLE = re.compile(r'\btitle="(.*)"')  # greedy: old versions leave quotes in titles as they are


def documents_of(
    source: Source, options: ReadOptions, report: ReadReport
) -> Iterator[tuple[int, Document | BadRecord]]:
    """The documents of a source, each with the number of its line or record.

    Args:
        report: records which fields the documents were made of.

    Raises:
        DataError: it is damaged, or of another shape as a whole.
        ConfigError: standard input of a format that cannot be told.
    """
    is_opened_here = source.format not in ("parquet", "hf")
    opened: AbstractContextManager[Any] = open_binary(source.path) if is_opened_here else nullcontext()
    with opened as stream:
        is_known = source.format != "auto"  # of standard input nothing is known before
        chosen = source.format if is_known else sniff_bytes(head_of(stream), "standard input")
        is_hotpot = chosen == "hotpot"  # the text of HotpotQA's abstracts is a list of sentences
        fields = DocumentFields(options, source.name, text_lists_are_sentences=is_hotpot)
        for number, row in _rows_of(chosen, stream, source, options, fields):
            if isinstance(row, Document | BadRecord):
                yield number, row
            elif chosen == "json" and is_article(row):
                for item in _squad(row, options):
                    yield number, item
            else:
                yield number, fields.document(row, number)
    fields.check()
    if fields.layout:
        report.layouts[fields.layout] += 1


def _rows_of(format: str, stream: Any, source: Source, options: ReadOptions, fields: DocumentFields) -> Rows:
    if format in ("tsv", "csv"):
        return _table(stream, options, fields)
    if format == "parquet":  # columns that no document needs are not read
        return parquet_rows(source.path, fields.choose)
    return _ROWS[format](stream, source, options)


def _json_lines(stream: io.BufferedReader, _: Source, options: ReadOptions) -> Rows:
    return json_lines(stream, encoding=options.encoding)


def _json_file(stream: io.BufferedReader, source: Source, options: ReadOptions) -> Rows:
    return json_values(stream, source.path, encoding=options.encoding)


def _squad(article: Any, options: ReadOptions) -> Iterator[Document | BadRecord]:
    paragraphs = list(squad_paragraphs(article))
    for paragraph in paragraphs:
        if paragraph.text is None:
            yield BadRecord("missing field", f"the paragraph {paragraph.id!r} has no context")
        elif options.squad_unit == "paragraph":
            yield Document(paragraph.id, squad_title(paragraph.title), paragraph.text)
    if options.squad_unit == "article":
        text = "\n".join(paragraph.text or "" for paragraph in paragraphs)
        yield Document(str(article.get("title", "")), squad_title(str(article.get("title", ""))), text)


def _table(stream: io.BufferedReader, options: ReadOptions, fields: DocumentFields) -> Rows:
    """With a header its names decide; without one the columns are id, text, title (title may be missing).

    A file of tabs with two columns and no header (ColBERT's and MS MARCO's collections) quotes nothing.
    """
    first, head = first_line(stream), head_of(stream).decode("utf-8", "replace")
    delimiter = delimiter_of(first, fields.is_header)

    def columns(row: list[str]) -> tuple[list[str], bool]:
        names = [cell.strip() for cell in row]
        if fields.is_header(names) or options.names_fields or looks_like_header(names):
            fields.choose(names)
            return names, True
        fields.layout = "no header: the columns are id, text" + ", title" * (len(row) == 3)
        return _by_position(row, head, delimiter), False

    cells = first.split(delimiter)
    quoted = delimiter != "\t" or len(cells) != 2 or fields.is_header(cells)
    return named_rows(read_lines(stream, encoding=options.encoding), delimiter, columns, quoted=quoted)


def _by_position(first: list[str], head: str, delimiter: str) -> list[str]:
    """The columns of a table without a header: DPR's order.

    Raises:
        DataError: another number of columns, or the third is longer than the second, as texts are.
    """
    hint = "begin the table with a row of names, such as id, title, text"
    if len(first) not in (2, 3):
        raise DataError(f"{len(first)} columns and no header; expected id, text and perhaps title", hint=hint)
    rows = [
        row for line in head.split("\n")[:_HEAD_ROWS] if len(row := split_row(line, delimiter) or []) == 3
    ]
    if sum(len(row[2]) for row in rows) > sum(len(row[1]) for row in rows):
        raise DataError(
            "a table without header whose third column is longer than its second; expected id, text, title",
            hint=hint,
        )
    return ["id", "text", "title"][: len(first)]


def _wikiextractor(stream: io.BufferedReader, _: Source, options: ReadOptions) -> Rows:
    """WikiExtractor's output in either form: lines of JSON, or `<doc …>` blocks."""
    if first_mark(stream) == "{":
        return json_lines(stream, encoding=options.encoding)
    return _doc_blocks(stream, options)


def _doc_blocks(stream: io.BufferedReader, options: ReadOptions) -> Rows:
    start = 0  # line of the open block; 0 outside of blocks
    head = ""
    lines: list[str] = []
    problem: BadRecord | None = None
    for number, line in read_lines(stream, encoding=options.encoding):
        if isinstance(line, BadRecord):
            if start:
                problem = problem or line
            else:
                yield number, line
        elif line.startswith("<doc ") and line.rstrip().endswith(">"):
            if start:
                yield start, BadRecord("malformed block", "<doc> without </doc>")
            start, head, lines, problem = number, line, [], None
        elif line.strip() == "</doc>":
            if start:
                yield start, problem or _document(head, lines)
            else:
                yield number, BadRecord("malformed block", "</doc> without <doc>")
            start = 0
        elif start:
            lines.append(line)
        elif line.strip():
            yield number, BadRecord("malformed block", "text outside <doc> … </doc>")
    if start:
        yield start, BadRecord("malformed block", "<doc> without </doc> at the end: truncated")


def _document(head: str, lines: list[str]) -> Document | BadRecord:
    id_match, title_match = _ID.search(head), _TITLE.search(head)
    if id_match is None:
        return BadRecord("missing field", "no id in <doc …>")
    title = html.unescape(title_match.group(1)) if title_match else ""
    if lines and html.unescape(lines[0]).strip() == title:
        lines = lines[1:]
    return Document(id_match.group(1), title, html.unescape("\n".join(lines)).strip())


_ROWS: dict[str, Callable[[Any, Source, ReadOptions], Rows]] = {
    "jsonl": _json_lines,
    "json": _json_file,
    "wikiextractor": _wikiextractor,
    "hotpot": _json_lines,
    "hf": lambda _, source, options: stream_rows(source.path, default_split="train"),
}
