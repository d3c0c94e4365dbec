"""An index under another question encoder: the same vectors, another statement, nothing encoded again."""

from pathlib import Path

import numpy as np
import pytest

from indexers.build import build_index
from indexers.index import Index
from indexers.protocols import EncoderIdentity
from indexers.reuse import reissue_index
from indexers.settings import BuildSettings
from rag.core.errors import MismatchedArtifactError
from rag.core.types import Passage

PASSAGES = [Passage(f"p{n}", "t", f"text {n}") for n in range(30)]


class Encoder:
    dim = 8

    def __init__(self, weights: str, seed: int = 0) -> None:
        self.identity = EncoderIdentity("e", weights, dim=8)
        self.seed, self.encoded = seed, 0

    def encode_passages(self, titles: list[str], texts: list[str]) -> np.ndarray:
        self.encoded += len(texts)
        rows = [np.random.default_rng([self.seed, *text.encode()]).normal(size=8) for text in texts]
        return np.array(rows, np.float32)


@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_the_vectors_stay_and_the_statement_changes(tmp_path: Path, kind: str) -> None:
    settings = BuildSettings(index_type=kind, shard_rows=11, probes=4)
    build_index(PASSAGES, tmp_path / "old", encoder=Encoder("old"), settings=settings)
    tuned = Encoder("new")
    reissue_index(tmp_path / "old", tmp_path / "new", tuned)
    assert tuned.encoded == 16
    query = np.random.default_rng(3).normal(size=(2, 8)).astype(np.float32)
    with (
        Index.open(tmp_path / "old", verify="deep") as old,
        Index.open(tmp_path / "new", verify="deep") as new,
    ):
        assert old.version != new.version
        new.check_encoder(tuned.identity)
        with pytest.raises(MismatchedArtifactError):
            old.check_encoder(tuned.identity)
        assert old.dense is not None
        assert new.dense is not None
        for a, b in zip(old.dense.search(query, 5), new.dense.search(query, 5), strict=True):
            assert np.array_equal(a, b)
    shards = [index.data / "embeddings/shard-00001.npy" for index in (old, new)]
    assert shards[0].stat().st_ino == shards[1].stat().st_ino
    # it is an index like any other: a later build goes on from it
    build_index(PASSAGES, tmp_path / "new", encoder=Encoder("new"), settings=settings)
