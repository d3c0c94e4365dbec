"""The manifest of an index, parsed once: what the index holds, what each stage was made from, and
the checksums of its files.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

from pydantic import BaseModel, ConfigDict, PlainSerializer, ValidationError

from indexers.protocols import Identity
from indexers.settings import BuildSettings, StageName
from rag.core.errors import ArtifactError, MismatchedArtifactError
from rag.core.files import atomic_write_json, fingerprint, sha256_file
from rag.core.manifest import MANIFEST_NAME, NEWEST_VERSION, read_manifest

_DAMAGED = "restore it or rebuild the index"
_Settings = Annotated[
    BuildSettings,
    PlainSerializer(lambda settings: settings.model_dump(exclude=BuildSettings.free)),
]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Source(TypedDict, total=False):
    """How a corpus was read and cut; empty for passages from Python."""

    files: list[object]
    options: dict[str, Any]


class StoredFile(_Record):
    """Size and checksum of a file."""

    size_bytes: int
    sha256: str


class Stage(_Record):
    """A part of an index.

    Attributes:
        inputs: everything that decides its content; two stages with equal inputs are equal.
        output: what its files hold, for the code that opens them; empty until it is finished.
        files: its files, by their paths in the data folder.
    """

    inputs: dict[str, Any] = {}
    output: dict[str, Any] = {}
    files: dict[str, StoredFile] = {}


class Manifest(_Record):
    """A finished index. Keys that this version of the program does not know are kept.

    Attributes:
        version: short hash of passages, documents, encoder and settings.
        data: name of the folder that holds the files.
        settings: settings of the build, which an update uses again.
        language: language of the passages, if it was stated.
        encoder: encoder of the vectors.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    kind: Literal["index"] = "index"
    metric: Literal["inner_product"] = "inner_product"
    version: str
    data: str
    settings: _Settings
    language: str | None = None
    encoder: Identity | None = None
    stages: dict[StageName, Stage] = {}

    def stage(self, name: StageName) -> Stage:
        """A stage; if the index lacks it, a stage without inputs."""
        return self.stages.get(name, Stage())

    @classmethod
    def read(cls, directory: Path) -> Manifest:
        """Read the manifest of a finished index.

        Raises:
            IncompleteArtifactError: there is none.
            MismatchedArtifactError: an earlier or later version of the program wrote it.
            ArtifactError: it is damaged.
        """
        values = read_manifest(directory)
        path = directory / MANIFEST_NAME
        if values.pop("format_version") != NEWEST_VERSION:
            raise MismatchedArtifactError(
                f"{directory} was written by an earlier version of this program",
                hint=f"build it again: rag index CORPUS --out {directory} --overwrite",
            )
        if values.pop("checksum", None) != fingerprint(values):
            raise ArtifactError(
                f"{path} does not match its own checksum: its bytes were changed", hint=_DAMAGED
            )
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ArtifactError(f"{path} is damaged: {error}", hint=_DAMAGED) from error

    def write(self, directory: Path) -> None:
        """Replace the manifest of a directory atomically."""
        values = self.model_dump()
        checksum = fingerprint(values)
        values |= {"format_version": NEWEST_VERSION, "checksum": checksum}
        atomic_write_json(directory / MANIFEST_NAME, values)

    @property
    def source(self) -> Source:
        """How the corpus was read and cut."""
        return self.stage("passages").inputs["source"] or Source()

    @property
    def files(self) -> dict[str, StoredFile]:
        """All files of the index."""
        return {name: file for stage in self.stages.values() for name, file in stage.files.items()}

    def verify(self, directory: Path, *, read_bytes: float = math.inf) -> None:
        """Compare the index's files with their sizes and checksums, the smallest files first.

        Args:
            read_bytes: checksums are compared until so many bytes are read.

        Raises:
            ArtifactError: names the first file that is missing, of another size, or of other
                content.
        """
        by_size = sorted(self.files.items(), key=lambda item: (item[1].size_bytes, item[0]))
        for name, expected in by_size:
            path = directory / self.data / name
            read_bytes -= expected.size_bytes
            problem = ""
            if not path.is_file():
                problem = "is missing"
            elif path.stat().st_size != expected.size_bytes:
                problem = (
                    f"has {path.stat().st_size} bytes, expected {expected.size_bytes}: truncated or "
                    "replaced"
                )
            elif read_bytes >= 0 and sha256_file(path) != expected.sha256:
                problem = "does not match its checksum: its bytes were changed"
            if problem:
                raise ArtifactError(f"{path} {problem}", hint=_DAMAGED)
