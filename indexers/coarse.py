"""Inverted lists for large corpora: centroids trained and vectors assigned in two levels.

Comparing every vector with every centroid is what an index with many lists spends its time on: 21 million
vectors of 256 numbers and 16,384 lists take an hour of a core, and training the lists half as long. Here the
sample is clustered into √nlist groups, each group into its share of the lists, and a vector is compared with
the lists of the groups nearest to it: a tenth of the products, with nearly the same lists.

Source: Nistér and Stewénius 2006, "Scalable Recognition with a Vocabulary Tree" (hierarchical k-means).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import faiss
import numpy as np

from indexers.presets import Preset
from rag.core.arrays import Float32, Int64

TWO_LEVELS_FROM = 1024  # lists, from which they are trained and filled in two levels
_ROUNDS = 10  # of k-means, FAISS's number for inverted lists
_REFINEMENTS = 2  # rounds of k-means over all lists
_NEAREST_GROUPS = 8  # a vector is compared with the lists of these groups


def products_per_vector(nlist: int) -> tuple[float, float]:
    """Centroids that a vector is compared with: one of the sample in training, and one that is added.

    Example:
        >>> products_per_vector(16_384)
        (4864.0, 1152.0)
    """
    groups = round(math.sqrt(nlist))
    added = groups + _NEAREST_GROUPS * nlist / groups
    return _ROUNDS * (groups + nlist / groups) + _REFINEMENTS * added, added


@dataclass(frozen=True)
class ListGroups:
    """Centroids of inverted lists, in groups.

    Attributes:
        tops: (G, D) centre of each group.
        centroids: (nlist, D) unit vectors, those of one group after the other.
        bounds: (G + 1,) first centroid of each group, then nlist.
    """

    tops: Float32
    centroids: Float32
    bounds: Int64

    @classmethod
    def train(cls, sample: Float32, nlist: int, seed: int) -> ListGroups:
        """Cluster a sample (n, D) by inner product; n must be at least `nlist`."""
        groups = round(math.sqrt(nlist))
        tops, nearest = _k_means(sample, groups, seed)
        counts = _shares(np.bincount(nearest, minlength=groups), nlist)
        parts = [
            _k_means(sample[nearest == group], int(count), seed)[0]
            for group, count in enumerate(counts)
            if count
        ]
        groups_of_lists = cls(tops, np.concatenate(parts), np.append(0, np.cumsum(counts)))
        for _ in range(_REFINEMENTS):
            groups_of_lists._move_to_means(sample)
        return groups_of_lists

    def _move_to_means(self, sample: Float32) -> None:
        """One round of k-means over all lists, by `assign`; lists without vectors stay where they are."""
        lists = self.assign(sample)
        order = np.argsort(lists, kind="stable")
        present, starts = np.unique(lists[order], return_index=True)
        for one, members in zip(present, np.split(order, starts[1:]), strict=True):
            self.centroids[one] = sample[members].mean(axis=0)
        self.centroids[present] = _of_unit_length(self.centroids[present])

    def assign(self, vectors: Float32) -> Int64:
        """List (n,) of each vector (n, D): the best of those in the groups nearest to it.

        A vector's list does not depend on the other vectors, but for rounding.
        """
        scores = vectors @ self.tops.T  # (n, G)
        scores[:, np.diff(self.bounds) == 0] = -np.inf
        few = min(_NEAREST_GROUPS, len(self.tops))
        near = np.argpartition(scores, -few, axis=1)[:, -few:]
        order = np.argsort(near, axis=None, kind="stable")
        rows = order // few
        ends = np.searchsorted(near.ravel()[order], np.arange(len(self.tops) + 1))
        best = np.full(len(vectors), -np.inf, np.float32)
        lists = np.zeros(len(vectors), np.int64)
        for group in np.flatnonzero(np.diff(ends) * np.diff(self.bounds)):
            some = rows[ends[group] : ends[group + 1]]
            products = vectors[some] @ self.centroids[self.bounds[group] : self.bounds[group + 1]].T
            place = products.argmax(axis=1)
            value = products[np.arange(len(some)), place]
            better = value > best[some]
            best[some[better]] = value[better]
            lists[some[better]] = place[better] + self.bounds[group]
        return lists


def _of_unit_length(vectors: Float32) -> Float32:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def _k_means(vectors: Float32, count: int, seed: int) -> tuple[Float32, Int64]:
    """Unit centroids (count, D), and the nearest of each vector."""
    if len(vectors) == count:
        return _of_unit_length(vectors), np.arange(count)
    clustering = faiss.Kmeans(
        vectors.shape[1], count, niter=_ROUNDS, seed=seed, spherical=True, min_points_per_centroid=1,
        max_points_per_centroid=1 << 30,
    )  # fmt: skip
    clustering.train(np.ascontiguousarray(vectors))
    return clustering.centroids, clustering.assign(vectors)[1]


def _shares(sizes: Int64, total: int) -> Int64:
    """How many of `total` lists each group gets: in proportion to its size, and never more than its size."""
    exact = sizes * (total / sizes.sum())
    counts = np.minimum(np.floor(exact).astype(np.int64), sizes)
    for group in np.argsort(counts - exact, kind="stable"):
        if counts.sum() == total:
            break
        counts[group] += counts[group] < sizes[group]
    return counts


def train_index(index: Any, preset: Preset, sample: Float32, seed: int) -> Callable[[Float32], None]:
    """Train a FAISS index on a sample (n, D); returns what adds vectors (n, D)."""
    if preset.nlist >= TWO_LEVELS_FROM:
        return partial(add_to_lists, index, fill_lists(index, sample, seed))
    if preset.codewords:  # a codebook has as many entries as it is made for, and needs as many vectors
        entries = faiss.downcast_index(faiss.extract_index_ivf(index)).pq.ksub
        if len(sample) < entries:
            sample = np.resize(sample, (entries, sample.shape[1]))
    index.train(sample)
    add: Callable[[Float32], None] = index.add
    return add


def fill_lists(index: Any, sample: Float32, seed: int) -> ListGroups:
    """Train an index with inverted lists (inner product) on a sample (n, D); `add_to_lists` then fills it."""
    lists, transformed = _inner(index, sample, train=True)
    groups = ListGroups.train(transformed, lists.nlist, seed)
    lists.quantizer.add(groups.centroids)
    lists.train(transformed)  # the codes: the lists have their centroids already
    index.is_trained = True
    return groups


def add_to_lists(index: Any, groups: ListGroups, vectors: Float32) -> None:
    """Add vectors (n, D) behind those that are in the index."""
    lists, transformed = _inner(index, vectors)
    assigned = groups.assign(transformed)
    lists.add_core(len(vectors), faiss.swig_ptr(transformed), None, faiss.swig_ptr(assigned))
    index.ntotal = lists.ntotal


def _inner(index: Any, vectors: Float32, *, train: bool = False) -> tuple[Any, Float32]:
    """The index with lists inside, and the vectors as it sees them."""
    lists = faiss.downcast_index(faiss.extract_index_ivf(index))
    vectors = np.ascontiguousarray(vectors, np.float32)
    if isinstance(index, faiss.IndexPreTransform):
        for place in range(index.chain.size()):
            step = index.chain.at(place)
            if train and not step.is_trained:
                step.train(vectors)
            vectors = step.apply(vectors)
    return lists, vectors
