"""Manifests: complete or refused, by name."""

import json
from pathlib import Path

import pytest

from rag.core.errors import ArtifactError, IncompleteArtifactError, MismatchedArtifactError
from rag.core.manifest import (
    FORMAT_VERSION,
    MANIFEST_NAME,
    NEWEST_VERSION,
    file_table,
    read_manifest,
    verify_files,
    write_manifest,
)


@pytest.fixture
def artefact(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.bin").write_bytes(b"12345")
    (tmp_path / "sub" / "b.bin").write_bytes(b"67890")
    write_manifest(tmp_path, {"kind": "index", "files": file_table(tmp_path, ["a.bin", "sub/b.bin"])})
    return tmp_path


def test_round_trip(artefact: Path) -> None:
    manifest = read_manifest(artefact, kind="index")
    assert manifest["format_version"] == FORMAT_VERSION
    assert set(manifest["files"]) == {"a.bin", "sub/b.bin"}
    verify_files(artefact, manifest["files"], deep=True)


def test_absence_means_unfinished(tmp_path: Path) -> None:
    with pytest.raises(IncompleteArtifactError, match="not a finished artefact"):
        read_manifest(tmp_path)
    with pytest.raises(IncompleteArtifactError, match="no such directory"):
        read_manifest(tmp_path / "missing")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"kind": "index"}', '{"format_version": "1"}', "\x00\xff"])
def test_damaged_manifests_are_refused(artefact: Path, text: str) -> None:
    (artefact / MANIFEST_NAME).write_bytes(text.encode("latin-1"))
    with pytest.raises(ArtifactError, match="manifest"):
        read_manifest(artefact)


def test_newer_formats_and_other_kinds_are_refused(artefact: Path) -> None:
    with pytest.raises(MismatchedArtifactError, match="expected 'run'"):
        read_manifest(artefact, kind="run")
    (artefact / MANIFEST_NAME).write_text(json.dumps({"format_version": NEWEST_VERSION + 1}))
    with pytest.raises(MismatchedArtifactError, match="upgrade"):
        read_manifest(artefact)


def test_every_kind_of_damage_names_the_file(artefact: Path) -> None:
    table = read_manifest(artefact)["files"]
    victim = artefact / "sub" / "b.bin"
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
