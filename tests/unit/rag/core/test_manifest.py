"""Manifests: complete or refused, by name."""

from pathlib import Path

import pytest

from rag.core.errors import ArtifactError, IncompleteArtifactError
from rag.core.manifest import MANIFEST_NAME, NEWEST_VERSION, read_manifest


def test_what_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IncompleteArtifactError, match="not a finished artefact"):
        read_manifest(tmp_path)
    with pytest.raises(IncompleteArtifactError, match="no such directory"):
        read_manifest(tmp_path / "missing")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *((text, r"manifest\.json: not valid JSON") for text in ("", "{", "\x00\xff")),
        *(
            (text, "it has no format_version\n")
            for text in ("[]", '{"kind": 1}', '{"format_version": "1"}')
        ),
        (f'{{"format_version": {NEWEST_VERSION + 1}}}', "upgrade"),
    ],
)
def test_damaged_and_newer_manifests_are_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / MANIFEST_NAME).write_bytes(text.encode("latin-1"))
    with pytest.raises(ArtifactError, match=words):
        read_manifest(tmp_path)
