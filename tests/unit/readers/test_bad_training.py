"""What training readers refuses before its first step: the error's class, and what it names."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from rag.core.errors import ArtifactError, ConfigError, DataError, ResourceError
from readers.extractive.model import SpanModel
from readers.extractive.settings import ReaderSettings
from readers.extractive.training.config import ReaderStage, ReaderTrainConfig
from readers.extractive.training.finish import export_int8
from readers.extractive.training.recipe import train_reader
from readers.generative.training.config import GeneratorTrainConfig
from readers.generative.training.recipe import train_generator
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


@pytest.mark.parametrize(
    ("error", "words", "changes"),
    [
        (
            ValidationError,
            "full_tokens",
            {"stages": [{"epochs": 1, "max_tokens": 128, "full_tokens": 64}]},
        ),
        (
            ValidationError,
            "no_answer_fraction",
            {"stages": [{"epochs": 1, "no_answer_fraction": 0.5}]},
        ),
        (ValidationError, "tokens_per_batch", {"stages": [{**STAGE, "tokens_per_batch": 64}]}),
        (ValidationError, "colour", {"colour": 1}),
        (ValidationError, "selection_weight", {"normalisation": "passage"}),
        (ValidationError, "two sets are called 'a'", {"train": TWICE}),
        (ValidationError, "name it as teacher", {"train": [{"questions": "q", "labelled": False}]}),
        (ValidationError, "teacher_weight is given, but no teacher", {"teacher_weight": 0.6}),
        (DataError, r"absent\.json", {"train": ["absent.json"]}),
        (DataError, "no questions", {"train": ["odd.json"]}),
        (DataError, "knows only 0", {"train": [{**SET, "retrieved": "other.json"}]}),
        (DataError, r"shape\.json: record 1", {"train": [{**SET, "retrieved": "shape.json"}]}),
        (ConfigError, "which is no reader", {"teacher": "encoder"}),
        (ConfigError, "does not know the token", {"teacher": "roberta"}),
        (DataError, "no such file", {"train": ["absent.json"], "encoder": "absent"}),
        (ConfigError, "reads at most 128", {"stages": [ReaderStage(epochs=1, full_tokens=200)]}),
        (ResourceError, "absent", {"encoder": "absent"}),
    ],
)
def test_readers(
    error: Any, words: str, changes: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    usual = {"train": ["train.json"], "encoder": "encoder", "stages": [STAGE], "precision": "fp32"}
    with contextlib.chdir(folder), pytest.raises(error, match=words):
        train_reader(ReaderTrainConfig(**{**usual, "out": tmp_path / "out", **changes}))
    assert not (tmp_path / "out" / "checkpoints").exists()


@pytest.mark.parametrize(
    ("error", "words", "changes"),
    [
        (DataError, "none", {"train_files": ["none.json"]}),
        (DataError, r"target\.json: .*not text", {"train_files": ["target.json"]}),
        (DataError, "bare", {"train_files": ["bare.json"]}),
        (DataError, "empty", {"train_files": ["empty.json"]}),
        (DataError, "no such file", {"train_files": ["absent.json"]}),
        (
            DataError,
            "all questions of the training files are in",
            {"validation_file": "results.json"},
        ),
        (ArtifactError, "expected an encoder–decoder", {"model": "encoder", "encoder": None}),
        (ConfigError, "no extractive reader", {"encoder": "absent"}),
        (ConfigError, "decoder_layers is 9, expected 1 to 6", {"decoder_layers": 9}),
        (ArtifactError, "tokens are too few to start from", {}),
        (
            ValidationError,
            "no_answer is not given",
            {"stages": [{"steps": 1, "no_answer_fraction": 0.5}]},
        ),
        (ValidationError, "warm start", {"model": "x"}),
        (ValidationError, "colour", {"stages": [{"steps": 1, "colour": 1}]}),
    ],
)
def test_generators(
    error: Any, words: str, changes: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    usual = {"train_files": ["results.json"], "encoder": "shipped", "stages": [{"steps": 1}]}
    with contextlib.chdir(folder), pytest.raises(error, match=words):
        train_generator(GeneratorTrainConfig(**{**usual, "out": tmp_path / "out", **changes}))
    assert not (tmp_path / "out" / "checkpoints").exists()
