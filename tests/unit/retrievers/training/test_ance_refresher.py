"""ANCE's refresher mines what it should."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from indexers.passage_writer import PassageStoreWriter
from indexers.passages import PassageStore
from indexers.protocols import EncoderIdentity
from rag.core.arrays import Float32
from rag.core.errors import MismatchedArtifactError
from rag.core.types import Passage, Query
from rag.data.examples import Example
from rag.training.refresh import Refreshed
from retrievers.examples.batches import Epochs, RetrieverBatches
from retrievers.examples.data import ExampleTable
from retrievers.training.ance import AnceTrainConfig, NegativesRefresher, take_up_negatives

DIM = 16
PASSAGES = [Passage(f"p{n}", f"t{n % 7}", f"word{n} word{n + 1} common") for n in range(40)]


class WordEncoder:
    """Sum of random word vectors, turned by the matrix of a snapshot."""

    dim = DIM

    def __init__(self, folder: Path) -> None:
        self.turn = np.load(folder / "turn.npy")
        digest = hashlib.sha256(self.turn.tobytes()).hexdigest()
        self.identity = EncoderIdentity("words", digest, dim=DIM)
        self.calls = 0

    def _encode(self, texts: Sequence[str]) -> Float32:
        rows = []
        for text in texts:
            seeds = [int.from_bytes(hashlib.sha256(w.encode()).digest()[:4], "little") for w in text.split()]
            rows.append(sum(np.random.default_rng(seed).normal(size=DIM) for seed in seeds))
        return (np.array(rows) @ self.turn).astype(np.float32)

    def encode_passages(self, titles: Sequence[str], texts: Sequence[str]) -> Float32:
        self.calls += 1
        return self._encode(texts)

    def encode_queries(self, queries: Sequence[Query]) -> Float32:
        return self._encode([query.question for query in queries])


@pytest.fixture
def corpus(tmp_path: Path) -> PassageStore:
    with PassageStoreWriter(tmp_path / "passages") as writer:
        writer.add_many(PASSAGES)
    return PassageStore.open(tmp_path / "passages")


def examples(numbers: Sequence[int]) -> list[Example]:
    return [Example.labelled(f"q{n}", f"word{n} word{n + 1}", (f"word{n}",), (PASSAGES[n],)) for n in numbers]


def make(tmp_path: Path, corpus: PassageStore, **settings: object) -> NegativesRefresher:
    given = {"depth": 20, "kept": 5} | settings
    config = AnceTrainConfig(out=tmp_path / "run", train_files=("t.json",), index="index", **given)
    return NegativesRefresher(config, corpus, examples(range(20)), load=WordEncoder)


def build(refresher: NegativesRefresher, place: Path) -> Refreshed:
    """The result of a snapshot."""
    snapshot, result = place / "snapshot", place / "result"
    (snapshot / "encoder").mkdir(parents=True)
    np.save(snapshot / "encoder" / "turn.npy", np.eye(DIM))
    result.mkdir()
    refresher.build(snapshot, result)
    assert not (result / "embeddings").exists()
    return Refreshed(result, 0, "version", "k")


def test_negatives_are_the_best_passages_that_are_not_right(tmp_path: Path, corpus: PassageStore) -> None:
    result = build(make(tmp_path, corpus), tmp_path)
    batches = RetrieverBatches(ExampleTable.of(examples(range(20))), Epochs(20, 20), hard_negatives=9)
    figures = take_up_negatives(batches, corpus, result, key="k")
    batch = batches[0]
    mined = {
        int(number): sorted(batch.passages[p].id for p in batch.drawn[1][batch.drawn[0] == at])
        for at, number in enumerate(batch.examples)
    }
    encoder = WordEncoder(tmp_path / "snapshot" / "encoder")
    vectors = encoder.encode_passages([""] * 40, [p.text for p in PASSAGES]).astype(np.float16)
    for example in range(20):
        query = encoder.encode_queries([Query(f"word{example} word{example + 1}")])[0]
        order = np.argsort(-(vectors.astype(np.float32) @ query), kind="stable")[:20]
        wanted = [row for row in order if f"word{example} " not in PASSAGES[row].text + " "][:5]
        assert mined[example] == sorted(PASSAGES[row].id for row in wanted)
    assert figures["mined/negatives_per_question"] == 5


def test_negatives_of_another_run_are_refused(tmp_path: Path, corpus: PassageStore) -> None:
    result = build(make(tmp_path, corpus), tmp_path)
    for count, key in ((20, "other"), (19, "k")):
        batches = RetrieverBatches(
            ExampleTable.of(examples(range(count))), Epochs(count, 4), hard_negatives=0
        )
        with pytest.raises(MismatchedArtifactError, match=f"expected {count}"):
            take_up_negatives(batches, corpus, result, key=key)
