"""Manifests: complete or refused, by name."""

from pathlib import Path

import pytest

from rag.core.errors import ArtifactError, IncompleteArtifactError, MismatchedArtifactError
from rag.core.files import atomic_write_json
from rag.core.manifest import (
    MANIFEST_NAME,
    NEWEST_VERSION,
    file_table,
    read_manifest,
    verify_files,
)


@pytest.fixture
def artefact(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.bin").write_bytes(b"12345")
    (tmp_path / "sub" / "b.bin").write_bytes(b"67890")
    files = file_table(tmp_path, ["a.bin", "sub/b.bin"])
    atomic_write_json(tmp_path / MANIFEST_NAME, {"format_version": 3, "kind": "index", "files": files})
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


def test_every_kind_of_damage_names_the_file(artefact: Path) -> None:
    table, victim = read_manifest(artefact, kind="index")["files"], artefact / "sub" / "b.bin"
    verify_files(artefact, table, deep=True)
    victim.write_bytes(b"6789X")
    verify_files(artefact, table, deep=False)
    with pytest.raises(ArtifactError, match=r"b\.bin does not match its checksum"):
        verify_files(artefact, table, deep=True)
    victim.write_bytes(b"678")
    with pytest.raises(ArtifactError, match=r"b\.bin has 3 bytes, expected 5"):
        verify_files(artefact, table, deep=False)
    victim.unlink()
    with pytest.raises(ArtifactError, match=r"b\.bin is missing"):
        verify_files(artefact, table, deep=False)
