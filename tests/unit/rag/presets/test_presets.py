"""Presets: each can be loaded, and the shipped reader's is the recipe its code defaults to."""

import pytest

from rag.config import load_config, preset_names
from rag.core.errors import ConfigError
from readers.training.config import ReaderTrainConfig

_PATHS = {"train_file": "train.json", "negatives_file": "negatives.json", "out": "run"}


def test_the_readers_preset_is_the_default_recipe() -> None:
    assert "reader-squad" in preset_names()
    assert load_config(ReaderTrainConfig, "reader-squad", overrides=_PATHS) == ReaderTrainConfig(**_PATHS)


def test_a_misspelt_preset_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'reader-squad'"):
        load_config(ReaderTrainConfig, "reader-sqad", overrides=_PATHS)
