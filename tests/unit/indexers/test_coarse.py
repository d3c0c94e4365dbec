"""Inverted lists that are trained and filled in two levels, beside FAISS's own."""

import faiss
import numpy as np
import pytest

from indexers.coarse import ListGroups, _shares, add_to_lists, fill_lists
from rag.core.arrays import Float32

ROWS, DIM, LISTS = 6000, 16, 64


def vectors(rows: int, seed: int) -> Float32:
    draw = np.random.default_rng(seed)
    centres = np.random.default_rng(7).standard_normal((80, DIM))
    drawn = centres[draw.integers(0, 80, rows)] + 0.6 * draw.standard_normal((rows, DIM))
    return (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)


def test_groups_have_as_many_lists_as_asked_and_assign_nearly_as_a_full_comparison_does() -> None:
    data = vectors(ROWS, 0)
    groups = ListGroups.train(data, LISTS, seed=3)
    assert groups.centroids.shape == (LISTS, DIM)
    assert groups.bounds[[0, -1]].tolist() == [0, LISTS]
    np.testing.assert_allclose(np.linalg.norm(groups.centroids, axis=1), 1.0, atol=1e-5)
    lists = groups.assign(data)
    scores = data @ groups.centroids.T
    assert (lists == scores.argmax(axis=1)).mean() > 0.97
    one_by_one = np.concatenate([groups.assign(data[row : row + 1]) for row in range(50)])
    np.testing.assert_array_equal(one_by_one, lists[:50])
    again = ListGroups.train(data, LISTS, seed=3)
    np.testing.assert_array_equal(again.centroids, groups.centroids)


def test_vectors_lie_as_near_to_their_centroids_as_with_one_level() -> None:
    data = vectors(ROWS, 0)
    groups = ListGroups.train(data, LISTS, seed=3)
    flat = faiss.Kmeans(DIM, LISTS, niter=10, seed=3, spherical=True, max_points_per_centroid=1000)
    flat.train(data)
    ours = (data * groups.centroids[groups.assign(data)]).sum(axis=1).mean()
    assert ours > 0.98 * flat.assign(data)[0].mean()


@pytest.mark.parametrize("factory", ["IVF64,SQ8", "IVF64,PQ8x4", "RR16,IVF64,RaBitQ"])
def test_an_index_filled_in_two_levels_finds_what_one_filled_by_faiss_finds(factory: str) -> None:
    data, queries = vectors(ROWS, 0), vectors(100, 1)
    truth = np.argsort(-(queries @ data.T), axis=1)[:, :10]
    shares = []
    for in_two_levels in (True, False):
        index = faiss.index_factory(DIM, factory, faiss.METRIC_INNER_PRODUCT)
        if in_two_levels:
            groups = fill_lists(index, data, 0)
            for start in range(0, ROWS, 1000):
                add_to_lists(index, groups, data[start : start + 1000])
        else:
            index.train(data)
            index.add(data)
        assert index.ntotal == ROWS
        faiss.extract_index_ivf(index).nprobe = 12
        _, rows = index.search(queries, 100)
        shares.append(np.mean([np.isin(best, row).mean() for best, row in zip(truth, rows, strict=True)]))
    assert shares[0] > shares[1] - 0.03
    assert shares[0] > 0.9


def test_lists_are_shared_by_size_and_no_group_gets_more_than_it_has() -> None:
    assert _shares(np.array([70, 20, 10]), 10).tolist() == [7, 2, 1]
    assert _shares(np.array([97, 2, 1, 0]), 10).tolist() == [10, 0, 0, 0]
    counts = _shares(np.array([5, 5, 1, 1]), 12)
    assert counts.tolist() == [5, 5, 1, 1]
