"""Files that clients send, as documents."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from rag.core.errors import MissingDependencyError
from rag.data.documents.read import documents_of_files
from rag.data.files.sources import DOCUMENTS, ReadOptions, Source
from rag.data.records import BadRecord, Document
from serve.errors import ApiError, invalid_request


def documents_of_uploads(contents: Sequence[tuple[str, bytes]]) -> list[Document]:
    """Convert files, given by name and content.

    Raises:
        ApiError: 422: a file cannot be read, or has no usable name; 501: the server lacks the package for its
            format.
    """
    documents = []
    for name, _ in contents:
        if name in ("", ".", "..") or not name.isprintable() or len(name.encode("utf-8", "replace")) > 255:
            raise invalid_request(
                f"{name[:100]!r} cannot be the name of a file",
                'give the form field a file name such as filename="guide.pdf"',
            )
    with tempfile.TemporaryDirectory(prefix="rag-upload-") as folder:
        sources = []
        for number, (name, content) in enumerate(contents):
            path = Path(folder) / str(number) / name
            path.parent.mkdir()
            path.write_bytes(content)
            sources.append(Source(str(path), DOCUMENTS, name))
        try:
            for source, item, _ in documents_of_files(sources, ReadOptions()):
                if isinstance(item, BadRecord):
                    raise ApiError(422, "unreadable_file", f"{source.name}: {item.reason} ({item.detail})")
                documents.append(item)
        except MissingDependencyError as error:
            raise ApiError(501, "missing_package", "the server lacks a package", hint=error.hint) from error
    return documents
