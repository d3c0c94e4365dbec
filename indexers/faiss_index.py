"""Search a FAISS index whose files are mapped into memory, which several processes share; exact
scores from the embeddings decide the order.
"""

from __future__ import annotations

from pathlib import Path

import faiss
import numpy as np

from indexers.embeddings import EmbeddingShards
from indexers.exact import (
    CANDIDATE_MARGIN,
    FlatIndex,
    check_queries,
    check_selected,
    exact_scores,
    exact_search,
    select_best,
)
from indexers.mapped_lists import open_lists
from indexers.protocols import Selection, VectorIndex
from rag.config import Config
from rag.core.arrays import Float32, Int64
from rag.core.errors import IncompleteArtifactError, MismatchedArtifactError
from rag.core.files import unreadable

FAISS_NAME = "faiss.index"
RECALL_KS = (1, 10, 100)
_BRUTE_FORCE_ROWS = 50_000  # brute force up to this many selected rows
_BRUTE_FORCE_SHARE = 16  # … or if at most 1 row in 16 is selected
_MOST_ROWS = 0.75  # share of selected rows from which a search is not repeated with more width


class DenseInfo(Config):
    """What the manifest says of a FAISS index: the fields of its `Preset`, search settings, and
    recall.

    Attributes:
        effort: lists (nprobe) or graph nodes (efSearch) that a search looks at; 0 for a full scan.
        exact_reranking: whether exact scores re-rank the candidates.
        probes: number of queries on which recall was measured.
        recall: measured recall by k, as text.
        mapped_lists: whether the inverted lists lie in a separate file.
    """

    index_type: str
    factory: str
    nlist: int
    training_rows: int
    over_fetch: int
    metric: str = "inner_product"
    rows: int
    dim: int
    seed: int
    effort: int = 0
    exact_reranking: bool
    probes: int
    recall_target: float
    recall: dict[str, float]
    mapped_lists: bool | None = None


def search_parameters(
    index: faiss.Index, effort: int, count: int, selected: Selection | None = None
) -> faiss.SearchParameters | None:
    """Search settings for one call; settings on the index itself would be shared by threads."""
    if isinstance(index, faiss.IndexPreTransform):
        inner = search_parameters(faiss.downcast_index(index.index), effort, count, selected)
        return faiss.SearchParametersPreTransform(index_params=inner)
    rows = {}
    if selected is not None:
        rows["sel"] = faiss.IDSelectorBitmap(selected.bits)
    if isinstance(index, faiss.IndexHNSW):
        return faiss.SearchParametersHNSW(efSearch=max(effort, count), **rows)
    if isinstance(index, faiss.IndexIVFPQ):
        return faiss.IVFPQSearchParameters(nprobe=effort, **rows)
    if isinstance(index, faiss.IndexIVF):
        return faiss.SearchParametersIVF(nprobe=effort, **rows)
    return faiss.SearchParameters(**rows) if rows else None


def open_faiss(directory: Path, info: DenseInfo) -> faiss.Index:
    """FAISS's index in a directory, mapped into memory.

    Raises:
        ArtifactError: it is damaged, or does not fit.
        ResourceError: the system lacks open files or memory.
    """
    path = directory / FAISS_NAME
    if not path.is_file():
        raise IncompleteArtifactError(f"{path} is missing", hint="run the stage that builds it")
    try:
        if info.mapped_lists:
            index = open_lists(path)
        else:
            index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except (RuntimeError, MemoryError) as error:
        raise unreadable(path, error) from error
    if (index.ntotal, index.d) != (info.rows, info.dim):
        raise MismatchedArtifactError(
            f"{path} holds {index.ntotal} vectors of size {index.d}, "
            f"expected {info.rows} of size {info.dim}",
            hint="restore it or rebuild the index",
        )
    return index


class FaissIndex:
    """A lossy FAISS index whose candidates are re-ranked with exact scores from the embeddings."""

    def __init__(self, index: faiss.Index, embeddings: EmbeddingShards, info: DenseInfo) -> None:
        self._index = index
        self._embeddings = embeddings
        self._info = info
        self.dim = embeddings.dim

    def __len__(self) -> int:
        return len(self._embeddings)

    def search(
        self, queries: Float32, top_k: int, selected: Selection | None = None
    ) -> tuple[Float32, Int64]:
        """See `VectorIndex.search`; scores are exact inner products with the stored embeddings.

        Of few selected rows every one is compared. With more, the search widens by the share of
        rows that are not selected and, where these are many, until one twice as wide gives the same
        result.
        """
        queries = check_queries(queries, self.dim, top_k)
        if selected is None:
            return self._search(queries, top_k, 1, None)
        allowed = len(check_selected(selected, len(self)))
        if allowed <= max(_BRUTE_FORCE_ROWS, len(self) // _BRUTE_FORCE_SHARE):
            return exact_search(self._embeddings, queries, top_k, selected)
        width = -(-len(self) // allowed)
        scores, rows = self._search(queries, top_k, width, selected)
        while allowed < _MOST_ROWS * len(self) and width * top_k < allowed:
            width *= 2
            before = rows
            scores, rows = self._search(queries, top_k, width, selected)
            if np.array_equal(before, rows):
                break
        return scores, rows

    def _search(
        self, queries: Float32, top_k: int, width: int, selected: Selection | None
    ) -> tuple[Float32, Int64]:
        """One search with `width` times the tuned effort and candidates."""
        allowed = len(self) if selected is None else len(selected)
        if self._count(top_k, width) >= allowed:  # FAISS has nothing to choose
            return exact_search(self._embeddings, queries, top_k, selected)
        candidates = self._candidates(queries, top_k, width, selected)
        candidate_scores = exact_scores(self._embeddings, queries, candidates)
        scores, rows = select_best(candidate_scores, candidates, top_k)
        # In a graph, the links of copies of a passage may lead to other copies alone.
        lacking = np.flatnonzero(rows[:, -1] < 0)
        if len(lacking):
            found = exact_search(self._embeddings, queries[lacking], top_k, selected)
            scores[lacking], rows[lacking] = found
        return scores, rows

    def _count(self, top_k: int, width: int) -> int:
        """Number of candidates fetched for `top_k` results; perhaps more than there are rows."""
        return width * top_k * self._info.over_fetch + CANDIDATE_MARGIN

    def _candidates(
        self, queries: Float32, top_k: int, width: int, selected: Selection | None
    ) -> Int64:
        """Rows (n, count) of the candidates at the first effort that gives enough; row -1: no
        more.
        """
        count = min(self._count(top_k, width), len(self))
        effort = self._info.effort * width
        lists = self._info.nlist
        if lists:
            # Tuned for the first hundred results: for two hundred and more, lists are searched in
            # proportion.
            tuned = width * self._count(max(RECALL_KS), 1)
            effort = min(effort * max(1, count // tuned), lists)
        while True:
            parameters = search_parameters(self._index, effort, count, selected)
            rows: Int64 = self._index.search(queries, count, params=parameters)[1]
            if effort >= lists or (rows[:, : min(top_k, count)] >= 0).all():
                return rows
            effort = min(2 * effort, lists)


def open_dense(directory: Path, embeddings: EmbeddingShards, info: DenseInfo) -> VectorIndex:
    """Open what `build_faiss` wrote into a directory and returned as `info`.

    Raises:
        ArtifactError: the file is missing, damaged, or belongs to other embeddings.
    """
    if (info.rows, info.dim) != (len(embeddings), embeddings.dim):
        raise MismatchedArtifactError(
            f"{directory} indexes {info.rows} vectors of size {info.dim}, "
            f"not these {len(embeddings)}",
            hint="rebuild the index",
        )
    if info.index_type == "flat":
        return FlatIndex(embeddings)
    return FaissIndex(open_faiss(directory, info), embeddings, info)
