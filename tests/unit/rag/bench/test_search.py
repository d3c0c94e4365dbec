from pathlib import Path

import numpy as np

from indexers.embeddings import EmbeddingShards
from indexers.index_writer import PROBES_NAME
from rag.bench.report import Report
from rag.bench.search import compare_searches
from tests.vectors import store_vectors


def embeddings(directory: Path, rows: int = 400, dim: int = 16) -> EmbeddingShards:
    vectors = np.random.default_rng(0).standard_normal((rows, dim)).astype(np.float32)
    shards = store_vectors(directory, vectors)
    np.save(directory / PROBES_NAME, vectors[:20] + 0.1)
    return shards


def test_index_types_are_compared_with_exact_search_and_with_faiss_alone(tmp_path: Path) -> None:
    queries = np.random.default_rng(1).standard_normal((40, 16)).astype(np.float32)
    report = compare_searches(
        Report("search", {}), embeddings(tmp_path), queries, ("SQ8", "ivf"), (1, 4), 2
    )
    figures = report.figures["SQ8"]
    assert figures["recall@100"].value > 0.95
    assert figures["recall@100"].n == 40
    assert figures["size_bytes"] > 400 * 16
    assert figures["time_ratio_batch_4"].value > 0
    assert figures["bare_ratio_batch_4"].value > 0
    assert report.figures["flat"]["bare_ratio_batch_1"].n == 2
    assert [line.split()[0] for line in report.tables[1].splitlines()[2:]] == ["flat", "SQ8", "ivf"]
    assert not list(tmp_path.glob("rag-search-*"))
    report.write(tmp_path / "out.json")
