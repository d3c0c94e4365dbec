"""Presets: each can be loaded by its recipe alone, and those of papers have the published
figures.
"""

from typing import Any

import pytest

from rag.config import Config, load_config, preset_names
from rag.core.errors import ConfigError
from rag.recipes import RECIPES, recipe_class
from readers.extractive.training.config import ReaderTrainConfig
from retrievers.training.config import DprTrainConfig
from tests.support.messages import refusal

_PATHS = {"train": [{"questions": "train.json", "retrieved": "negatives.json"}], "out": "run"}
_DPR_PATHS = {"train_files": ["train.json"], "out": "run"}
_GIVEN: dict[str, Any] = {**_PATHS, **_DPR_PATHS, "index": "index"}
_MORE: dict[str, dict[str, str]] = {  # by recipe or preset
    "rag": {"generator": "bart"},
    "emdr2": {"generator": "bart"},
    "mdr": {"index": "index"},
    "reader-taught": {"teacher": "shipped"},
}
_FID = {"learning_rate": 5e-5, "warmup_steps": 1000}
_DPR = {
    "batch_size": 128,
    "epochs": 40,
    "learning_rate": 2e-5,
    "warmup_steps": 1237,
    "clip_norm": 2.0,
    "dropout": 0.1,
    "shared": False,
}
_PUBLISHED: dict[str, dict[str, Any]] = {
    "dpr-nq": _DPR,
    "dpr-reader-nq": {
        "learning_rate": 1e-5,
        "schedule": "constant",
        "spans": "marginal",
        "normalisation": "passage",
    },
    "fid-base-nq": _FID,
    "orqa-nq": {"early": 5000, "read": 5, "batch_size": 1, "learning_rate": 1e-5},
    "realm-wiki": {"documents": 8, "learning_rate": 3e-5, "max_steps": 200000},
    "ict-wiki": {
        "batch_size": 4096,
        "learning_rate": 1e-4,
        "max_steps": 100000,
        "keep_sentence": 0.1,
        "pooling": "cls",
        "projection_dim": 128,
    },
    "colbert-qa-nq": {"projection_dim": 128},
    "dkrr-nq": {"loss": "kl", "clip_norm": 100.0},
    "emdr2-nq": {
        "temperature": pytest.approx(768**0.5, rel=1e-5)
    },  # of inner products of 768 numbers
}


def _load(recipe: str, name: str) -> Any:
    config: type[Config] = recipe_class(recipe)
    fields = config.model_fields
    given = {
        key: value for key, value in _GIVEN.items() if key in fields and fields[key].is_required()
    }
    return load_config(config, name, overrides=given | _MORE.get(recipe, {}) | _MORE.get(name, {}))


@pytest.mark.parametrize(
    ("recipe", "name"), [(r, name) for r in RECIPES for name in preset_names(r)]
)
def test_every_preset_is_whole(recipe: str, name: str) -> None:
    config = _load(recipe, name)
    assert config.name
    values = config.model_dump()
    assert {key: values[key] for key in _PUBLISHED.get(name, {})} == _PUBLISHED.get(name, {})


def test_published_sizes_of_stages_and_batches() -> None:
    config = _load("generator", "fid-base-nq")
    [stage] = config.stages
    assert (stage.steps, stage.batch_size * config.accumulate, stage.passages) == (15000, 64, 100)
    assert not stage.ensure_answer
    assert _load("reader", "dpr-reader-nq").stages[0].negatives == 23
    realm = _load("realm", "realm-wiki")
    assert realm.batch_size * realm.accumulate == 512


def test_every_preset_names_its_recipe() -> None:
    with refusal(ConfigError):
        load_config(ReaderTrainConfig, "reader-sqad", overrides=_PATHS)
    by_recipe = {recipe: preset_names(recipe) for recipe in RECIPES}
    assert sorted(name for names in by_recipe.values() for name in names) == preset_names()
    assert set(by_recipe["dpr"]) == {"dpr-nq", "dpr-small", "retriever-adapt"}


@pytest.mark.parametrize(
    ("kind", "name", "paths"),
    [
        (DprTrainConfig, "reader-squad", _DPR_PATHS),
        (ReaderTrainConfig, "dpr-small", _PATHS),
    ],
)
def test_a_preset_of_another_recipe_is_refused(
    kind: type[Config], name: str, paths: dict[str, object]
) -> None:
    with refusal(ConfigError):
        load_config(kind, name, overrides=paths)
