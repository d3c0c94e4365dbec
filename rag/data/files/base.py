"""What every corpus reader is given and gives back."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from rag.core.errors import ConfigError
from rag.data.files.streams import check_encoding, open_binary
from rag.data.records import BadRecord, Document

__all__ = ["ReadOptions", "Reader", "Records", "Source", "open_source"]


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How to read a corpus.

    Attributes:
        id_field: name of the field or column with the id; found by its usual names if None.
        encoding: of text files; anything in which a line end is one byte 0x0A.
        max_bad_share: highest tolerated share of bad records, in [0, 1].
        max_document_chars: a longer document counts as bad, because it is rarely one document.
        shown_problems: how many bad records are kept to be shown.
        squad_unit: whether a SQuAD file gives one document per "paragraph" or per "article".

    Raises:
        ConfigError: a value out of range.
    """

    id_field: str | None = None
    title_field: str | None = None
    text_field: str | None = None
    encoding: str = "utf-8"
    max_bad_share: float = 0.01
    max_document_chars: int = 4_000_000
    shown_problems: int = 10
    squad_unit: str = "paragraph"

    def __post_init__(self) -> None:
        check_encoding(self.encoding)
        if not 0.0 <= self.max_bad_share <= 1.0:
            raise ConfigError(f"max_bad_share is {self.max_bad_share}, expected a share between 0 and 1")
        if self.max_document_chars < 1:
            raise ConfigError(f"max_document_chars is {self.max_document_chars}, expected at least 1")
        if self.squad_unit not in ("paragraph", "article"):
            raise ConfigError(f"squad_unit is {self.squad_unit!r}, expected 'paragraph' or 'article'")


@dataclass(frozen=True, slots=True)
class Source:
    """One file, stream or data set to read.

    Attributes:
        path: where it is; "-" for standard input, "hf:…" for a data set.
        name: how messages and made-up ids call it: relative to the folder that was given, or the file name.
        stream: its decompressed bytes, if it is open already (standard input cannot be opened twice).
    """

    path: str
    format: str
    name: str
    stream: io.BufferedReader | None = None


def open_source(source: Source) -> AbstractContextManager[io.BufferedReader]:
    """The bytes of a source, decompressed; see `open_binary`."""
    return open_binary(source.path) if source.stream is None else nullcontext(source.stream)


Records = Iterator[tuple[int, "Document | BadRecord"]]
Reader = Callable[[Source, ReadOptions], Records]
