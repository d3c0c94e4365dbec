"""A language model's reader in a folder of `rag tune confidence`: which model it is, and how its
confidence was fitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from rag.core.errors import ArtifactError
from rag.core.files import atomic_path, check_target
from readers.extractive.reader import ExtractiveReader
from readers.llm.reader import LanguageModelReader
from readers.llm.specs import parse_reader
from readers.manifest import Calibration, Manifest, load_manifest
from readers.open import open_reader, reader_kind


class TunedManifest(Manifest):
    """The content of `reader.json`.

    Attributes:
        source: the reader that was tuned, as it was named.
        fitted: bias and slopes of `Signs.features`.
    """

    kind: Literal["tuned"] = "tuned"
    source: str
    fitted: tuple[float, ...] = Field(min_length=5, max_length=5)


def open_tuned(
    folder: str | Path, *, precision: str = "auto", device: str = "auto", **settings: Any
) -> LanguageModelReader:
    """The reader of a folder of `rag tune confidence`; see `open_reader`.

    Raises:
        ArtifactError: what it names is no language model any more.
    """
    manifest = load_manifest(TunedManifest, Path(folder))
    reader = open_reader(manifest.source, precision=precision, device=device, **settings)
    if not isinstance(reader, LanguageModelReader):
        raise ArtifactError(
            f"{folder} names {manifest.source}, which is no language model",
            hint="fit the confidence again with `rag tune confidence`",
        )
    return reader.tuned(manifest.fitted, ExtractiveReader.load())


def save_tuned(source: str, out: Path, fitted: Sequence[float], questions: int) -> None:
    """Write a folder that `open_tuned` reads.

    Args:
        source: a language model, or such a folder.
        questions: how many the confidence was fitted on.

    Raises:
        ConfigError: `out` holds something.
    """
    check_target(out, folder=True, is_new=True)
    spec = parse_reader(source)
    kind = reader_kind(spec)
    if kind == "tuned":
        source = load_manifest(TunedManifest, Path(source)).source
    elif kind != "endpoint" and Path(spec.model).is_dir():
        source = str(spec.replaced(model=str(Path(spec.model).resolve())))
    manifest = TunedManifest(
        name=source,
        source=source,
        fitted=tuple(fitted),
        calibration=Calibration(questions=questions),
    )
    with atomic_path(out, folder=True) as temporary:
        manifest.save(temporary)
