from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from indexers import embeddings
from indexers.embeddings import EmbeddingShards, ShardLayout, missing_shards, store_shard
from indexers.settings import VectorDtype
from rag.core.arrays import Float32
from rag.core.errors import ArtifactError, DataError
from rag.core.files import TEMPORARY_MARK
from tests.support.messages import refusal
from tests.vectors import store_vectors


def vectors(rows: int) -> Float32:
    return np.random.default_rng(1).standard_normal((rows, 5)).astype(np.float32)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("rows", [0, 1, 7, 20])
def test_reader_returns_what_was_written(tmp_path: Path, dtype: VectorDtype, rows: int) -> None:
    values = vectors(rows)
    shards = store_vectors(tmp_path, values, dtype, 7)
    expected = values.astype(dtype).astype(np.float32)
    assert shards.layout == ShardLayout(rows, 5, dtype, 7)
    blocks = list(shards.blocks())
    assert [start for start, _ in blocks] == list(range(0, rows, 7))
    np.testing.assert_array_equal(shards.rows(np.arange(rows)), expected)
    if rows:
        np.testing.assert_array_equal(np.concatenate([block for _, block in blocks]), expected)
    with refusal(DataError):
        shards.rows(np.array([0, rows]))


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rows=st.lists(st.integers(0, 29), max_size=60), is_large=st.booleans())
def test_gather_keeps_order_and_repeats(tmp_path: Path, rows: list[int], is_large: bool) -> None:
    values = vectors(30)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embeddings, "_LARGE_BYTES", 0 if is_large else 1 << 40)
        shards = store_vectors(tmp_path, values, shard_rows=7)
        result = shards.rows(np.array(rows, dtype=np.int64))
    np.testing.assert_array_equal(result, values[np.array(rows, dtype=np.int64)])


def test_shards_are_written_in_any_order_and_those_that_are_there_stay(tmp_path: Path) -> None:
    values = vectors(20)
    layout = ShardLayout(20, 5, "float32", shard_rows=7)
    missing = missing_shards(tmp_path, layout)
    assert missing == [(0, 0, 7), (1, 7, 14), (2, 14, 20)]
    store_shard(tmp_path, layout, missing[2], values[14:])
    (tmp_path / f".shard-00001.npy{TEMPORARY_MARK}123").write_bytes(
        b"half"
    )  # of a node that was killed
    with refusal(ArtifactError):
        EmbeddingShards.open(tmp_path, layout)
    assert missing_shards(tmp_path, layout) == missing[:2]
    shards = store_vectors(tmp_path, values, shard_rows=7)
    np.testing.assert_array_equal(shards.rows(np.arange(20)), values)
    assert not [path for path in tmp_path.iterdir() if TEMPORARY_MARK in path.name]


def test_bad_vectors_are_refused(tmp_path: Path) -> None:
    layout = ShardLayout(2, 5, "float16")
    (shard,) = layout.shards()
    with refusal(DataError):
        store_shard(tmp_path, layout, shard, np.zeros((2, 4), np.float32))
    for bad in (np.nan, np.inf, 1e6):
        with refusal(DataError):
            store_shard(tmp_path, layout, shard, np.array([[0] * 5, [bad] * 5], np.float32))


def test_every_float16_is_read_as_numpy_reads_it(tmp_path: Path) -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)].reshape(-1, 8)
    shards = store_vectors(tmp_path, halves.astype(np.float32), "float16", 3000)
    expected = halves.astype(np.float32)
    np.testing.assert_array_equal(shards.rows(np.arange(len(halves))), expected)
    np.testing.assert_array_equal(np.concatenate([block for _, block in shards.blocks()]), expected)
