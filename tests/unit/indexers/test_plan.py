import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexers.build import build_index
from indexers.index import Index
from indexers.plan import plan
from indexers.presets import INDEX_TYPES
from indexers.settings import BuildSettings
from rag.core.errors import ConfigError
from rag.core.types import Passage


@pytest.mark.parametrize(
    ("index_type", "part", "gigabytes"),
    [("flat", "embeddings", 64.56), ("SQ8", "dense", 16.3), ("hnsw", "dense", 16.1 + 5.7)],
)
def test_sizes_of_wikipedia_are_the_published_ones(index_type: str, part: str, gigabytes: float) -> None:
    figures = plan(21_015_324, 768, settings=BuildSettings(index_type=index_type))
    assert figures.disk_bytes[part] / 1e9 == pytest.approx(gigabytes, rel=0.02)


@pytest.mark.parametrize("index_type", [*INDEX_TYPES, "SQfp16"])
def test_disk_agrees_with_a_real_index(tmp_path: Path, make_encoder: Any, index_type: str) -> None:
    draw = np.random.default_rng(0)
    passages = [
        Passage(f"passage-{n}", "A title", " ".join(f"w{word}" for word in draw.integers(0, 99, 25)))
        for n in range(1500)
    ]
    settings = BuildSettings(index_type=index_type, probes=8, threads=1, shard_rows=500)
    out = build_index(passages, tmp_path / "i", encoder=make_encoder(dim=48), settings=settings)
    text_bytes = sum(len(p.title) + len(p.text) for p in passages) / len(passages)
    figures = plan(1500, 48, settings=settings, passage_bytes=text_bytes)
    files = Index.open(out).manifest["files"]
    for part, size in figures.disk_bytes.items():
        own = (entry["size_bytes"] for name, entry in files.items() if name.startswith(f"{part}/sh"))
        real = sum(own) or sum(e["size_bytes"] for name, e in files.items() if name.startswith(f"{part}/"))
        assert size == pytest.approx(real, rel=0.25), part


def test_parts_follow_the_settings_and_nonsense_is_refused() -> None:
    hybrid = plan(200_000, 384, settings=BuildSettings(retriever="hybrid", index_type="ivf"))
    assert json.loads(json.dumps(hybrid.to_json()))["disk_total_bytes"] == hybrid.disk_total_bytes
    assert "ivf × 384" in hybrid.describe()
    bm25 = plan(1000, 0, settings=BuildSettings(retriever="bm25"))
    assert (set(bm25.disk_bytes), bm25.dim) == ({"passages", "bm25"}, 0)
    sizes = [
        plan(10**6, 128, settings=BuildSettings(index_type="plaid", token_bits=bits)).disk_bytes["tokens"]
        for bits in (1, 2, 4)
    ]
    assert sizes[2] - sizes[1] == pytest.approx(2 * (sizes[1] - sizes[0]))
    with pytest.raises(ConfigError, match="cannot plan"):
        plan(0, 384)
    with pytest.raises(ConfigError, match="no index type 'SQ9'"):
        plan(10, 384, settings=BuildSettings(index_type="SQ9"))
