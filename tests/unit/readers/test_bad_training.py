"""What training readers refuses before its first step: the error's class, and what it names."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from rag.config import load_config
from rag.core.errors import ArtifactError, ConfigError, DataError, ResourceError
from readers.extractive.model import SpanModel
from readers.extractive.settings import ReaderSettings
from readers.extractive.training.config import ReaderStage, ReaderTrainConfig
from readers.extractive.training.finish import export_int8
from readers.generative.training.config import GeneratorTrainConfig
from tests.support.messages import refusal
from tests.tiny_reader import tiny_encoder, tiny_roberta, tiny_roberta_tokenizer, tiny_squad

STAGE = {"epochs": 1, "max_tokens": 96, "full_tokens": 96}
TWICE = [{"questions": "q", "name": "a"}, {"questions": "r", "name": "a"}]
SET = {"questions": "train.json"}
RECORD = {"question": "q", "answers": ["x"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a set and its results, an encoder, and files of wrong content."""
    place = tmp_path_factory.mktemp("bad")
    tiny_squad(place / "train.json", 6, 0, place / "results.json")
    tiny_encoder(place / "encoder")
    model, settings = SpanModel.from_encoder(tiny_roberta(place / "roberta")), ReaderSettings()
    weights, tokenizer = model.state_dict(), tiny_roberta_tokenizer()
    export_int8(place / "roberta", model, weights, tokenizer, name="roberta", settings=settings)
    files: dict[str, Any] = {
        "odd": {"data": [{"paragraphs": []}]},
        "other": [{"question": "another?", "ctxs": []}],
        "shape": [{"q": 1}],
        "none": [{**RECORD, "answers": [None], "ctxs": [{"text": "a"}]}],
        "target": [{**RECORD, "target": True, "ctxs": [{"text": "a"}]}],
        "empty": [{**RECORD, "ctxs": []}],
        "bare": [RECORD],
    }
    for name, content in files.items():
        (place / f"{name}.json").write_text(json.dumps(content))
    return place


BAD_READERS = {
    "full_tokens below max_tokens": (
        ConfigError,
        {"stages": [{"epochs": 1, "max_tokens": 128, "full_tokens": 64}]},
    ),
    "no_answer_fraction without questions": (
        ConfigError,
        {"stages": [{"epochs": 1, "no_answer_fraction": 0.5}]},
    ),
    "tokens_per_batch below max_tokens": (
        ConfigError,
        {"stages": [{**STAGE, "tokens_per_batch": 64}]},
    ),
    "unknown setting": (ConfigError, {"colour": 1}),
    "weights of another normalisation": (ConfigError, {"normalisation": "passage"}),
    "two sets of a name": (ConfigError, {"train": TWICE}),
    "unlabelled set without a teacher": (
        ConfigError,
        {"train": [{"questions": "q", "labelled": False}]},
    ),
    "teacher_weight without a teacher": (ConfigError, {"teacher_weight": 0.6}),
    "absent file": (DataError, {"train": ["absent.json"]}),
    "no questions": (DataError, {"train": ["odd.json"]}),
    "results of other questions": (DataError, {"train": [{**SET, "retrieved": "other.json"}]}),
    "results of another shape": (DataError, {"train": [{**SET, "retrieved": "shape.json"}]}),
    "teacher that is no reader": (ConfigError, {"teacher": "encoder"}),
    "teacher with another tokenizer": (ConfigError, {"teacher": "roberta"}),
    "absent file and absent encoder": (DataError, {"train": ["absent.json"], "encoder": "absent"}),
    "more tokens than the encoder reads": (
        ConfigError,
        {"stages": [ReaderStage(epochs=1, full_tokens=200)]},
    ),
    "absent encoder": (ResourceError, {"encoder": "absent"}),
}


@pytest.mark.parametrize(("error", "changes"), BAD_READERS.values(), ids=BAD_READERS)
def test_readers(error: Any, changes: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    usual = {"train": ["train.json"], "encoder": "encoder", "stages": [STAGE], "precision": "fp32"}
    with contextlib.chdir(folder), refusal(error):
        load_config(
            ReaderTrainConfig, overrides={**usual, "out": tmp_path / "out", **changes}
        ).train_model()
    assert not (tmp_path / "out" / "checkpoints").exists()


BAD_GENERATORS = {
    "answer that is null": (DataError, {"train_files": ["none.json"]}),
    "target that is no text": (DataError, {"train_files": ["target.json"]}),
    "no passages stated": (DataError, {"train_files": ["bare.json"]}),
    "no passages": (DataError, {"train_files": ["empty.json"]}),
    "absent file": (DataError, {"train_files": ["absent.json"]}),
    "everything is validation": (DataError, {"validation_file": "results.json"}),
    "model that generates nothing": (ArtifactError, {"model": "encoder", "encoder": None}),
    "absent encoder": (ConfigError, {"encoder": "absent"}),
    "too many decoder layers": (ConfigError, {"decoder_layers": 9}),
    "too few tokens": (ArtifactError, {}),
    "no_answer_fraction without no_answer": (
        ConfigError,
        {"stages": [{"steps": 1, "no_answer_fraction": 0.5}]},
    ),
    "model and encoder": (ConfigError, {"model": "x"}),
    "unknown setting of a stage": (ConfigError, {"stages": [{"steps": 1, "colour": 1}]}),
}


@pytest.mark.parametrize(("error", "changes"), BAD_GENERATORS.values(), ids=BAD_GENERATORS)
def test_generators(error: Any, changes: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    usual = {"train_files": ["results.json"], "encoder": "shipped", "stages": [{"steps": 1}]}
    with contextlib.chdir(folder), refusal(error):
        load_config(
            GeneratorTrainConfig, overrides={**usual, "out": tmp_path / "out", **changes}
        ).train_model()
    assert not (tmp_path / "out" / "checkpoints").exists()
