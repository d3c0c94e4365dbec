"""Parquet tables, one batch of rows in memory at a time."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from rag.core.errors import ConfigError, DataError
from rag.data.files.base import ReadOptions, Records, Source
from rag.data.files.fields import ID_FIELDS, TEXT_FIELDS, TITLE_FIELDS, DocumentFields
from rag.data.files.streams import STDIN

__all__ = ["read_parquet"]

_BATCH_ROWS = 1024


def read_parquet(source: Source, options: ReadOptions) -> Records:
    """Positions are 1-based row numbers; columns that no document needs are not read.

    Raises:
        ConfigError: standard input, which Parquet cannot be read from.
        DataError: not a Parquet file, damaged, or without a text column.
    """
    if source.path == STDIN:
        raise ConfigError("Parquet cannot be read from standard input", hint="give the file's name")
    fields = DocumentFields(options, source.name)
    usual = {*ID_FIELDS, *TITLE_FIELDS, *TEXT_FIELDS, "sentences", "url"}
    wanted = usual | ({options.id_field, options.title_field, options.text_field} - {None})
    try:
        with pq.ParquetFile(source.path, memory_map=True) as file:
            names = file.schema_arrow.names
            columns = [name for name in names if name in wanted]
            text_names = (options.text_field,) if options.text_field else (*TEXT_FIELDS, "sentences")
            if not set(columns) & set(text_names):
                raise DataError(
                    f"{source.path}: no text column; found {', '.join(names)}", hint="name it with text_field"
                )
            position = 0
            for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=columns):
                for row in batch.to_pylist():
                    position += 1
                    yield position, fields.document(row, position)
    except FileNotFoundError as error:
        raise DataError(f"{source.path}: no such file") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{source.path} is not a readable Parquet file: {error}") from error
