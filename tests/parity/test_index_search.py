"""Every index type against brute force in numpy."""

from pathlib import Path

import faiss
import numpy as np
import pytest

from indexers import exact, faiss_build, faiss_index, faiss_types
from indexers.embeddings import EmbeddingShards
from indexers.exact import FlatIndex, exact_search, recalls_at
from indexers.faiss_build import build_faiss
from indexers.faiss_index import DenseInfo, open_dense
from indexers.faiss_types import faiss_threads
from indexers.protocols import Selection, VectorIndex
from indexers.settings import INDEX_TYPES, VectorDtype
from rag.core.arrays import Float32
from rag.core.errors import ConfigError, MismatchedArtifactError, RetrievalError
from tests.support.messages import refusal
from tests.vectors import store_vectors

ROWS, DIM = 3000, 24


def clustered(rows: int, seed: int) -> Float32:
    draw = np.random.default_rng(seed)
    centres = np.random.default_rng(99).standard_normal((40, DIM))
    vectors = centres[draw.integers(0, 40, rows)] + 0.7 * draw.standard_normal((rows, DIM))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def store(
    directory: Path, vectors: Float32, dtype: VectorDtype, shard_rows: int = 700
) -> EmbeddingShards:
    return store_vectors(directory, vectors, dtype, shard_rows)


def built(
    place: Path, vectors: Float32, name: str, probes: Float32, shard_rows: int = 700
) -> tuple[EmbeddingShards, DenseInfo, VectorIndex]:
    """Vectors in the numbers that a type of index is built from, and the index, opened."""
    dtype: VectorDtype = "float32" if name == "flat" else "float16"
    embeddings = store(place / "e", vectors, dtype, shard_rows)
    info = build_faiss(embeddings, place / "d", index_type=name, probes=probes, threads=1)
    return embeddings, info, open_dense(place / "d", embeddings, info)


def brute_force(vectors: Float32, queries: Float32, top_k: int) -> tuple[Float32, np.ndarray]:
    """Scores and rows by full sort in double precision."""
    scores = queries.astype(np.float64) @ vectors.astype(np.float64).T
    rows = np.argsort(-scores, axis=1, kind="stable")[:, :top_k]
    return np.take_along_axis(scores, rows, axis=1).astype(np.float32), rows


def shared(rows: np.ndarray, others: np.ndarray) -> float:
    """The mean share of the rows of each question that others have, too."""
    return float(np.mean([np.isin(*pair).mean() for pair in zip(rows, others, strict=True)]))


@pytest.fixture(scope="module")
def float32(tmp_path_factory: pytest.TempPathFactory) -> EmbeddingShards:
    """Vectors of many lengths: what counts is the inner product."""
    lengths = np.random.default_rng(8).uniform(1, 12, (ROWS, 1)).astype(np.float32)
    return store(tmp_path_factory.mktemp("e32"), lengths * clustered(ROWS, 0), "float32")


@pytest.fixture(scope="module")
def float16(tmp_path_factory: pytest.TempPathFactory) -> EmbeddingShards:
    return store(tmp_path_factory.mktemp("e16"), clustered(ROWS, 0), "float16")


@pytest.mark.parametrize("count", [1, 3, 40])
@pytest.mark.parametrize("top_k", [1, 10, 120])
@pytest.mark.parametrize("threads", [1, 2])
def test_flat_equals_brute_force(
    float32: EmbeddingShards, count: int, top_k: int, threads: int
) -> None:
    queries = clustered(count, 1)
    with faiss_threads(threads):
        scores, rows = FlatIndex(float32).search(queries, top_k)
    expected_scores, expected_rows = brute_force(float32.rows(np.arange(ROWS)), queries, top_k)
    # two passages whose scores differ by less than float32 can say may stand in either order
    gaps = np.abs(np.diff(expected_scores, axis=1)) > 1e-6 * np.abs(expected_scores[:, 1:])
    is_clear = np.pad(gaps, ((0, 0), (1, 0)), constant_values=True)
    is_clear &= np.pad(gaps, ((0, 0), (0, 1)), constant_values=True)
    np.testing.assert_array_equal(rows[is_clear], expected_rows[is_clear])
    assert is_clear.mean() > 0.9
    np.testing.assert_allclose(scores, expected_scores, rtol=1e-5)


@pytest.mark.parametrize("top_k", [1, 10, 700])
def test_many_questions_get_the_scores_and_the_order_that_each_gets_alone(
    float32: EmbeddingShards, float16: EmbeddingShards, top_k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact, "_QUERIES_AT_ONCE", 25)
    monkeypatch.setattr(
        faiss.cvar, "distance_compute_blas_threshold", 100
    )  # matrices; pairs for one alone
    queries = clustered(60, 1)
    selected = Selection(np.random.default_rng(3).random(ROWS) < 0.6)
    for embeddings in (float32, float16):
        for rows in (None, selected):
            together = exact_search(embeddings, queries, top_k, rows)
            alone = [exact_search(embeddings, query[None], top_k, rows) for query in queries]
            for part in (0, 1):
                np.testing.assert_array_equal(
                    together[part], np.concatenate([item[part] for item in alone])
                )
    assert (
        faiss.cvar.distance_compute_blas_threshold == 100
    )  # as a search before it does not change another


@pytest.mark.parametrize("name", [*INDEX_TYPES, "IVF16,SQ8"])
def test_lossy_types_reach_their_recall_with_exact_scores(tmp_path: Path, name: str) -> None:
    embeddings, info, index = built(tmp_path, clustered(ROWS, 0), name, clustered(100, 5))
    questions = clustered(300, 6)
    assert (len(index), index.dim) == (ROWS, DIM)
    vectors = embeddings.rows(np.arange(ROWS))
    for k in (1, 10, 100):
        truth, _ = brute_force(vectors, questions, k)
        assert recalls_at(index, questions, truth, k).mean() >= 0.955, k
        assert info.recall[str(k)] >= 0.97
    scores, rows = index.search(questions, 20)
    np.testing.assert_allclose(scores, np.einsum("qd,qkd->qk", questions, vectors[rows]), rtol=1e-5)
    assert (np.diff(scores, axis=1) <= 0).all()


def test_the_graph_of_lists_finds_the_nearest_ones(
    tmp_path: Path, float16: EmbeddingShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (faiss_build, faiss_types):
        monkeypatch.setattr(module, "GRAPH_OF_LISTS_FROM", 32)
    questions = clustered(100, 6)
    info = build_faiss(float16, tmp_path, index_type="ivf", probes=clustered(50, 5), threads=1)
    index = faiss_index.open_faiss(tmp_path, info)
    graph = faiss.downcast_index(index.quantizer)
    assert (type(graph), graph.hnsw.efSearch) == (faiss.IndexHNSWSQ, 128)
    _, nearest = brute_force(
        faiss.downcast_index(graph.storage).reconstruct_n(0, graph.ntotal), questions, 16
    )
    actual = graph.search(questions, 16)[1]
    assert shared(nearest, actual) > 0.99


@pytest.mark.parametrize("name", ["flat", "SQ8", "ivf"])
def test_equal_vectors_have_equal_scores_in_row_order(tmp_path: Path, name: str) -> None:
    vectors = clustered(600, 2)
    copies = np.array([3, 77, 205, 340, 511, 599])
    vectors[copies] = vectors[3]
    _, _, index = built(tmp_path, vectors, name, vectors[:30], shard_rows=128)
    alone_scores, alone_rows = index.search(vectors[3:4], 4)
    assert alone_rows[0].tolist() == [3, 77, 205, 340]
    assert len(set(alone_scores[0].tolist())) == 1
    batch = np.concatenate([clustered(30, 3), vectors[3:4]])
    batch_scores, batch_rows = index.search(batch, 4)
    np.testing.assert_array_equal(batch_rows[-1:], alone_rows)
    np.testing.assert_array_equal(batch_scores[-1:], alone_scores)


def test_the_first_of_many_copies_are_found(tmp_path: Path) -> None:
    vectors = clustered(ROWS, 2)
    copies = np.sort(np.random.default_rng(0).choice(ROWS, 200, replace=False))
    vectors[copies] = vectors[copies[0]]
    embeddings = store(tmp_path / "e", vectors, "float32", shard_rows=100)
    queries = np.concatenate([clustered(8, 3), vectors[copies[:1]]])
    scores, rows = exact_search(embeddings, queries, 5)
    assert rows[-1].tolist() == copies[:5].tolist()
    assert len(set(scores[-1].tolist())) == 1
    np.testing.assert_array_equal(rows[:-1], exact_search(embeddings, queries[:-1], 5)[1])


@pytest.mark.parametrize("name", INDEX_TYPES)
def test_deep_searches_find_as_many_as_asked(tmp_path: Path, name: str) -> None:
    embeddings, _, index = built(tmp_path, clustered(ROWS, 0), name, clustered(50, 5))
    questions = clustered(20, 6)
    _, rows = index.search(questions, 1000)
    assert all(len(set(result.tolist()) - {-1}) == 1000 for result in rows)
    truth, _ = brute_force(embeddings.rows(np.arange(ROWS)), questions, 1000)
    assert recalls_at(index, questions, truth, 1000).mean() >= 0.8


@pytest.mark.parametrize("name", INDEX_TYPES)
@pytest.mark.parametrize("compares_all", [True, False])
def test_selected_rows_are_those_of_an_exhaustive_search_with_its_scores(
    tmp_path: Path, name: str, compares_all: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    embeddings, _, index = built(tmp_path, clustered(ROWS, 0), name, clustered(50, 5))
    questions = clustered(40, 6)
    if not compares_all:
        monkeypatch.setattr(faiss_index, "_BRUTE_FORCE_ROWS", 0)
        monkeypatch.setattr(exact, "_PICK_ROWS", 0)
    everything_scores, everything = exact_search(embeddings, questions, ROWS)
    cluster = embeddings.rows(np.arange(ROWS)) @ questions[0] < 0  # far from one question
    draw = np.random.default_rng(1)
    recalls = []
    for mask in (draw.random(ROWS) < 0.01, draw.random(ROWS) < 0.3, cluster, np.ones(ROWS, bool)):
        expected_scores, expected = (
            np.stack([row[kept][:10] for row, kept in zip(every, mask[everything], strict=True)])
            for every in (everything_scores, everything)
        )
        scores, rows = index.search(questions, 10, Selection(mask))
        assert (rows >= 0).all()
        assert mask[rows].all()
        recalls.append(shared(rows, expected))
        if compares_all or name == "flat":
            np.testing.assert_array_equal(rows, expected)
            np.testing.assert_array_equal(scores, expected_scores)
    unselected = index.search(questions, 10)[1]
    assert min(recalls) >= shared(unselected, everything[:, :10]) - 0.02, recalls
    assert (index.search(questions, 10, Selection(np.zeros(ROWS, bool)))[1] == -1).all()
    with refusal(RetrievalError):
        index.search(questions, 10, Selection(np.ones(5, bool)))


@pytest.mark.parametrize("name", INDEX_TYPES)
def test_asking_for_more_than_there_is(tmp_path: Path, name: str) -> None:
    vectors = clustered(50, 4)
    _, _, index = built(tmp_path, vectors, name, vectors[:30])
    scores, rows = index.search(vectors[:2], 80)
    for found_scores, result in zip(scores, rows, strict=True):
        real = result[result >= 0]
        assert len(set(real.tolist())) == len(real)
        assert (result[len(real) :] == -1).all()
        assert np.isneginf(found_scores[len(real) :]).all()
        assert np.isfinite(found_scores[: len(real)]).all()
    if name == "flat":
        assert set(rows[0].tolist()) == {-1, *range(50)}


def test_bad_queries_are_refused(float32: EmbeddingShards) -> None:
    index = FlatIndex(float32)
    for bad in (np.zeros((1, DIM + 1)), np.zeros(DIM), np.full((1, DIM), np.nan)):
        with refusal(RetrievalError):
            index.search(bad.astype(np.float32), 3)
    with refusal(RetrievalError):
        index.search(np.zeros((1, DIM), np.float32), 0)
    assert index.search(np.zeros((0, DIM), np.float32), 3)[1].shape == (0, 3)


def test_what_does_not_belong_together_is_refused(
    tmp_path: Path, float32: EmbeddingShards, float16: EmbeddingShards
) -> None:
    with refusal(ConfigError):
        build_faiss(float32, tmp_path / "x", probes=clustered(5, 1), index_type="annoy")
    with refusal(ConfigError):
        build_faiss(
            float32, tmp_path / "y", probes=clustered(5, 1), index_type="IVF65536,Flat", threads=1
        )
    small = store(tmp_path / "small", clustered(60, 1), "float16")
    info = build_faiss(small, tmp_path / "d", probes=clustered(5, 1), index_type="SQ8", threads=1)
    with refusal(MismatchedArtifactError):
        open_dense(tmp_path / "d", float16, info)
