"""Planned sizes beside published ones and beside those of indexes that were built."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexers.index import Index
from indexers.index_writer import write_index
from indexers.plan import plan
from indexers.settings import INDEX_TYPES, BuildSettings
from rag.core.errors import ConfigError
from rag.core.types import Passage
from tests.support.messages import refusal


@pytest.mark.parametrize("index_type", [*INDEX_TYPES, "SQfp16"])
def test_disk_agrees_with_a_real_index(tmp_path: Path, make_encoder: Any, index_type: str) -> None:
    draw = np.random.default_rng(0)
    texts = [" ".join(f"w{word}" for word in draw.integers(0, 99, 165)) for _ in range(1500)]
    passages = [Passage(f"passage-{n}", "A title", text) for n, text in enumerate(texts)]
    settings = BuildSettings(index_type=index_type, probes=8, threads=1, shard_rows=500)
    out = write_index(
        tmp_path / "i", passages, encoder=make_encoder(dim=48), settings=settings
    ).directory
    sizes, files = plan(1500, 48, settings), Index.open(out).manifest.files
    for part in ("passages", "embeddings", *["dense"] * (index_type != "flat")):
        own = (entry.size_bytes for name, entry in files.items() if name.startswith(f"{part}/sh"))
        real = sum(own) or sum(
            e.size_bytes for name, e in files.items() if name.startswith(f"{part}/")
        )
        assert sizes[part] == pytest.approx(real, rel=0.25), part


def test_parts_follow_the_settings_and_nonsense_is_refused() -> None:
    bm25 = plan(1000, 0, BuildSettings(retriever="bm25"))
    assert set(bm25) == {"passages", "bm25", "total", "more while building", "searched"}
    assert bm25["total"] == bm25["passages"] + bm25["bm25"]
    with refusal(ConfigError):
        plan(0, 384, BuildSettings())
    with refusal(ConfigError):
        plan(10, 384, BuildSettings(index_type="SQ9"))
