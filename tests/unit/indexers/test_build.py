from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from indexers.build import build_index
from indexers.index import Index
from indexers.protocols import EncoderIdentity
from indexers.settings import INDEX_TYPES, BuildSettings
from rag.core.errors import ArtifactError, ConfigError, DataError, MismatchedArtifactError
from rag.core.types import Passage

SMALL = BuildSettings(shard_rows=40, index_type="SQ8", probes=16, threads=1)


def corpus(count: int = 150) -> list[Passage]:
    words = "river mountain vienna danube tulip graph vector index lake forest city bridge".split()  # noqa: SIM905
    draw = np.random.default_rng(3)
    return [
        Passage(f"p{n}", f"title {n % 7}", " ".join(draw.choice(words, 6)) + f" n{n}")
        for n in range(count)
    ]


def content(place: Path) -> dict[str, bytes]:
    return {
        path.relative_to(place).as_posix(): path.read_bytes()
        for path in sorted(place.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def test_dense_index_finds_what_it_was_given(tmp_path: Path, encoder: Any) -> None:
    passages = corpus()
    build_index(passages, tmp_path / "i", encoder=encoder, settings=SMALL)
    assert encoder.calls == [40, 40, 40, 30, 16]
    with Index.open(tmp_path / "i", verify="deep") as index:
        assert (index.parts, index.lucene) == (("dense",), None)
        assert index.dense is not None
        vectors = encoder.encode_passages([p.title for p in passages], [p.text for p in passages])
        scores, rows = index.dense.search(vectors, 3)
        np.testing.assert_array_equal(rows[:, 0], np.arange(150))
        np.testing.assert_allclose(scores[:, 0], 1.0, atol=2e-3)
        assert index.passages.get_many(rows[:, 0]) == passages
        assert index.manifest["dense"]["recall"]["100"] >= 0.98
        assert index.encoder_identity == encoder.identity
        assert "150 passages" in index.describe()
        assert "recall" in index.describe()


def test_hybrid_index_and_extension_of_a_dense_one(tmp_path: Path, encoder: Any) -> None:
    hybrid = SMALL.model_copy(update={"retriever": "hybrid", "java_heap_mib": 256})
    build_index(corpus(), tmp_path / "i", encoder=encoder, settings=SMALL)
    before = Index.open(tmp_path / "i").version
    calls = len(encoder.calls)
    build_index(corpus(), tmp_path / "i", encoder=encoder, settings=hybrid)
    assert len(encoder.calls) == calls
    with Index.open(tmp_path / "i") as index:
        assert index.version != before
        assert index.manifest["stages"] == ["passages", "embeddings", "dense", "bm25"]
        assert index.lucene is not None
        assert index.lucene.search(["n77"], 5)[0][0][0] == 77


def test_a_named_source_is_not_read_twice(tmp_path: Path, encoder: Any) -> None:
    def never() -> Iterator[Passage]:
        raise AssertionError("read again")
        yield

    source = {"path": tmp_path / "corpus.jsonl", "size": 12}
    build_index(corpus(), tmp_path / "i", encoder=encoder, settings=SMALL, source=source)
    build_index(never(), tmp_path / "i", encoder=encoder, settings=SMALL, source=source)
    with pytest.raises(MismatchedArtifactError, match="size: 12, now 13"):
        build_index(
            never(), tmp_path / "i", encoder=encoder, settings=SMALL, source={**source, "size": 13}
        )


def test_other_inputs_are_refused_unless_overwritten(tmp_path: Path, encoder: Any) -> None:
    build_index(corpus(), tmp_path / "i", encoder=encoder, settings=SMALL)
    with pytest.raises(MismatchedArtifactError, match="150 other passages, now 149"):
        build_index(corpus(149), tmp_path / "i", encoder=encoder, settings=SMALL)
    with pytest.raises(MismatchedArtifactError, match="index_type: 'SQ8', now 'SQfp16'"):
        other = SMALL.replaced(index_type="SQfp16")
        build_index(corpus(), tmp_path / "i", encoder=encoder, settings=other)
    with pytest.raises(DataError, match="more than once"):
        build_index(corpus(9) * 2, tmp_path / "i", encoder=encoder, settings=SMALL, overwrite=True)
    with pytest.raises(MismatchedArtifactError, match="150 other passages, now 149"):
        build_index(corpus(149), tmp_path / "i", encoder=encoder, settings=SMALL)
    assert Index.open(tmp_path / "i", verify="deep").passages[0].id == "p0"
    build_index(corpus(9), tmp_path / "i", encoder=encoder, settings=SMALL, overwrite=True)
    assert len(Index.open(tmp_path / "i", verify="deep").passages) == 9


@pytest.mark.parametrize("name", INDEX_TYPES)
def test_tiny_corpora_work_with_every_type(tmp_path: Path, encoder: Any, name: str) -> None:
    settings = SMALL.model_copy(update={"index_type": name})
    build_index(corpus(3), tmp_path / "i", encoder=encoder, settings=settings)
    index = Index.open(tmp_path / "i").dense
    assert index is not None
    query = encoder.encode_passages(["title 1"], [corpus(3)[1].text])
    scores, rows = index.search(query, 5)
    assert rows[0, 0] == 1
    assert set(rows[0, :3]) == {0, 1, 2}
    assert rows[0, 3:].tolist() == [-1, -1]
    assert np.isneginf(scores[0, 3:]).all()
    build_index(
        corpus(1), tmp_path / "one", encoder=encoder, settings=settings
    )  # as an update may be
    alone = Index.open(tmp_path / "one")
    assert alone.dense is not None
    assert alone.dense.search(query, 2)[1].tolist() == [[0, -1]]
    assert alone.manifest["dense"]["recall"]["100"] == 1.0


@pytest.mark.parametrize("name", ["ivf", "hnsw"])
def test_copies_of_a_passage_are_all_found(tmp_path: Path, encoder: Any, name: str) -> None:
    texts = ["tulip lake"] * 200 + ["danube", "graph"]
    passages = [Passage(f"p{n}", "", text) for n, text in enumerate(texts)]
    settings = SMALL.model_copy(update={"index_type": name})
    build_index(passages, tmp_path / "i", encoder=encoder, settings=settings)
    index = Index.open(tmp_path / "i").dense
    assert index is not None
    query = encoder.encode_passages([""] * 2, ["danube", "tulip"])
    for top_k in (170, 202):
        scores, rows = index.search(query, top_k)
        assert [len(set(own)) for own in rows.tolist()] == [top_k, top_k]
        assert np.isfinite(scores).all()
    assert rows[0, 0] == 200


def test_bad_calls_are_refused(tmp_path: Path, encoder: Any) -> None:
    with pytest.raises(ConfigError, match="needs an encoder"):
        build_index(corpus(), tmp_path / "i")
    with pytest.raises(DataError, match="no passages"):
        build_index([], tmp_path / "i", encoder=encoder)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/chapter1.tex").write_text("precious")
    with pytest.raises(ConfigError, match=r"chapter1\.tex"):
        build_index(corpus(), tmp_path / "thesis", encoder=encoder, overwrite=True)


def test_the_wrong_encoder_is_refused_by_field(tmp_path: Path, encoder: Any) -> None:
    build_index(corpus(20), tmp_path / "i", encoder=encoder, settings=SMALL)
    index = Index.open(tmp_path / "i")
    index.check_encoder(encoder.identity)
    other = EncoderIdentity("other", "beef", dim=32, pooling="cls")
    with pytest.raises(MismatchedArtifactError, match=r"weights_sha256.*pooling: 'mean' != 'cls'"):
        index.check_encoder(other)
    stopped = SimpleNamespace(identity=encoder.identity, dim=encoder.dim, encode_passages=None)
    with pytest.raises(TypeError):
        build_index(corpus(20), tmp_path / "half", encoder=stopped, settings=SMALL)
    encoder.identity = other
    for name in ("i", "half"):
        with pytest.raises(
            MismatchedArtifactError, match=r"not 'other' \(weights[\s\S]*--overwrite"
        ):
            build_index(corpus(20), tmp_path / name, encoder=encoder, settings=SMALL)


def _files(place: Path) -> list[str]:
    return sorted(name for name in content(place) if not name.endswith(".lock"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, make_encoder: Callable[[], Any]) -> Path:
    return build_index(
        corpus(), tmp_path_factory.mktemp("i"), encoder=make_encoder(), settings=SMALL
    )


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove"])
def test_damage_anywhere_is_refused_by_name(finished: Path, damage: str) -> None:
    names = _files(finished)
    assert len(names) == 11
    for name in names:
        path = finished / name
        whole = path.read_bytes()
        try:
            if damage == "truncate":
                path.write_bytes(whole[: len(whole) * 2 // 3])
            elif damage == "flip":
                middle = len(whole) // 2
                path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 4]) + whole[middle + 1 :])
            else:
                path.unlink()
            with pytest.raises(ArtifactError, match=path.name):
                Index.open(finished)
        finally:
            path.write_bytes(whole)
    assert len(Index.open(finished, verify="deep").passages) == 150
