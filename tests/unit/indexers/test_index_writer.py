"""An index is, row for row, the one that is built at once, however it was written."""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from indexers import index_writer
from indexers.documents import Documents, Put
from indexers.index import Index
from indexers.index_writer import Change, Content, WriteReport, update_index, write_index
from indexers.ledger import hold_folder, remove_unused
from indexers.protocols import EncoderIdentity
from indexers.settings import INDEX_TYPES, BuildSettings
from rag.core.arrays import Float32
from rag.core.errors import (
    ArtifactError,
    ConfigError,
    DataError,
    IncompleteArtifactError,
    MismatchedArtifactError,
    ResourceError,
)
from rag.core.files import atomic_write_json, directory_lock
from rag.core.manifest import MANIFEST_NAME
from rag.core.types import Passage
from rag.data.records import CorpusOptions, Document
from rag.data.split import split_documents
from rag.updates import record_digest
from tests.support.messages import refusal

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
        if path.is_file() and not path.name.endswith(".lock")
    }


def write(
    place: Path, passages: Any, encoder: Any, settings: BuildSettings = SMALL, **options: Any
) -> WriteReport:
    return write_index(place, passages, encoder=encoder, settings=settings, **options)


def test_dense_index_finds_what_it_was_given(tmp_path: Path, encoder: Any) -> None:
    passages = corpus()
    write(tmp_path / "i", passages, encoder)
    assert encoder.calls == [40, 40, 40, 30, 16]
    with Index.open(tmp_path / "i", verify="deep") as index:
        assert (index.parts, index.lucene) == (("dense",), None)
        assert index.dense is not None
        vectors = encoder.encode_passages([p.title for p in passages], [p.text for p in passages])
        scores, rows = index.dense.search(vectors, 3)
        np.testing.assert_array_equal(rows[:, 0], np.arange(150))
        np.testing.assert_allclose(scores[:, 0], 1.0, atol=2e-3)
        assert index.passages.get_many(rows[:, 0]) == passages
        assert index.manifest.stage("dense").output["recall"]["100"] >= 0.98
        assert "150 passages" in index.describe()


def test_a_hybrid_index_takes_over_the_vectors_of_a_dense_one(tmp_path: Path, encoder: Any) -> None:
    hybrid = SMALL.model_copy(update={"retriever": "hybrid"})
    write(tmp_path / "dense", corpus(), encoder)
    with refusal(MismatchedArtifactError):
        write(tmp_path / "dense", corpus(), encoder, hybrid)
    calls = sum(encoder.calls)
    start_from(tmp_path / "dense", tmp_path / "i", corpus(), encoder, hybrid)
    assert sum(encoder.calls) <= calls + 16  # a sample
    before = content(tmp_path / "i")
    # It has all that is asked for.
    write(tmp_path / "i", corpus(), None, hybrid.replaced(retriever="bm25"))
    assert content(tmp_path / "i") == before
    with Index.open(tmp_path / "i") as index:
        assert set(index.manifest.stages) == {"passages", "embeddings", "dense", "bm25"}
        assert index.lucene is not None
        assert index.lucene.search(["n77"], 5)[0][0][0] == 77


def test_a_named_source_is_not_read_twice(tmp_path: Path, encoder: Any) -> None:
    def never() -> Iterator[Passage]:
        raise AssertionError("read again")
        yield

    source = {"path": tmp_path / "corpus.jsonl", "size": 12}
    for read in (corpus(), never()):
        write(tmp_path / "i", Content(read, source), encoder)
    with refusal(MismatchedArtifactError):
        write(tmp_path / "i", Content(never(), {**source, "size": 13}), encoder)


def test_what_was_said_of_the_content_is_said_again_by_the_run_that_goes_on(
    tmp_path: Path, encoder: Any
) -> None:
    said = ["a.pdf: no text"]

    def content(count: int) -> Content:
        return Content(corpus(count), {"path": "corpus"}, notes=lambda: said)

    stopped = SimpleNamespace(identity=encoder.identity, dim=encoder.dim, encode_passages=None)
    with pytest.raises(TypeError):
        write(tmp_path / "i", content(9), stopped)
    continued = write(tmp_path / "i", content(0), encoder)
    assert (continued.notes, continued.added, continued.passages) == (said, 9, 9)
    again = write(tmp_path / "i", content(0), encoder)
    assert (again.notes, str(again)) == ([], "9 documents, none changed")
    assert not write(tmp_path / "j", content(9), encoder).notes


def test_a_version_is_locked_while_it_is_removed_and_then_gone_for_those_who_waited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "data-old"
    old.mkdir()
    (tmp_path / "data-new").mkdir()
    atomic_write_json(tmp_path / MANIFEST_NAME, {"format_version": 4, "data": "data-new"})
    remove = shutil.rmtree

    def remove_locked(folder: Path) -> None:
        reader = os.open(folder, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(reader, fcntl.LOCK_SH | fcntl.LOCK_NB)
        os.close(reader)
        remove(folder)

    monkeypatch.setattr(shutil, "rmtree", remove_locked)
    remove_unused(tmp_path)
    assert not old.exists()
    old.mkdir()
    monkeypatch.setattr(fcntl, "flock", lambda *_: remove(old, ignore_errors=True))
    with refusal(ArtifactError):
        hold_folder(old, owner=Index)


def test_other_inputs_are_refused_unless_overwritten(tmp_path: Path, encoder: Any) -> None:
    place = tmp_path / "i"
    write(place, corpus(), encoder)
    with refusal(MismatchedArtifactError):
        write(place, corpus(149), encoder)
    with refusal(MismatchedArtifactError):
        write(place, corpus(), encoder, SMALL.replaced(index_type="SQfp16"))
    with refusal(DataError):
        write(place, corpus(9) * 2, encoder, overwrite=True)
    assert len(Index.open(place, verify="deep").passages) == 150
    write(place, corpus(9), encoder, overwrite=True)
    assert len(Index.open(place, verify="deep").passages) == 9


@pytest.mark.parametrize("name", INDEX_TYPES)
def test_tiny_corpora_work_with_every_type(tmp_path: Path, encoder: Any, name: str) -> None:
    query = encoder.encode_passages(["title 1"], [corpus(3)[1].text])
    # An update may leave one passage.
    for count, expected in ((3, [1, -1, -1]), (1, [0, -1, -1])):
        place = tmp_path / str(count)
        write(place, corpus(count), encoder, SMALL.replaced(index_type=name))
        with Index.open(place) as index:
            scores, rows = index.require_dense().vectors.search(query, count + 2)
            assert [rows[0, 0], *rows[0, count:]] == expected
            assert sorted(rows[0, :count]) == list(range(count))
            assert np.isneginf(scores[0, count:]).all()
            assert index.manifest.stage("dense").output["recall"]["100"] == 1.0


@pytest.mark.parametrize("name", ["ivf", "hnsw"])
def test_copies_of_a_passage_are_all_found(tmp_path: Path, encoder: Any, name: str) -> None:
    texts = ["tulip lake"] * 200 + ["danube", "graph"]
    passages = [Passage(f"p{n}", "", text) for n, text in enumerate(texts)]
    write(tmp_path / "i", passages, encoder, SMALL.replaced(index_type=name))
    index = Index.open(tmp_path / "i").require_dense().vectors
    query = encoder.encode_passages([""] * 2, ["danube", "tulip"])
    for top_k in (170, 202):
        scores, rows = index.search(query, top_k)
        assert [len(set(own)) for own in rows.tolist()] == [top_k, top_k]
        assert np.isfinite(scores).all()
    assert rows[0, 0] == 200


def test_bad_calls_are_refused(tmp_path: Path, encoder: Any) -> None:
    with refusal(ConfigError):
        write_index(tmp_path / "i", corpus())
    with refusal(DataError):
        write_index(tmp_path / "i", [], encoder=encoder)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/chapter1.tex").write_text("precious")
    with refusal(ConfigError):
        write_index(tmp_path / "thesis", corpus(), encoder=encoder, overwrite=True)


def test_the_wrong_encoder_is_refused_by_field(tmp_path: Path, encoder: Any) -> None:
    write(tmp_path / "i", corpus(20), encoder)
    other = EncoderIdentity("other", "beef", dim=32, pooling="cls")
    with refusal(MismatchedArtifactError):
        Index.open(tmp_path / "i").check_encoder(other)
    stopped = SimpleNamespace(identity=encoder.identity, dim=encoder.dim, encode_passages=None)
    with pytest.raises(TypeError):
        write(tmp_path / "half", corpus(20), stopped)
    encoder.identity = other
    for name in ("i", "half"):
        with refusal(MismatchedArtifactError):
            write(tmp_path / name, corpus(20), encoder)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, make_encoder: Callable[[], Any]) -> Path:
    return write(tmp_path_factory.mktemp("i"), corpus(), make_encoder()).directory


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove"])
def test_damage_anywhere_is_refused_by_name(finished: Path, damage: str) -> None:
    files = content(finished)
    assert len(files) == 15
    for name, whole in files.items():
        path = finished / name
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
SPLIT = CorpusOptions(words=6)


def cut(document: Document) -> list[Any]:
    return list(split_documents([document], SPLIT))


def build(
    place: Path, documents: Iterable[Document], encoder: Any, settings: BuildSettings
) -> None:
    puts = (Put(each.id, record_digest(each), cut(each)) for each in documents)
    write(place, puts, encoder, settings)


def update(
    place: Path, documents: dict[str, Document], encoder: Any, **options: Any
) -> WriteReport:
    """Make an index hold these documents, in order; those that it has are kept."""

    def changes(stored: Documents) -> Iterator[Change]:
        for document in documents.values():
            entry = stored.find(document.id)
            digest = record_digest(document)
            is_kept = entry is not None and entry.digest == digest
            yield entry if is_kept else Put(document.id, digest, cut(document))

    return update_index(place, changes, lambda identity: encoder, **options)


def documents_of(*texts: str) -> dict[str, Document]:
    return {f"d{n}": Document(f"d{n}", "t", text) for n, text in enumerate(texts)}


def test_only_passages_that_are_new_are_encoded(tmp_path: Path, make_encoder: Any) -> None:
    """A document that moved takes its vectors along; one that shrinks leaves no tail."""
    before = documents_of("a b c d e f g h i j k l m n o p q r", "one two three", "four five six")
    build(tmp_path / "i", before.values(), make_encoder(), SETTINGS)
    inner = make_encoder()
    after = {
        "d0": Document("d0", "t", "a b c d e f"),
        "d3": Document("d3", "t", "four five six"),
        "d4": Document("d4", "t", "seven eight"),
    }
    report = update(tmp_path / "i", after, inner)
    assert (report.added, report.replaced, report.deleted, report.kept) == (2, 1, 2, 0)
    assert (report.passages, report.reused) == (3, 2)
    assert inner.calls == [1]  # "seven eight"
    with Index.open(tmp_path / "i") as index:
        assert [passage.id for passage in index.passages] == ["d0-0", "d3-0", "d4-0"]
        assert list((tmp_path / "i").glob("data-*")) == [index.data]
    before_s = (tmp_path / "i/manifest.json").stat().st_mtime_ns
    assert not update(tmp_path / "i", after, None).is_changed
    assert (tmp_path / "i/manifest.json").stat().st_mtime_ns == before_s


def test_what_cannot_be_updated_is_refused(tmp_path: Path, encoder: Any, make_encoder: Any) -> None:
    documents = documents_of("one two three", "four five six", "seven eight nine")
    place = tmp_path / "i"
    build(place, documents.values(), encoder, SETTINGS)
    before = (place / "manifest.json").read_bytes()
    first = {"d0": documents["d0"]}
    with refusal(DataError):
        update(place, first, encoder, max_deleted_share=0.5)
    with refusal(DataError):
        update(place, {}, encoder)
    with refusal(DataError):
        update_index(place, lambda stored: [stored[0], stored[0]], lambda identity: encoder)
    with directory_lock(place), refusal(ResourceError):
        update(place, first, encoder)
    with refusal(IncompleteArtifactError):
        update(tmp_path / "typo", first, encoder)
    assert not (tmp_path / "typo").exists()
    other = make_encoder(name="other")
    with refusal(MismatchedArtifactError):
        update(place, documents_of("new"), other)
    assert (place / "manifest.json").read_bytes() == before
    with Index.open(place) as stale:
        update(place, {id: documents[id] for id in ("d0", "d2")}, encoder)
        with refusal(ResourceError):
            write_index(place, None, encoder=encoder, start_from=stale)
    with refusal(MismatchedArtifactError):
        build(place, documents.values(), encoder, SETTINGS)
    new = [Passage("x", "", "new")]
    write(place, new, encoder, SETTINGS, overwrite=True)
    assert len(list(place.glob("data-*"))) == 1


def test_a_link_that_leads_elsewhere_meanwhile_costs_no_index(
    tmp_path: Path, encoder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = documents_of("one two three", "four five six")
    for name in ("old", "new"):
        build(tmp_path / name, before.values(), encoder, SETTINGS)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "old")
    write = index_writer.build_faiss

    def write_and_switch(*arguments: Any, **options: Any) -> Any:
        written = write(*arguments, **options)
        link.unlink()
        link.symlink_to(tmp_path / "new")
        return written

    monkeypatch.setattr(index_writer, "build_faiss", write_and_switch)
    assert update(link, documents_of("one two three", "seven"), encoder).replaced == 1
    texts = {"old": ["one two three", "seven"], "new": ["one two three", "four five six"]}
    for name, expected in texts.items():
        with Index.open(tmp_path / name, verify="deep") as index:
            assert [passage.text for passage in index.passages] == expected


def vectors(place: Path) -> Float32:
    with Index.open(place, verify="deep") as index:
        assert index.embeddings is not None
        return index.embeddings.rows(np.arange(len(index.embeddings)))


def test_only_what_is_new_or_changed_is_encoded(tmp_path: Path, make_encoder: Any) -> None:
    write(tmp_path / "old", OLD, make_encoder(), SETTINGS)
    write(tmp_path / "plain", NEW, make_encoder(), SETTINGS)
    inner = make_encoder()
    assert start_from(tmp_path / "old", tmp_path / "new", NEW, inner).reused == 40
    assert sum(inner.calls) == 5 + 4  # and the probes
    np.testing.assert_array_equal(vectors(tmp_path / "new"), vectors(tmp_path / "plain"))
    with Index.open(tmp_path / "new") as new, Index.open(tmp_path / "plain") as plain:
        assert new.manifest.stages["dense"] == plain.manifest.stages["dense"]


def start_from(
    old: Path, place: Path, passages: list[Passage] | None, encoder: Any, settings: Any = SETTINGS
) -> WriteReport:
    with Index.open(old) as start:
        return write(place, passages, encoder, settings, start_from=start)


def test_titles_are_compared_apart_from_texts(tmp_path: Path, encoder: Any) -> None:
    old = [Passage("a", "ab", "c")]
    write(tmp_path / "old", old, encoder, SETTINGS)
    two = [Passage("1", "a", "bc"), Passage("2", "ab", "c")]
    assert start_from(tmp_path / "old", tmp_path / "new", two, encoder).reused == 1


def test_vectors_of_another_encoder_are_refused(tmp_path: Path, make_encoder: Any) -> None:
    old = tmp_path / "old"
    write(old, OLD, make_encoder(), SETTINGS)
    # Search is by inner product: longer vectors are others too.
    longer = _restated(make_encoder(), lambda i: replace(i, weights_sha256="9"), factor=2)
    shorter = _restated(make_encoder(), lambda i: replace(i, max_length=64))
    for other in (longer, shorter):
        with refusal(MismatchedArtifactError):
            start_from(old, tmp_path / "a", OLD, other)
    # Only questions were trained: the same vectors under another name and hash.
    trained = {"name": "tuned", "weights_sha256": "9", "query_prefix": "q: "}
    tuned = _restated(make_encoder(), lambda i: replace(i, **trained))
    assert start_from(old, tmp_path / "c", OLD, tuned).reused == len(OLD)


def _restated(encoder: Any, change: Callable[[Any], Any], factor: int = 1) -> Any:
    encoder.identity = change(encoder.identity)
    plain = encoder.encode_passages
    encoder.encode_passages = lambda titles, texts: factor * plain(titles, texts)
    return encoder


def test_what_cannot_be_taken_over_is_refused(tmp_path: Path, encoder: Any) -> None:
    for settings in (BuildSettings(retriever="bm25"), SETTINGS.replaced(index_type="SQfp16")):
        old = tmp_path / settings.retriever
        write(old, OLD, encoder if settings.retriever != "bm25" else None, settings)
        with refusal(ConfigError):
            start_from(old, tmp_path / "new", OLD, encoder)


@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_the_vectors_stay_under_another_question_encoder(
    tmp_path: Path, make_encoder: Any, kind: str
) -> None:
    settings = SETTINGS.replaced(index_type=kind)
    write(tmp_path / "old", OLD, make_encoder(), settings)
    tuned = _restated(make_encoder(), lambda i: replace(i, weights_sha256="9"))
    copy = start_from(tmp_path / "old", tmp_path / "new", None, tuned, settings)
    assert (copy.added, copy.kept, copy.passages, copy.reused) == (0, len(OLD), 0, 0)
    assert sum(tuned.calls) == 16
    query = np.random.default_rng(3).normal(size=(2, tuned.dim)).astype(np.float32)
    with (
        Index.open(tmp_path / "old", verify="deep") as old,
        Index.open(tmp_path / "new", verify="deep") as new,
    ):
        assert old.version != new.version
        new.check_encoder(tuned.identity)
        with refusal(MismatchedArtifactError):
            old.check_encoder(tuned.identity)
        searches = [index.require_dense().vectors.search(query, 5) for index in (old, new)]
        np.testing.assert_array_equal(*searches)
        for name in ("embeddings/shard-00001.npy", "passages/passages.arrow"):
            assert (old.data / name).samefile(new.data / name)
    # It is an index like any other: a later build goes on from it.
    write(tmp_path / "new", OLD, tuned, settings)
