"""Bring an index up to date: a new segment, a new list of rows, and one small manifest, switched by rename.

No file that readers use is changed: a crash leaves the old version or the new one. An update continues the
segment of an interrupted one if the passages are the same. Files that are not needed any more stay until the
next update, so that a process that is opening them can finish.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from indexers.build import INDEX_KIND
from indexers.changes import Change, Known
from indexers.index import Index
from indexers.provenance import split_of_index
from indexers.versions import OpenEncoder, UpdateReport, VersionWriter
from rag.core.errors import ConfigError
from rag.core.files import directory_lock
from rag.core.manifest import read_manifest, version_of


def update_index(
    place: str | Path,
    changes: Callable[[Known], Iterable[Change]],
    encoder: OpenEncoder,
    *,
    max_deleted_share: float = 1.0,
    merge: bool = True,
) -> UpdateReport:
    """Make an index hold exactly the documents that `changes` gives, in that order.

    Args:
        changes: function from the documents of the index to those of its next version.
        encoder: opens the encoder of the index; called only if passages have to be encoded.
        max_deleted_share: highest share of the documents that may be deleted.
        merge: whether segments are merged afterwards if there are many, or much is deleted.

    Raises:
        ConfigError: this index cannot be updated; the message says what to do.
        DataError: more is deleted than `max_deleted_share`, nothing is left, or an id comes twice.
        ResourceError: another process writes into `place`, or the disk is full.
    """
    place = Path(place)
    _refuse_unfit(place, read_manifest(place, kind=INDEX_KIND))
    with directory_lock(place):
        with Index.open(place) as index:
            report = VersionWriter(index, encoder).update(changes, max_deleted_share)
        if merge:
            report.merged = _merge(place, encoder)
            report.version = version_of(read_manifest(place))
    return report


def merge_segments(place: str | Path, encoder: OpenEncoder) -> int:
    """Merge segments if there are many, or much is deleted; returns how many were merged.

    All segments if `MOST_DELETED` of the stored passages are deleted; else, beyond `MOST_SEGMENTS`, all but
    one that holds more than half of the passages. Answers stay the same.

    Raises:
        ArtifactError: there is no finished index.
        ResourceError: another process writes into `place`, or the disk is full.
    """
    read_manifest(place, kind=INDEX_KIND)  # first, because the lock would create the folder
    with directory_lock(place):
        return _merge(Path(place), encoder)


def _merge(place: Path, encoder: OpenEncoder) -> int:
    with Index.open(place) as index:
        return VersionWriter(index, encoder).merge() if index.live is not None else 0


def _refuse_unfit(place: Path, manifest: dict[str, Any]) -> None:
    if "tokens" in manifest["stages"]:
        raise ConfigError(
            f"{place} has a vector per token (index type plaid), which cannot be updated",
            hint="build it again with --overwrite; other index types can be updated",
        )
    if split_of_index(place).ids == "integer":
        raise ConfigError(
            f"the passages of {place} are numbered 1, 2, 3, …, and an update would change their ids",
            hint="build it with --passage-ids document",
        )
