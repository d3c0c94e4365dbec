"""The stages of a build: what each was made from, what came out, and the folder of their files.

An index directory holds `manifest.json`, which says everything about the index, and one folder
`data-…` with its files. A build fills the folder `building`, an update `updating`; `state.json` in
it says which stages are finished. When all are, the folder is renamed, and the manifest, replaced
last, makes it the index's data.
"""

from __future__ import annotations

import fcntl
import math
import os
import shutil
import weakref
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from indexers.documents import DOCUMENTS_NAME
from indexers.settings import STAGES, Stage
from rag.core.errors import ArtifactError, DataError, MismatchedArtifactError
from rag.core.files import (
    atomic_write_json,
    clean_directory,
    fingerprint,
    fsync_path,
    link_or_copy,
    read_json,
    sha256_file,
)
from rag.core.manifest import (
    BUILDING_DIR,
    MANIFEST_NAME,
    NEWEST_VERSION,
    differences,
    read_manifest,
)

UPDATING_DIR, DATA_PREFIX, STATE_NAME = "updating", "data-", "state.json"


def finished_stages(manifest: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The stages of a finished index as a `BuildLedger` has them: inputs, output and files of
    each.
    """
    stages = {}
    for stage in manifest["stages"]:
        output = dict(manifest[stage])
        if stage in ("embeddings", "tokens"):
            output["encoder"] = manifest["encoder"]
        files = {
            name: entry for name, entry in manifest["files"].items() if name.startswith(f"{stage}/")
        }
        inputs = dict(manifest["inputs"][stage])
        stages[stage] = {"inputs": inputs, "finished": True, "output": output, "files": files}
    return stages


def manifest_checksum(manifest: Mapping[str, Any]) -> str:
    """Hex sha256 of an index manifest without its own checksum and format version."""
    return fingerprint(
        {key: manifest[key] for key in manifest.keys() - {"checksum", "format_version"}}
    )


def read_index_manifest(place: Path) -> dict[str, Any]:
    """The manifest of a finished index.

    Raises:
        IncompleteArtifactError: there is none.
        MismatchedArtifactError: an earlier or later program wrote it, in another form.
        ArtifactError: it is damaged.
    """
    manifest = read_manifest(place)
    if manifest["format_version"] < NEWEST_VERSION:
        raise MismatchedArtifactError(
            f"{place} was written by an earlier version of this program",
            hint=f"build it again: rag index CORPUS --out {place} --overwrite",
        )
    if manifest.get("checksum") != manifest_checksum(manifest):
        raise ArtifactError(
            f"{place / MANIFEST_NAME} does not match its own checksum: its bytes were changed",
            hint="restore it or rebuild the index",
        )
    return manifest


class BuildLedger:
    """The stages of one build; the caller has the lock of the directory.

    A stage of the index that is there with equal inputs is taken over by hard links. With other
    inputs, a build is refused, and a build that `replaces` the index makes the stage anew.

    Attributes:
        folder: where the build's files lie; made when there is work.
        previous: stages of the index that is there: inputs, output and files of each.
    """

    def __init__(
        self,
        place: Path,
        folder: str = BUILDING_DIR,
        *,
        replaces: bool = False,
        overwrites: bool = False,
    ) -> None:
        self.place, self.folder, self.replaces = place, place / folder, replaces
        self._clean_up(overwrites)
        self._data, self.previous = place, dict[str, dict[str, Any]]()
        if (place / MANIFEST_NAME).exists() and not overwrites:
            manifest = read_index_manifest(place)
            self.adopt(place / manifest["data"], finished_stages(manifest))
        self._stages = self._read_state() if (self.folder / STATE_NAME).exists() else {}

    def _read_state(self) -> dict[str, dict[str, Any]]:
        """The stages of an interrupted build that it can go on with.

        Shards of vectors are taken up where there are any; passages, FAISS and Lucene begin anew.
        """
        path = self.folder / STATE_NAME
        hint = f"delete {self.folder}"
        try:
            stages = read_json(path)
        except DataError as error:
            raise ArtifactError(f"{path} is damaged", hint=hint) from error
        entries = stages.values() if isinstance(stages, dict) else [stages]
        if not all(
            isinstance(entry, dict) and {"inputs", "finished"} <= entry.keys() for entry in entries
        ):
            raise ArtifactError(f"{path} is damaged", hint=hint)
        resumed = [
            name for name in ("embeddings", "tokens") if any((self.folder / name).glob("[!.]*"))
        ]
        return {
            name: entry for name, entry in stages.items() if entry["finished"] or name in resumed
        }

    def adopt(self, data: Path, stages: Mapping[str, dict[str, Any]]) -> None:
        """Take finished stages of another build, with their files in `data`, for those that are
        there.
        """
        self._data, self.previous = data, dict(stages)

    def _clean_up(self, overwrites: bool) -> None:
        """Finish or undo what a killed build left."""
        clean_directory(self.place)
        has_manifest = (self.place / MANIFEST_NAME).exists() and not overwrites
        for folder in self.place.glob(f"{DATA_PREFIX}*"):
            is_current = has_manifest and read_manifest(self.place).get("data") == folder.name
            if (
                folder / STATE_NAME
            ).exists() and not is_current:  # killed before its manifest was there
                if has_manifest or overwrites or self.folder.exists():
                    shutil.rmtree(folder)
                else:
                    folder.rename(self.folder)
        others = {BUILDING_DIR, UPDATING_DIR} - ({self.folder.name} if not overwrites else set())
        for name in others:
            shutil.rmtree(self.place / name, ignore_errors=True)
        if has_manifest:
            remove_unused(self.place)

    def stage(self, name: Stage) -> dict[str, Any]:
        """A stage of this build or of the index: inputs, and when finished output and files; empty
        if new.
        """
        return self._stages.get(name) or self.previous.get(name) or {}

    def path(self, stage: Stage) -> Path:
        """The folder of a stage, finished or to be filled."""
        is_taken = stage not in self._stages and stage in self.previous
        return (self._data if is_taken else self.folder) / stage

    def begin(self, stage: Stage, inputs: Mapping[str, Any], *, anew: bool = False) -> bool:
        """Record the inputs of a stage; returns whether there is work left.

        Args:
            anew: make it whatever was made before.

        Raises:
            MismatchedArtifactError: the existing files of the stage were made from other inputs.
        """
        if entry := {} if anew else self.stage(stage):
            if not (changed := differences(entry["inputs"], inputs)):
                return not entry["finished"]
            if not self.replaces:
                raise self._mismatch(stage, changed, is_whole=stage not in self._stages)
        if self.replaces:
            shutil.rmtree(self.folder / stage, ignore_errors=True)
        self._stages[stage] = {"inputs": dict(inputs), "finished": False}
        self._save()
        return True

    def _mismatch(self, stage: str, changed: str, *, is_whole: bool) -> MismatchedArtifactError:
        hint = (
            "continue with the same inputs and settings, choose another --out, or add --overwrite"
        )
        if changed.startswith("source.files: ") and "; " not in changed:
            hint = "it is not finished: give the files that it was begun with, or add --overwrite"
            if is_whole:
                hint = f"bring it up to date as it was built: --update {self.place} in place of --out; "
                hint += "with other settings, choose another --out or add --overwrite"
        message = f"{self.place} holds a build whose stage {stage!r} has other inputs ({changed})"
        return MismatchedArtifactError(message, hint=hint)

    def finish(self, stage: Stage, output: Mapping[str, Any]) -> None:
        """Mark a stage complete, with the checksums of its files."""
        files = {}
        for path in sorted((self.folder / stage).rglob("*")):
            if path.is_file():
                entry = {"size_bytes": path.stat().st_size, "sha256": sha256_file(path)}
                files[path.relative_to(self.folder).as_posix()] = entry
        self._stages[stage] |= {"finished": True, "output": dict(output), "files": files}
        self._save()

    def _save(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        atomic_write_json(self.folder / STATE_NAME, self._stages)

    def commit(self, stages: Collection[str]) -> str:
        """Make the finished build the index, with these stages; returns the version."""
        for stage in stages:
            if stage not in self._stages:
                self._take_over(stage)
        entries = {stage: self._stages[stage] for stage in STAGES if stage in stages}
        manifest: dict[str, Any] = {
            "kind": "index",
            "stages": list(entries),
            "metric": "inner_product",
        }
        for stage, entry in entries.items():
            manifest[stage] = dict(entry["output"])
            if (encoder := manifest[stage].pop("encoder", None)) is not None:
                manifest["encoder"] = encoder
        manifest["inputs"] = {stage: entry["inputs"] for stage, entry in entries.items()}
        files = {
            name: entry for stage in entries.values() for name, entry in stage["files"].items()
        }
        manifest["files"] = dict(sorted(files.items()))
        # of passages, documents, encoder and settings, whatever the bytes of Lucene's files
        settings = {name: value for name, value in manifest["inputs"].items() if name != "passages"}
        documents = files.get(f"passages/{DOCUMENTS_NAME}", {}).get("sha256")
        content = [manifest["stages"], manifest["passages"], documents, settings]
        manifest["version"] = fingerprint(content)[:12]
        manifest["data"] = DATA_PREFIX + fingerprint(manifest["files"])[:12]
        target = self.place / manifest["data"]
        if target.exists():  # equal bytes
            shutil.rmtree(self.folder)
        else:
            for folder in (*self.folder.iterdir(), self.folder):
                fsync_path(folder)
            os.rename(self.folder, target)
            fsync_path(self.place)
        manifest["checksum"] = manifest_checksum(manifest)
        atomic_write_json(
            self.place / MANIFEST_NAME, {"format_version": NEWEST_VERSION, **manifest}
        )
        return str(manifest["version"])

    def _take_over(self, stage: str) -> None:
        entry = self.previous[stage]
        shutil.rmtree(self.folder / stage, ignore_errors=True)
        for name in entry["files"]:
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(self._data / name, self.folder / name)
        self._stages[stage] = entry
        self._save()


def remove_unused(place: Path) -> None:
    """Remove files of earlier versions that no reader holds, and the state of the build of this
    one.
    """
    current = read_manifest(place).get("data")
    if current is None:
        return
    (place / current / STATE_NAME).unlink(missing_ok=True)
    for folder in place.glob(f"{DATA_PREFIX}*"):
        if folder.name != current and not _is_in_use(folder):
            shutil.rmtree(folder)


def hold_folder(folder: Path, owner: object) -> Callable[[], object]:
    """Keep other processes from removing a folder until the result is called, or `owner` is
    collected.

    Raises:
        ArtifactError: there is no such folder.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise ArtifactError(
            f"{folder} is missing", hint="restore it or rebuild the index"
        ) from error
    with suppress(OSError):  # a file system without locks
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    return weakref.finalize(owner, os.close, descriptor)


def _is_in_use(folder: Path) -> bool:
    """Whether this process or another holds a folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def verify_files(place: Path, files: Mapping[str, Any], *, read_bytes: float = math.inf) -> None:
    """Compare files with their table in a manifest: sizes, and checksums, of the smallest files
    first.

    Args:
        read_bytes: checksums are compared until so many bytes are read.

    Raises:
        ArtifactError: names the first file that is missing, of another size, or of another content.
    """
    for name, entry in sorted(files.items(), key=lambda item: (item[1]["size_bytes"], item[0])):
        path, wrong = place / name, ""
        read_bytes -= entry["size_bytes"]
        if not path.is_file():
            wrong = "is missing"
        elif (size := path.stat().st_size) != entry["size_bytes"]:
            wrong = f"has {size} bytes, expected {entry['size_bytes']}: truncated or replaced"
        elif read_bytes >= 0 and sha256_file(path) != entry["sha256"]:
            wrong = "does not match its checksum: its bytes were changed"
        if wrong:
            raise ArtifactError(f"{path} {wrong}", hint="restore it or rebuild the index")
