"""Parquet tables, one batch of rows in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rag.core.errors import ConfigError, DataError
from rag.data.files.base import ReadOptions, Records, Source
from rag.data.files.fields import ID_FIELDS, TEXT_FIELDS, TITLE_FIELDS, DocumentFields
from rag.data.files.streams import STDIN

__all__ = ["parquet_rows", "read_parquet"]

_BATCH_ROWS = 256  # a row may hold the text of many paragraphs


def parquet_rows(
    path: str, columns: Callable[[Sequence[str]], Sequence[str] | None] = lambda _: None
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Rows with their 1-based numbers.

    Args:
        columns: from the names of all columns to those that are read; None for all.

    Raises:
        ConfigError: standard input, which Parquet cannot be read from.
        DataError: no such file, not a Parquet file, or damaged.
    """
    if path == STDIN:
        raise ConfigError("Parquet cannot be read from standard input", hint="give the file's name")
    try:
        with pq.ParquetFile(path, memory_map=True) as file:
            wanted = columns(file.schema_arrow.names)
            number = 0
            for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=wanted):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not a readable Parquet file: {error}") from error


def read_parquet(source: Source, options: ReadOptions) -> Records:
    """Positions are 1-based row numbers; columns that no document needs are not read.

    Raises:
        ConfigError, DataError: as `parquet_rows`; or no text column.
    """
    fields = DocumentFields(options, source.name)
    usual = {*ID_FIELDS, *TITLE_FIELDS, *TEXT_FIELDS, "sentences", "url"}
    wanted = usual | ({options.id_field, options.title_field, options.text_field} - {None})
    text_names = (options.text_field,) if options.text_field else (*TEXT_FIELDS, "sentences")

    def columns(names: Sequence[str]) -> list[str]:
        found = [name for name in names if name in wanted]
        if not set(found) & set(text_names):
            raise DataError(
                f"{source.path}: no text column; found {', '.join(names)}", hint="name it with text_field"
            )
        return found

    for position, row in parquet_rows(source.path, columns):
        yield position, fields.document(row, position)
