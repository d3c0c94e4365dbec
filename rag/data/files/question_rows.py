"""Question sets that are tables: Parquet files, and data sets of the Hugging Face Hub by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rag.core.errors import DataError
from rag.data.files.huggingface import stream_rows

__all__ = ["hub_rows", "is_article", "parquet_rows"]

_BATCH_ROWS = 256  # a row may hold the text of many paragraphs
Rows = Iterator[tuple[int, Mapping[str, Any]]]


def parquet_rows(path: str) -> Rows:
    """Rows of a Parquet file with their 1-based numbers, one batch in memory at a time.

    Raises:
        DataError: not a Parquet file, or damaged.
    """
    try:
        with pq.ParquetFile(path, memory_map=True) as file:
            number = 0
            for batch in file.iter_batches(batch_size=_BATCH_ROWS):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not a readable Parquet file: {error}") from error


def hub_rows(name: str) -> Rows:
    """Rows of `hf:owner/name[:config][:split]`. Where a repository holds SQuAD's official files, their
    articles come one by one; see `is_article`.

    Raises:
        ConfigError: a malformed name, or several splits and none named.
        DataError: the data set is missing, private, or needs a script.
        ResourceError: the hub cannot be reached.
    """
    number = 0
    for _, row in stream_rows(name):
        inner = row.get("data")
        articles = inner if isinstance(inner, list) and inner and is_article(inner[0]) else [row]
        for item in articles:
            number += 1
            yield number, item


def is_article(row: Any) -> bool:
    """Whether a row is an article of SQuAD, with the questions inside its paragraphs."""
    paragraphs = row.get("paragraphs") if isinstance(row, Mapping) else None
    return (
        isinstance(paragraphs, list)
        and bool(paragraphs)
        and isinstance(paragraphs[0], Mapping)
        and "qas" in paragraphs[0]
    )
