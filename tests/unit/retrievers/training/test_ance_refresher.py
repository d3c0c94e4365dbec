"""ANCE's refresher mines what it should, measures it, goes on after a kill, and never does work twice."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from indexers.passage_writer import PassageStoreWriter
from indexers.passages import PassageStore
from indexers.protocols import EncoderIdentity
from rag.core.arrays import Float32
from rag.core.errors import DataError, MismatchedArtifactError
from rag.core.files import read_json
from rag.core.types import Passage, Query
from rag.data.examples import Example
from rag.training.refresh.generations import Generation, Generations
from retrievers.training.ance_refresher import NegativesRefresher, read_negatives
from retrievers.training.config import AnceTrainConfig

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
    given = {"depth": 20, "kept": 5, "probe_questions": 8, "probe_passages": 10, "poll_s": 0.01} | settings
    config = AnceTrainConfig(out=tmp_path / "run", train_files=("t.json",), index="index", **given)
    train, held_out = examples(range(20)), examples(range(20, 26))
    return NegativesRefresher(config, corpus, train, held_out, key="k", load=WordEncoder)


def snapshot(run: Path, step: int, seed: int = 0, strength: float = 0.0) -> Generation:
    turn = np.eye(DIM) + strength * np.random.default_rng(seed).normal(size=(DIM, DIM))

    def build(folder: Path) -> None:
        (folder / "encoder").mkdir()
        np.save(folder / "encoder" / "turn.npy", turn)

    return Generations(run / "snapshots").publish(build, step=step, meta={"key": "k"})


def test_negatives_are_the_best_passages_that_are_not_right(tmp_path: Path, corpus: PassageStore) -> None:
    refresher = make(tmp_path, corpus)
    published = refresher.refresh(snapshot(tmp_path / "run", 100), before=None)
    mined, figures = (
        read_negatives(published, examples=20, key="k"),
        read_json(published.path / "figures.json"),
    )
    assert (published.step, published.meta["turn"]) == (100, 0)
    assert (mined.lengths > 0).all()
    encoder = WordEncoder(tmp_path / "run/snapshots/generation-00000001/encoder")
    vectors = encoder.encode_passages([""] * 40, [p.text for p in PASSAGES]).astype(np.float16)
    for example in range(20):
        query = encoder.encode_queries([Query(f"word{example} word{example + 1}")])[0]
        order = np.argsort(-(vectors.astype(np.float32) @ query), kind="stable")[:20]
        wanted = [row for row in order if f"word{example} " not in PASSAGES[row].text + " "][:5]
        assert mined[example].tolist() == wanted
    assert figures["held_out/top1"] == 100.0
    assert figures["mined/negatives_per_question"] == 5
    assert figures["refresh/overlap"] == 1.0
    assert len(mined) == 20


def test_a_moved_model_is_measured_against_the_one_before(
    tmp_path: Path, corpus: PassageStore, caplog: pytest.LogCaptureFixture
) -> None:
    refresher = make(tmp_path, corpus)
    first = refresher.refresh(snapshot(tmp_path / "run", 0), before=None)
    near = refresher.refresh(snapshot(tmp_path / "run", 50, strength=0.02), before=first)
    far = refresher.refresh(snapshot(tmp_path / "run", 90, strength=2.0), before=near)
    figures = [read_json(generation.path / "figures.json") for generation in (near, far)]
    assert [f["refresh/age_steps"] for f in figures] == [50, 40]
    assert 0.98 < figures[0]["refresh/cosine"] < 1
    assert figures[1]["refresh/cosine"] < 0.7
    assert figures[1]["refresh/overlap"] < figures[0]["refresh/overlap"] <= 1
    assert "drift: old and new document vectors" in caplog.text
    assert len(refresher.payloads.all()) == 2  # keep_generations
    assert len(list((tmp_path / "run/refresher").glob("embeddings-*"))) == 1


def test_a_refresh_may_mine_for_some_of_the_questions_in_turn(tmp_path: Path, corpus: PassageStore) -> None:
    refresher = make(tmp_path, corpus, refresh_questions=8)
    before, seen = None, []
    for step in range(3):
        before = refresher.refresh(snapshot(tmp_path / "run", step, step, 0.5), before=before)
        mined = read_negatives(before, examples=20, key="k")
        seen.append({n: mined[n].tolist() for n in np.flatnonzero(mined.lengths).tolist()})
    assert [len(lists) for lists in seen] == [7, 14, 20]
    assert all(seen[2][example] == rows for example, rows in seen[1].items())  # taken over


def test_negatives_of_another_run_are_refused(tmp_path: Path, corpus: PassageStore) -> None:
    published = make(tmp_path, corpus).refresh(snapshot(tmp_path / "run", 0), before=None)
    with pytest.raises(MismatchedArtifactError, match="same configuration"):
        read_negatives(published, examples=20, key="other")
    with pytest.raises(MismatchedArtifactError, match="expected 19"):
        read_negatives(published, examples=19, key="k")


def test_nothing_mined_is_said(tmp_path: Path, corpus: PassageStore) -> None:
    refresher = make(tmp_path, corpus)
    refresher.train = [Example.labelled(e.id, e.question, ("common",), e.positives) for e in refresher.train]
    with pytest.raises(DataError, match="answer_filter=false"):
        refresher.refresh(snapshot(tmp_path / "run", 0), before=None)


def test_the_best_may_be_passed_over(tmp_path: Path, corpus: PassageStore) -> None:
    taken = snapshot(tmp_path / "run", 0)
    lists = {}
    for skip in (0, 3):
        refresher = make(tmp_path, corpus, skip=skip, answer_filter=False)
        published = refresher.refresh(taken, before=None if skip == 0 else refresher.payloads.newest())
        lists[skip] = read_negatives(published, examples=20, key="k")
        assert refresher.removed["gold"] == (20 if skip == 0 else 0)
    # the gold passage is the best hit of every question, so three passed over are two negatives
    assert all(lists[3][example].tolist()[:3] == lists[0][example].tolist()[2:] for example in range(20))
