"""Search in parts: the results of one machine to the last tie, and what happens when a part dies or hangs."""

import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexers.build import build_index
from indexers.index import Index
from indexers.settings import BuildSettings
from rag.core.errors import (
    ArtifactError,
    ConfigError,
    MismatchedArtifactError,
    ResourceError,
    RetrievalError,
)
from rag.core.types import Passage
from rag.scale.search import ShardedIndex, open_sharded
from retrievers.encoders.open import load_encoder
from tests.unit.rag.scale.conftest import Nodes, wait_for

WORDS = ["danube", "rhine", "river", "black", "forest", "sea", "rises", "the", "in"]


def corpus() -> Iterator[Passage]:
    draw = random.Random(7)  # few words: many passages have equal vectors
    for number in range(600):
        yield Passage(f"p{number}", "", " ".join(draw.choices(WORDS, k=draw.choice([2, 3, 9]))))


def build(place: Path, encoder: Path, index_type: str = "flat") -> Path:
    settings = BuildSettings(retriever="dense", index_type=index_type, shard_rows=64, probes=16, threads=1)
    return build_index(corpus(), place, encoder=load_encoder(encoder), settings=settings)


@pytest.fixture(scope="module")
def flat(static_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("flat"), static_encoder)


def queries(index: Index) -> np.ndarray:
    vectors = np.random.default_rng(1).standard_normal((12, 16)).astype(np.float32)
    assert index.embeddings is not None
    return np.concatenate([vectors, index.embeddings.rows(np.arange(0, 600, 50))])


def dense_of(index: Index) -> ShardedIndex:
    assert isinstance(index.dense, ShardedIndex)
    return index.dense


def ask(index: Index, top_k: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """Scores and rows."""
    return dense_of(index).search(queries(index), top_k)


def processes(index: Index) -> list[Any]:
    """Those of every part; none while one of them begins again."""
    try:
        return [*dense_of(index).processes()]
    except ResourceError:
        return [None]


@pytest.mark.cluster
@pytest.mark.parametrize("index_type", ["flat", "SQ8", "ivf", "hnsw"])
def test_results_are_those_of_one_machine(
    nodes: Nodes, static_encoder: Path, tmp_path: Path, index_type: str
) -> None:
    place = build(tmp_path / "index", static_encoder, index_type)
    parts = 1 if index_type == "hnsw" else 2
    with Index.open(place) as one, open_sharded(place, f"{nodes.address},shards={parts},deadline=60") as many:
        for top_k in (1, 10, 100, 700):
            assert one.dense is not None
            scores, rows = one.dense.search(queries(one), top_k)
            found, found_rows = ask(many, top_k)
            np.testing.assert_array_equal(scores, found)
            if index_type == "flat":  # others choose at random among candidates of equal codes
                np.testing.assert_array_equal(rows, found_rows)


@pytest.mark.cluster
def test_a_part_that_hangs_is_named_at_the_deadline(nodes: Nodes, flat: Path) -> None:
    with open_sharded(flat, f"{nodes.address},shards=2,deadline=60") as index:
        expected = ask(index)
        dense_of(index).deadline_s = 5
        _, second = (pid for pid, _ in dense_of(index).processes())
        os.kill(second, signal.SIGSTOP)
        try:
            began = time.monotonic()
            with pytest.raises(RetrievalError, match=r"within 5 s \(shard 2 of 2: no answer\)"):
                ask(index)
            assert time.monotonic() - began < 15
        finally:
            os.kill(second, signal.SIGCONT)
        dense_of(index).deadline_s = 60
        np.testing.assert_array_equal(ask(index)[1], expected[1])


@pytest.mark.cluster
def test_a_node_that_dies_loses_no_request_and_comes_back_elsewhere(nodes: Nodes, flat: Path) -> None:
    nodes.start(2)
    with open_sharded(flat, f"{nodes.address},shards=3,deadline=200") as index:
        expected = ask(index)
        before = {pid for pid, _ in dense_of(index).processes()}
        dead = before & nodes.kill()
        assert dead
        for _ in range(5):
            _, rows = ask(index)
            np.testing.assert_array_equal(rows, expected[1])
        wait_for(lambda: None not in processes(index), timeout_s=200)
        after = {pid for pid, _ in dense_of(index).processes()}
        assert len(after) == len(before)
        assert after & before == before - dead
        np.testing.assert_array_equal(ask(index)[1], expected[1])


@pytest.mark.cluster
def test_what_cannot_be_searched_is_refused_by_name(
    nodes: Nodes, flat: Path, static_encoder: Path, tmp_path: Path
) -> None:
    nodes.start(2)

    def refused(place: Path, error: type[Exception], match: str, more: str = "") -> None:
        with pytest.raises(error, match=match):
            open_sharded(place, nodes.address + more)

    words = build_index(corpus(), tmp_path / "words", settings=BuildSettings(retriever="bm25"))
    refused(words, ConfigError, "no passage vectors")
    refused(flat, ConfigError, "has 10 shard files, fewer than shards=11", ",shards=11")
    refused(flat, ConfigError, "shards = 0", ",shards=0")
    place = tmp_path / "index"
    shutil.copytree(flat, place)
    with open_sharded(place, f"{nodes.address},shards=2,deadline=8") as index:
        [(pid, _), _] = dense_of(index).processes()
        shutil.rmtree(place)  # another build takes its place, and a part begins again there
        build_index(list(corpus())[:300], place, encoder=load_encoder(static_encoder),
                    settings=BuildSettings(retriever="dense", shard_rows=64, probes=16))  # fmt: skip
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(RetrievalError, match="shard 1 of 2"):
            ask(index)
        with pytest.raises(MismatchedArtifactError, match=r"shard 1 of 2 on .* is of build"):
            wait_for(lambda: None not in processes(index), timeout_s=200)
    (Index.open(place).data / "embeddings" / "shard-00001.npy").unlink()
    refused(place, ArtifactError, "shard-00001.npy is missing")
