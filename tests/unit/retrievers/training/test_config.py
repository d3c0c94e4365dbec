"""Configuration of retriever training: settings that cannot work together are refused with a way
out.
"""

from typing import Any

import pytest

from rag.config import load_config
from rag.core.errors import ConfigError
from rag.joint.config import MlmTrainConfig
from retrievers.training.config import (
    AnceTrainConfig,
    ColbertTrainConfig,
    DprTrainConfig,
    MdrTrainConfig,
)
from tests.support.messages import refusal

_PATHS: dict[str, Any] = {"train_files": ["train.json"], "out": "run"}


REFUSED = {
    "two encoders that are shared": {"shared": True, "passage_encoder": "other"},
    "temperature of normalised vectors": {"normalize": True, "temperature": 1.0},
    "start_share of an adapter": {"lora": 4, "start_share": 0.5},
    "measure without an index": {"select_by": "mrr"},
    "no training files": {"train_files": []},
    "no folder": {"out": None},
    "unknown setting": {"temprature": 2},
    "temperature of zero": {"temperature": 0},
    "unknown pooling": {"pooling": "median"},
}


@pytest.mark.parametrize("settings", REFUSED.values(), ids=REFUSED)
def test_what_cannot_work_is_refused(settings: dict[str, Any]) -> None:
    with refusal(ConfigError):
        load_config(DprTrainConfig, overrides={**_PATHS, **settings})


REFUSED_BY_RECIPES = {
    "more kept than searched": (AnceTrainConfig, {"depth": 20, "kept": 30}),
    "more drawn than kept": (AnceTrainConfig, {"depth": 20, "kept": 10, "hard_negatives": 20}),
    "none drawn": (AnceTrainConfig, {"hard_negatives": 0}),
    "losses with other negatives": (AnceTrainConfig, {"select_by": "nll"}),
    "vectors of tokens": (AnceTrainConfig, {"pooling": "tokens"}),
    "projection_dim": (ColbertTrainConfig, {"projection_dim": 256}),
    "normalize": (ColbertTrainConfig, {"normalize": False}),
    "no index": (MdrTrainConfig, {"negatives": "index", "index": None}),
    "no room for a passage": (MlmTrainConfig, {"joint_tokens": 96}),
}


@pytest.mark.parametrize(("kind", "settings"), REFUSED_BY_RECIPES.values(), ids=REFUSED_BY_RECIPES)
def test_what_a_recipe_cannot_do_is_refused(kind: Any, settings: dict[str, Any]) -> None:
    with refusal(ConfigError):
        index = {"index": "i"} if "index" in kind.model_fields else {}
        load_config(kind, overrides={**_PATHS, **index, **settings})
