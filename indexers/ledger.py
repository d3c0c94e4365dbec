"""The stages of a build that is under way, and the files of the index that it replaces.

An index directory holds `manifest.json`, which says everything about the index, and one folder
`data-…` with its files. A build fills the folder `building`, an update `updating`; `state.json` in
the folder says which stages are finished. When all are, the folder is renamed, and the manifest,
replaced last, makes it the index's data.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from indexers.documents import DOCUMENTS_NAME
from indexers.manifest import Manifest, Stage, StoredFile
from indexers.protocols import Identity
from indexers.settings import BuildSettings, StageName
from rag.core.errors import ArtifactError, DataError, MismatchedArtifactError
from rag.core.files import (
    atomic_write_json,
    clean_directory,
    fingerprint,
    fsync_path,
    link_or_copy,
    read_json,
    sha256_file,
    unreadable,
)
from rag.core.manifest import (
    BUILDING_DIR,
    DATA_PREFIX,
    MANIFEST_NAME,
    UPDATING_DIR,
    differences,
    read_manifest,
)

_STATE_NAME = "state.json"
_RESUMED: tuple[StageName, ...] = ("embeddings", "tokens")  # others begin again when interrupted


class BuildState(BaseModel):
    """An unfinished build.

    Attributes:
        encoder: encoder of the vectors that are stored already.
        stages: the stages that were begun; one without `output` is unfinished.
        notes: what users are to know of the passages.
    """

    model_config = ConfigDict(extra="forbid")

    encoder: Identity | None = None
    stages: dict[StageName, Stage] = {}
    notes: list[str] = []


class BuildLedger:
    """The stages of one build; the caller has the lock of the directory.

    A stage of a finished index with equal inputs is taken over by hard links. A stage with other
    inputs is refused in a build, and made again in an update.

    Args:
        is_update: the build makes the next version of the index in `directory`.
        overwrites: the build ignores the index in `directory`.

    Attributes:
        folder: folder of the build's files; made when there is work.
        state: the stages that are begun or finished; saved after each.
        existing: manifest of a finished index in `directory`, whose inputs this build must have;
            None if there is none, if it is ignored, and for an update.
    """

    def __init__(self, directory: Path, *, is_update: bool, overwrites: bool) -> None:
        self.directory = directory
        self.folder = directory / (UPDATING_DIR if is_update else BUILDING_DIR)
        self.is_update = is_update
        self._clean_up(overwrites)

        self.state = BuildState()
        self._reusable: Mapping[StageName, Stage] = {}
        self._reusable_dir = directory
        self.existing: Manifest | None = None
        if (directory / MANIFEST_NAME).exists() and not overwrites and not is_update:
            self.existing = Manifest.read(directory)
            self.state.encoder = self.existing.encoder
            self.reuse_from(directory / self.existing.data, self.existing.stages)
        path = self.folder / _STATE_NAME
        if not path.exists():
            return
        try:
            self.state = BuildState.model_validate(read_json(path))
        except (DataError, ValidationError) as error:
            raise ArtifactError(f"{path} is damaged", hint=f"delete {self.folder}") from error
        # Stages that cannot be continued begin again.
        for name, stage in list(self.state.stages.items()):
            has_shards = name in _RESUMED and any((self.folder / name).glob("[!.]*"))
            is_read_again = is_update and name == "passages"
            if not has_shards and (is_read_again or not stage.output):
                del self.state.stages[name]

    def _clean_up(self, overwrites: bool) -> None:
        """Finish or undo what a killed build left."""
        clean_directory(self.directory)
        has_manifest = (self.directory / MANIFEST_NAME).exists() and not overwrites
        current = read_manifest(self.directory).get("data") if has_manifest else None
        for folder in self.directory.glob(f"{DATA_PREFIX}*"):
            if folder.name == current or not (folder / _STATE_NAME).exists():
                continue
            # Its build was killed before the manifest was written. Only the first build of a directory
            # goes on with it: one that replaces an index begins again.
            if has_manifest or overwrites or self.folder.exists():
                shutil.rmtree(folder)
            else:
                folder.rename(self.folder)
        for name in (BUILDING_DIR, UPDATING_DIR):
            if overwrites or name != self.folder.name:
                shutil.rmtree(self.directory / name, ignore_errors=True)
        if has_manifest:
            remove_unused(self.directory)

    def reuse_from(self, data: Path, stages: Mapping[StageName, Stage]) -> None:
        """Offer finished stages of a version; those whose inputs turn out equal are taken over.

        Args:
            data: folder of the version's files.
        """
        self._reusable_dir = data
        self._reusable = stages

    def stage(self, name: StageName) -> Stage:
        """A stage of this build, or a stage that can be taken over; without inputs if there is
        neither.
        """
        return self.state.stages.get(name) or self._reusable.get(name, Stage())

    def path(self, name: StageName) -> Path:
        """The folder of a stage, finished or to be filled."""
        is_reused = name not in self.state.stages and name in self._reusable
        return (self._reusable_dir if is_reused else self.folder) / name

    def begin(self, name: StageName, inputs: Mapping[str, object]) -> Path | None:
        """Begin a stage, or go on with it.

        Args:
            inputs: what decides the content of the stage, as JSON.

        Returns:
            The folder that is to be filled; None if the stage is finished with these inputs.

        Raises:
            MismatchedArtifactError: the build, or the index in the directory, has this stage with
                other inputs.
        """
        earlier = self.stage(name)
        changes = differences(earlier.inputs, inputs)
        if earlier.output and not changes:
            return None

        folder = self.folder / name
        if changes:
            is_of_directory = name in self.state.stages or self.existing is not None
            if earlier.inputs and is_of_directory and not self.is_update:
                raise MismatchedArtifactError(
                    f"{self.directory} holds a build whose stage {name!r} has other inputs "
                    f"({changes})",
                    hint=f"`rag index … --update {self.directory}` brings a finished index up to date; "
                    "else give what the build was begun with, choose another {out}, or add {overwrite}",
                    arguments=("out", "overwrite"),
                )
            shutil.rmtree(folder, ignore_errors=True)
        self._record(name, Stage(inputs=dict(inputs)))
        return folder

    def finish(self, name: StageName, output: Mapping[str, object]) -> None:
        """Finish a stage whose folder is filled.

        Args:
            output: a description of the content.
        """
        files = {}
        reusable = self._reusable.get(name, Stage()).files
        for path in sorted((self.folder / name).rglob("*")):
            if not path.is_file():
                continue
            relative = path.relative_to(self.folder).as_posix()
            recorded = reusable.get(relative)
            # A hard link of a reusable file is not read again.
            if recorded is None or not path.samefile(self._reusable_dir / relative):
                recorded = StoredFile(size_bytes=path.stat().st_size, sha256=sha256_file(path))
            files[relative] = recorded
        begun = self.state.stages[name]
        self._record(name, Stage(inputs=begun.inputs, output=dict(output), files=files))

    def _record(self, name: StageName, stage: Stage) -> None:
        self.state.stages[name] = stage
        self.folder.mkdir(parents=True, exist_ok=True)
        atomic_write_json(self.folder / _STATE_NAME, self.state.model_dump())

    def commit(
        self, settings: BuildSettings, language: str | None, extra_keys: Mapping[str, Any]
    ) -> Manifest:
        """Make the finished build the index.

        Args:
            settings: settings of the index, which name its stages.
            language: of the passages, if it was stated.
            extra_keys: further keys of the manifest.
        """
        for name in settings.stages:
            if name in self.state.stages:
                continue
            shutil.rmtree(self.folder / name, ignore_errors=True)
            for relative in self._reusable[name].files:
                (self.folder / relative).parent.mkdir(parents=True, exist_ok=True)
                link_or_copy(self._reusable_dir / relative, self.folder / relative)
            self._record(name, self._reusable[name])
        stages = {name: self.state.stages[name] for name in settings.stages}
        checksums = {name: stage.model_dump()["files"] for name, stage in stages.items()}
        # The version is one of content and settings, whatever the bytes of Lucene's files.
        passages = stages["passages"]
        documents = passages.files[f"passages/{DOCUMENTS_NAME}"].sha256
        inputs = {name: stage.inputs for name, stage in stages.items() if name != "passages"}
        manifest = Manifest(
            version=fingerprint([passages.output, documents, inputs])[:12],
            data=DATA_PREFIX + fingerprint(checksums)[:12],
            settings=settings,
            language=language,
            encoder=self.state.encoder,
            stages=stages,
            **extra_keys,
        )

        target = self.directory / manifest.data
        if target.exists():
            # Its name is a hash of the checksums: the same files are there already.
            shutil.rmtree(self.folder)
        else:
            for folder in (*self.folder.iterdir(), self.folder):
                fsync_path(folder)
            os.rename(self.folder, target)
            fsync_path(self.directory)
        manifest.write(self.directory)
        remove_unused(self.directory)
        return manifest


def remove_unused(directory: Path) -> None:
    """Remove earlier versions that no reader holds, and the state of the finished build."""
    current = read_manifest(directory).get("data")
    if current is None:
        return
    (directory / str(current) / _STATE_NAME).unlink(missing_ok=True)
    for folder in directory.glob(f"{DATA_PREFIX}*"):
        if folder.name != current:
            _remove_unless_held(folder)


def hold_folder(folder: Path, owner: object) -> Callable[[], object]:
    """Keep other processes from removing a folder until the result is called, or `owner` is
    collected.

    Raises:
        ArtifactError: there is no such folder, or it was removed meanwhile.
        ResourceError: the system lacks open files.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise unreadable(folder, error) from error
    with suppress(OSError):  # a file system without locks
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    # Whoever had the lock may have removed the folder.
    if not folder.exists():
        os.close(descriptor)
        raise ArtifactError(f"{folder} is missing", hint="restore it or rebuild the index")
    return weakref.finalize(owner, os.close, descriptor)


def _remove_unless_held(folder: Path) -> None:
    """Remove a folder that neither this process nor another holds; who wants to hold it waits."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
    finally:
        os.close(descriptor)
