"""Exact inner products over memory-mapped embeddings: brute-force search, and re-ranking of candidates."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import faiss
import numpy as np

from indexers.embedding_shards import EmbeddingShards
from indexers.selected import Selection
from rag.core.arrays import Bool, Float32, Int64
from rag.core.errors import ConfigError, RetrievalError
from rag.core.ragged import ranges

# Candidates fetched beyond what is asked, so that rounding and ties at the cut are settled by exact scores.
CANDIDATE_MARGIN = 16
_GATHER_BYTES = 64 << 20
_PAIRS_AT_ONCE = 4
# Below this OpenMP's threads cost more time than they save, and keep spinning afterwards.
_PAIRS_WORTH_THREADS = 16_384
_MERGE_EVERY_SHARDS = 16
_MANY_QUERIES = 8  # from here on matrix products of all queries beat FAISS's search per shard
_TILE_ROWS = 4096  # vectors per matrix product
_WAITING_FACTOR = 2  # candidates per result that are collected before the best are chosen
_QUERIES_AT_ONCE = 4096  # queries per search by matrix products
_PICK_ROWS = 4096  # selected rows that are read one by one, without the rows between them


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
        raise RetrievalError("a query vector holds NaN or infinity", hint="check the encoder's weights")
    if top_k < 1:
        raise RetrievalError(f"top_k is {top_k}, expected at least 1")
    return values


def select_best(scores: Float32, rows: Int64, top_k: int) -> tuple[Float32, Int64]:
    """The best `top_k` of candidates (n, M), best first, ties by row, missing (row -1, score -inf) last.

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

    The score of a pair depends on its two vectors only, not on the batch or the position: equal passages
    get equal scores, and a query gets the same result alone and in a batch. Float32 vectors are read where
    they lie in the memory map; float16 ones are converted, each once per step.
    """
    scores = np.full(candidates.shape, -np.inf, dtype=np.float32)
    if candidates.size == 0:
        return scores
    if embeddings.dtype == "float32":
        for first_row, vectors in embeddings.blocks(read_whole=False):
            inside = (candidates >= first_row) & (candidates < first_row + len(vectors))
            _score_pairs(scores, queries, vectors, candidates - first_row, inside)
        return scores
    step = max(1, _GATHER_BYTES // (4 * embeddings.dim * candidates.shape[1]))
    for start in range(0, len(queries), step):
        part = candidates[start : start + step]  # (q, M)
        wanted, inverse = np.unique(np.maximum(part, 0), return_inverse=True)
        _score_pairs(
            scores[start : start + step],
            queries[start : start + step],
            embeddings.rows(wanted),
            inverse.reshape(part.shape),
            part >= 0,
        )
    return scores


def _score_pairs(scores: Float32, queries: Float32, vectors: Float32, rows: Int64, wanted: Bool) -> None:
    """Fill `scores` (n, M) with queries[i] · vectors[rows[i, j]] wherever `wanted` (n, M) is True.

    FAISS computes the pairs of one query four at a time and sums a remainder in another order. Each query's
    list is therefore filled up to a multiple of four, so that a pair's position never changes its score.
    """
    counts = wanted.sum(axis=1)
    width = -(-int(counts.max(initial=0)) // _PAIRS_AT_ONCE) * _PAIRS_AT_ONCE
    if width == 0:
        return
    used = np.flatnonzero(counts)  # queries with a pair here
    query, place = np.nonzero(wanted[used])
    slot = ranges(0, counts[used])
    ids = np.zeros((len(used), width), dtype=np.int64)
    ids[query, slot] = rows[used[query], place]
    products = np.empty(ids.shape, dtype=np.float32)
    some = np.ascontiguousarray(queries[used])
    threads = faiss.omp_get_max_threads()
    if ids.size < _PAIRS_WORTH_THREADS:
        faiss.omp_set_num_threads(1)
    faiss.fvec_inner_products_by_idx(
        faiss.swig_ptr(products), faiss.swig_ptr(some), faiss.swig_ptr(vectors), faiss.swig_ptr(ids),
        vectors.shape[1], len(some), width,
    )  # fmt: skip
    faiss.omp_set_num_threads(threads)
    scores[used[query], place] = products[query, slot]


def exact_search(
    embeddings: EmbeddingShards, queries: Float32, top_k: int, selected: Selection | None = None
) -> tuple[Float32, Int64]:
    """Brute force over all embeddings, shard by shard; see `VectorIndex.search` for arguments and result."""
    queries = check_queries(queries, embeddings.dim, top_k)
    total = len(embeddings) if selected is None else len(check_selected(selected, len(embeddings)))
    if total == 0:
        return select_best(*_nothing(len(queries)), top_k)
    if selected is not None and total <= _PICK_ROWS:
        rows = np.broadcast_to(selected.rows, (len(queries), total))
        return select_best(exact_scores(embeddings, queries, rows), rows, top_k)
    wanted = min(top_k + CANDIDATE_MARGIN, total)
    last = min(top_k, wanted) - 1
    scores, rows = _candidates(embeddings, queries, wanted, selected)
    best, best_rows = select_best(scores, rows, top_k)
    tied = np.flatnonzero(best[:, last] <= scores.min(axis=1))
    # Copies of a passage may tie beyond the margin: more candidates decide which of them come first.
    while len(tied) and wanted < total:
        wanted = min(4 * wanted, total)
        scores, rows = _candidates(embeddings, queries[tied], wanted, selected)
        best[tied], best_rows[tied] = select_best(scores, rows, top_k)
        tied = tied[best[tied, last] <= scores.min(axis=1)]
    return best, best_rows


def check_selected(selected: Selection, rows: int) -> Selection:
    """The selection, if it is one of an index with this number of rows.

    Raises:
        RetrievalError: it is not.
    """
    if selected.total != rows:
        raise RetrievalError(
            f"a selection among {selected.total} rows was given for an index of {rows}",
            hint="select anew after the index has changed",
        )
    return selected


def _nothing(queries: int) -> tuple[Float32, Int64]:
    return np.empty((queries, 0), dtype=np.float32), np.empty((queries, 0), dtype=np.int64)


def _candidates(
    embeddings: EmbeddingShards, queries: Float32, wanted: int, selected: Selection | None
) -> tuple[Float32, Int64]:
    """Exact scores and rows (n, wanted) of the best, in any order."""
    blocks = partial(_selected_blocks, embeddings, selected)
    if len(queries) < _MANY_QUERIES:
        rows = _best_of_few(blocks(), queries, wanted)
    else:
        parts = (queries[n : n + _QUERIES_AT_ONCE] for n in range(0, len(queries), _QUERIES_AT_ONCE))
        rows = np.concatenate([_best_of_many(blocks(), part, wanted) for part in parts])
    return exact_scores(embeddings, queries, rows), rows


def _selected_blocks(
    embeddings: EmbeddingShards, selected: Selection | None
) -> Iterator[tuple[Float32, Int64 | int]]:
    """Vectors (m, D) of each shard that may be returned; their rows (m,), or the first of adjacent ones."""
    for first_row, vectors in embeddings.blocks():
        if selected is None:
            yield vectors, first_row
            continue
        inside = selected.mask[first_row : first_row + len(vectors)]
        if inside.all():
            yield vectors, first_row
        elif inside.any():
            chosen = np.flatnonzero(inside)
            yield vectors[chosen], chosen + first_row


def _rows_at(rows: Int64 | int, places: Int64) -> Int64:
    return places + rows if isinstance(rows, int) else rows[places]


def _best_of_few(blocks: Iterator[tuple[Float32, Int64 | int]], queries: Float32, wanted: int) -> Int64:
    """Rows (n, wanted) of the best by FAISS's search in each block."""
    scores, rows = _nothing(len(queries))
    pending: list[tuple[Float32, Int64]] = []

    def search(block: tuple[Float32, Int64 | int]) -> tuple[Float32, Int64]:
        vectors, places = block
        scores, near = faiss.knn(
            queries, vectors, min(wanted, len(vectors)), metric=faiss.METRIC_INNER_PRODUCT
        )
        return scores, _rows_at(places, near)

    def merge() -> None:
        nonlocal scores, rows
        scores = np.concatenate([scores, *(part[0] for part in pending)], axis=1)
        rows = np.concatenate([rows, *(part[1] for part in pending)], axis=1)
        pending.clear()
        if scores.shape[1] > wanted:
            best = np.argpartition(scores, scores.shape[1] - wanted, axis=1)[:, -wanted:]
            scores, rows = np.take_along_axis(scores, best, axis=1), np.take_along_axis(rows, best, axis=1)

    def collect(parts: Iterable[tuple[Float32, Int64]]) -> None:
        for part in parts:
            pending.append(part)
            if len(pending) == _MERGE_EVERY_SHARDS:
                merge()
        merge()

    threads = faiss.omp_get_max_threads()
    if threads == 1 or len(queries) >= threads:
        collect(map(search, blocks))
    else:
        # FAISS divides work by queries only; with few of them, shards are divided instead.
        with ThreadPoolExecutor(threads, initializer=faiss.omp_set_num_threads, initargs=(1,)) as pool:
            collect(pool.map(search, blocks))
    return rows


def _best_of_many(blocks: Iterator[tuple[Float32, Int64 | int]], queries: Float32, wanted: int) -> Int64:
    """Rows (n, wanted) of the best by matrix products; only scores above the worst kept are looked at.

    FAISS fills a list of `wanted` in every shard anew, which costs a quarter of the products' time; here the
    list of a query goes on from block to block.
    """
    count = len(queries)
    worst = np.full((count, 1), -np.inf, np.float32)  # lowest score among the best so far
    best, best_rows = worst.repeat(wanted, axis=1), np.full((count, wanted), -1, np.int64)
    products = np.empty((count, _TILE_ROWS), np.float32)
    waiting: list[tuple[Int64, Float32, Int64]] = []  # query, score, row

    def choose() -> None:
        """Take those that wait into the lists of the best."""
        nonlocal best, best_rows
        if not waiting:
            return
        query, scores, rows = (np.concatenate(parts) for parts in zip(*waiting, strict=True))
        waiting.clear()
        order = np.argsort(query, kind="stable")
        counts = np.bincount(query, minlength=count)
        slot = ranges(wanted, counts)
        shape = (count, wanted + int(counts.max()))
        all_scores, all_rows = np.full(shape, -np.inf, np.float32), np.full(shape, -1, np.int64)
        all_scores[:, :wanted], all_rows[:, :wanted] = best, best_rows
        all_scores[query[order], slot], all_rows[query[order], slot] = scores[order], rows[order]
        chosen = np.argpartition(all_scores, shape[1] - wanted, axis=1)[:, -wanted:]
        best = np.take_along_axis(all_scores, chosen, axis=1)
        best_rows = np.take_along_axis(all_rows, chosen, axis=1)
        worst[:, 0] = best.min(axis=1)

    number = 0
    for vectors, places in blocks:
        for start in range(0, len(vectors), _TILE_ROWS):
            tile = vectors[start : start + _TILE_ROWS]
            scores = np.matmul(queries, tile.T, out=products[:, : len(tile)])
            is_first = np.isneginf(worst).any()
            if is_first and len(tile) > wanted:  # there is no bound yet: keep only the best of this tile
                column = np.argpartition(scores, len(tile) - wanted, axis=1)[:, -wanted:].ravel()
                query = np.arange(count, dtype=np.uint16).repeat(wanted)
            else:
                query, column = np.divmod(np.flatnonzero(scores > worst), len(tile))
            waiting.append((query.astype(np.uint16), scores[query, column], _rows_at(places, column + start)))
            number += len(query)
            if is_first or number > _WAITING_FACTOR * count * wanted:
                choose()
                number = 0
    choose()
    return best_rows


class FlatIndex:
    """Exact search straight from the memory-mapped float32 embeddings, without a second copy of them.

    Raises:
        ConfigError: the embeddings are not float32, so every search would convert them.
    """

    def __init__(self, embeddings: EmbeddingShards) -> None:
        if embeddings.dtype != "float32":
            raise ConfigError(
                f"flat search needs float32 embeddings, these are {embeddings.dtype}",
                hint="use dtype float32, or index type fp16",
            )
        self._embeddings, self.dim = embeddings, embeddings.dim

    def __len__(self) -> int:
        return len(self._embeddings)

    def search(
        self, queries: Float32, top_k: int, selected: Selection | None = None
    ) -> tuple[Float32, Int64]:
        """See `VectorIndex.search`."""
        return exact_search(self._embeddings, queries, top_k, selected)


def sample_rows(embeddings: EmbeddingShards, count: int, seed: int) -> Float32:
    """`count` rows drawn without replacement, in row order, as (count, D) float32."""
    total = len(embeddings)
    if count >= total:
        return embeddings.rows(np.arange(total))
    drawn = np.random.default_rng(seed).choice(total, count, replace=False, shuffle=False)
    return embeddings.rows(np.sort(drawn))
