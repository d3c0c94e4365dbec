"""Vectors of an earlier index: for a corpus that changed, and under another question encoder."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexers.build import build_index
from indexers.embeddings import encode_corpus
from indexers.index import Index
from indexers.passage_writer import PassageStoreWriter
from indexers.passages import PassageStore
from indexers.reuse import open_stored, reissue_index
from indexers.settings import BuildSettings
from rag.core.arrays import Float32
from rag.core.errors import ConfigError, IncompleteArtifactError, MismatchedArtifactError
from rag.core.types import Passage

OLD = [Passage(f"p{n}", f"t{n % 3}", f"river {n} vienna") for n in range(50)]
# Ten are gone, one says something else, one has another title, three are new; ids and order are
# others.
NEW = [
    *(replace(passage, id=f"q{passage.id}") for passage in reversed(OLD[10:])),
    Passage("p0", "t0", "river 0 linz"),
    Passage("p1", "t2", "river 1 vienna"),
    *(Passage(f"n{n}", "t", f"lake {n}") for n in range(3)),
]
SETTINGS = BuildSettings(shard_rows=16, probes=4)


def stored(place: Path, passages: list[Passage]) -> PassageStore:
    with PassageStoreWriter(place) as writer:
        writer.add_many(passages)
    return PassageStore.open(place)


def vectors(place: Path) -> Float32:
    with Index.open(place, verify="deep") as index:
        assert index.embeddings is not None
        return index.embeddings.rows(np.arange(len(index.embeddings)))


def test_only_what_is_new_or_changed_is_encoded(tmp_path: Path, make_encoder: Any) -> None:
    build_index(OLD, tmp_path / "old", encoder=make_encoder(), settings=SETTINGS)
    build_index(NEW, tmp_path / "plain", encoder=make_encoder(), settings=SETTINGS)
    inner = make_encoder()
    old = open_stored(inner, tmp_path / "old", "float32")
    build_index(
        NEW,
        tmp_path / "new",
        encoder=inner,
        settings=SETTINGS,
        encode=partial(encode_corpus, stored=old),
    )
    assert old.reused == 40
    assert sum(inner.calls) == 5 + 4  # and the probes
    np.testing.assert_array_equal(vectors(tmp_path / "new"), vectors(tmp_path / "plain"))
    with Index.open(tmp_path / "new") as new, Index.open(tmp_path / "plain") as plain:
        assert new.manifest["embeddings"] == plain.manifest["embeddings"]


def test_titles_are_compared_apart_from_texts(tmp_path: Path, make_encoder: Any) -> None:
    build_index(
        [Passage("a", "ab", "c")], tmp_path / "c", encoder=make_encoder(), settings=SETTINGS
    )
    two = stored(tmp_path / "two", [Passage("1", "a", "bc"), Passage("2", "ab", "c")])
    assert open_stored(make_encoder(), tmp_path / "c").locate(two).tolist() == [True, False]


def test_vectors_of_another_encoder_are_refused(tmp_path: Path, make_encoder: Any) -> None:
    build_index(OLD, tmp_path / "old", encoder=make_encoder(), settings=SETTINGS)
    with pytest.raises(MismatchedArtifactError, match="other vectors") as refused:
        open_stored(
            _restated(make_encoder(), lambda i: replace(i, weights_sha256="9"), factor=2),
            tmp_path / "old",
        )  # search is by inner product: longer vectors are others too
    assert f"made with, {make_encoder().identity.name}, or" in str(refused.value.hint)
    with pytest.raises(MismatchedArtifactError, match="max_length: 256 != 64"):
        open_stored(
            _restated(make_encoder(), lambda i: replace(i, max_length=64)), tmp_path / "old"
        )
    # Only questions were trained: the same vectors under another name and hash.
    other = _restated(
        make_encoder(), lambda i: replace(i, name="tuned", weights_sha256="9", query_prefix="q: ")
    )
    assert not open_stored(other, tmp_path / "old").locate(stored(tmp_path / "s", OLD)).any()


def _restated(encoder: Any, change: Callable[[Any], Any], factor: int = 1) -> Any:
    encoder.identity = change(encoder.identity)
    plain = encoder.encode_passages
    encoder.encode_passages = lambda titles, texts: factor * plain(titles, texts)
    return encoder


def test_what_cannot_be_taken_over_is_said(tmp_path: Path, make_encoder: Any) -> None:
    build_index(OLD, tmp_path / "bm25", settings=BuildSettings(retriever="bm25"))
    with pytest.raises(ConfigError, match="has no vectors"):
        open_stored(make_encoder(), tmp_path / "bm25")
    rounded = SETTINGS.model_copy(update={"index_type": "SQfp16"})
    build_index(OLD, tmp_path / "fp16", encoder=make_encoder(), settings=rounded)
    with pytest.raises(ConfigError, match="rounded to float16"):
        open_stored(make_encoder(), tmp_path / "fp16", "float32")
    build_index(OLD, tmp_path / "half", encoder=make_encoder(), settings=SETTINGS)
    (tmp_path / "half" / "manifest.json").unlink()
    with pytest.raises(IncompleteArtifactError):
        open_stored(make_encoder(), tmp_path / "half")


@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_the_vectors_stay_under_another_question_encoder(
    tmp_path: Path, make_encoder: Any, kind: str
) -> None:
    settings = SETTINGS.model_copy(update={"index_type": kind})
    build_index(OLD, tmp_path / "old", encoder=make_encoder(), settings=settings)
    tuned = _restated(make_encoder(), lambda i: replace(i, weights_sha256="9"))
    reissue_index(tmp_path / "old", tmp_path / "new", tuned)
    assert sum(tuned.calls) == 16
    query = np.random.default_rng(3).normal(size=(2, tuned.dim)).astype(np.float32)
    with (
        Index.open(tmp_path / "old", verify="deep") as old,
        Index.open(tmp_path / "new", verify="deep") as new,
    ):
        assert old.version != new.version
        new.check_encoder(tuned.identity)
        with pytest.raises(MismatchedArtifactError):
            old.check_encoder(tuned.identity)
        searches = [index.require_dense().vectors.search(query, 5) for index in (old, new)]
        np.testing.assert_array_equal(*searches)
        shards = [index.data / "embeddings/shard-00001.npy" for index in (old, new)]
    assert shards[0].stat().st_ino == shards[1].stat().st_ino
    # it is an index like any other: a later build goes on from it
    build_index(OLD, tmp_path / "new", encoder=tuned, settings=settings)
