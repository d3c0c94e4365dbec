"""An updated index is, row for row, the one that is built from its documents at once."""

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexers.build import build_index
from indexers.documents import Put, record_digest
from indexers.index import Index
from indexers.protocols import Selection
from indexers.settings import BuildSettings
from indexers.update import Change, Unchanged, update_index
from rag.core.errors import (
    DataError,
    IncompleteArtifactError,
    MismatchedArtifactError,
    ResourceError,
)
from rag.core.files import directory_lock
from rag.core.types import Passage
from rag.data.records import CorpusOptions, Document
from rag.data.split import split_documents

SPLIT = CorpusOptions(words=6)
WORDS = "river mountain vienna danube tulip graph vector index lake forest city bridge".split()  # noqa: SIM905


def cut(document: Document) -> list[Any]:
    return list(split_documents([document], SPLIT))


def text(draw: random.Random) -> str:
    return " ".join(draw.choices(WORDS, k=draw.randint(1, 40)))


def build(
    place: Path, documents: Iterable[Document], encoder: Any, settings: BuildSettings
) -> Path:
    puts = (Put(each.id, record_digest(each), cut(each)) for each in documents)
    return build_index(puts, place, encoder=encoder, settings=settings)


def corpus_of(documents: dict[str, Document]) -> Any:
    """Every document, in order: kept where its digest is known."""

    def changes(known: Any) -> Iterable[Change]:
        for document in documents.values():
            digest = record_digest(document)
            is_kept = document.id in known and known[document.id].digest == digest
            yield Unchanged(document.id) if is_kept else Put(document.id, digest, cut(document))

    return changes


def assert_same(updated: Path, fresh: Path, queries: np.ndarray) -> None:
    with Index.open(updated, verify="deep") as one, Index.open(fresh) as other:
        assert list(one.passages) == list(other.passages)
        assert one.manifest["passages"] == other.manifest["passages"]
        rows = np.random.default_rng(0).permutation(len(other.passages))
        assert one.passages.get_many(rows) == other.passages.get_many(rows)
        assert one.passages.ids(rows) == other.passages.ids(rows)
        assert [one.passages.row_of(id) for id in other.passages.ids(rows)] == rows.tolist()
        if other.dense is not None:
            assert one.dense is not None
            assert one.embeddings is not None
            assert other.embeddings is not None
            np.testing.assert_array_equal(one.embeddings.rows(rows), other.embeddings.rows(rows))
            for top_k in (7, len(other.passages) + 3):
                for selected in (
                    None,
                    Selection(np.random.default_rng(top_k).random(len(rows)) < 0.3),
                ):
                    actual = one.dense.search(queries, top_k, selected)
                    expected = other.dense.search(queries, top_k, selected)
                    assert all(map(np.array_equal, actual, expected))
        if other.lucene is not None:
            assert one.lucene is not None
            asked = ["danube vienna", "tulip", "forest city bridge river"]
            assert one.lucene.search(asked, 30) == other.lucene.search(asked, 30)


@pytest.mark.parametrize("seed", range(4))
def test_updates_are_equal_to_a_fresh_build(tmp_path: Path, make_encoder: Any, seed: int) -> None:
    """Adds, replacements, deletions, also of what was deleted before; copies of a passage tie."""
    draw = random.Random(seed + 10)
    kind = ("dense", "hybrid", "dense", "bm25")[seed]
    settings = BuildSettings(retriever=kind, shard_rows=16, probes=4, threads=1, java_heap_mib=256)
    documents = {f"d{n:02}": Document(f"d{n:02}", f"t{n % 3}", text(draw)) for n in range(20)}
    encoder = make_encoder()
    build(tmp_path / "i", documents.values(), encoder, settings)
    queries = make_encoder().encode_passages(
        [""] * 3, ["danube vienna", "tulip lake", "graph graph index"]
    )
    for step in range(14 if kind == "dense" else 4):
        for _ in range(draw.randint(1, 4)):
            id = f"d{draw.randint(0, 29):02}"
            if draw.random() < 0.4 and len(documents) > 3:
                documents.pop(id, None)
            else:
                documents[id] = Document(
                    id, f"t{draw.randint(0, 2)}", draw.choice([text(draw), "tulip lake"])
                )
        documents = dict(sorted(documents.items()))
        expected = sum(len(cut(document)) for document in documents.values())
        report = update_index(tmp_path / "i", corpus_of(documents), lambda identity: encoder)
        assert report.added + report.replaced + report.kept == len(documents)
        if kind == "dense" and step % 3:
            continue
        build(tmp_path / f"fresh-{step}", documents.values(), make_encoder(), settings)
        assert_same(tmp_path / "i", tmp_path / f"fresh-{step}", queries)
        assert len(Index.open(tmp_path / "i").passages) == expected


SMALL = BuildSettings(shard_rows=16, probes=4)


def documents_of(*texts: str) -> dict[str, Document]:
    return {f"d{n}": Document(f"d{n}", "t", text) for n, text in enumerate(texts)}


def test_only_passages_that_are_new_are_encoded(tmp_path: Path, make_encoder: Any) -> None:
    """A document that moved takes its vectors along; one that shrinks leaves no tail."""
    before = documents_of("a b c d e f g h i j k l m n o p q r", "one two three", "four five six")
    build(tmp_path / "i", before.values(), make_encoder(), SMALL)
    inner = make_encoder()
    after = {
        "d0": Document("d0", "t", "a b c d e f"),
        "d3": Document("d3", "t", "four five six"),
        "d4": Document("d4", "t", "seven eight"),
    }
    report = update_index(tmp_path / "i", corpus_of(after), lambda identity: inner)
    assert (report.added, report.replaced, report.deleted, report.kept) == (2, 1, 2, 0)
    assert (report.passages, report.reused) == (3, 2)
    assert inner.calls == [1]  # "seven eight"
    with Index.open(tmp_path / "i") as index:
        assert [passage.id for passage in index.passages] == ["d0-0", "d3-0", "d4-0"]
    before_s = (tmp_path / "i/manifest.json").stat().st_mtime_ns
    assert not update_index(tmp_path / "i", corpus_of(after), never).is_changed
    assert (tmp_path / "i/manifest.json").stat().st_mtime_ns == before_s


def never(identity: Any) -> Any:
    raise AssertionError("the encoder is not needed")


def test_what_cannot_be_updated_is_refused(tmp_path: Path, make_encoder: Any) -> None:
    documents = documents_of("one two three", "four five six", "seven eight nine")
    build(tmp_path / "i", documents.values(), make_encoder(), SMALL)
    before = (tmp_path / "i/manifest.json").read_bytes()

    def update(changes: Any, **options: Any) -> Any:
        return update_index(tmp_path / "i", changes, lambda identity: make_encoder(), **options)

    with pytest.raises(DataError, match="2 of the 3 documents"):
        update(lambda known: [Unchanged("d0")], max_deleted_share=0.5)
    with pytest.raises(DataError, match="no passages to index"):
        update(lambda known: [])
    with pytest.raises(DataError, match="comes twice"):
        update(lambda known: [Unchanged("d0"), Unchanged("d0")])
    with directory_lock(tmp_path / "i"), pytest.raises(ResourceError, match="another process"):
        update(lambda known: [Unchanged("d0")])
    with pytest.raises(IncompleteArtifactError):
        update_index(tmp_path / "typo", lambda known: [], never)
    assert not (tmp_path / "typo").exists()
    other = make_encoder(name="other")
    with pytest.raises(MismatchedArtifactError, match="'words', not 'other'"):
        update_index(tmp_path / "i", corpus_of(documents_of("new")), lambda identity: other)
    assert (tmp_path / "i/manifest.json").read_bytes() == before
    update(lambda known: [Unchanged("d0"), Unchanged("d2")])
    with pytest.raises(MismatchedArtifactError, match="2 other passages, now 3 came"):
        build(tmp_path / "i", documents.values(), make_encoder(), SMALL)
    build_index(
        [Passage("x", "", "new")],
        tmp_path / "i",
        encoder=make_encoder(),
        settings=SMALL,
        overwrite=True,
    )
    assert len(list((tmp_path / "i").glob("data-*"))) == 1
