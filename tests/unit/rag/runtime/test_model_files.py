import hashlib
import json
import os
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import torch
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from rag.core.errors import ArtifactError, MismatchedArtifactError, MissingDependencyError
from rag.core.files import sha256_file
from rag.runtime import model_files
from rag.runtime.backbone import refuse_missing
from rag.runtime.model_files import (
    PACKAGED,
    backbone_state,
    copy_tokenizer,
    embedded_encoder_dir,
    folder_tokenizer,
    model_folder,
    read_config,
    weight_files,
    weight_shapes,
    weights_sha256,
)
from rag.runtime.tensor_files import file_arrays
from tests.packaged import check_packaged_weights
from tests.published import with_vocabulary_alone
from tests.support.messages import refusal
from tests.tiny_reader import tiny_roberta_tokenizer, tiny_tokenizer


@pytest.mark.parametrize(("name", "most"), [("minilm-qa", 6e6), ("static", 16e6)])
def test_the_encoders_of_the_package_are_found_and_checked(name, most, tmp_path, monkeypatch):
    folder, (file, sha256) = model_folder(name), PACKAGED[name]
    assert weight_files(folder)[-1] == folder / file
    monkeypatch.setattr(model_files, "_WEIGHTS", tmp_path)
    check_packaged_weights(
        folder, file, sha256, most=most, copy=tmp_path / name, load=lambda: model_folder(name)
    )


def test_other_weights_under_its_name_are_refused(tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").write_bytes(b"other")
    found = SimpleNamespace(origin=str(tmp_path / "x.py"))
    for spec, error in ((found, MismatchedArtifactError), (None, MissingDependencyError)):
        monkeypatch.setattr(model_files.importlib.util, "find_spec", lambda name, spec=spec: spec)
        with refusal(error):
            embedded_encoder_dir()


@pytest.mark.parametrize("name", ["/no/such/folder", "./missing", "a/b/c"])
def test_missing_folders(name):
    with refusal(ArtifactError):
        model_folder(name)


@pytest.mark.parametrize(
    "file", ["pytorch_model.bin", "model.safetensors", "other.txt", "epoch=3.ckpt"]
)
def test_weights_that_cannot_be_read_are_named(tmp_path, file):
    (tmp_path / file).write_bytes(b"12345678garbage")
    for read in (backbone_state, weight_shapes):
        with refusal(ArtifactError):
            read(tmp_path)


class _Hostile:
    """An object whose pickle makes a folder when it is loaded by a careless program."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.target),)


NO_TENSORS = {
    "object": _Hostile,
    "object beside a tensor": lambda target: {"a": torch.ones(1), "b": _Hostile(target)},
    "module": lambda target: torch.nn.Linear(2, 2),
    "list": lambda target: [torch.ones(1)],
    "checkpoint": lambda target: {"epoch": 3, "state_dict": {"a": torch.ones(1)}},
}


@pytest.mark.parametrize("is_archive", [True, False])
@pytest.mark.parametrize("make", NO_TENSORS.values(), ids=NO_TENSORS)
def test_nothing_but_tensors_is_read_and_nothing_is_run(tmp_path, make, is_archive):
    target = tmp_path / "made"
    file = tmp_path / "pytorch_model.bin"
    torch.save(make(target), file, _use_new_zipfile_serialization=is_archive)
    with refusal(ArtifactError):
        backbone_state(tmp_path)
    assert not target.exists()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("is_archive", [True, False])
def test_changed_bytes_are_refused_or_are_numbers(tmp_path, is_archive):
    """No error of an unpickler or of an archive's reader comes through."""
    file = tmp_path / "pytorch_model.bin"
    tensors = {"a": torch.zeros(4, 4), "b": torch.zeros(2)}
    torch.save(tensors, file, _use_new_zipfile_serialization=is_archive)
    whole = file.read_bytes()
    refused = 0
    for seed in range(150):
        drawn = random.Random(seed)
        content = bytearray(whole)
        for _ in range(drawn.choice([1, 5, 40])):
            content[drawn.randrange(len(content))] = drawn.randrange(256)
        file.write_bytes(content[: drawn.choice([len(content), drawn.randrange(len(content))])])
        try:
            backbone_state(tmp_path)
        except ArtifactError:
            refused += 1
    assert refused > 50


def test_safetensors_win_over_a_bin_file(tmp_path):
    torch.save({"a": torch.ones(1)}, tmp_path / "pytorch_model.bin")
    assert weight_shapes(tmp_path) == {"a": (1,)}
    save_file({"b": torch.ones(2)}, tmp_path / "model.safetensors")
    assert weight_files(tmp_path) == [tmp_path / "model.safetensors"]
    assert weight_shapes(tmp_path) == {"b": (2,)}


def test_tensors_that_share_their_memory_are_read_as_each_of_them(tmp_path):
    shared = torch.arange(6.0).reshape(2, 3)
    tied = {"embeddings.a": shared, "embeddings.b": shared, "embeddings.c": shared.T}
    torch.save(tied, tmp_path / "pytorch_model.bin")
    for name, tensor in backbone_state(tmp_path).items():
        assert torch.equal(tensor, tied[name])
    numbers = file_arrays(tmp_path / "pytorch_model.bin")
    np.testing.assert_array_equal(numbers["embeddings.c"], shared.T.numpy())


def test_sharded_weights(tmp_path):
    save_file({"embeddings.a": torch.ones(1)}, tmp_path / "model-00001.safetensors")
    save_file({"embeddings.b": torch.zeros(1)}, tmp_path / "model-00002.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(
        '{"weight_map": {"a": "model-00001.safetensors", "b": "model-00002.safetensors"}}'
    )
    assert sorted(backbone_state(tmp_path)) == ["embeddings.a", "embeddings.b"]
    files = weight_files(tmp_path)
    hashes = "".join(sha256_file(file) for file in files)
    assert weights_sha256(files) == hashlib.sha256(hashes.encode()).hexdigest()
    for names in (
        '"a": "../elsewhere.safetensors"',
        '"a": "model-00001.safetensors", "b": "lost.safetensors"',
    ):
        index.write_text(f'{{"weight_map": {{{names}}}}}')
        with refusal(ArtifactError):
            weight_files(tmp_path)


def test_wrappers_and_old_names_are_removed(tmp_path):
    tensors = {
        "bert.embeddings.LayerNorm.gamma": torch.ones(2),
        "bert.embeddings.LayerNorm.beta": torch.zeros(2),
        "cls.predictions.bias": torch.zeros(1),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    state = backbone_state(tmp_path)
    assert sorted(state) == ["embeddings.LayerNorm.bias", "embeddings.LayerNorm.weight"]


@pytest.mark.parametrize(
    ("model_type", "make"), [("bert", tiny_tokenizer), ("roberta", tiny_roberta_tokenizer)]
)
def test_a_tokenizer_of_a_vocabulary_is_written_as_transformers_reads_it(
    tmp_path, model_type, make
):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    make().save_pretrained(tmp_path)
    with_vocabulary_alone(tmp_path)
    copy_tokenizer(tmp_path, tmp_path / "copy.json")
    written = Tokenizer.from_file(str(tmp_path / "copy.json"))
    text = "The tower, 57 meters; the émigré"
    assert written.encode(text).ids == AutoTokenizer.from_pretrained(tmp_path)(text)["input_ids"]
    written = folder_tokenizer(tmp_path).encode("the tower", "a city").ids
    assert written == AutoTokenizer.from_pretrained(tmp_path)("the tower", "a city")["input_ids"]


_COMMON = ["config.json", "tokenizer.json", "chat_template.jinja", "spiece.model"]
_MODULES = ["modules.json", "1_Pooling/config.json", "2_Dense/config.json"]


@pytest.mark.parametrize(
    ("wanted", "others"),
    [
        ([*_COMMON, "model.safetensors"], ["pytorch_model.bin", "training_args.bin", "rust.ot"]),
        ([*_COMMON, "pytorch_model.bin"], ["optimizer.bin", "colbert_linear.pt", "tf_model.h5"]),
        ([*_COMMON, "pytorch_model.bin.index.json", "pytorch_model-00001-of-00001.bin"], []),
        ([*_COMMON, *_MODULES, "model.safetensors", "2_Dense/pytorch_model.bin"], ["onnx/a.onnx"]),
        (
            [*_COMMON, *_MODULES, "pytorch_model.bin", "2_Dense/model.safetensors"],
            ["2_Dense/pytorch_model.bin"],
        ),
        (["ctx_encoder/config.json", "ctx_encoder/pytorch_model.bin"], []),
    ],
)
def test_bin_files_are_fetched_where_there_are_no_safetensors(
    tmp_path, monkeypatch, wanted, others
):
    folder = tmp_path / ("5b" * 20)
    revisions = []

    def download(name, *, allow_patterns, revision=None):
        revisions.append(revision)
        for path in filter_repo_objects([*wanted, *others], allow_patterns=allow_patterns):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).touch()
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert model_folder("someone/model") == folder
    fetched = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    assert sorted(fetched) == sorted(wanted)
    assert set(revisions) <= {None, folder.name}


def _own_code(folder, model_type):
    config = {"model_type": model_type, "architectures": ["JinaModel"]}
    config["auto_map"] = {"AutoModel": "someone/code--modeling.JinaModel"}
    (folder / "config.json").write_text(json.dumps(config))


def test_a_model_that_needs_code_of_its_repository_is_refused(tmp_path):
    _own_code(tmp_path, "new")
    with refusal(ArtifactError):
        read_config(tmp_path)
    _own_code(tmp_path, "gte")  # an architecture that transformers has itself
    assert read_config(tmp_path)["model_type"] == "gte"
    with refusal(ArtifactError):
        refuse_missing(tmp_path, ["embeddings.weight"])
