"""What readers refuse: the error's class, and what it names; of damaged folders the file."""

import json
import shutil
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
from readers.protocols import MAX_QUESTION_CHARS
from tests.support.reading import read_one
from tests.tiny_causal import causal_folder
from tests.tiny_generator import tiny_generator
from tests.tiny_reader import tiny_config, tiny_encoder, tiny_reader, tiny_tokenizer

ADDRESSES = [
    (f"openai:{place}", "expected openai:BASE")
    for place in (
        "",
        "localhost#m",
        "http://localhost/v1",
        "http://localhost:abc/v1#m",
        "http://[::1/v1#m",
    )
]
ADDRESSES.append(("openai:http://me:pw@h/v1#m", "user name or password"))
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


@pytest.mark.parametrize(
    ("error", "words", "act"),
    [
        (
            DataError,
            str(MAX_QUESTION_CHARS),
            lambda r, _: read_one(r, "x" * 9999, [SHORT]),
        ),
        (DataError, "blank", lambda r, _: read_one(r, "  ", [SHORT])),
        (
            ConfigError,
            "1 passages but 2 scores",
            lambda r, _: read_one(r, "a", [SHORT], [1.0, 2.0]),
        ),
        (ConfigError, "n_best", lambda r, _: read_one(r, "a", [SHORT], n_best=0)),
        (ConfigError, "colour", lambda _, folder: open_reader(tiny_reader(folder), colour=1)),
        (ConfigError, "leaves", lambda _, folder: open_reader(tiny_reader(folder), max_tokens=40)),
        (ConfigError, "effort", lambda _, folder: open_reader(tiny_reader(folder), effort="least")),
        (Mismatched, r"tokens, the encoder 40", lambda _, folder: opened(folder, tokens=40)),
        (
            ArtifactError,
            r"model\.safetensors cannot be read",
            lambda _, folder: opened(folder, size=2000),
        ),
        (
            ArtifactError,
            "found BertModel, exp",
            lambda _, folder: open_reader(tiny_encoder(folder / "e")),
        ),
        (ArtifactError, r"neither reader\.json nor config\.json", lambda _, folder: opened(folder)),
        (ArtifactError, "no such folder", lambda _, folder: opened(folder / "absent")),
        (
            ArtifactError,
            "kind 'oracle', expected",
            lambda _, folder: opened(folder, '{"kind": "oracle"}'),
        ),
        (ArtifactError, r"reader\.json", lambda _, folder: opened(folder, '{"kind": "extr')),
        (
            ArtifactError,
            "version is 9",
            lambda _, folder: opened(folder, OTHER % '"format_version": 9'),
        ),
        (ArtifactError, "nam is 'x'", lambda _, folder: opened(folder, OTHER % '"nam": "x"')),
        (
            ArtifactError,
            "a bert model, exp",
            lambda _, folder: load_generator(tiny_encoder(folder / "e")),
        ),
        (ArtifactError, "no such folder", lambda _, folder: load_generator(folder / "absent")),
        (
            ConfigError,
            "300, the model has 128",
            lambda _, folder: generator(folder, passage_tokens=300),
        ),
        (ArtifactError, "lacks 4 weights", lambda _, folder: generator(folder, "layers.0.fc1")),
        (
            ArtifactError,
            "a gemma3 model, which reads images or sound",
            lambda _, folder: open_reader(described(folder, *GEMMA, vision_config={})),
        ),
        (
            ArtifactError,
            "a gemma3 model, which reads images or sound",
            lambda _, folder: load_generator(described(folder, *GEMMA, vision_config={})),
        ),
        (
            ArtifactError,
            "a realm model, whose classes transformers no longer has",
            lambda _, folder: open_reader(described(folder, "realm", "RealmForOpenQA")),
        ),
        (
            ArtifactError,
            r"\(NewForQuestionAnswering\) needs its own code from the repository",
            lambda _, folder: open_reader(
                described(folder, "new", "NewForQuestionAnswering", **OWN_CODE)
            ),
        ),
        (Mismatched, "the tokenizer knows", lambda _, folder: generator(folder, added=9)),
        (ReaderError, "the model's window", lambda _, folder: language_model(folder)),
        (ConfigError, "colour", lambda _, folder: language_model(folder, "#colour=1")),
        (ConfigError, "style", lambda _, folder: language_model(folder, "#style=long")),
        *(
            (ConfigError, words, lambda *_, source=source: open_reader(source))
            for source, words in ADDRESSES
        ),
    ],
)
def test_bad_inputs(
    error: type[RagError], words: str, act: Any, reader: Any, tmp_path: Path
) -> None:
    with pytest.raises(error, match=words):
        act(reader, tmp_path)


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
