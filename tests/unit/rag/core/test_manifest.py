"""Manifests: complete or refused, by name."""

from pathlib import Path

import pytest

from rag.core.errors import ArtifactError, IncompleteArtifactError, MismatchedArtifactError
from rag.core.files import atomic_write_json
from rag.core.manifest import MANIFEST_NAME, NEWEST_VERSION, read_manifest


@pytest.fixture
def artefact(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    atomic_write_json(tmp_path / MANIFEST_NAME, {"format_version": 3, "kind": "index"})
    return tmp_path


def test_what_is_missing_or_of_another_kind_is_refused(artefact: Path) -> None:
    with pytest.raises(IncompleteArtifactError, match="not a finished artefact"):
        read_manifest(artefact / "sub")
    with pytest.raises(IncompleteArtifactError, match="no such directory"):
        read_manifest(artefact / "missing")
    with pytest.raises(MismatchedArtifactError, match="expected 'run'"):
        read_manifest(artefact, kind="run")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *((text, "manifest") for text in ("", "{", "[]", '{"kind": "index"}', "\x00\xff")),
        ('{"format_version": "1"}', "manifest"),
        (f'{{"format_version": {NEWEST_VERSION + 1}}}', "upgrade"),
    ],
)
def test_damaged_and_newer_manifests_are_refused(artefact: Path, text: str, words: str) -> None:
    (artefact / MANIFEST_NAME).write_bytes(text.encode("latin-1"))
    with pytest.raises(ArtifactError, match=words):
        read_manifest(artefact)
