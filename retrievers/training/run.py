"""What the recipes of retriever training share: loading the model, exporting it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from rag.core.files import atomic_write_json
from rag.runtime.hardware import resolve_precision
from rag.runtime.model_files import model_folder, read_config, tower_folders
from rag.training.fit import FitResult
from rag.training.precision import MasterWeights
from rag.training.run_log import read_metrics
from retrievers.encoders.card import model_card
from retrievers.encoders.export import TowerWeights, write_encoder
from retrievers.encoders.head import find_weight, read_weight
from retrievers.encoders.settings import EncoderForm, read_settings
from retrievers.encoders.tower import TowerModel
from retrievers.training.config import RetrieverTrainConfig
from retrievers.training.model import BiEncoderModel


def load_model(
    config: RetrieverTrainConfig, device: str, *, freeze_passages: bool = False
) -> tuple[BiEncoderModel, MasterWeights]:
    """The model in its compute dtype, and fp32 copies of what is trained: all but a frozen side."""
    model = BiEncoderModel.from_folder(**dict(config.model), seed=config.run.seed, device=device)
    if freeze_passages:
        model.freeze("passage")
    full = {
        name: tensor.detach().clone() for name, tensor in model.named_parameters() if tensor.requires_grad
    }
    model.to_compute(resolve_precision(config.optim.precision, device))
    return model, MasterWeights(model, full)


def encoder_form(config: RetrieverTrainConfig, model: BiEncoderModel) -> EncoderForm:
    """How the finished encoder reads texts: as in training, longer ones where its start reads longer ones."""
    settings = model.settings.passage
    source = config.model.passage_encoder or config.model.question_encoder
    started = read_settings(tower_folders(model_folder(source))[0])
    said = started.max_length if started.kind == "sentence-transformers" else 0
    length = max(said, config.query_tokens)
    return replace(settings, max_length=min(length, settings.max_length_limit()))


def export_model(
    folder: Path,
    model: BiEncoderModel,
    weights: Mapping[str, Tensor],
    form: EncoderForm,
    *,
    card: str = "",
    only: Literal["question"] | None = None,
) -> Path:
    """Write the encoder with these weights; see `write_encoder` for the layouts.

    Args:
        folder: to be written; what it held is replaced.
        model: gives configuration, tokenizers and the weights that are not in `weights`.
        weights: fp32, by the model's parameter names; empty takes the model's present ones.
        only: write this tower alone, as an encoder of its own.
    """
    with torch.no_grad():
        chosen = list(model.towers())[: 1 if only else 2]
        towers = [_tower_weights(tower, weights, prefix) for prefix, tower in chosen]
    return write_encoder(folder, towers[0], towers[1] if len(towers) > 1 else None, form, card=card)


def _tower_weights(tower: TowerModel, weights: Mapping[str, Tensor], prefix: str) -> TowerWeights:
    stated = read_config(tower.folder)  # as the folder states it: dropout may be another in training
    config: dict[str, Any] = {k: v for k, v in stated.items() if k != "projection_dim"}
    if config["model_type"] == "dpr":
        config["model_type"] = "bert"
    config["architectures"] = [type(tower.encoder).__name__]
    pooler = find_weight(tower.folder, "pooler.dense.weight")  # unused, but without it transformers warns
    unused = {}
    for name in () if pooler is None else (pooler, pooler.removesuffix("weight") + "bias"):
        unused["pooler.dense." + name.rpartition(".")[2]] = read_weight(tower.folder, name)
    head = copy.deepcopy(tower.head)
    head.load_state_dict(tower.bare("head", weights, prefix))
    state = {**unused, **tower.bare("encoder", weights, prefix)}
    return TowerWeights(config, state, tower.folder, tuple(head.layers))  # type: ignore[arg-type]


def finish_run(
    config: RetrieverTrainConfig,
    model: BiEncoderModel,
    result: FitResult,
    form: EncoderForm,
    described: Mapping[str, object],
    *,
    exported: BiEncoderModel | None = None,
) -> Path:
    """Write `figures.json` and the finished encoder with its model card; returns the encoder's folder.

    Args:
        described: what the card says of the data and the run.
        exported: the model that gives what was not trained, if it is not `model`.
    """
    figures = final_figures(config, result.chosen_step)
    atomic_write_json(config.out / "figures.json", {"step": result.chosen_step, "figures": figures})
    card = model_card(config, form, data=described, figures=figures)
    return export_model(config.out / "encoder", exported or model, result.weights, form, card=card)


def final_figures(config: Any, step: int) -> dict[str, float]:
    """What was measured on held-out questions at `step` of the run in `config.out`, from metrics.jsonl."""
    found: dict[str, float] = {}
    for record in read_metrics(config.out / "metrics.jsonl"):
        if record.get("step") == step:
            found |= {k.removeprefix("eval/"): v for k, v in record.items() if k.startswith("eval/")}
    return found
