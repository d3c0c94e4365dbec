"""Train a retriever with one vector per token (ColBERT), from labelled passages or towards float targets."""

from functools import partial
from pathlib import Path
from typing import Any

from rag.core.errors import ConfigError
from rag.runtime.model_files import model_folder, tower_folders
from retrievers.encoders.settings import read_settings
from retrievers.examples.batches import Epochs
from retrievers.examples.data import TrainingSet
from retrievers.training.distill import target_batches
from retrievers.training.losses import Objective, in_batch_objective, pairwise_objective
from retrievers.training.recipe import Batches, contrastive_batches, train_bi_encoder
from retrievers.training.recipe_configs import ColbertModelConfig, ColbertTrainConfig
from retrievers.training.target_losses import kl_loss, target_objective


def train_colbert(config: ColbertTrainConfig) -> Path:
    """Train a retriever as `config` says; see `train_model`. The finished encoder is a folder of
    sentence-transformers' `MultiVectorEncoder`.

    Score of question and passage is MaxSim of their token vectors; questions are filled up with masks.

    Source:
        Khattab and Zaharia 2020, "ColBERT", section 3.3; for n-way softmax and distillation Santhanam et al.
        2022, "ColBERTv2: Effective and Efficient Retrieval via Lightweight Late Interaction", section 3.2.

    Raises:
        ConfigError: the encoder to start from has token vectors of any length, and indexes need unit vectors.
    """
    _check_start(config.model)
    objective = _objective(config)
    return train_bi_encoder(config, make_batches=_batches, objective=objective, held_out_objective=objective)


def _objective(config: ColbertTrainConfig) -> Objective:
    if config.loss == "kl":
        loss = partial(kl_loss, target_temperature=config.target_temperature)
        return target_objective(loss, nll_weight=config.nll_weight)
    return pairwise_objective if config.loss == "pairwise" else in_batch_objective


def _check_start(model: ColbertModelConfig) -> None:
    for name in dict.fromkeys((model.question_encoder, model.passage_encoder or model.question_encoder)):
        for folder in dict.fromkeys(tower_folders(model_folder(name))):
            found = read_settings(folder)
            if model.normalize == "auto" and found.pooling == "tokens" and not found.normalize:
                raise ConfigError(
                    f"{folder} makes token vectors of any length (normalize: false), and search by MaxSim "
                    "needs unit vectors",
                    hint="set normalize=true to train it with them, or start from another encoder",
                )


def _batches(config: Any, data: TrainingSet, examples: Epochs) -> Batches:
    return (target_batches if config.loss == "kl" else contrastive_batches)(config, data, examples)
