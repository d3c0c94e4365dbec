"""Read files as documents of a corpus, with ids that every format can store, and report unreadable ones."""

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from urllib.parse import quote

from rag.core.progress import Progress
from rag.core.unicode import as_unicode
from rag.data.documents.blocks import Converted, Unreadable
from rag.data.documents.convert import convert
from rag.data.documents.pool import convert_files
from rag.data.files.rows import STDIN, strip_compression
from rag.data.files.sources import ReadOptions, Source
from rag.data.records import BadRecord, Document

_UNWRITABLE = re.compile("[\\s%\x00-\x1f\x7f\ud800-\udfff]")


def file_id(name: str) -> str:
    """A file's name as an id: without white space, so that TREC's formats can hold it.

    White space, control characters and "%" are percent-encoded, as in URLs; two names never share an id.

    Example:
        >>> file_id("My notes/Größe 100%.pdf")
        'My%20notes/Größe%20100%25.pdf'
    """
    return _UNWRITABLE.sub(lambda match: quote(match[0], errors="surrogateescape"), name)


def documents_of_files(
    sources: Sequence[Source], options: ReadOptions
) -> Iterator[tuple[Source, Document | BadRecord, tuple[str, ...]]]:
    """Each file as a document, or the reason why it cannot be read; and remarks for the user."""
    with Progress(len(sources), "files", "read") as progress:
        for source, result in zip(sources, _converted(sources, options), strict=True):
            progress.update()
            notes = () if isinstance(result, Unreadable) else result.notes
            yield source, document_of(source.name, result), notes


def document_of(name: str, file: Converted | Unreadable) -> Document | BadRecord:
    """The document of a file of this name, or the reason why it cannot be read."""
    if isinstance(file, Unreadable):
        return BadRecord(file.reason, "; ".join(filter(None, (file.detail, file.remedy))))
    shown = as_unicode(name)
    title = file.title or PurePath(strip_compression(shown)).stem
    return Document(file_id(name), title, file.text, blocks=file.blocks, pages=file.pages, path=shown)


def _converted(sources: Sequence[Source], options: ReadOptions) -> Iterator[Converted | Unreadable]:
    if [source.path for source in sources] == [STDIN]:
        try:
            data = sys.stdin.buffer.read(options.limits.max_bytes)
            yield convert(data, STDIN, options.limits, options.encoding)
        except Unreadable as error:
            yield error
    else:
        yield from convert_files([file.path for file in sources], options.limits, encoding=options.encoding)
