"""Manifests: complete or refused, by name."""

from pathlib import Path

import pytest

from rag.core.errors import ArtifactError, IncompleteArtifactError
from rag.core.manifest import MANIFEST_NAME, NEWEST_VERSION, read_manifest
from tests.support.messages import refusal


def test_what_is_missing_is_refused(tmp_path: Path) -> None:
    with refusal(IncompleteArtifactError):
        read_manifest(tmp_path)
    with refusal(IncompleteArtifactError):
        read_manifest(tmp_path / "missing")


ODD_MANIFESTS = {
    "empty": "",
    "cut off": "{",
    "bytes": "\x00\xff",
    "list": "[]",
    "no version": '{"kind": 1}',
    "version that is text": '{"format_version": "1"}',
    "newer version": f'{{"format_version": {NEWEST_VERSION + 1}}}',
}


@pytest.mark.parametrize("text", ODD_MANIFESTS.values(), ids=ODD_MANIFESTS)
def test_damaged_and_newer_manifests_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST_NAME).write_bytes(text.encode("latin-1"))
    with refusal(ArtifactError):
        read_manifest(tmp_path)
