import mmap
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from indexers import embedding_shards
from indexers.embedding_shards import EmbeddingShards
from indexers.embeddings import EmbeddingWriter
from indexers.protocols import EncoderIdentity
from indexers.settings import VectorDtype
from rag.core.arrays import Float32
from rag.core.errors import ArtifactError, DataError, IncompleteArtifactError, MismatchedArtifactError
from rag.core.files import TEMPORARY_MARK
from rag.core.npy import RowPages, save_npy

WHO = EncoderIdentity("toy", "aa", dim=5)


def vectors(rows: int) -> Float32:
    return np.random.default_rng(1).standard_normal((rows, 5)).astype(np.float32)


def write(directory: Path, values: Float32, dtype: VectorDtype = "float32", shard_rows: int = 7) -> list[int]:
    writer = EmbeddingWriter(directory, rows=len(values), encoder=WHO, dtype=dtype, shard_rows=shard_rows)
    return list(writer.write_missing(lambda start, stop: values[start:stop]))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("rows", [0, 1, 7, 20])
def test_reader_returns_what_was_written(tmp_path: Path, dtype: VectorDtype, rows: int) -> None:
    values = vectors(rows)
    assert sum(write(tmp_path, values, dtype)) == rows
    shards = EmbeddingShards.open(tmp_path)
    expected = values.astype(dtype).astype(np.float32)
    assert (len(shards), shards.dim, shards.dtype, shards.encoder) == (rows, 5, dtype, WHO)
    blocks = list(shards.blocks())
    assert [start for start, _ in blocks] == list(range(0, rows, 7))
    np.testing.assert_array_equal(shards.rows(np.arange(rows)), expected)
    if rows:
        np.testing.assert_array_equal(np.concatenate([block for _, block in blocks]), expected)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.integers(0, 29), max_size=60), is_large=st.booleans())
def test_gather_keeps_order_and_repeats(tmp_path: Path, rows: list[int], is_large: bool) -> None:
    values = vectors(30)
    write(tmp_path, values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedding_shards, "_LARGE_BYTES", 0 if is_large else 1 << 40)
        found = EmbeddingShards.open(tmp_path).rows(np.array(rows, dtype=np.int64))
    np.testing.assert_array_equal(found, values[np.array(rows, dtype=np.int64)])


def test_the_pages_of_wanted_rows_are_asked_for(tmp_path: Path) -> None:
    class Recorded(mmap.mmap):
        asked: ClassVar[list[tuple[int, int]]] = []

        def madvise(self, option: int, start: int = 0, length: int = 0) -> None:
            self.asked.append((start, start + length))

    path = tmp_path / "v.npy"
    save_npy(path, np.zeros((100, 512), np.float16))
    with path.open("rb") as file:
        mapped = Recorded(file.fileno(), 0, access=mmap.ACCESS_READ)
    values = np.ndarray((100, 512), np.float16, mapped, 128)
    RowPages(values).will_read(np.array([0, 3, 99]))
    pages = [first // mmap.PAGESIZE * mmap.PAGESIZE for first in (128, 128 + 3 * 1024, 128 + 99 * 1024)]
    assert Recorded.asked == list(zip(pages, (128 + 1024, 128 + 4 * 1024, 128 + 100 * 1024), strict=True))


def test_finished_shards_are_skipped_and_torn_ledger_lines_mended(tmp_path: Path) -> None:
    values = vectors(20)
    write(tmp_path / "whole", values)
    writer = EmbeddingWriter(tmp_path / "cut", rows=20, encoder=WHO, dtype="float32", shard_rows=7)
    writer.write(0, values[:7])
    with pytest.raises(IncompleteArtifactError, match="2 of 3"):
        EmbeddingShards.open(tmp_path / "cut")
    with open(tmp_path / "cut/ledger.jsonl", "a") as file:
        file.write('{"shard": 1, "ro')
    assert write(tmp_path / "cut", values) == [7, 6]
    assert write(tmp_path / "cut", values) == []
    for path in (tmp_path / "whole").iterdir():
        assert path.read_bytes() == (tmp_path / "cut" / path.name).read_bytes()


def test_a_damaged_shard_is_made_again(tmp_path: Path) -> None:
    values = vectors(20)
    write(tmp_path, values)
    path = tmp_path / "shard-00001.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert write(tmp_path, values) == [7]
    np.testing.assert_array_equal(EmbeddingShards.open(tmp_path).rows(np.arange(20)), values)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"dtype": "float16"}, "dtype"),
        ({"rows": 21}, "rows"),
        ({"shard_rows": 8}, "shard_rows"),
        ({"encoder": EncoderIdentity("toy", "bb", dim=5)}, "weights_sha256"),
    ],
)
def test_other_settings_are_refused(tmp_path: Path, change: dict, named: str) -> None:  # type: ignore[type-arg]
    write(tmp_path, vectors(20))
    base = {"rows": 20, "encoder": WHO, "dtype": "float32", "shard_rows": 7}
    with pytest.raises(MismatchedArtifactError, match=named):
        EmbeddingWriter(tmp_path, **{**base, **change})


def test_bad_vectors_are_refused(tmp_path: Path) -> None:
    writer = EmbeddingWriter(tmp_path, rows=2, encoder=WHO, dtype="float16")
    with pytest.raises(DataError, match="shape"):
        writer.write(0, np.zeros((2, 4), np.float32))
    for bad in (np.nan, np.inf, 1e6):
        with pytest.raises(DataError, match="row 1 is not finite"):
            writer.write(0, np.array([[0] * 5, [bad] * 5], np.float32))


@pytest.mark.parametrize("name", ["shard-00002.npy", "embeddings.json", "ledger.jsonl"])
@pytest.mark.parametrize("damage", ["truncate", "foreign", "remove"])
def test_damaged_files_are_refused(tmp_path: Path, name: str, damage: str) -> None:
    write(tmp_path, vectors(20))
    path = tmp_path / name
    if damage == "remove":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-20] if damage == "truncate" else b"nonsense\n" * 9)
    with pytest.raises(ArtifactError, match=str(tmp_path)):
        EmbeddingShards.open(tmp_path)


def test_rows_outside_are_refused(tmp_path: Path) -> None:
    write(tmp_path, vectors(20))
    with pytest.raises(DataError):
        EmbeddingShards.open(tmp_path).rows(np.array([3, 20]))


def test_several_processes_share_the_missing_shards(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(23, 4)).astype(np.float32)
    who = EncoderIdentity("toy", "", dim=4)
    writers = [EmbeddingWriter(tmp_path, rows=23, encoder=who, shard_rows=4) for _ in range(2)]
    for shard, start, stop in reversed(list(writers[1].missing())[1::2]):  # in whatever order
        writers[1].write(shard, values[start:stop])
    for shard, start, stop in list(writers[0].missing())[::2]:
        writers[0].write(shard, values[start:stop])
    found = EmbeddingShards.open(tmp_path).rows(np.arange(23))
    np.testing.assert_array_equal(found, values.astype(np.float16).astype(np.float32))


def test_what_a_killed_node_left_is_removed_at_the_end(tmp_path: Path) -> None:
    values = vectors(20)
    writer = EmbeddingWriter(tmp_path, rows=20, encoder=WHO, dtype="float32", shard_rows=7)

    def fill(done: Callable[[int], None]) -> None:
        for rows in writer.write_missing(lambda start, stop: values[start:stop]):
            done(rows)
        (tmp_path / f".shard-00001.npy{TEMPORARY_MARK}123").write_bytes(b"half")

    assert len(writer.completed(fill)) == 20
    assert not [path for path in tmp_path.iterdir() if TEMPORARY_MARK in path.name]


def test_every_float16_is_read_as_numpy_reads_it(tmp_path: Path) -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)].reshape(-1, 8)
    who = EncoderIdentity("toy", "aa", dim=8)
    writer = EmbeddingWriter(tmp_path, rows=len(halves), encoder=who, dtype="float16", shard_rows=3000)
    list(writer.write_missing(lambda start, stop: halves[start:stop].astype(np.float32)))
    shards = EmbeddingShards.open(tmp_path)
    expected = halves.astype(np.float32)
    np.testing.assert_array_equal(shards.rows(np.arange(len(halves))), expected)
    np.testing.assert_array_equal(np.concatenate([block for _, block in shards.blocks()]), expected)
