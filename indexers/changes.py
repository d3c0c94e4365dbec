"""Changes between an index and its corpus: documents to keep, and documents to add or replace."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from indexers.documents import DocumentEntry, record_digest
from rag.core.errors import ArtifactError
from rag.core.files import sha256_file
from rag.core.types import Passage
from rag.data.corpus import IdSet, read_files, read_records
from rag.data.documents.read import file_id
from rag.data.files.sources import DOCUMENTS, ReadOptions, Source
from rag.data.records import Document, ReadReport

Cut = Callable[[Document], list[Passage]]


@dataclass(frozen=True, slots=True)
class Unchanged:
    """A document that stays as it is."""

    id: str


@dataclass(frozen=True, slots=True)
class Put:
    """A document that is new, or takes the place of the one with its id; see `DocumentEntry`."""

    id: str
    digest: str
    passages: list[Passage]
    sent: bool = False


Change = Unchanged | Put
Known = Mapping[str, DocumentEntry]


def corpus_changes(
    sources: Sequence[Source], options: ReadOptions, cut: Cut, report: ReadReport, known: Known
) -> Iterator[Change]:
    """Every document of a corpus, in its order, and after these the documents that came over HTTP.

    Files with unchanged bytes are not converted again. Documents of the index that are not yielded are
    deleted.

    Raises:
        DataError: too many bad records, or a file that cannot be read with `options.strict`.
    """
    seen, found = IdSet(), set[str]()
    for is_file, group in itertools.groupby(sources, key=lambda source: source.format == DOCUMENTS):
        read = _of_files if is_file else _of_records
        for change in read(list(group), options, cut, report, known, seen):
            found.add(change.id)
            yield change
    if report.total > report.files:
        report.check(options.max_bad_share, at_end=True)
    yield from (Unchanged(entry.id) for entry in known.values() if entry.sent and entry.id not in found)


def _of_records(
    sources: Sequence[Source], options: ReadOptions, cut: Cut, report: ReadReport, known: Known, seen: IdSet
) -> Iterator[Change]:
    for document in read_records(sources, options, report, seen):
        digest = record_digest(document)
        is_kept = _digest(known, document.id) == digest
        yield Unchanged(document.id) if is_kept else Put(document.id, digest, cut(document))


def _of_files(
    files: Sequence[Source], options: ReadOptions, cut: Cut, report: ReadReport, known: Known, seen: IdSet
) -> Iterator[Change]:
    digests = [_file_digest(source) for source in files]
    changed = [
        source
        for source, digest in zip(files, digests, strict=True)
        if not digest or _digest(known, file_id(source.name)) != digest
    ]
    documents = read_files(changed, options, report, seen)
    coming = next(documents, None)
    for source, digest in zip(files, digests, strict=True):
        id = file_id(source.name)
        if digest and _digest(known, id) == digest:
            if seen.add(id):
                report.files += 1
                report.add_good()
                yield Unchanged(id)
        elif coming is not None and coming.id == id:
            yield Put(id, digest, cut(coming))
            coming = next(documents, None)


def _digest(known: Known, id: str) -> str:
    """Digest of the corpus's document with this id; "" if there is none."""
    entry = known.get(id)
    return "" if entry is None or entry.sent else entry.digest


def _file_digest(source: Source) -> str:
    try:
        return sha256_file(source.path)
    except (OSError, ArtifactError):  # missing or unreadable: reading it raises the error
        return ""


def sent_changes(documents: Iterable[Put], deleted: Iterable[str], known: Known) -> Iterator[Change]:
    """Every document of an index after some were sent and some deleted, the new ones at the end."""
    put = {document.id: document for document in documents}
    gone = set(deleted)
    for id in known:
        if id in put:
            yield put.pop(id)
        elif id not in gone:
            yield Unchanged(id)
    yield from put.values()
