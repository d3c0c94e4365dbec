"""Search in parts: the results of one machine to the last tie, and what happens when a part dies or
hangs.
"""

import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from indexers.index import Index
from indexers.index_writer import write_index
from indexers.settings import BuildSettings
from rag.core.errors import ArtifactError, ConfigError, MismatchedArtifactError, RetrievalError
from rag.core.types import Passage
from rag.scale.search import ShardedIndex, open_sharded
from retrievers.encoders.open import load_encoder
from tests.unit.rag.scale.conftest import Nodes

WORDS = ["danube", "rhine", "river", "black", "forest", "sea", "rises", "the", "in"]


def corpus() -> Iterator[Passage]:
    draw = random.Random(7)  # few words: many passages have equal vectors
    for number in range(600):
        yield Passage(f"p{number}", "", " ".join(draw.choices(WORDS, k=draw.choice([2, 3, 9]))))


def build(place: Path, encoder: Path, index_type: str = "flat") -> Path:
    settings = BuildSettings(
        retriever="dense", index_type=index_type, shard_rows=64, probes=16, threads=1
    )
    return write_index(place, corpus(), encoder=load_encoder(encoder), settings=settings).directory


@pytest.fixture(scope="module")
def flat(static_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("flat"), static_encoder)


def queries(index: Index) -> np.ndarray:
    vectors = np.random.default_rng(1).standard_normal((12, 16)).astype(np.float32)
    return np.concatenate([vectors, index.embeddings.rows(np.arange(0, 600, 50))])


def sharded(index: Index, deadline_s: float = 60.0) -> ShardedIndex:
    """Its search, with time for a machine that is busy with other work."""
    assert isinstance(index.dense, ShardedIndex)
    index.dense.deadline_s = deadline_s
    return index.dense


@pytest.mark.cluster
def test_results_are_those_of_one_machine(nodes: Nodes, flat: Path) -> None:
    nodes.start(2)
    with Index.open(flat) as whole, open_sharded(flat, nodes.address) as parts:
        assert len(sharded(parts).processes()) == 2
        for top_k in (1, 10, 100, 700):
            scores, rows = whole.dense.search(queries(whole), top_k)
            result, found_rows = sharded(parts).search(queries(parts), top_k)
            np.testing.assert_array_equal(scores, result)
            np.testing.assert_array_equal(rows, found_rows)


@pytest.mark.cluster
def test_a_part_that_hangs_is_named_at_the_deadline(nodes: Nodes, flat: Path) -> None:
    nodes.start(2)
    with open_sharded(flat, nodes.address) as index:
        _, rows = sharded(index).search(queries(index), 20)
        _, second = sharded(index).processes()
        os.kill(second, signal.SIGSTOP)
        try:
            began = time.monotonic()
            with pytest.raises(RetrievalError, match=r"within 5 s \(part 2: no answer\)"):
                sharded(index, deadline_s=5).search(queries(index), 20)
            assert time.monotonic() - began < 15
        finally:
            os.kill(second, signal.SIGCONT)
        np.testing.assert_array_equal(sharded(index).search(queries(index), 20)[1], rows)


@pytest.mark.cluster
def test_a_node_that_dies_loses_no_request_and_its_part_comes_back_elsewhere(
    nodes: Nodes, flat: Path
) -> None:
    nodes.start(2)
    with open_sharded(flat, nodes.address) as index:
        _, expected = sharded(index, deadline_s=200).search(queries(index), 20)
        before = set(sharded(index).processes())
        dead = before & nodes.kill()
        assert len(before) == 2
        assert len(dead) == 1
        for _ in range(5):
            _, rows = sharded(index, deadline_s=200).search(queries(index), 20)
            np.testing.assert_array_equal(rows, expected)
        after = set(sharded(index).processes())
        assert len(after) == 2
        assert after & before == before - dead


@pytest.mark.cluster
def test_what_cannot_be_searched_is_refused_by_name(
    nodes: Nodes, flat: Path, static_encoder: Path, tmp_path: Path
) -> None:
    nodes.start(2)
    for place in (
        write_index(
            tmp_path / "words", corpus(), settings=BuildSettings(retriever="bm25")
        ).directory,
        build(tmp_path / "ivf", static_encoder, "ivf"),
    ):
        with pytest.raises(ConfigError, match="not of index type flat"):
            open_sharded(place, nodes.address)
    place = tmp_path / "index"
    shutil.copytree(flat, place)
    with open_sharded(place, nodes.address) as index:
        pid, _ = sharded(index).processes()
        shutil.rmtree(place)  # another build takes its place, and a part begins again there
        write_index(
            place,
            list(corpus())[:300],
            encoder=load_encoder(static_encoder),
            settings=BuildSettings(retriever="dense", shard_rows=64, probes=16),
        )
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(MismatchedArtifactError, match="is of build"):
            sharded(index).search(queries(index), 20)
    (Index.open(place).data / "embeddings" / "shard-00001.npy").unlink()
    with pytest.raises(ArtifactError, match=r"shard-00001\.npy is missing"):
        open_sharded(place, nodes.address)
