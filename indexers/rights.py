"""Who may read which document of an index: a file beside it, which changes without it.

The file `rights.jsonl` in the folder `rights` of an index has two lines: its version, which is the
checksum of the other line, and the groups of documents. The folder stands for rights that exist:
without its file nobody may read anything.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict, ValidationError

from indexers.documents import Documents
from indexers.protocols import Selection, most_masks
from rag.core.arrays import Bool
from rag.core.errors import ArtifactError, ResourceError
from rag.core.files import atomic_path, atomic_write_text
from rag.core.manifest import RIGHTS_DIR, RIGHTS_LOCK
from rag.core.types import Groups

_FILE_NAME = "rights.jsonl"
_LOCK_WAIT_S = 10.0
_HEADER_BYTES = 4096


class RightsError(ArtifactError):
    """The rights of an index cannot be read; until they can, nobody may read any of it."""


class _Header(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["rights"] = "rights"
    format_version: Literal[1] = 1
    version: str


class Rights(BaseModel):
    """Groups by id of document.

    Attributes:
        stated: what was said of a document itself, last; None: everybody may read it.
        folders: what the folder of a document says, where nothing else was said.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    stated: dict[str, tuple[str, ...] | None] = {}
    folders: dict[str, tuple[str, ...]] = {}

    def of(self, document_id: str) -> tuple[str, ...] | None:
        """The groups that may read a document; None: everybody."""
        return self.stated.get(document_id, self.folders.get(document_id))

    def named(self) -> Groups:
        """The groups that documents and folders name."""
        stated = [*self.stated.values(), *self.folders.values()]
        return frozenset().union(*(names or () for names in stated))

    def stating(self, groups: Mapping[str, Iterable[str] | None]) -> Rights:
        """The rights with these groups of documents; None: everybody may read one."""
        changed = dict(self.stated)
        for document_id, names in groups.items():
            changed[document_id] = None if names is None else tuple(sorted(names))
        return self.model_copy(update={"stated": changed})

    def over(self, other: Rights) -> Rights:
        """These rights, and those of another index where these say nothing."""
        others = {id: names for id, names in other.stated.items() if id not in self.folders}
        return Rights(stated={**others, **self.stated}, folders={**other.folders, **self.folders})


def rights_version(index: Path) -> str:
    """The version of an index's rights; "" if it has none.

    Raises:
        RightsError: they cannot be read.
    """
    path = index / RIGHTS_DIR / _FILE_NAME
    try:
        with path.open("rb") as file:
            return _Header.model_validate_json(file.readline(_HEADER_BYTES)).version
    except FileNotFoundError as error:
        # Not `exists`, which says no of what it may not look at.
        try:
            os.lstat(index / RIGHTS_DIR)
        except FileNotFoundError:
            return ""
        except OSError:
            pass
        raise _unreadable(path, "the file is missing") from error
    except (OSError, ValidationError) as error:
        raise _unreadable(path, error) from error


def read_rights(index: Path) -> tuple[Rights, str]:
    """The rights of an index, and their version; none, and "", if it has none.

    Raises:
        RightsError: they cannot be read.
    """
    if not rights_version(index):
        return Rights(), ""
    path = index / RIGHTS_DIR / _FILE_NAME
    try:
        first, _, rest = path.read_bytes().partition(b"\n")
        version = _Header.model_validate_json(first).version
        if hashlib.sha256(rest).hexdigest() != version:
            raise _unreadable(path, "it does not match its own checksum: its bytes were changed")
        return Rights.model_validate_json(rest), version
    except (OSError, ValidationError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, reason: str | OSError | ValidationError) -> RightsError:
    if isinstance(reason, OSError):
        reason = reason.strerror or type(reason).__name__
    elif isinstance(reason, ValidationError):
        reason = "it is damaged, or another version of the program wrote it"
    return RightsError(
        f"{path} cannot be read ({reason}), so nobody may read the index",
        hint="restore it from a copy; `rag rights` alone writes it",
    )


def change_rights(index: Path, change: Callable[[Rights], Rights]) -> str:
    """Replace the rights of an index by what `change` makes of them; returns their version.

    They hold for the next search of every process.

    Raises:
        RightsError: the rights that are there cannot be read.
        ResourceError: another process is changing them.
    """
    index.mkdir(parents=True, exist_ok=True)
    try:
        lock = FileLock(index / RIGHTS_LOCK).acquire(timeout=_LOCK_WAIT_S)
    except Timeout as error:
        raise ResourceError(
            f"{index}: another process is changing its rights", hint="try again in a moment"
        ) from error
    with lock:
        before, version = read_rights(index)
        after = change(before)
        if after == before:
            return version
        body = after.model_dump_json() + "\n"
        header = _Header(version=hashlib.sha256(body.encode()).hexdigest())
        text = f"{header.model_dump_json()}\n{body}"
        folder = index / RIGHTS_DIR
        if version:
            atomic_write_text(folder / _FILE_NAME, text)
        else:
            # The folder comes with its file: without it, it would close the index.
            with atomic_path(folder, folder=True) as temporary:
                (temporary / _FILE_NAME).write_text(text, encoding="utf-8")
        return header.version


def copy_rights(source: Path, target: Path) -> None:
    """Take the rights of an index over to another index with its documents, which keeps the rights
    that it has.

    Called before the other is written, which is never open to more people.
    """
    taken, version = read_rights(source)
    if version:
        change_rights(target, lambda before: before.over(taken))


@dataclass(frozen=True, slots=True, eq=False)
class Readable:
    """The part of an index that people of some groups may read.

    Attributes:
        documents: (M,) bool, one entry per document.
        rows: the passages.
    """

    documents: Bool
    rows: Selection


class DocumentRights:
    """The rights over the documents of an open index, as they are now. Safe to use from several
    threads.

    Args:
        index: directory of the index; a link is followed once.
        documents: the documents of the version that is open.
    """

    # Of the version that was read last; results for the last groups are cached.
    _of: Callable[[Groups], Readable]

    def __init__(self, index: Path, documents: Documents) -> None:
        self._index = index.resolve()
        self._documents = documents
        self._lock = threading.Lock()
        self._version = ""

    def readable(self, groups: Groups) -> Readable | None:
        """What people of these groups may read; None: everything.

        Raises:
            RightsError: the rights cannot be read.
        """
        version = rights_version(self._index)
        with self._lock:
            if version != self._version:
                self._load(version)
            if not self._version:
                return None
            found = self._of(groups)
            return None if found.documents.all() else found

    def _load(self, version: str) -> None:
        if not version:
            raise _unreadable(self._index / RIGHTS_DIR, "the folder is gone")
        documents = self._documents
        rights, version = read_rights(self._index)
        # The place of each document among the distinct sets of groups.
        places = np.zeros(len(documents), np.int32)
        sets: dict[Groups | None, int] = {None: 0}
        for document_id in {**rights.folders, **rights.stated}:
            row = documents.row_of(document_id)
            names = rights.of(document_id)
            if row is not None and names is not None:
                places[row] = sets.setdefault(frozenset(names), len(sets))

        def readable(groups: Groups) -> Readable:
            is_allowed = [names is None or not names.isdisjoint(groups) for names in sets]
            allowed = np.array(is_allowed)[places]
            return Readable(allowed, Selection(documents.mask_of_passages(allowed)))

        self._of = lru_cache(most_masks(documents.n_passages))(readable)
        self._version = version
