"""The fields of `reader.json` that all kinds of readers share."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, ValidationError

from rag.config import Config
from rag.core.errors import (
    ArtifactError,
    DataError,
    IncompleteArtifactError,
    MismatchedArtifactError,
)
from rag.core.files import atomic_write_json, fingerprint, read_json, sha256_file

READER_FILE = "reader.json"
_UNCHECKED = (READER_FILE, "README.md")


class Calibration(Config):
    """Temperature and null bias that turn scores into probabilities; 1 and 0 if they were not
    fitted.

    Attributes:
        right: bias and slopes of `AnswerFeatures.for_right`: how likely the first answer is right.
        absent: of `AnswerFeatures.for_absent`: how likely the passages hold no answer.
        questions: number of held-out questions it was fitted on; 0: it was not.
    """

    temperature: float = Field(default=1.0, gt=0)
    null_bias: float = 0.0
    right: tuple[float, float, float, float, float] | None = None
    absent: tuple[float, float, float] | None = None
    questions: int = Field(default=0, ge=0)


class Manifest(Config):
    """The content of `reader.json` that all kinds share; a kind adds `kind` and `settings`.

    Attributes:
        name: for reports.
        calibration: turns scores into probabilities.
        retriever: what a reader that counts the search's scores in was trained with, see
            `retrievers.open` and `retrievers.bound`.
        checksums: sha256 of each file beside it: weights, configuration and tokenizer are one
            reader.
    """

    format_version: Literal[1] = 1
    name: str
    calibration: Calibration = Calibration()
    retriever: dict[str, Any] | None = None
    checksums: dict[str, str] = Field(default_factory=dict)

    @property
    def version(self) -> str:
        """Short hash of files, settings and calibration: all that answers depend on."""
        return fingerprint(self.model_dump(mode="json"))[:12]

    def save(self, folder: Path) -> None:
        """Write `reader.json` into `folder`, after all other files."""
        checksums = {}
        for path in sorted(folder.iterdir()):
            if path.is_file() and path.name not in _UNCHECKED:
                checksums[path.name] = sha256_file(path)
        content = {**self.model_dump(mode="json"), "checksums": checksums}
        atomic_write_json(folder / READER_FILE, content)


ManifestT = TypeVar("ManifestT", bound=Manifest)


def read_reader_file(folder: Path) -> dict[str, object]:
    """The content of a folder's `reader.json`, unchecked.

    Raises:
        ArtifactError: there is none, it cannot be read, or is not an object.
    """
    path = folder / READER_FILE
    hint = "copy the whole folder again"
    if not path.exists():
        raise IncompleteArtifactError(
            f"{folder} has no {READER_FILE}", hint="finish `rag train` first"
        )
    try:
        data = read_json(path)
    except DataError as error:
        raise ArtifactError(error.message, hint=hint) from error
    if not isinstance(data, dict):
        raise ArtifactError(f"{path} holds a {type(data).__name__}, expected an object", hint=hint)
    return data


def load_manifest(kind: type[ManifestT], folder: Path) -> ManifestT:
    """The `reader.json` of a folder, checked.

    Raises:
        IncompleteArtifactError: there is none.
        ArtifactError: it is damaged, of another kind of reader, or of another version of this
            program.
    """
    try:
        return kind.model_validate(read_reader_file(folder))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise ArtifactError(
            f"{folder / READER_FILE}: {field} is {first['input']!r:.80}: {first['msg']}",
            hint="the folder is damaged, or of another version: make it again with `rag train reader`, or "
            "with `rag train generator`",
        ) from error


def check_files(checksums: Mapping[str, str], folder: Path, *needed: str) -> None:
    """Check the files of a reader against the checksums in its `reader.json`, before they are
    loaded.

    Args:
        needed: files that it must have.

    Raises:
        IncompleteArtifactError, MismatchedArtifactError: a file is missing, or differs.
    """
    for name in dict.fromkeys((*needed, *checksums)):
        if not (folder / name).is_file():
            raise IncompleteArtifactError(
                f"{folder}: {name} is missing", hint="copy the whole folder again"
            )
        actual = sha256_file(folder / name)
        if actual != checksums.get(name):
            raise MismatchedArtifactError(
                f"{folder / name} has sha256 {actual}, {READER_FILE} names {checksums.get(name, 'none')}",
                hint="the file is damaged or belongs to another reader: copy the folder again",
            )
