"""Texts tokenised once: flat arrays on disk or in memory, one row per text."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rag.core.arrays import Int32, Int64
from rag.core.files import disk_errors, sha256_file
from rag.core.npy import load_npy, save_npy
from rag.core.ragged import ranges
from rag.core.types import Query
from retrievers.encoders.layout import PassageLayout
from retrievers.encoders.settings import EncoderSettings
from retrievers.encoders.tokenization import TextTokenizer


@dataclass(frozen=True, slots=True)
class TokenTable:
    """n concatenated sequences of integers: the tokens of texts, or the passage rows of questions.

    Attributes:
        values: (T,) int32, all sequences.
        bounds: (n + 1,) int64; sequence i is the slice bounds[i]:bounds[i + 1].

    Example:
        >>> table = TokenTable.of([[7, 8], [], [9]])
        >>> table[0].tolist(), len(table), table.lengths.tolist()
        ([7, 8], 3, [2, 0, 1])
    """

    values: Int32
    bounds: Int64

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int] | Int32 | Int64]) -> TokenTable:
        """A table of these sequences."""
        writer = TokenTableWriter(None)
        writer.append(sequences)
        return writer.finish()

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, row: int) -> Int32:
        """Sequence `row`, without a copy."""
        return self.values[self.bounds[row] : self.bounds[row + 1]]

    @property
    def lengths(self) -> Int64:
        """(n,) lengths of the sequences."""
        return np.diff(self.bounds)

    def gather(self, rows: Int64) -> tuple[Int32, Int64]:
        """The concatenated sequences of `rows`, and for each number the position in `rows` it came from.

        Example:
            >>> values, owners = TokenTable.of([[7, 8], [], [9]]).gather(np.array([2, 0]))
            >>> values.tolist(), owners.tolist()
            ([9, 7, 8], [0, 1, 1])
        """
        starts = self.bounds[rows]
        lengths = self.bounds[rows + 1] - starts
        return self.values[ranges(starts, lengths)], np.repeat(np.arange(len(rows)), lengths)

    def spread(self, places: Int64, rows: int) -> TokenTable:
        """A table of `rows` sequences: these at `places` (ascending), all others empty.

        Example:
            >>> TokenTable.of([[7, 8], [9]]).spread(np.array([1, 3]), 4).lengths.tolist()
            [0, 2, 0, 1]
        """
        lengths = np.zeros(rows, np.int64)
        lengths[places] = self.lengths
        return TokenTable(self.values, np.append(0, np.cumsum(lengths)))

    def replaced(self, other: TokenTable) -> TokenTable:
        """This table with each sequence replaced by that of `other`, where the latter is not empty.

        Example:
            >>> table = TokenTable.of([[7, 8], [6], [9]]).replaced(TokenTable.of([[], [1, 2], []]))
            >>> [table[row].tolist() for row in range(3)]
            [[7, 8], [1, 2], [9]]
        """
        both = TokenTable(
            np.concatenate([self.values, other.values]),
            np.concatenate([self.bounds, other.bounds[1:] + self.bounds[-1]]),
        )
        rows = np.arange(len(self)) + len(self) * (other.lengths > 0)
        return TokenTable(both.gather(rows)[0], np.append(0, np.cumsum(both.lengths[rows])))

    def write(self, folder: Path, name: str) -> dict[str, Any]:
        """Save as `NAME.values.npy` and `NAME.bounds.npy`; returns what `read` needs to know."""
        save_npy(folder / f"{name}.values.npy", self.values)
        save_npy(folder / f"{name}.bounds.npy", self.bounds)
        return {"rows": len(self), "values": len(self.values)}

    @classmethod
    def read(cls, folder: Path, name: str, shape: dict[str, Any]) -> TokenTable:
        """Map a saved table into memory.

        Raises:
            ArtifactError: a file is missing, damaged or of another size.
        """
        values = load_npy(folder / f"{name}.values.npy", dtype=np.int32, shape=(int(shape["values"]),))
        bounds = load_npy(folder / f"{name}.bounds.npy", dtype=np.int64, shape=(int(shape["rows"]) + 1,))
        return cls(values, bounds)


class TokenTableWriter:
    """Collects sequences; with a file they are written at once, so that only their lengths stay in memory.

    Args:
        path: raw int32 file for the numbers, or None to keep them in memory.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._chunks: list[Int32] = []
        self._lengths: list[Int64] = [np.zeros(1, np.int64)]
        self.rows = 0
        self._file = None if path is None else open(path, "wb")  # noqa: SIM115 - closed by finish

    def append(self, sequences: Sequence[Sequence[int] | Int32 | Int64]) -> None:
        """Add sequences at the end."""
        lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
        values = np.fromiter((v for sequence in sequences for v in sequence), np.int32, int(lengths.sum()))
        self._lengths.append(lengths)
        self.rows += len(sequences)
        if self._file is None:
            self._chunks.append(values)
        else:
            assert self.path is not None
            with disk_errors(self.path):
                self._file.write(values.data)

    def finish(self) -> TokenTable:
        """The whole table; if it was written to a file, its numbers are memory-mapped."""
        bounds = np.cumsum(np.concatenate(self._lengths))
        if self._file is None:
            return TokenTable(np.concatenate([np.zeros(0, np.int32), *self._chunks]), bounds)
        assert self.path is not None
        with disk_errors(self.path):
            self._file.close()
        if not bounds[-1]:
            return TokenTable(np.zeros(0, np.int32), bounds)
        return TokenTable(np.asarray(np.memmap(self.path, np.int32, mode="r")), bounds)


class TextsToIds(Protocol):
    """Turns questions and passages into token ids.

    Attributes:
        fingerprint: identifies everything that decides which ids a text gets.
    """

    fingerprint: str

    def queries(self, queries: Sequence[Query]) -> Sequence[Sequence[int] | Int32]:
        """Token ids of questions, alone or with passages, in order."""

    def passages(self, titles: Sequence[str], texts: Sequence[str]) -> Sequence[Sequence[int] | Int32]:
        """Token ids of passages, in order."""


class RetrieverTokenizer:
    """Turns questions and passages into token ids, in the layout that the finished encoder will use.

    Args:
        question_settings, passage_settings: prefixes, layout and lengths in use.
        query_tokens: maximum length of a query with passages, special tokens included; None: as for
            questions.

    Attributes:
        question_settings, passage_settings: see there.
        fingerprint: hex sha256 of everything that decides which ids a text gets.

    Example:
        >>> settings = read_settings(model_folder(None)).override(max_length=16)       # doctest: +SKIP
        >>> RetrieverTokenizer(settings, settings).passages(["Danube"], ["A river."])  # doctest: +SKIP
        [[101, 15709, 1037, 2314, 1012, 102]]
    """

    def __init__(
        self,
        question_settings: EncoderSettings,
        passage_settings: EncoderSettings,
        *,
        query_tokens: int | None = None,
    ) -> None:
        self.question_settings, self.passage_settings = question_settings, passage_settings
        self._layout = PassageLayout(passage_settings.layout)
        longer = question_settings.override(max_length=query_tokens)
        self._questions = TextTokenizer(question_settings)
        self._queries = TextTokenizer(longer)
        self._passages = TextTokenizer(passage_settings)
        self.fingerprint = _fingerprint(question_settings, passage_settings, longer.max_length)

    def queries(self, queries: Sequence[Query]) -> list[list[int]]:
        """Token ids of questions, alone or with passages, in order."""
        prefix = self.question_settings.query_prefix
        ids = self._questions.queries(queries, prefix)
        longer = [number for number, query in enumerate(queries) if query.passages]
        found = self._queries.queries([queries[number] for number in longer], prefix)
        for number, sequence in zip(longer, found, strict=True):
            ids[number] = sequence
        return ids

    def passages(self, titles: Sequence[str], texts: Sequence[str]) -> list[list[int]]:
        """Token ids of passages, in order."""
        first, second = self._layout.render(titles, texts, prefix=self.passage_settings.passage_prefix)
        return self._passages(first, second)


def _fingerprint(questions: EncoderSettings, passages: EncoderSettings, query_tokens: int) -> str:
    digest = hashlib.sha256(str(query_tokens).encode())
    for settings, prefix in ((questions, questions.query_prefix), (passages, passages.passage_prefix)):
        stated = [prefix, settings.layout, str(settings.max_length)]
        if settings.interaction is not None:
            stated.append(settings.interaction.describe())
        for part in stated:
            digest.update(len(part).to_bytes(4, "little") + part.encode())
        for file in sorted(settings.weights_dir.iterdir()):
            if file.name.startswith(("tokenizer", "vocab", "merges", "spiece", "sentencepiece", "special_")):
                digest.update(f"{file.name} {sha256_file(file)}\n".encode())
    return digest.hexdigest()
