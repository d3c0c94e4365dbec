"""Whatever file of a reader's folder is lost or changed, the folder is refused by name."""

import shutil
from pathlib import Path

import pytest

from rag.core.errors import ArtifactError
from readers.generative.settings import GeneratorManifest, GeneratorSettings
from readers.open import open_reader
from tests.tiny_generator import tiny_generator
from tests.tiny_reader import tiny_reader

KINDS = ("extractive", "generative")


def flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0x01]) + data[middle + 1 :]


DAMAGES = {
    "lost": None,
    "empty": lambda data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "flipped": flip,
    "an empty object": lambda data: b"{}",
    "binary": lambda data: b"\x00\xff\xfe" * 9,
}


@pytest.fixture(scope="module", params=KINDS)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "generative":
        tiny_generator(folder)
        GeneratorManifest(name="tiny", settings=GeneratorSettings(passage_tokens=60)).save(folder)
        return folder
    return tiny_reader(folder)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_named(whole: Path, damage: str, tmp_path: Path) -> None:
    open_reader(whole)
    names = [path.name for path in whole.iterdir()]
    assert {"config.json", "tokenizer.json", "tokenizer_config.json", "reader.json"} < set(names)
    for name in names:
        if name == "reader.json" and damage in ("lost", "flipped"):
            continue  # a folder of transformers, or perhaps one letter of a name
        folder = tmp_path / name
        shutil.copytree(whole, folder)
        change = DAMAGES[damage]
        if change is None:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(change((folder / name).read_bytes()))
        with pytest.raises(ArtifactError) as caught:
            open_reader(folder)
        assert name in str(caught.value), name
