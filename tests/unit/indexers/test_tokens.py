"""Compressed token vectors: codec, build, staged search against brute force, kills, and what is
refused.
"""

import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexers import token_build, token_index
from indexers.documents import Put
from indexers.index import Index
from indexers.index_writer import WriteReport, update_index, write_index
from indexers.manifest import Manifest
from indexers.protocols import EncoderIdentity
from indexers.settings import BuildSettings
from indexers.token_build import build_tokens
from indexers.token_codec import train_codec
from indexers.token_files import shard_files
from indexers.token_index import TokenIndex
from rag.core.errors import (
    ArtifactError,
    ConfigError,
    DataError,
    MismatchedArtifactError,
    RetrievalError,
)
from rag.core.types import Passage
from tests.support.messages import refusal

DIM = 16


class Tokens:
    """Vectors of one text after the other."""

    def __init__(self, parts: list[np.ndarray]) -> None:
        self.values = np.concatenate(parts) if parts else np.zeros((0, DIM), np.float32)
        self.lengths = np.array([len(part) for part in parts])


class Words:
    """A vector a word that depends on the word and a little on its neighbour."""

    def __init__(self, dim: int = DIM, sha256: str = "ab") -> None:
        self.identity = EncoderIdentity(
            "words", sha256, dim=dim, pooling="tokens", similarity="maxsim"
        )
        self.dim = dim

    def _vector(self, word: str, beside: str) -> np.ndarray:
        vector = sum(
            share * np.random.default_rng(list(text.encode())).standard_normal(self.dim)
            for share, text in ((1.0, word), (0.3, beside))
        )
        return (vector / np.linalg.norm(vector)).astype(np.float32)

    def tokens(self, texts: Any) -> Tokens:
        split = [text.split() for text in texts]
        return Tokens(
            [
                np.stack([self._vector(w, b) for w, b in zip(s, s[1:] + s[:1], strict=True)])
                for s in split
            ]
        )

    def passage_tokens(self, titles: Any, texts: Any) -> Tokens:
        return self.tokens(texts)

    question_tokens = tokens


def passages(count: int = 150) -> list[Passage]:
    draw = np.random.default_rng(5)
    words = [f"w{n}" for n in range(60)]
    return [
        Passage(f"p{n}", "", " ".join(draw.choice(words, int(draw.integers(3, 14)))))
        for n in range(count)
    ]


QUESTIONS = ["w1 w2 w3", "w10 w20", "w5 w5 w33 w41 w7 w8"]
SETTINGS = BuildSettings(index_type="plaid", shard_rows=64)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_index(
        tmp_path_factory.mktemp("tokens") / "i", passages(), encoder=Words(), settings=SETTINGS
    ).directory


def decoded(codec: Any, codes: np.ndarray, residuals: np.ndarray) -> np.ndarray:
    """The vectors that are compared: their products with the axes."""
    return codec.similarities(codes, residuals, np.eye(codec.centroids.shape[1], dtype=np.float32))


def exhaustive(index: TokenIndex, question: np.ndarray) -> np.ndarray:
    """MaxSim with the decompressed vectors of every passage, one after the other."""
    scores = []
    for shard in index.shards._shards:
        vectors = decoded(index.shards.codec, np.array(shard.codes), np.array(shard.residuals))
        for start, stop in zip(shard.starts[:-1], shard.starts[1:], strict=True):
            scores.append((question @ vectors[start:stop].T).max(1).sum())
    return np.array(scores, np.float32)


def opened(built: Path) -> TokenIndex:
    tokens = Index.open(built).tokens
    assert tokens is not None
    return tokens


def open_cells(patch: pytest.MonkeyPatch, cells: int, candidates: int) -> None:
    """Search so many cells for each vector, and compare so many candidates."""
    patch.setattr(token_index, "NPROBE", cells)
    patch.setattr(token_index, "candidate_count", lambda top_k, passages: candidates)


def test_staged_search_finds_what_exhaustive_scoring_finds(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = opened(built)
    queries = Words().question_tokens([passage.text for passage in passages()[::3]])
    open_cells(monkeypatch, 1 << 20, 120)
    scores, full = index.search(queries.values, queries.lengths, 5)
    for number, own in enumerate(np.split(queries.values, np.cumsum(queries.lengths)[:-1])):
        expected = exhaustive(index, own)
        best = np.lexsort((np.arange(len(expected)), -expected))[:5]
        np.testing.assert_allclose(scores[number], expected[best], atol=1e-5)
        np.testing.assert_allclose(expected[full[number]], expected[best], atol=1e-5)

    open_cells(monkeypatch, 4, 60)
    scores, result = index.search(queries.values, queries.lengths, 5)
    assert (result[:, 0] == np.arange(0, 150, 3)).all()
    shared = [len(set(a) & set(b)) for a, b in zip(full.tolist(), result.tolist(), strict=True)]
    assert np.mean(shared) / 5 > 0.9
    one = index.search(queries.values[: queries.lengths[0]], queries.lengths[:1], 5)
    none = index.search(queries.values[:0], queries.lengths[:0], 5)
    assert [array.shape for array in none] == [(0, 5)] * 2
    np.testing.assert_array_equal(one[1][0], result[0])
    np.testing.assert_array_equal(one[0][0], scores[0])


def test_where_no_more_may_be_returned_all_are_compared(built: Path) -> None:
    queries = Words().question_tokens(QUESTIONS)
    _, everything = opened(built).search(queries.values, queries.lengths, 200)
    assert (np.sort(everything, axis=1)[:, 50:] == np.arange(150)).all()
    assert (everything[:, 150:] == -1).all()


@pytest.mark.parametrize("dim", [13, 16])
def test_residuals_come_back_within_their_buckets(dim: int) -> None:
    draw = np.random.default_rng(1)
    vectors = draw.standard_normal((2000, dim)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    codec = train_codec(vectors, 32)
    codes, packed = codec.encode(vectors)
    assert packed.shape == (2000, 4)
    cuts, values = np.split(codec.buckets, [3])
    residuals = vectors - codec.centroids[codes]
    edges = np.vstack(
        [
            np.minimum(residuals.min(0), values[0])[None],
            cuts,
            np.maximum(residuals.max(0), values[-1])[None],
        ]
    )
    bucket = (residuals[:, None] > cuts[None]).sum(1)  # (T, D)
    low, high = (
        np.take_along_axis(edges, bucket, axis=0),
        np.take_along_axis(edges, bucket + 1, axis=0),
    )
    restored = np.take_along_axis(values, bucket, axis=0)
    assert ((restored >= low - 1e-6) & (restored <= high + 1e-6)).all()
    assert (np.abs(restored - residuals) <= high - low + 1e-6).all()
    expected = codec.centroids[codes] + restored
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(decoded(codec, codes, packed), expected, atol=1e-5)


def contents(place: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(place)): path.read_bytes()
        for path in sorted(place.rglob("*"))
        if path.is_file() and path.name not in ("build_log.json", ".lock")
    }


KILLED = """
import os, signal, sys
from pathlib import Path
import indexers.token_build as module
from tests.unit.indexers.test_tokens import SETTINGS, Words, passages
from indexers.index_writer import write_index
writes = 0
def save(path, values, plain=module.save_npy):
    global writes
    writes += 1
    if writes == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(path, values)
module.save_npy = save
write_index(Path(sys.argv[1]), passages(), encoder=Words(), settings=SETTINGS)
"""


def test_a_killed_build_ends_with_the_same_bytes(built: Path, tmp_path: Path) -> None:
    for at in (4, 7, 7):  # before the buckets, inside a shard, before the lists' ends
        ended = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "i", str(at)], check=False)
        assert ended.returncode == -signal.SIGKILL
    write_index(tmp_path / "i", passages(), encoder=Words(), settings=SETTINGS)
    assert contents(tmp_path / "i") == contents(built)
    with Index.open(tmp_path / "i", verify="deep") as index:
        assert index.parts == ("tokens",)
        assert index.encoder_identity == Words().identity


def test_a_build_encodes_each_passage_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    class Watched(Words):
        def passage_tokens(self, titles: Any, texts: Any) -> Tokens:
            seen.extend(texts)
            return super().passage_tokens(titles, texts)

    for name, value in (("_SAMPLED_TOKENS", 64), ("_TEXTS_AT_ONCE", 16), ("TRAINING_TOKENS", 1)):
        monkeypatch.setattr(token_build, name, value)
    write_index(tmp_path / "i", passages(), encoder=Watched(), settings=SETTINGS)
    assert sorted(seen) == sorted(passage.text for passage in passages())
    monkeypatch.setattr(
        token_build._Build, "_sampled", lambda self: {}
    )  # encoded again, in other company
    write_index(tmp_path / "j", passages(), encoder=Watched(), settings=SETTINGS)
    assert len(passages()) < len(seen) - len(passages()) < 2 * len(passages())
    assert contents(tmp_path / "i") == contents(tmp_path / "j")


def test_damage_and_other_encoders_are_refused(built: Path, tmp_path: Path) -> None:
    place = tmp_path / "i"
    shutil.copytree(built, place)
    residuals = Index.open(place).data / "tokens" / shard_files(1)[1]
    residuals.write_bytes(residuals.read_bytes()[:-5])
    with refusal(ArtifactError):
        Index.open(place, verify="none")
    with refusal(MismatchedArtifactError):
        write_index(place, passages(), encoder=Words(sha256="cd"), settings=SETTINGS)
    queries = Words().question_tokens(QUESTIONS[:1])
    for values, lengths in (
        (queries.values, np.array([3, 0])),
        (queries.values[:, :8], queries.lengths),
        (queries.values * np.nan, queries.lengths),
    ):
        with refusal(RetrievalError):
            opened(built).search(values, lengths, 5)


def updated(place: Path, kept: slice, added: list[Passage], encoder: Words) -> WriteReport:
    puts = [Put(passage.id, "", [passage]) for passage in added]
    return update_index(
        place, lambda stored: [*list(stored)[kept], *puts], lambda identity: encoder
    )


def test_an_update_is_a_build_with_the_same_centroids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = Words()
    everything = passages(150)
    write_index(tmp_path / "i", everything[:130], encoder=encoder, settings=SETTINGS)
    encoded: list[str] = []
    plain = encoder.passage_tokens
    monkeypatch.setattr(
        encoder,
        "passage_tokens",
        lambda titles, texts: encoded.extend(texts) or plain(titles, texts),
    )
    before = Index.open(tmp_path / "i")
    report = updated(tmp_path / "i", slice(0, 125), everything[130:], encoder)
    assert (report.added, report.deleted, report.kept, report.reused) == (20, 5, 125, 0)
    assert encoded == [passage.text for passage in everything[130:]]
    after = Index.open(tmp_path / "i", verify="deep")
    first = shard_files(0)[1]
    assert (before.data / "tokens" / first).samefile(after.data / "tokens" / first)
    assert before.tokens is not None

    codec = before.tokens.shards.codec
    monkeypatch.setattr(token_build, "train_codec", lambda *_: codec)
    write_index(
        tmp_path / "fresh",
        [*everything[:125], *everything[130:]],
        encoder=encoder,
        settings=SETTINGS,
    )
    fresh = Index.open(tmp_path / "fresh")
    names = {path.name for path in (fresh.data / "tokens").iterdir()}
    assert names == {path.name for path in (after.data / "tokens").iterdir()}
    for name in names:
        sides = [(index.data / "tokens" / name).read_bytes() for index in (after, fresh)]
        assert sides[0] == sides[1], name
    assert after.version != fresh.version  # whose inputs say nothing of an earlier version


@pytest.mark.parametrize("reason", ["MOST_ERROR", "MOST_GROWTH"])
def test_centroids_that_no_longer_fit_are_trained_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    everything = passages(90)
    write_index(tmp_path / "i", everything[:70], encoder=Words(), settings=SETTINGS)
    monkeypatch.setattr(token_build, reason, 0.5)
    report = updated(tmp_path / "i", slice(5, None), everything[70:], Words())
    assert (report.kept, report.reused) == (65, 0)
    write_index(tmp_path / "fresh", everything[5:], encoder=Words(), settings=SETTINGS)
    sides = [Manifest.read(tmp_path / name).stage("tokens") for name in ("i", "fresh")]
    assert sides[0].files == sides[1].files
    assert sides[0].output == sides[1].output


def test_an_updated_index_is_updated_again(tmp_path: Path) -> None:
    everything = passages(90)
    lexical = SETTINGS.replaced(retriever="hybrid")
    write_index(tmp_path / "i", everything[:70], encoder=Words(), settings=lexical)
    updated(tmp_path / "i", slice(5, None), everything[70:], Words())
    assert Index.open(tmp_path / "i").parts == ("tokens", "bm25")
    moved = [everything[7], Passage("new", "", everything[6].text), everything[5]]
    report = update_index(
        tmp_path / "i",
        lambda stored: [Put(passage.id, "", [passage]) for passage in moved],
        lambda identity: None,  # type: ignore[arg-type, return-value]  # nothing is encoded
    )
    assert (report.kept, report.added, report.reused) == (2, 1, 1)


class OneEach:
    identity = Words().identity

    def passage_tokens(self, titles: Any, texts: Any) -> Any:
        result = Tokens([np.ones((1, DIM), np.float32) for _ in texts])
        result.lengths = None  # type: ignore[assignment]
        return result


class Nothing(Words):
    def passage_tokens(self, titles: Any, texts: Any) -> Tokens:
        return Tokens([np.zeros((0, DIM), np.float32) for _ in texts])


def test_encoders_and_passages_that_do_not_fit_are_refused(built: Path, tmp_path: Path) -> None:
    store = Index.open(built).passages
    with refusal(ConfigError):
        build_tokens(store, tmp_path / "a", OneEach())
    with refusal(ConfigError):
        write_index(tmp_path / "b", passages(), encoder=Words(), settings=BuildSettings())  # type: ignore[arg-type]
    unequal = Words()
    unequal.identity = replace(unequal.identity, normalize=False)
    unequal.passage_tokens = None  # type: ignore[assignment, method-assign]  # nothing is encoded
    with refusal(ConfigError):
        write_index(tmp_path / "d", passages(), encoder=unequal, settings=SETTINGS)
    with refusal(DataError):
        write_index(
            tmp_path / "c", [Passage("dots", "", "...")], encoder=Nothing(), settings=SETTINGS
        )


@pytest.mark.parametrize("tokens_first", [True, False])
def test_an_index_has_vectors_of_one_kind(tmp_path: Path, encoder: Any, tokens_first: bool) -> None:
    passages = [Passage(f"p{n}", "", f"river {n} vienna danube") for n in range(40)]
    kinds: list[tuple[Any, BuildSettings]] = [
        (encoder, BuildSettings(probes=4)),
        (Words(), BuildSettings(index_type="plaid")),
    ]
    (first, its), (second, others) = reversed(kinds) if tokens_first else kinds
    write_index(tmp_path / "i", passages, encoder=first, settings=its)
    before = Index.open(tmp_path / "i").version
    with refusal(MismatchedArtifactError):
        write_index(tmp_path / "i", passages, encoder=second, settings=others)
    assert Index.open(tmp_path / "i").version == before
