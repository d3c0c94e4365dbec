"""Exact inner products over memory-mapped embeddings: brute-force search, and re-ranking of
candidates.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import faiss
import numpy as np

from indexers.embeddings import EmbeddingShards
from indexers.faiss_types import faiss_threads
from indexers.protocols import Selection, VectorIndex
from rag.core.arrays import Bool, Float32, Float64, Int64
from rag.core.errors import RetrievalError

# Candidates fetched beyond what is asked, so that rounding and ties at the cut are settled by exact
# scores.
CANDIDATE_MARGIN = 16
_GATHER_BYTES = 64 << 20
# Pairs that FAISS multiplies in one step; see `exact_scores`.
_PAIRS_AT_ONCE = 4
# Below this OpenMP's threads cost more time than they save, and keep spinning afterwards.
_PAIRS_WORTH_THREADS = 16_384
_MIN_QUERIES_TO_COPY = 16  # queries from which selected vectors are copied out of the others
_QUERIES_AT_ONCE = 4096  # queries whose lists of the best are in memory together
_PICK_ROWS = 4096  # selected rows that are read singly, without the rows between them
# FAISS multiplies matrices from queries of so many numbers in all (n · D); its default is 128,000.
# Set once for the whole process: no result depends on the searches before it.
faiss.cvar.distance_compute_blas_threshold = 4096


def check_queries(queries: Float32, dim: int, top_k: int) -> Float32:
    """Queries (n, D) as contiguous float32.

    Raises:
        RetrievalError: wrong shape, values that are not finite, or `top_k` below 1.
    """
    values = np.ascontiguousarray(queries, dtype=np.float32)
    if values.ndim != 2 or values.shape[1] != dim:
        raise RetrievalError(
            f"the queries have shape {values.shape}, the index searches vectors of shape (n, {dim})",
            hint="use the encoder the index was built with",
        )
    if not np.isfinite(values).all():
        raise RetrievalError(
            "a query vector holds NaN or infinity", hint="check the encoder's weights"
        )
    if top_k < 1:
        raise RetrievalError(f"top_k is {top_k}, expected at least 1")
    return values


def select_best(scores: Float32, rows: Int64, top_k: int) -> tuple[Float32, Int64]:
    """The best `top_k` of candidates (n, M), best first, ties by row, missing (row -1, score -inf)
    last.

    Example:
        >>> s, r = select_best(np.float32([[1, 3, 3, -np.inf]]), np.array([[4, 9, 2, -1]]), 5)
        >>> r.tolist()
        [[2, 9, 4, -1, -1]]
    """
    order = np.lexsort((rows, -scores))[:, :top_k]
    best_scores = np.full((len(scores), top_k), -np.inf, dtype=np.float32)
    best_rows = np.full((len(scores), top_k), -1, dtype=np.int64)
    best_scores[:, : order.shape[1]] = np.take_along_axis(scores, order, axis=1)
    best_rows[:, : order.shape[1]] = np.take_along_axis(rows, order, axis=1)
    return best_scores, best_rows


def exact_scores(embeddings: EmbeddingShards, queries: Float32, candidates: Int64) -> Float32:
    """Inner products (n, M) of queries (n, D) with candidate rows (n, M); -inf where the row is -1.

    The score of a pair depends on its two vectors only, not on the batch or the position: equal
    passages get equal scores, and a query gets the same result alone and in a batch. FAISS sums a
    remainder of four pairs in another order, so each query's list is filled up to a multiple of
    four.
    """
    scores = np.full(candidates.shape, -np.inf, dtype=np.float32)
    padded_width = -(-candidates.shape[1] // _PAIRS_AT_ONCE) * _PAIRS_AT_ONCE
    step = max(1, _GATHER_BYTES // (4 * embeddings.dim * max(1, padded_width)))
    for start in range(0, len(queries) if padded_width else 0, step):
        part = candidates[start : start + step]  # (q, M)
        # A missing row is scored as row 0, and left out at the end.
        rows, positions = np.unique(np.maximum(part, 0), return_inverse=True)
        vectors = embeddings.rows(rows)
        ids = np.zeros((len(part), padded_width), np.int64)
        ids[:, : part.shape[1]] = positions.reshape(part.shape)
        products = np.empty(ids.shape, np.float32)
        part_queries = np.ascontiguousarray(queries[start : start + step])
        pointers = map(faiss.swig_ptr, (products, part_queries, vectors, ids))
        with faiss_threads(None if ids.size >= _PAIRS_WORTH_THREADS else 1):
            faiss.fvec_inner_products_by_idx(
                *pointers, vectors.shape[1], len(part_queries), padded_width
            )
        np.copyto(scores[start : start + step], products[:, : part.shape[1]], where=part >= 0)
    return scores


def exact_search(
    embeddings: EmbeddingShards, queries: Float32, top_k: int, selected: Selection | None = None
) -> tuple[Float32, Int64]:
    """Brute force over all embeddings, shard by shard; see `VectorIndex.search` for arguments and
    result.
    """
    queries = check_queries(queries, embeddings.dim, top_k)
    total = len(embeddings)
    if selected is not None:
        total = len(check_selected(selected, total))
    if total == 0 or not len(queries):
        no_scores = np.empty((len(queries), 0), np.float32)
        return select_best(no_scores, no_scores.astype(np.int64), top_k)
    if selected is not None and total <= _PICK_ROWS:
        rows = np.broadcast_to(selected.rows, (len(queries), total))
        return select_best(exact_scores(embeddings, queries, rows), rows, top_k)
    count = min(top_k + CANDIDATE_MARGIN, total)
    last = min(top_k, count) - 1
    scores, rows = _candidates(embeddings, queries, count, selected)
    best, best_rows = select_best(scores, rows, top_k)
    # Copies of a passage may tie beyond the margin: more candidates decide which come first.
    tied = np.flatnonzero(best[:, last] <= scores.min(axis=1))
    while len(tied) and count < total:
        count = min(4 * count, total)
        scores, rows = _candidates(embeddings, queries[tied], count, selected)
        best[tied], best_rows[tied] = select_best(scores, rows, top_k)
        tied = tied[best[tied, last] <= scores.min(axis=1)]
    return best, best_rows


def check_selected(selected: Selection, rows: int) -> Selection:
    """The selection, if it is of an index with this number of rows; else a RetrievalError."""
    if selected.total != rows:
        raise RetrievalError(
            f"a selection among {selected.total} rows was given for an index of {rows}",
            hint="select anew after the index has changed",
        )
    return selected


def _candidates(
    embeddings: EmbeddingShards, queries: Float32, count: int, selected: Selection | None
) -> tuple[Float32, Int64]:
    """Exact scores and rows (n, count) of the best by FAISS, in any order."""
    parts = []
    for start in range(0, len(queries), _QUERIES_AT_ONCE):
        some_queries = queries[start : start + _QUERIES_AT_ONCE]
        parts.append(_best_rows(embeddings, some_queries, count, selected))
    rows = np.concatenate(parts)
    return exact_scores(embeddings, queries, rows), rows


def _best_rows(
    embeddings: EmbeddingShards, queries: Float32, count: int, selected: Selection | None
) -> Int64:
    """Rows (n, count) of the best, by FAISS's search in each shard."""
    best = faiss.ResultHeap(len(queries), count, keep_max=True)

    def search(block: tuple[int, Float32, Bool | None]) -> tuple[Float32, Int64]:
        first_row, vectors, mask = block
        scores, positions = _nearest(queries, vectors, count, mask)
        return scores, positions + first_row

    threads = faiss.omp_get_max_threads()
    blocks = _selected_blocks(embeddings, selected)
    if threads == 1 or len(queries) >= threads:
        for scores, rows in map(search, blocks):
            best.add_result(scores, rows)
    else:
        # FAISS divides work by queries only; with few of them, shards are divided instead.
        with ThreadPoolExecutor(
            threads, initializer=faiss.omp_set_num_threads, initargs=(1,)
        ) as pool:
            for scores, rows in pool.map(search, blocks):
                best.add_result(scores, rows)
    best.finalize()
    return np.asarray(best.I, np.int64)


def _nearest(
    queries: Float32, vectors: Float32, count: int, mask: Bool | None
) -> tuple[Float32, Int64]:
    """Scores and positions (n, k) of the best of vectors (m, D).

    Args:
        count: most results per query; k is less if there are fewer vectors.
        mask: (m,) which vectors may be returned; None: all.
    """
    if mask is None:
        count = min(count, len(vectors))
        return faiss.knn(queries, vectors, count, metric=faiss.METRIC_INNER_PRODUCT)
    count = min(count, int(mask.sum()))
    if len(queries) >= _MIN_QUERIES_TO_COPY:
        allowed = np.flatnonzero(mask)
        scores, positions = _nearest(queries, vectors[allowed], count, None)
        return scores, allowed[positions]
    # For few queries, copying the vectors takes longer than the search.
    shape = (len(queries), count)
    scores = np.empty(shape, np.float32)
    positions = np.empty(shape, np.int64)
    bits = np.packbits(mask, bitorder="little")
    selector = faiss.IDSelectorBitmap(bits)
    inputs = (faiss.swig_ptr(array) for array in (queries, vectors))
    results = (faiss.swig_ptr(array) for array in (scores, positions))
    sizes = (vectors.shape[1], len(queries), len(vectors), count)
    faiss.knn_inner_product(*inputs, *sizes, *results, selector)
    return scores, positions


def _selected_blocks(
    embeddings: EmbeddingShards, selected: Selection | None
) -> Iterator[tuple[int, Float32, Bool | None]]:
    """The first row of each shard, its vectors (m, D), and which of them (m,) may be returned;
    None: all.
    """
    for first_row, vectors in embeddings.blocks():
        mask = None if selected is None else selected.mask[first_row : first_row + len(vectors)]
        if mask is None or mask.all():
            yield first_row, vectors, None
        elif mask.any():
            yield first_row, np.ascontiguousarray(vectors, np.float32), mask


class FlatIndex:
    """Exact search straight from the memory-mapped float32 embeddings, without a second copy of
    them.
    """

    def __init__(self, embeddings: EmbeddingShards) -> None:
        self._embeddings = embeddings
        self.dim = embeddings.dim

    def __len__(self) -> int:
        return len(self._embeddings)

    def search(
        self, queries: Float32, top_k: int, selected: Selection | None = None
    ) -> tuple[Float32, Int64]:
        """See `VectorIndex.search`."""
        return exact_search(self._embeddings, queries, top_k, selected)


def recalls_at(index: VectorIndex, queries: Float32, truth: Float32, k: int) -> Float64:
    """(n,) share of each query's true best `k` that `index` returns; equal scores count as equal.

    Args:
        queries: (n, D).
        truth: exact scores (n, K), best first; K may be less than `k` in a small corpus.
    """
    depth = min(k, truth.shape[1])
    scores, _ = index.search(queries, depth)
    threshold = truth[:, depth - 1 : depth]
    return np.asarray((scores >= threshold - 1e-6 * np.abs(threshold)).mean(axis=1), np.float64)


def sample_rows(embeddings: EmbeddingShards, count: int, seed: int) -> Float32:
    """`count` rows drawn without replacement, in row order, as (count, D) float32."""
    total = len(embeddings)
    if count >= total:
        return embeddings.rows(np.arange(total))
    drawn = np.random.default_rng(seed).choice(total, count, replace=False, shuffle=False)
    return embeddings.rows(np.sort(drawn))
