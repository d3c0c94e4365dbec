import json
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from indexers.build import build_index
from indexers.plan import CODING_S, TOKEN_BYTES, Rates, measure_rates, plan
from indexers.presets import HNSW_EF_CONSTRUCTION, INDEX_TYPES
from indexers.settings import BuildSettings
from rag.core.errors import ConfigError
from rag.core.types import Passage

WIKIPEDIA = 21_015_324


@pytest.mark.parametrize(
    ("index_type", "part", "gigabytes"),
    [
        ("flat", "embeddings", 64.56),
        ("fp16", "faiss", 32.3),
        ("sq8", "faiss", 16.1),
        ("ivfpq", "faiss", 2.69 + 0.17),
        ("hnsw", "faiss", 16.1 + 5.7),
    ],
)
def test_sizes_of_wikipedia_are_the_published_ones(index_type: Any, part: str, gigabytes: float) -> None:
    figures = plan(WIKIPEDIA, 768, settings=BuildSettings(index_type=index_type))
    assert figures.disk_bytes[part] / 1e9 == pytest.approx(gigabytes, rel=0.02)


@pytest.mark.parametrize("index_type", INDEX_TYPES)
def test_disk_agrees_with_a_real_index(tmp_path: Path, make_encoder: Any, index_type: Any) -> None:
    draw = np.random.default_rng(0)
    passages = [
        Passage(f"passage-{n}", "A title", " ".join(f"w{word}" for word in draw.integers(0, 99, 25)))
        for n in range(1500)
    ]
    settings = BuildSettings(index_type=index_type, probes=8, threads=1, shard_rows=500)
    out = build_index(passages, tmp_path / "i", encoder=make_encoder(dim=48), settings=settings)
    text_bytes = sum(len(p.title) + len(p.text) for p in passages) / len(passages)
    figures = plan(1500, 48, settings=settings, passage_bytes=text_bytes)
    for part, size in figures.disk_bytes.items():
        folder = out / ("dense" if part == "faiss" else part)
        real = sum(path.stat().st_size for path in folder.iterdir() if path.name not in ("probes.npy",))
        assert size == pytest.approx(real, rel=0.1), part


def test_totals_add_up_and_print() -> None:
    settings = BuildSettings(retriever="hybrid", index_type="sq8")
    figures = plan(200_000, 384, settings=settings, encode_per_s=200, model_bytes=9e7)
    value = json.loads(json.dumps(figures.to_json()))
    assert value["serving_total_bytes"] == pytest.approx(sum(figures.serving_bytes.values()))
    assert value["build_s"]["embeddings"] == 1000
    assert "sq8 × 384" in figures.describe()
    assert "bm25" in figures.describe()
    bm25 = plan(1000, 384, settings=BuildSettings(retriever="bm25"))
    assert set(bm25.disk_bytes) == {"passages", "lucene"}
    assert (bm25.dim, bm25.dtype) == (0, "")


def test_rates_are_used() -> None:
    slow = plan(10**6, 384, settings=BuildSettings(index_type="ivf"), rates=Rates(gflops=5))
    fast = plan(10**6, 384, settings=BuildSettings(index_type="ivf"), rates=Rates(gflops=50))
    coding = CODING_S * 10**6  # which no product is part of
    assert slow.build_s["dense"] - coding == pytest.approx(10 * (fast.build_s["dense"] - coding))
    measured = measure_rates(16)
    assert min(measured.gflops, measured.stored_per_s, measured.graph_per_s) > 0


def test_a_graph_is_timed_as_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    made, factory = [], faiss.index_factory
    monkeypatch.setattr(faiss, "index_factory", lambda *given: made.append(factory(*given)) or made[-1])
    measure_rates(16)
    assert [(graph.d, graph.hnsw.efConstruction) for graph in made] == [(384, HNSW_EF_CONSTRUCTION)]
    settings, rates = BuildSettings(index_type="hnsw", threads=1), Rates(graph_per_s=4096, gflops=1e9)
    seconds = [plan(n, 384, settings=settings, rates=rates).build_s["dense"] for n in (4096, 65_536)]
    assert seconds == pytest.approx([1.0, 16 * 2.6])


def test_nonsense_is_refused() -> None:
    with pytest.raises(ConfigError):
        plan(0, 384)


def test_bm25_needs_no_vector_size() -> None:
    result = plan(1000, 0, settings=BuildSettings(retriever="bm25"))
    assert "embeddings" not in result.disk_bytes
    assert result.disk_total_bytes > 0


def test_token_vectors_are_planned_by_bits() -> None:
    sizes = {}
    for bits in (1, 2, 4):
        settings = BuildSettings.model_validate({"index_type": "plaid", "token_bits": bits})
        made = plan(1_000_000, 128, settings=settings, encode_per_s=100)
        tokens = 1_000_000 * 650 / TOKEN_BYTES
        sizes[bits] = made.disk_bytes["tokens"] / tokens
        assert 16 * bits + 4 < sizes[bits] < 16 * bits + 7
        assert set(made.disk_bytes) == {"passages", "tokens"}
        assert made.build_s["tokens"] == 10_000  # the sample is encoded once, and kept meanwhile
        assert made.working_disk_bytes > 2 * 128 * 32 * 131_072
        assert made.serving_bytes["centroids"] > 4 * 128 * 131_072
    assert sizes[1] < 24
