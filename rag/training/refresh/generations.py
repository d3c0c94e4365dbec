"""A folder of published generations: one process builds the next, others use the newest, nobody waits.

    pinned.json                     versions that are never deleted
    generation-00000003/            what was built, with manifest.json; never changed afterwards
    .staging-00001500-1f0c…/        being built

Whichever process is killed at whatever moment, `newest` is complete: a generation is built in a staging
folder, flushed, and only then renamed. `prune` does not delete a generation that a process `hold`s; a hold
ends with its process, even if that is killed.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rag.core.errors import ArtifactError, ConfigError, DataError, IncompleteArtifactError
from rag.core.files import (
    atomic_write_json,
    directory_lock,
    disk_errors,
    fingerprint,
    fsync_path,
    fsync_tree,
    read_json,
    remove_temporaries,
)
from rag.core.log import get_logger
from rag.core.manifest import MANIFEST_NAME, file_table, read_manifest, write_manifest

KIND = "generation"
PINS_NAME = "pinned.json"
LEASE_NAME = ".lease"
_PREFIX, _STAGING, _GONE = "generation-", ".staging-", ".gone-"

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Generation:
    """One published generation.

    Attributes:
        step: step of the model it was built with.
        version: hash of step, meta and all files, for logs and answers: a generation that is built again with
            equal bytes has the same version under another number.
    """

    path: Path
    number: int
    step: int
    version: str
    meta: dict[str, Any]
    files: dict[str, dict[str, Any]] = field(repr=False)


class Generations:
    """A folder of generations, for its one publisher and for any number of readers in any process.

    Example:
        >>> import tempfile
        >>> generations = Generations(tempfile.mkdtemp())
        >>> generations.newest() is None
        True
        >>> def build(folder: Path) -> None:
        ...     _ = (folder / "rows.txt").write_text("4 8 15")
        >>> published = generations.publish(build, step=500, meta={"encoder": "tiny"})
        >>> with generations.hold(published) as generation:
        ...     generation.step, len(generation.version), (generation.path / "rows.txt").read_text()
        (500, 12, '4 8 15')
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        with disk_errors(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)

    def publish(
        self,
        build: Callable[[Path], None],
        *,
        step: int,
        meta: Mapping[str, Any] | None = None,
        resume: bool = False,
    ) -> Generation:
        """Build the next generation and make it the newest.

        Args:
            resume: give `build` the folder that a killed build for the same `step` and `meta` left behind,
                so that it can go on; otherwise the folder is always empty.

        Raises:
            ConfigError: `build` wrote a file manifest.json at the top, which is this module's.
            ResourceError: another process publishes here, or the disk is full.
        """
        described = json.loads(json.dumps(dict(meta or {}), sort_keys=True))
        staging = self.directory / f"{_STAGING}{step:08d}-{fingerprint(described)[:8]}"
        with directory_lock(self.directory), disk_errors(self.directory):
            self._settle(keep=staging if resume else None)
            staging.mkdir(exist_ok=True)
            build(staging)
            if (staging / MANIFEST_NAME).exists():
                raise ConfigError(
                    f"the published folder has its own {MANIFEST_NAME}", hint="build into a sub-folder"
                )
            (staging / LEASE_NAME).touch()
            number = max((generation.number for generation in self.all()), default=0) + 1
            self._seal(staging, number, step, described)
            target = self.directory / f"{_PREFIX}{number:08d}"
            os.replace(staging, target)
            fsync_path(self.directory)
            return _read(target)

    def newest(self) -> Generation | None:
        """The generation to use now, or None if nothing was published yet. Never waits."""
        return next(reversed(self.all()), None)

    def all(self, **meta: Any) -> list[Generation]:
        """Every complete generation with these values in `meta`, oldest first."""
        found = []
        for path in sorted(self.directory.glob(f"{_PREFIX}*")):
            with suppress(ArtifactError, DataError):
                found.append(_read(path))
        return [g for g in found if all(g.meta.get(name) == value for name, value in meta.items())]

    def find(self, version: str) -> Generation | None:
        """The latest generation of this version, or None if it was pruned."""
        found = [generation for generation in self.all() if generation.version == version]
        return found[-1] if found else None

    @contextmanager
    def hold(self, generation: Generation) -> Iterator[Generation]:
        """Keep a generation from being pruned while it is read.

        Raises:
            IncompleteArtifactError: it is gone.
        """
        gone = IncompleteArtifactError(
            f"generation {generation.version} is no longer in {self.directory}", hint="use the newest"
        )
        try:
            descriptor = os.open(generation.path / LEASE_NAME, os.O_RDONLY)
        except FileNotFoundError as error:
            raise gone from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            if not generation.path.exists():  # pruned between opening and locking
                raise gone
            yield generation
        finally:
            os.close(descriptor)

    @property
    def pinned(self) -> frozenset[str]:
        """Versions that `prune` never deletes."""
        path = self.directory / PINS_NAME
        return frozenset(read_json(path)) if path.exists() else frozenset()

    def pin(self, versions: Collection[str]) -> None:
        """Let `prune` keep these versions from now on, and no others; any process may call this.

        Unlike a hold, a pin does not end with its process: it is for versions that a killed run needs again.
        """
        if frozenset(versions) != self.pinned:
            atomic_write_json(self.directory / PINS_NAME, sorted(versions))

    def prune(self, keep: int = 2) -> list[int]:
        """Delete all but the `keep` newest generations and those held or pinned; returns deleted numbers.

        Raises:
            ResourceError: another process publishes here.
        """
        deleted = []
        with directory_lock(self.directory):
            pinned = self.pinned
            for generation in self.all()[: -max(1, keep)]:
                if generation.version not in pinned and self._retire(generation):
                    deleted.append(generation.number)
        return deleted

    def _retire(self, generation: Generation) -> bool:
        descriptor = os.open(generation.path / LEASE_NAME, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            gone = self.directory / f"{_GONE}{generation.path.name}"
            os.replace(generation.path, gone)
        except BlockingIOError:
            log.info("generation %s is in use and is not deleted", generation.version)
            return False
        finally:
            os.close(descriptor)
        shutil.rmtree(gone, ignore_errors=True)
        return True

    def _settle(self, keep: Path | None) -> None:
        """Remove what a killed publisher left."""
        remove_temporaries(self.directory, spare=PINS_NAME)  # which another process may be writing now
        for pattern in (f"{_STAGING}*", f"{_GONE}*"):
            for path in self.directory.glob(pattern):
                if path != keep:
                    shutil.rmtree(path)
        if keep is not None and keep.exists():
            remove_temporaries(keep)
            (keep / MANIFEST_NAME).unlink(missing_ok=True)

    def _seal(self, staging: Path, number: int, step: int, meta: Mapping[str, Any]) -> None:
        paths = [path for path in staging.rglob("*") if path.is_file() and path.name != LEASE_NAME]
        table = file_table(staging, (path.relative_to(staging).as_posix() for path in paths))
        version = fingerprint([step, meta, table])[:12]
        fsync_tree(staging)
        write_manifest(
            staging,
            {"kind": KIND, "number": number, "step": step, "version": version, "meta": meta, "files": table},
        )


def _read(path: Path) -> Generation:
    manifest = read_manifest(path, kind=KIND)
    try:
        fields = [manifest[key] for key in ("number", "step", "version", "meta", "files")]
    except KeyError as error:
        raise ArtifactError(f"{path / MANIFEST_NAME} lacks {error}", hint="delete this generation") from error
    return Generation(path, *fields)
