"""An index that was updated: several segments of passages and vectors, read as one index without gaps.

A segment is a folder with passages and, for dense retrieval, embeddings and a FAISS index. It is never
changed once it is written. The rows of all segments, one segment after another, are the stored rows.
`rows.npy` of a version lists those that are in the index, in the order of the corpus: the position in this
list is the row of a passage for all readers, and rows that are not in the list are deleted. So an updated
index has the same rows as one that was built from the same corpus at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from indexers.embedding_shards import EmbeddingShards
from indexers.exact import check_selected, select_best
from indexers.faiss_index import open_dense
from indexers.passages import PassageStore
from indexers.protocols import VectorIndex
from indexers.selected import Selection
from indexers.settings import STAGES
from rag.core.arrays import Float32, Int64
from rag.core.errors import ArtifactError, DataError, MismatchedArtifactError, RetrievalError
from rag.core.types import Passage

ROWS_NAME = "rows.npy"
_SKIPPED = 64  # results fetched beyond what is asked, in place of deleted ones


class LiveRows:
    """Maps the rows of an index to rows of its segments, and back.

    Args:
        stored: stored rows (N,) of the index's passages, in the order of the corpus.
        sizes: number of rows of each segment.

    Raises:
        ArtifactError: a row is beyond the segments, or listed twice.

    Example:
        >>> live = LiveRows(np.array([0, 3, 1]), [3, 2])
        >>> live.of(1, np.array([0, 1, -1])).tolist(), live.is_live(0).tolist()
        ([1, -1, -1], [True, True, False])
    """

    def __init__(self, stored: Int64, sizes: Sequence[int]) -> None:
        self.stored, self.bounds = stored, np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        if len(stored) and (stored.min() < 0 or stored.max() >= self.bounds[-1]):
            raise ArtifactError(
                f"{ROWS_NAME} lists rows beyond the {self.bounds[-1]} of the segments",
                hint="rebuild the index",
            )
        self._live = np.full(self.bounds[-1], -1, np.int64)
        self._live[stored] = np.arange(len(stored))
        if int((self._live >= 0).sum()) != len(stored):
            raise ArtifactError(f"{ROWS_NAME} lists a row twice", hint="rebuild the index")

    def __len__(self) -> int:
        return len(self.stored)

    def of(self, segment: int, rows: Int64) -> Int64:
        """Rows of the index for rows of a segment; -1 where the row is deleted or -1."""
        offset = self.bounds[segment]
        return np.where(rows >= 0, self._live[offset + np.maximum(rows, 0)], -1)

    def row_of(self, stored: int) -> int:
        """The row of the index for a stored row; -1 if it is deleted."""
        return int(self._live[stored])

    def is_live(self, segment: int) -> np.ndarray:
        """Which rows (rows of the segment,) are in the index."""
        return np.asarray(self._live[self.bounds[segment] : self.bounds[segment + 1]] >= 0)

    def runs(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """(segment, first row, one past the last) of neighbouring rows that make up rows start … stop - 1."""
        stored = np.asarray(self.stored[start:stop])
        if not len(stored):
            return
        segments = self.segments(stored)
        breaks = np.flatnonzero((np.diff(stored) != 1) | (np.diff(segments) != 0)) + 1
        for first, last in zip([0, *breaks], [*breaks, len(stored)], strict=True):
            segment = int(segments[first])
            begin = int(stored[first] - self.bounds[segment])
            yield segment, begin, begin + int(last - first)

    def segments(self, stored: Int64) -> Int64:
        """The segment of each stored row."""
        return np.searchsorted(self.bounds, stored, side="right") - 1


class LivePassages(PassageStore):
    """The passages of several segments, without the deleted ones."""

    def __init__(self, directory: Path, live: LiveRows, stores: Sequence[PassageStore]) -> None:
        self.directory, self._live, self._stores = directory, live, stores
        self._rows = len(live)

    def _place(self, row: int) -> tuple[PassageStore, int]:
        stored = int(self._live.stored[row])
        segment = int(self._live.segments(np.array([stored]))[0])
        return self._stores[segment], stored - int(self._live.bounds[segment])

    def _expect(self, row: int) -> None:
        store, local = self._place(row)
        store._expect(local)

    def __getitem__(self, row: int) -> Passage:
        """See `PassageStore`."""
        if not 0 <= row < len(self):
            raise RetrievalError(f"there is no row {row} in a store of {len(self)} passages")
        store, local = self._place(row)
        return store[local]

    def ids(self, rows: Sequence[int] | np.ndarray) -> list[str]:
        """See `PassageStore`."""
        self._check(rows)
        return [store.ids([local])[0] for store, local in map(self._place, rows)]

    def row_of(self, passage_id: str) -> int | None:
        """See `PassageStore`."""
        for segment, store in enumerate(self._stores):
            local = store.row_of(passage_id)
            if local is not None and (row := int(self._live.of(segment, np.array([local]))[0])) >= 0:
                return row
        return None

    def column(self, name: str) -> pa.ChunkedArray | None:
        """See `PassageStore`; a copy."""
        columns = [store.column(name) for store in self._stores]
        kind = next((column.type for column in columns if column is not None), None)
        if kind is None:
            return None
        chunks: list[pa.Array] = []
        for store, column in zip(self._stores, columns, strict=True):
            chunks += [pa.nulls(len(store), kind)] if column is None else column.chunks
        return pa.chunked_array(chunks, kind).take(pa.array(self._live.stored))

    def _mapped_anew(self) -> PassageStore:
        stores = [store._mapped_anew() for store in self._stores]
        return LivePassages(self.directory, self._live, stores)

    def _slice(self, start: int, stop: int) -> Iterator[Passage]:
        for segment, first, last in self._live.runs(start, stop):
            yield from self._stores[segment]._slice(first, last)


class LiveEmbeddings(EmbeddingShards):
    """The vectors of several segments, without the deleted ones; see `EmbeddingShards`."""

    def __init__(self, live: LiveRows, shards: Sequence[EmbeddingShards]) -> None:
        first = shards[0]
        self.directory, self.encoder = first.directory, first.encoder
        self.dim, self.dtype, self.shard_rows = first.dim, first.dtype, first.shard_rows
        self._live, self._segments = live, shards
        self.is_large = any(one.is_large for one in shards)

    def __len__(self) -> int:
        return len(self._live)

    def rows(self, rows: Int64) -> Float32:
        """See `EmbeddingShards`."""
        wanted = np.asarray(rows, dtype=np.int64)
        if len(wanted) and (wanted.min() < 0 or wanted.max() >= len(self)):
            raise DataError(f"rows {wanted.min()}…{wanted.max()} are outside of the {len(self)} embeddings")
        stored = np.asarray(self._live.stored[wanted])
        segments = self._live.segments(stored)
        gathered = np.empty((len(wanted), self.dim), dtype=np.float32)
        for segment in np.unique(segments).tolist():
            here = segments == segment
            gathered[here] = self._segments[segment].rows(stored[here] - self._live.bounds[segment])
        return gathered

    def blocks(self, *, read_whole: bool = True) -> Iterator[tuple[int, Float32]]:
        """See `EmbeddingShards`; the vectors are copies, and read as a whole."""
        for first in range(0, len(self), self.shard_rows):
            yield first, self.rows(np.arange(first, min(first + self.shard_rows, len(self))))


class LiveVectors:
    """Vector search in several segments: each is searched without its deleted rows, and hits are merged."""

    def __init__(self, live: LiveRows, parts: Sequence[VectorIndex]) -> None:
        self._live, self._parts, self.dim = live, parts, parts[0].dim
        self._alive = [Selection(live.is_live(segment)) for segment in range(len(parts))]

    def __len__(self) -> int:
        return len(self._live)

    def search(
        self, queries: Float32, top_k: int, selected: Selection | None = None
    ) -> tuple[Float32, Int64]:
        """See `VectorIndex.search`."""
        if selected is not None:
            check_selected(selected, len(self))
        found = [self._search(segment, queries, top_k, selected) for segment in range(len(self._parts))]
        scores, rows = (np.concatenate(parts, axis=1) for parts in zip(*found, strict=True))
        return select_best(scores, rows, top_k)

    def _search(
        self, segment: int, queries: Float32, top_k: int, selected: Selection | None
    ) -> tuple[Float32, Int64]:
        part, alive = self._parts[segment], self._alive[segment]
        if selected is not None:
            rows = self._live.of(segment, np.arange(len(part)))
            chosen = Selection(alive.mask & selected.mask[np.maximum(rows, 0)])
            return self._of(segment, *part.search(queries, top_k, chosen))
        if len(alive) == len(part):
            return self._of(segment, *part.search(queries, top_k))
        # A few deleted ones are skipped afterwards, which is quicker than leaving them out.
        scores, rows = self._of(segment, *part.search(queries, top_k + _SKIPPED))
        if (rows >= 0).sum(axis=1).min() >= min(top_k, len(alive)):
            return scores, rows
        return self._of(segment, *part.search(queries, top_k, alive))

    def _of(self, segment: int, scores: Float32, rows: Int64) -> tuple[Float32, Int64]:
        """Scores and rows of the index for those of a segment."""
        live = self._live.of(segment, rows)
        return np.where(live >= 0, scores, np.float32(-np.inf)), live


@dataclass(frozen=True, slots=True)
class OpenSegments:
    """The opened parts of an updated index; embeddings and dense are None without dense retrieval."""

    live: LiveRows
    passages: LivePassages
    embeddings: LiveEmbeddings | None
    dense: LiveVectors | None


def open_segments(places: Sequence[Path], stored: Int64, *, has_dense: bool) -> OpenSegments:
    """Open segments as one index.

    Args:
        places: their folders.
        stored: see `LiveRows`.

    Raises:
        ArtifactError: a file is missing or damaged, or the parts of a segment do not fit together.
    """
    stores = [PassageStore.open(place / STAGES[0]) for place in places]
    live = LiveRows(stored, [len(store) for store in stores])
    passages = LivePassages(places[0] / STAGES[0], live, stores)
    if not has_dense:
        return OpenSegments(live, passages, None, None)
    shards = [EmbeddingShards.open(place / STAGES[1]) for place in places]
    for place, store, vectors in zip(places, stores, shards, strict=True):
        if len(vectors) != len(store) or vectors.encoder != shards[0].encoder:
            raise MismatchedArtifactError(
                f"{place / STAGES[1]} has {len(vectors)} vectors of {vectors.encoder.name} for {len(store)} "
                "passages: it does not belong to them",
                hint="rebuild the index",
            )
    parts = [open_dense(place / STAGES[2], one) for place, one in zip(places, shards, strict=True)]
    return OpenSegments(live, passages, LiveEmbeddings(live, shards), LiveVectors(live, parts))
