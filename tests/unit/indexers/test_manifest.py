"""The manifest of an index: refused unless it is right."""

import json
from pathlib import Path
from typing import Any

import pytest

from indexers.documents import Put
from indexers.index import Index
from indexers.index_writer import update_index, write_index
from indexers.manifest import Manifest
from indexers.settings import BuildSettings
from rag.core.errors import ArtifactError, MismatchedArtifactError
from rag.core.files import fingerprint
from rag.core.manifest import NEWEST_VERSION
from rag.core.types import Passage
from tests.support.messages import refusal

SETTINGS = BuildSettings(index_type="SQ8", probes=4, threads=1)


@pytest.fixture
def index(tmp_path: Path, encoder: Any) -> Path:
    passages = [Passage(f"p{n}", "", f"river {n}") for n in range(9)]
    return write_index(tmp_path / "i", passages, encoder=encoder, settings=SETTINGS).directory


def restate(index: Path, **changes: Any) -> None:
    """Change keys of a manifest, and its checksum with them."""
    path = index / "manifest.json"
    values = json.loads(path.read_text()) | changes
    content = {name: values[name] for name in values.keys() - {"checksum", "format_version"}}
    path.write_text(json.dumps({**values, "checksum": fingerprint(content)}))


def test_it_says_nothing_of_the_machine_and_all_of_the_files(index: Path) -> None:
    manifest = Manifest.read(index)
    assert manifest.settings == BuildSettings(index_type="SQ8", probes=4)
    assert {name.partition("/")[0] for name in manifest.files} == set(manifest.settings.stages)


def test_the_language_and_unknown_keys_stay_in_an_update(index: Path, encoder: Any) -> None:
    restate(index, language="de", colour={"sky": "blue"})
    new = Put("new", "", [Passage("new", "", "lake")])
    update_index(index, lambda stored: [*stored, new], lambda identity: encoder)
    manifest = Manifest.read(index)
    assert (manifest.language, manifest.stage("passages").output["count"]) == ("de", 10)
    assert manifest.model_extra == {"colour": {"sky": "blue"}}


def test_reuse_takes_vectors_and_nothing_else(index: Path, encoder: Any, tmp_path: Path) -> None:
    restate(index, language="de")
    passages = [Passage("x", "", "river 3"), Passage("y", "", "lake")]
    with Index.open(index) as start:
        report = write_index(
            tmp_path / "new", passages, encoder=encoder, settings=SETTINGS, start_from=start
        )
    assert report.reused == 1
    assert Manifest.read(tmp_path / "new").language is None
    restate(index, colour="blue")
    with Index.open(index) as start, refusal(MismatchedArtifactError):
        write_index(
            tmp_path / "other", passages, encoder=encoder, settings=SETTINGS, start_from=start
        )


def test_another_number_of_passages_is_refused(index: Path) -> None:
    stages = Manifest.read(index).model_dump()["stages"]
    stages["passages"]["output"]["count"] = 8
    restate(index, stages=stages)
    with refusal(MismatchedArtifactError):
        Index.open(index)


WRONG = {
    "older version": ({"format_version": NEWEST_VERSION - 1}, MismatchedArtifactError),
    "newer version": ({"format_version": NEWEST_VERSION + 1}, MismatchedArtifactError),
    "stages that are text": ({"stages": "none"}, ArtifactError),
    "unknown index type": ({"settings": {"index_type": "tree"}}, ArtifactError),
    "encoder cut off": ({"encoder": {"name": "x"}}, ArtifactError),
}


@pytest.mark.parametrize(("changes", "error"), WRONG.values(), ids=WRONG)
def test_a_manifest_that_is_not_right_is_refused_and_the_remedy_rebuilds_it(
    index: Path, encoder: Any, changes: dict[str, Any], error: type[ArtifactError]
) -> None:
    restate(index, **changes)
    with refusal(error):
        Index.open(index)
    passages = [Passage("a", "", "new")]
    write_index(index, passages, encoder=encoder, settings=SETTINGS, overwrite=True)
    assert len(Index.open(index, verify="deep").passages) == 1
    assert len(list(index.glob("data-*"))) == 1
