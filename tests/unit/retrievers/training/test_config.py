"""Configuration of retriever training: settings that cannot work together are refused with a way
out.
"""

from typing import Any

import pytest

from rag.config import load_config
from rag.core.errors import ConfigError
from retrievers.training.config import (
    AnceTrainConfig,
    ColbertTrainConfig,
    DprTrainConfig,
    MdrTrainConfig,
)

_PATHS: dict[str, Any] = {"train_files": ["train.json"], "out": "run"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shared": True, "passage_encoder": "other"}, "set shared=false"),
        ({"normalize": True, "temperature": 1.0}, "hardly learns"),
        ({"lora": 4, "start_share": 0.5}, "start_share mixes weights"),
        ({"select_by": "mrr"}, "select_by=mrr is not measured here"),
        ({"train_files": []}, "train_files"),
        ({"out": None}, "out = None"),
        ({"temprature": 2}, "did you mean 'temperature'"),
        ({"temperature": 0}, "temperature"),
        ({"pooling": "median"}, "pooling"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(DprTrainConfig, overrides={**_PATHS, **settings})


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (AnceTrainConfig, {"depth": 20, "kept": 30}, "raise depth"),
        (AnceTrainConfig, {"depth": 20, "kept": 10, "hard_negatives": 20}, "drawn from kept"),
        (AnceTrainConfig, {"hard_negatives": 0}, "are drawn from kept"),
        (AnceTrainConfig, {"pooling": "tokens"}, "one vector per passage"),
        (ColbertTrainConfig, {"projection_dim": 256}, "projection_dim"),
        (ColbertTrainConfig, {"normalize": False}, "normalize = False"),
        (MdrTrainConfig, {"negatives": "index", "index": None}, "needs an index"),
    ],
)
def test_what_a_recipe_cannot_do_is_refused(
    kind: Any, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(kind, overrides={**_PATHS, "index": "i", **settings})
