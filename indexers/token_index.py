"""Search in compressed token vectors: cells, then centroids, then the vectors themselves.

Each vector of a question opens the cells of its nearest centroids. A passage in one of them scores,
for that vector, as much as the best of its open cells; any other passage as much as the best closed
cell. This is MaxSim over centroids, with everything below the closed cells pruned. The best `ndocs`
passages get MaxSim over all their centroids, and the best quarter of these MaxSim over their
decompressed vectors: the final score.

Source: Santhanam et al. 2022, "PLAID: An Efficient Engine for Late Interaction Retrieval", section
    4.

Note: the paper reads all centroids of every passage in an open cell, with one threshold for all
    vectors.
"""

from __future__ import annotations

from pathlib import Path

import faiss
import numpy as np

from indexers.exact import check_queries, check_selected, select_best
from indexers.protocols import Selection
from indexers.token_codec import Codes
from indexers.token_files import ENDS_NAME, LISTS_NAME, TokenInfo, TokenShards
from rag.core.arrays import Float32, Int64, load_npy
from rag.core.errors import RetrievalError

NPROBE = 4  # cells opened for each vector; more where these hold too few passages
_USUAL = 25_000  # passages for which the smallest number of candidates is enough
_WIDEST = 8.0  # largest multiple of that number
_PASSAGES_AT_ONCE = 2048  # decompressed together
_LEAST = 1e-6  # added to the score of every passage in an open cell


def candidate_count(top_k: int, passages: int) -> int:
    """Number of passages whose centroids are all compared.

    Four times as many as are decompressed; more in large corpora, where more passages have similar
    centroids.
    """
    wider = min(max(passages / _USUAL, 1.0) ** 0.5, _WIDEST)
    return int(wider * max(512, 16 * top_k))


class TokenIndex:
    """Search in finished token vectors, which are memory-mapped.

    Args:
        info: what `build_tokens` returned, and the manifest of an index says.

    Raises:
        ArtifactError: a file is missing, truncated or in another format; the message names it.
    """

    def __init__(self, directory: Path, info: TokenInfo) -> None:
        self.shards = TokenShards(directory, info)
        self.dim = info.dim
        self._codec = self.shards.codec
        self._ends = load_npy(directory / ENDS_NAME, dtype=np.int64, shape=(info.centroids,))
        lists_shape = (info.list_entries,)
        self._lists = load_npy(directory / LISTS_NAME, dtype=np.uint32, shape=lists_shape)

    def __len__(self) -> int:
        return len(self.shards)

    def search(
        self,
        queries: Float32,
        lengths: Int64,
        top_k: int,
        *,
        selected: Selection | None = None,
    ) -> tuple[Float32, Int64]:
        """Best passages of questions.

        Args:
            queries: vectors (T, D) float32 of B questions, concatenated.
            lengths: (B,), number of vectors of each question.
            top_k: results wanted per question.
            selected: the rows that may be returned; None: all.

        Returns:
            Scores (B, top_k) float32 of the decompressed vectors and rows (B, top_k) int64, best
            first, ties by row. Where there are fewer results, the last places have row -1 and score
            -inf.

        Raises:
            RetrievalError: a question without vectors, wrong shape, or values that are not finite.
        """
        values = check_queries(queries, self.dim, top_k)
        if not np.all(lengths) or np.sum(lengths) != len(values):
            raise RetrievalError(
                f"lengths {np.asarray(lengths).tolist()} do not add up to the {len(values)} vectors",
                hint="every question needs at least one token",
            )
        scores = np.full((len(lengths), top_k), -np.inf, dtype=np.float32)
        rows = np.full((len(lengths), top_k), -1, dtype=np.int64)
        # Behind the last question is an empty part.
        parts = np.split(values, np.cumsum(lengths))[: len(lengths)]
        for number, query in enumerate(parts):
            found = self._search(query, top_k, selected)
            best_scores, best_rows = select_best(found[0][None], found[1][None], top_k)
            scores[number] = best_scores[0]
            rows[number] = best_rows[0]
        return scores, rows

    def _search(
        self, query: Float32, top_k: int, selected: Selection | None
    ) -> tuple[Float32, Int64]:
        """Scores and rows of the candidates of a question (q, D), at least `top_k` if there are so
        many.
        """
        ndocs = candidate_count(top_k, len(self))
        rows = np.arange(len(self))
        if selected is not None:
            rows = check_selected(selected, len(self)).rows
        if len(rows) <= ndocs:
            return self.exact(query, rows), rows
        centroids = self._codec.centroids
        # With a selection as many cells as hold, on average, equally many rows.
        nprobe = min(NPROBE * -(-len(self) // len(rows)), len(centroids))
        gained = self._in_open_cells(query, nprobe, selected)
        while np.count_nonzero(gained) < top_k and nprobe < len(centroids):
            nprobe = min(2 * nprobe, len(centroids))
            gained = self._in_open_cells(query, nprobe, selected)
        rows = np.flatnonzero(gained > 0.0)  # on booleans this is five times as fast
        if len(rows) > ndocs:
            rows = _largest(rows, gained[rows], ndocs)
        if len(rows) > ndocs // 4:
            codes, lengths = self.shards.codes(rows)
            rough_scores = _max_sim(centroids @ query.T, lengths, codes)
            rows = _largest(rows, rough_scores, ndocs // 4)
        return self.exact(query, rows), rows

    def _in_open_cells(self, query: Float32, nprobe: int, selected: Selection | None) -> Float32:
        """(N,): how much more each passage that may be returned scores than a passage in no open
        cell, else 0.

        Args:
            query: (q, D).
        """
        centroids = self._codec.centroids
        count = min(nprobe + 1, len(centroids))
        values, cells = faiss.knn(query, centroids, count, metric=faiss.METRIC_INNER_PRODUCT)
        floor = values[:, -1] - _LEAST  # upper bound of the closed cells' scores
        gained = np.zeros(len(self), np.float32)
        best = np.zeros(len(self), np.float32)
        for vector in range(len(query)):
            # From the worst cell to the best: the last value written stays.
            opened = cells[vector, :nprobe][::-1]
            scores = values[vector, :nprobe][::-1]
            ends = self._ends[opened]
            begins = np.where(opened > 0, self._ends[opened - 1], 0)
            bounds = zip(begins.tolist(), ends.tolist(), strict=True)
            rows = np.concatenate([self._lists[begin:end] for begin, end in bounds])
            best[rows] = np.repeat(scores - floor[vector], ends - begins)
            # A passage in several cells gets the same sum each time.
            gained[rows] = gained[rows] + best[rows]
        return gained if selected is None else gained * selected.mask

    def exact(self, query: Float32, rows: Int64) -> Float32:
        """MaxSim (n,) of a question's vectors (q, D) with the decompressed ones of sorted
        `rows`.
        """
        scores = np.empty(len(rows), np.float32)
        for start in range(0, len(rows), _PASSAGES_AT_ONCE):
            block = slice(start, start + _PASSAGES_AT_ONCE)
            codes, residuals, lengths = self.shards.tokens(rows[block])
            similar = self._codec.similarities(codes, residuals, query)
            scores[block] = _max_sim(similar, lengths)
        return scores


def _largest(rows: Int64, scores: Float32, count: int) -> Int64:
    """The rows with the largest scores, in order."""
    return np.sort(rows[np.argpartition(-scores, count - 1)[:count]])


def _max_sim(similar: Float32, lengths: Int64, codes: Codes | None = None) -> Float32:
    """MaxSim scores (n,) of passages whose tokens are concatenated.

    The first tokens of all passages are compared, then the second ones, of fewer and fewer
    passages: no array is larger than one number per passage and vector, and it stays in the
        processor's cache.

    Args:
        similar: similarities (T, q) of every token, or with `codes` (C, q) of every centroid.
        lengths: number of tokens of each passage (n,), at least 1.
        codes: (T,) the tokens' centroids.
    """
    rows = np.arange(len(similar)) if codes is None else codes
    order = np.argsort(-lengths, kind="stable")
    tokens = (np.cumsum(lengths) - lengths)[order]
    # Number of passages that have a token at each position.
    longer = np.searchsorted(-lengths[order], -np.arange(lengths.max()))
    best = similar[rows[tokens]]
    other = np.empty_like(best)
    for count in longer[1:].tolist():
        tokens = tokens[:count] + 1
        similar.take(rows[tokens], axis=0, out=other[:count], mode="clip")
        np.maximum(best[:count], other[:count], out=best[:count])
    scores = np.empty(len(lengths), np.float32)
    scores[order] = best.sum(1)
    return scores
