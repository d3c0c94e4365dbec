from pathlib import Path

import numpy as np
import pytest

from indexers.embedding_shards import EmbeddingShards
from indexers.embeddings import EmbeddingWriter
from indexers.probes import PROBES_NAME, perturbed_probes, read_probes
from indexers.protocols import EncoderIdentity
from rag.bench import search
from rag.bench.lossy import compare_lossy, multiplied
from rag.bench.report import Report
from rag.bench.search import run_search_benchmark
from rag.core.errors import ConfigError


def embeddings(directory: Path, rows: int = 400, dim: int = 16) -> EmbeddingShards:
    vectors = np.random.default_rng(0).standard_normal((rows, dim)).astype(np.float32)
    writer = EmbeddingWriter(
        directory, rows=rows, encoder=EncoderIdentity("toy", "", dim=dim), dtype="float32", shard_rows=128
    )
    list(writer.write_missing(lambda start, stop: vectors[start:stop]))
    shards = EmbeddingShards.open(directory)
    np.save(directory / PROBES_NAME, perturbed_probes(shards, 20, 0))
    return shards


def test_flat_search_finds_what_bare_faiss_finds_and_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = embeddings(tmp_path)
    monkeypatch.setattr(search, "open_vectors", lambda *_: (shards, perturbed_probes(shards, 40, 0)))
    report = run_search_benchmark(tmp_path, batch_sizes=(1, 8), top_k=10, rounds=2)
    assert report.figures["same_rows"] == 1.0
    assert report.figures["batch_8"]["ratio"].n == 2
    assert [goal.kind for goal in report.goals] == ["at most", "at most"]
    assert "batch size" in report.to_text()


def test_lossy_types_are_compared_with_exact_search(tmp_path: Path) -> None:
    queries = np.random.default_rng(1).standard_normal((40, 16)).astype(np.float32)
    report = compare_lossy(
        Report("lossy", {}), embeddings(tmp_path), queries, ("sq8", "ivf"), (1, 4), 2, tmp_path
    )
    figures = report.figures["sq8"]
    assert figures["recall@100"].value > 0.95
    assert figures["recall@100"].n == 40
    assert figures["size_bytes"] > 400 * 16
    assert figures["time_ratio_batch_4"].value > 0
    assert figures["bare_ratio_batch_4"].value > 0
    assert figures["cold_s"] > 0
    assert not list(tmp_path.glob("rag-lossy-*"))
    report.to_json()


def test_vectors_are_multiplied_with_noise_around_them(tmp_path: Path) -> None:
    stored = embeddings(tmp_path, rows=50)
    many = multiplied(stored, tmp_path / "many", 400, noise=0.2)
    vectors = many.rows(np.arange(400))
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=2e-3)
    units = stored.rows(np.arange(50))
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    nearest = (vectors @ units.T).max(axis=1)
    assert 0.9 < nearest.mean() < 0.999
    assert len(read_probes(many)) == 256


def test_a_corpus_smaller_than_the_deepest_recall_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="too few"):
        few = embeddings(tmp_path, rows=50)
        compare_lossy(Report("lossy", {}), few, np.zeros((1, 16), np.float32), ["sq8"], [1], 2, None)
