"""Update of an index beside a full build: time, answers, and the recall of lossy types."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rag.bench.common import interval_of, working_folder
from rag.bench.report import Goal, Report, Table
from rag.core.errors import DataError
from rag.core.progress import format_seconds
from rag.data.records import Document

if TYPE_CHECKING:
    from indexers.changes import Change, Known
    from indexers.protocols import PassageEncoder
    from indexers.settings import BuildSettings

_TOP_K, _TIMED = 20, 400


def run_update_benchmark(
    corpus: list[str],
    passages: int = 20_000,
    share: float = 0.01,
    rounds: int = 5,
    index_types: Sequence[str] = ("sq8", "ivf", "hnsw"),
    encoder: str | None = None,
    precision: str = "auto",
    sample: int = 200,
    vectors: Path | None = None,
    index_type: str = "flat",
    work_dir: Path | None = None,
) -> Report:
    """Update of some documents of an index, beside a full build of the same corpus.

    A third of the changed documents is new, a third replaced, a third deleted; each document is one passage.
    Loading the encoder is not timed; the index has BM25. Other lossy types are updated over the same vectors.

    Args:
        passages: size of the corpus.
        share: share of the documents that change.
        rounds: updates of the same index; it is built once.
        index_types: lossy types whose recall is compared.
        encoder: hub name or folder; default: the one in the package.
        sample: pieces of passages that are searched for.
        vectors: index whose vectors are copied to save time; encoding is then timed on 400 passages of the
            corpus and scaled up.
        index_type: type of the index that is built and updated.

    Raises:
        DataError: the corpus has too few documents.
    """
    from indexers.settings import BuildSettings
    from rag.data.corpus import read_documents
    from retrievers.encoders.open import load_encoder

    changed = max(round(share * passages / 3), 1)
    read = list(itertools.islice(read_documents(list(corpus)), passages + changed))
    if len(read) < passages + changed:
        raise DataError(f"{len(read)} documents, expected {passages + changed}", hint="lower --passages")
    before, after = _versions(read, passages, changed)
    loaded = load_encoder(encoder, precision=precision)
    report = Report("update", {"corpus": ",".join(corpus), "passages": passages, "changed": 3 * changed})
    with working_folder("update", work_dir) as holder:
        settings = BuildSettings.model_validate({"retriever": "hybrid", "index_type": index_type})
        built_s = _time_build(holder / "built", after, loaded, settings, vectors)
        _fill_times(report, holder, before, after, loaded, settings, built_s, rounds, sample, vectors)
        rows = [_recalls(holder, kind, before, after, loaded) for kind in index_types]
        columns = ("index type", "built, recall@10", "updated, recall@10", "built, @100", "updated, @100")
        report.tables.append(Table("recall on pieces of passages", columns, rows))
    return report


def _versions(read: list[Document], passages: int, changed: int) -> tuple[list[Document], list[Document]]:
    """The documents before and after the change, spread over the corpus."""
    before, new = read[:passages], read[passages:]
    chosen = np.random.default_rng(0).permutation(passages)[: 2 * changed]
    gone = {before[row].id for row in chosen[:changed]}
    longer = {before[row].id for row in chosen[changed:]}
    kept = (document for document in before if document.id not in gone)
    after = [replace(one, text=f"{one.text} It was seen again.") if one.id in longer else one for one in kept]
    return before, after + new


def _cut(document: Document) -> list[Any]:
    from rag.data.split import SplitOptions, split_documents

    return list(split_documents([document], SplitOptions(mode="none")))


def _build(
    place: Path, documents: Iterable[Document], encoder: PassageEncoder, settings: BuildSettings
) -> None:
    from indexers.build import build_index
    from indexers.documents import DocumentList, cut_and_listed

    table = DocumentList()
    listed = cut_and_listed(documents, _cut, table, {})
    build_index(listed, place, encoder=encoder, settings=settings, documents=table)


def _changes(documents: Iterable[Document]) -> Callable[[Known], Iterator[Change]]:
    from indexers.changes import Put, Unchanged
    from indexers.documents import record_digest

    def changes(known: Known) -> Iterator[Change]:
        for document in documents:
            digest = record_digest(document)
            is_kept = document.id in known and known[document.id].digest == digest
            yield Unchanged(document.id) if is_kept else Put(document.id, digest, _cut(document))

    return changes


def _timed(run: Callable[[], Any]) -> tuple[float, float]:
    """Wall seconds, and processor seconds of this process."""
    wall_s, processor_s = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - wall_s, time.process_time() - processor_s


def _time_build(
    place: Path,
    documents: list[Document],
    encoder: PassageEncoder,
    settings: BuildSettings,
    vectors: Path | None,
) -> tuple[float, float]:
    """Wall and processor seconds of a build, the time of encoding scaled up from some passages if need be."""
    from indexers.reuse import KnownVectors

    if vectors is None:
        return _timed(lambda: _build(place, documents, encoder, settings))
    known = KnownVectors(encoder, [vectors], settings.stored_dtype)
    drawn = np.random.default_rng(1).choice(len(documents), min(_TIMED, len(documents)), replace=False)
    some = [documents[row] for row in drawn]
    encoding = _timed(
        lambda: encoder.encode_passages([one.title for one in some], [one.text for one in some])
    )
    building = _timed(lambda: _build(place, documents, known, settings))
    scale = known.reused / len(some)
    return building[0] + scale * encoding[0], building[1] + scale * encoding[1]


def _fill_times(
    report: Report, holder: Path, before: list[Document], after: list[Document], encoder: PassageEncoder,
    settings: BuildSettings, built_s: tuple[float, float], rounds: int, sample: int, vectors: Path | None,
) -> None:  # fmt: skip
    from indexers.reuse import KnownVectors
    from indexers.update import update_index

    sources = [holder / "built", *([] if vectors is None else [vectors])]
    known = KnownVectors(encoder, sources, settings.stored_dtype)
    _build(holder / "before", before, known, settings)
    times = []
    for _ in range(rounds):
        shutil.rmtree(holder / "updated", ignore_errors=True)
        shutil.copytree(holder / "before", holder / "updated")
        times.append(
            _timed(lambda: update_index(holder / "updated", _changes(after), lambda identity: encoder))
        )
    rows, names = [], ("wall", "processor")
    for name, built, updated in zip(names, built_s, zip(*times, strict=True), strict=True):
        ratio = interval_of(lambda x, axis, built=built: built / np.median(x, axis), updated)
        report.figures[name] = {"built_s": built, "updated_s": updated, "ratio": ratio}
        median = format_seconds(float(np.median(updated)))
        rows.append((name, format_seconds(built), median, f"{ratio:.3f}"))
    report.tables.append(Table("seconds", ("time", "built anew", "updated", "ratio"), rows))
    report.goals.append(Goal("built / updated", report.figures["wall"]["ratio"].value, "at least", 20))
    found = _compare(holder, sample)
    report.figures["answers"] = found
    report.tables.append(Table("updated beside built", tuple(found), [tuple(map(str, found.values()))]))


def _compare(holder: Path, sample: int) -> dict[str, Any]:
    """Differences between the answers of the updated index and those of the one built anew."""
    from indexers.index import Index
    from indexers.probes import probe_texts, read_probes

    with Index.open(holder / "updated") as updated, Index.open(holder / "built") as built:
        queries = read_probes(built.require_dense().embeddings)[:sample]
        (scores, rows), (expected, places) = (
            index.require_dense().vectors.search(queries, _TOP_K) for index in (updated, built)
        )
        texts = probe_texts(built.passages, sample, 0)
        assert updated.lucene is not None
        assert built.lucene is not None
        return {
            "passages": len(updated.passages),
            "queries": len(queries),
            "largest difference of a dense score": f"{np.abs(scores - expected).max():.1e}",
            "equal dense ranks": f"{(rows == places).mean():.4%}",
            "equal BM25 lists": updated.lucene.search(texts, _TOP_K) == built.lucene.search(texts, _TOP_K),
        }


def _recalls(
    holder: Path, kind: str, before: list[Document], after: list[Document], encoder: PassageEncoder
) -> tuple[str, ...]:
    from indexers.index import Index
    from indexers.reuse import KnownVectors
    from indexers.settings import BuildSettings
    from indexers.update import update_index

    known = KnownVectors(encoder, [holder / "built", holder / "before"])
    settings = BuildSettings.model_validate({"index_type": kind})
    _build(holder / kind, before, known, settings)
    _build(holder / f"{kind}-built", after, known, settings)
    update_index(holder / kind, _changes(after), lambda identity: known)
    with Index.open(holder / kind) as updated, Index.open(holder / f"{kind}-built") as built:
        pairs = [(one.manifest["dense"]["recall"][k]) for k in ("10", "100") for one in (built, updated)]
    return (kind, *(f"{value:.4f}" for value in pairs))
