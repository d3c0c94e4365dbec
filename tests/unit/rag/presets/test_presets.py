"""Presets: each can be loaded by its recipe alone."""

import pytest

from rag.config import Config, load_config, preset_names
from rag.core.errors import ConfigError
from rag.recipes import RECIPES
from readers.extractive.training.config import ReaderTrainConfig
from readers.generative.training.config import GeneratorTrainConfig
from retrievers.training.config import DprTrainConfig

_PATHS = {"train": [{"questions": "train.json", "retrieved": "negatives.json"}], "out": "run"}
_DPR_PATHS = {"train_files": ["train.json"], "out": "run"}


@pytest.mark.parametrize("name", preset_names("reader"))
def test_reader_presets(name: str) -> None:
    config = load_config(ReaderTrainConfig, name, overrides=_PATHS)
    assert config.name
    if name == "dpr-reader-nq":  # as published
        assert (config.optim.learning_rate, config.optim.schedule, config.stages[0].negatives) == (
            1e-5,
            "constant",
            23,
        )
        assert (config.objective.spans, config.objective.normalisation) == ("passage-marginal", "passage")


@pytest.mark.parametrize("name", preset_names("generator"))
def test_generator_presets(name: str) -> None:
    config = load_config(GeneratorTrainConfig, name, overrides={"train_files": ["train.json"], "out": "run"})
    assert config.name == name
    if "nq" in name:  # as published: 64 questions a step, 100 passages of 250 tokens, answers alone
        [stage] = config.stages
        assert (stage.steps, stage.batch_size * config.optim.accumulate, stage.passages) == (15000, 64, 100)
        assert (config.optim.learning_rate, config.optim.warmup_steps, stage.ensure_answer) == (
            5e-5,
            1000,
            False,
        )
    else:
        assert config.model is None
        assert config.no_answer


def test_a_misspelt_preset_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'reader-squad'"):
        load_config(ReaderTrainConfig, "reader-sqad", overrides=_PATHS)


def test_every_preset_names_its_recipe() -> None:
    by_recipe = {recipe: preset_names(recipe) for recipe in RECIPES}
    assert sorted(name for names in by_recipe.values() for name in names) == preset_names()
    assert {"dpr-nq", "dpr-nq-round2", "dpr-small", "dpr-hard-small", "dpr-round2-small"} == set(
        by_recipe["dpr"]
    )


@pytest.mark.parametrize("name", preset_names("dpr"))
def test_dpr_presets(name: str) -> None:
    config = load_config(DprTrainConfig, name, overrides=_DPR_PATHS)
    assert config.name == name
    if "nq" in name:  # as published
        assert (config.data.batch_size, config.optim.epochs, config.optim.learning_rate) == (128, 40, 2e-5)
        assert (config.optim.warmup_steps, config.optim.clip_norm) == (1237, 2.0)
        assert (config.model.dropout, config.model.shared) == (0.1, False)
    else:
        assert config.model.question_encoder is None
        assert config.model.passage_tokens <= 128


@pytest.mark.parametrize(
    ("kind", "name", "paths", "recipe"),
    [(DprTrainConfig, "reader-squad", _DPR_PATHS, "dpr"), (ReaderTrainConfig, "dpr-small", _PATHS, "reader")],
)
def test_a_preset_of_another_recipe_is_refused(
    kind: type[Config], name: str, paths: dict[str, object], recipe: str
) -> None:
    with pytest.raises(ConfigError, match=f"expected one of '{recipe}'") as caught:
        load_config(kind, name, overrides=paths)
    assert all(preset in str(caught.value) for preset in preset_names(recipe))
