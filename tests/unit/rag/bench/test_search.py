from pathlib import Path

import numpy as np

from indexers.embeddings import PROBES_NAME
from rag.bench.search import compare_searches, make_vectors, run_search_benchmark
from rag.core.errors import ConfigError
from tests.support.messages import refusal
from tests.vectors import store_vectors


def test_index_types_are_compared_with_exact_search_and_with_faiss_alone(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    vectors = draw.standard_normal((400, 16)).astype(np.float32)
    shards = store_vectors(tmp_path, vectors)
    np.save(tmp_path / PROBES_NAME, vectors[:20] + 0.1)
    report = compare_searches(shards, ("SQ8", "ivf"), (1, 4), 2)
    assert list(report.rows) == ["FAISS IndexFlatIP", "flat", "SQ8", "ivf"]
    row = report.rows["SQ8"]
    assert row["recall@100"] > 0.95
    assert row["MB on disk"] > 400 * 16 / 1e6
    for figures in report.rows.values():
        assert figures["ms, batch 4"] > 0
        assert figures["/ FAISS, batch 1"].n == 2
        assert {"MB private", "MB mapped"} <= figures.keys()
    assert not list(tmp_path.glob("rag-search-*"))


def test_made_vectors_lie_around_their_centres(tmp_path: Path) -> None:
    shards = make_vectors(tmp_path, 1000, 64)
    vectors = np.vstack([block for _, block in shards.blocks()])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    cosines = np.sort(vectors @ vectors[0])[::-1]
    assert 0.6 < np.median(cosines[1:80]) < 0.9  # of its own centre
    assert cosines[200] < 0.6
    assert np.load(tmp_path / PROBES_NAME).shape == (256, 64)
    with refusal(ConfigError):
        run_search_benchmark()
