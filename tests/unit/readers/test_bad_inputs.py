"""What readers refuse: the error's class, and what it names; of damaged folders the file."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from transformers import BertForQuestionAnswering

from rag.core.errors import ArtifactError, ConfigError, DataError, RagError, ReaderError
from rag.core.errors import MismatchedArtifactError as Mismatched
from rag.core.types import Passage
from readers.generative.files import load_generator
from readers.generative.settings import GeneratorManifest, GeneratorSettings
from readers.open import open_reader
from tests.support.files import write_files
from tests.support.messages import refusal
from tests.support.reading import read_one
from tests.tiny_causal import causal_folder
from tests.tiny_generator import tiny_generator
from tests.tiny_reader import tiny_config, tiny_encoder, tiny_reader, tiny_tokenizer

OTHER = '{"kind": "generative", "name": "x", %s}'
SHORT = Passage("1", "", "A tower.")


def generator(folder: Path, lost: str = "", added: int = 0, **changes: Any) -> None:
    """Open a generator's folder, without a tensor, or with more tokens than it embeds."""
    tiny_generator(folder)
    state = load_file(folder / "model.safetensors")
    state = {name: tensor for name, tensor in state.items() if not lost or lost not in name}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([f"new{number}" for number in range(added)])
    tokenizer.save_pretrained(folder)
    open_reader(folder, **changes)


def language_model(folder: Path, settings: str = "") -> None:
    reader = open_reader(f"{causal_folder(folder, positions=64)}{settings}", precision="fp32")
    read_one(reader, "where?", [SHORT])


def opened(folder: Path, text: str = "", tokens: int = 0, size: int = 0) -> None:
    """Open a folder with this reader.json, or a checkpoint of so many tokens, its weights cut to a
    size.
    """
    if text:
        (folder / "reader.json").write_text(text)
    if tokens or size:
        sizes = {"vocab_size": tokens} if tokens else {}
        BertForQuestionAnswering(tiny_config(**sizes)).save_pretrained(folder)
        tiny_tokenizer().save_pretrained(folder)
    if size:
        weights = folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:size])
    open_reader(folder)


def described(folder: Path, model_type: str, architecture: str, **more: Any) -> Path:
    """A folder with nothing but this config.json."""
    config = {"model_type": model_type, "architectures": [architecture], **more}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


GEMMA = ("gemma3", "Gemma3ForConditionalGeneration")
OWN_CODE = {"auto_map": {"AutoModel": "someone/code--modeling.Model"}}


BAD_INPUTS: dict[str, tuple[type[RagError], Callable[[Any, Path], object]]] = {
    "long question": (DataError, lambda r, _: read_one(r, "x" * 9999, [SHORT])),
    "blank question": (DataError, lambda r, _: read_one(r, "  ", [SHORT])),
    "more scores than passages": (ConfigError, lambda r, _: read_one(r, "a", [SHORT], [1.0, 2.0])),
    "no answers wanted": (ConfigError, lambda r, _: read_one(r, "a", [SHORT], n_best=0)),
    "unknown setting": (ConfigError, lambda _, folder: open_reader(tiny_reader(folder), colour=1)),
    "passages longer than the window": (
        ConfigError,
        lambda _, folder: open_reader(tiny_reader(folder), max_tokens=40),
    ),
    "unknown effort": (
        ConfigError,
        lambda _, folder: open_reader(tiny_reader(folder), effort="least"),
    ),
    "more tokens than embeddings": (Mismatched, lambda _, folder: opened(folder, tokens=40)),
    "weights cut off": (ArtifactError, lambda _, folder: opened(folder, size=2000)),
    "encoder": (ArtifactError, lambda _, folder: open_reader(tiny_encoder(folder / "e"))),
    "empty folder": (ArtifactError, lambda _, folder: opened(folder)),
    "no folder": (ArtifactError, lambda _, folder: opened(folder / "absent")),
    "adapter": (
        ArtifactError,
        lambda _, folder: open_reader(write_files(folder, {"adapter_config.json": "{}"})),
    ),
    "unknown kind": (ArtifactError, lambda _, folder: opened(folder, '{"kind": "oracle"}')),
    "manifest cut off": (ArtifactError, lambda _, folder: opened(folder, '{"kind": "extr')),
    "newer manifest": (
        ArtifactError,
        lambda _, folder: opened(folder, OTHER % '"format_version": 9'),
    ),
    "unknown field of a manifest": (
        ArtifactError,
        lambda _, folder: opened(folder, OTHER % '"nam": "x"'),
    ),
    "encoder as a generator": (
        ArtifactError,
        lambda _, folder: load_generator(tiny_encoder(folder / "e")),
    ),
    "no folder of a generator": (
        ArtifactError,
        lambda _, folder: load_generator(folder / "absent"),
    ),
    "passages longer than positions": (
        ConfigError,
        lambda _, folder: generator(folder, passage_tokens=300),
    ),
    "weights lost": (ArtifactError, lambda _, folder: generator(folder, "layers.0.fc1")),
    "model of images": (
        ArtifactError,
        lambda _, folder: open_reader(described(folder, *GEMMA, vision_config={})),
    ),
    "model of images as a generator": (
        ArtifactError,
        lambda _, folder: load_generator(described(folder, *GEMMA, vision_config={})),
    ),
    "REALM": (
        ArtifactError,
        lambda _, folder: open_reader(described(folder, "realm", "RealmForOpenQA")),
    ),
    "code in the folder": (
        ArtifactError,
        lambda _, folder: open_reader(
            described(folder, "new", "NewForQuestionAnswering", **OWN_CODE)
        ),
    ),
    "tokenizer with more tokens": (Mismatched, lambda _, folder: generator(folder, added=9)),
    "window too short": (ReaderError, lambda _, folder: language_model(folder)),
    "unknown setting of a language model": (
        ConfigError,
        lambda _, folder: language_model(folder, "#colour=1"),
    ),
    "unknown style": (ConfigError, lambda _, folder: language_model(folder, "#style=long")),
}


@pytest.mark.parametrize(("error", "act"), BAD_INPUTS.values(), ids=BAD_INPUTS)
def test_bad_inputs(error: type[RagError], act: Any, reader: Any, tmp_path: Path) -> None:
    with refusal(error):
        act(reader, tmp_path)


ADDRESSES = {
    "nothing": "",
    "no scheme": "localhost#m",
    "no model": "http://localhost/v1",
    "port of letters": "http://localhost:abc/v1#m",
    "bracket left open": "http://[::1/v1#m",
    "password": "http://me:pw@h/v1#m",
}


@pytest.mark.parametrize("address", ADDRESSES.values(), ids=ADDRESSES)
def test_bad_addresses(address: str) -> None:
    with refusal(ConfigError):
        open_reader(f"openai:{address}")


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


@pytest.fixture(scope="module", params=["extractive", "generative"])
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
