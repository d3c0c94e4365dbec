import hashlib

import pytest
import torch
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import save_file

from rag.core.errors import ArtifactError, MismatchedArtifactError, MissingDependencyError
from rag.runtime import model_files
from rag.runtime.model_files import (
    PACKAGED,
    backbone_state,
    embedded_encoder_dir,
    model_folder,
    weight_files,
    weights_sha256,
)
from tests.packaged import check_packaged_weights


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
    monkeypatch.setattr(
        model_files.importlib.util,
        "find_spec",
        lambda name: type("Spec", (), {"origin": str(tmp_path / "x.py")}),
    )
    with pytest.raises(MismatchedArtifactError, match="expected 53aa"):
        embedded_encoder_dir()
    monkeypatch.setattr(model_files.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError):
        embedded_encoder_dir()


@pytest.mark.parametrize("name", ["/no/such/folder", "./missing", "a/b/c"])
def test_missing_folders(name):
    with pytest.raises(ArtifactError, match="no such folder"):
        model_folder(name)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("pytorch_model.bin", r"pytorch_model\.bin: pickle files are not loaded"),
        ("model.safetensors", r"model\.safetensors cannot be read"),
        ("other.txt", r"has no model\.safetensors"),
    ],
)
def test_weights_that_cannot_be_read_are_named(tmp_path, file, message):
    (tmp_path / file).write_bytes(b"12345678garbage")
    with pytest.raises(ArtifactError, match=message):
        backbone_state(tmp_path)


def test_sharded_weights(tmp_path):
    save_file({"embeddings.a": torch.ones(1)}, tmp_path / "model-00001.safetensors")
    save_file({"embeddings.b": torch.zeros(1)}, tmp_path / "model-00002.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(
        '{"weight_map": {"a": "model-00001.safetensors", "b": "model-00002.safetensors"}}'
    )
    state = backbone_state(tmp_path)
    assert sorted(state) == ["embeddings.a", "embeddings.b"]
    hashes = [hashlib.sha256(file.read_bytes()).hexdigest() for file in weight_files(tmp_path)]
    assert (
        weights_sha256(weight_files(tmp_path))
        == hashlib.sha256("".join(hashes).encode()).hexdigest()
    )
    index.write_text('{"weight_map": {"a": "../elsewhere.safetensors"}}')
    with pytest.raises(ArtifactError, match="outside"):
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


def test_everything_that_settings_are_read_from_is_fetched():
    read = [
        *("config.json", "modules.json", "tokenizer.json", "vocab.txt", "spiece.model"),
        *("1_Pooling/config.json", "2_Dense/model.safetensors"),
        "model-00001-of-00002.safetensors",
    ]
    assert list(filter_repo_objects(read, allow_patterns=list(model_files._WANTED))) == read
