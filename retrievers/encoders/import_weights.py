"""Checkpoints of DPR's code become folders of safetensors.

A pickle is a program: it names functions and calls them. torch's weights-only reader knows the few that make
tensors and refuses every other name.
"""

from __future__ import annotations

import pickle
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from rag.core.errors import ArtifactError, ConfigError, MismatchedArtifactError
from rag.core.files import atomic_write_json, check_target, replaced_folder
from rag.runtime.model_files import model_folder, plain_name, read_config, tokenizer_file

CHECKPOINT_FIELDS = ("model_dict", "optimizer_dict", "scheduler_dict", "offset", "epoch", "encoder_params")
"""The fields of DPR's `CheckpointState`, in order."""
_TOWERS = {"question_model.": "question_encoder", "ctx_model.": "ctx_encoder"}
_DAMAGED = (*(ArithmeticError, AttributeError, EOFError, LookupError), *(RuntimeError, TypeError, ValueError))


def import_checkpoint(source: Path, out: Path, *, base: str | Path | None = None) -> Path:
    """Convert a checkpoint of DPR's code to the folder `out`, which transformers' DPR classes open too.

    Args:
        source: file written by `torch.save`.
        out: must not exist, or be empty.
        base: folder or Hugging Face name of the BERT that training started from, whose configuration and
            tokenizer the towers get; by default bert-base-uncased's, with the size of the weights.

    Raises:
        ArtifactError: `source` is not readable, or holds a program instead of weights.
        MismatchedArtifactError: weights are missing, unknown, or of another shape; they are named.
        ConfigError: `out` holds something, or the towers need a `base`.

    Source:
        Karpukhin et al. 2020; the names on both sides are those of DPR's code and of transformers'
        `DPRQuestionEncoder` and `DPRContextEncoder`.
    """
    check_target(out, folder=True, is_new=True)
    weights = _named_weights(source)
    extra = [name for name in weights if not name.startswith(tuple(_TOWERS))]
    if extra or not all(any(name.startswith(prefix) for name in weights) for prefix in _TOWERS):
        raise MismatchedArtifactError(
            f"{source} has the weights {', '.join(extra[:5]) or 'of one tower'}, expected question_model.* "
            "and ctx_model.* alone",
            hint="only bi-encoders with the names of DPR's code are converted",
        )
    with replaced_folder(out) as folder:
        for prefix, role in _TOWERS.items():
            state: dict[str, torch.Tensor] = {}
            projection: dict[str, torch.Tensor] = {}
            for name, tensor in weights.items():
                bare = plain_name(name, prefix)
                if name.startswith(prefix) and not bare.startswith("pooler.") and "position_ids" not in bare:
                    (projection if bare.startswith("encode_proj.") else state)[bare] = (
                        tensor.float().contiguous()
                    )
            given = (
                base if base is not None else "all-MiniLM-L6-v2"
            )  # whose vocabulary is bert-base-uncased's
            config = {k: v for k, v in read_config(model_folder(given)).items() if k != "architectures"}
            if base is None:
                config |= _sizes(state, source)
            _check(source, role, state, config)
            dim = len(projection["encode_proj.weight"]) if projection else 0
            kind = "DPRQuestionEncoder" if role == "question_encoder" else "DPRContextEncoder"
            config |= {"model_type": "dpr", "architectures": [kind], "projection_dim": dim}
            (folder / role).mkdir()
            atomic_write_json(folder / role / "config.json", config)
            shutil.copyfile(tokenizer_file(model_folder(given)), folder / role / "tokenizer.json")
            tensors = {f"{role}.bert_model.{name}": tensor for name, tensor in state.items()}
            tensors |= {f"{role}.{name}": tensor for name, tensor in projection.items()}
            save_file(tensors, folder / role / "model.safetensors", {"format": "pt"})
    return out


def _sizes(state: Mapping[str, torch.Tensor], source: Path) -> dict[str, Any]:
    """The configuration's numbers that shapes tell; heads have 64 numbers in every published BERT."""
    words = state.get("embeddings.word_embeddings.weight", torch.empty(0, 0))
    layers = {int(found[1]) for name in state if (found := re.match(r"encoder\.layer\.(\d+)\.", name))}
    inner = state.get("encoder.layer.0.intermediate.dense.weight")
    if words.shape[0] != 30522 or words.shape[1] % 64 or inner is None:
        raise ConfigError(
            f"{source} has {words.shape[0]} word embeddings, expected the 30522 of bert-base-uncased",
            hint="add --base with the folder or Hugging Face name of the model that it was trained from",
        )
    return {
        "hidden_size": words.shape[1], "num_attention_heads": words.shape[1] // 64,
        "num_hidden_layers": max(layers) + 1, "intermediate_size": inner.shape[0],
    }  # fmt: skip


def _check(source: Path, role: str, state: Mapping[str, torch.Tensor], config: Mapping[str, Any]) -> None:
    """Compare with a BERT of this configuration, name by name and shape by shape."""
    from transformers import BertConfig, BertModel

    if config["model_type"] != "bert":
        raise ConfigError(f"the base is a {config['model_type']} model, expected a BERT")
    with torch.device("meta"):
        model = BertModel(BertConfig(**config), add_pooling_layer=False)
    expected = {(name, tuple(tensor.shape)) for name, tensor in model.named_parameters()}
    present = {(name, tuple(tensor.shape)) for name, tensor in state.items()}
    if odd := sorted(expected ^ present):
        raise MismatchedArtifactError(
            f"{source}: {len(odd)} weights of {role} are missing, unknown or of another shape, "
            f"as {odd[0][0]} {odd[0][1]}",
            hint="give the model it was trained from with --base; nothing was written",
        )


class _CheckpointState(dict[str, Any]):
    """DPR's named tuple as a dict of its fields; a pickle makes it by `__new__` alone."""

    def __new__(cls, *values: Any) -> _CheckpointState:
        made = super().__new__(cls)
        made.update(zip(CHECKPOINT_FIELDS, values, strict=False))
        return made

    def __init__(self, *values: Any) -> None: ...


def _named_weights(path: Path) -> dict[str, torch.Tensor]:
    """The state dict in a file of `torch.save`, without `module.` of a parallel wrapper.

    Raises:
        ArtifactError: no such file, damaged, without weights, or a program instead of weights.
    """
    allowed: list[Any] = [(_CheckpointState, "dpr.utils.model_utils.CheckpointState")]
    try:
        with torch.serialization.safe_globals(allowed):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror or error}") from error
    except (*_DAMAGED, pickle.UnpicklingError) as error:
        named = re.search(r"\bGLOBAL (\S+)", str(error))
        why = f"it asks for {named[1]}, which weights do not need" if named else type(error).__name__
        raise ArtifactError(
            f"{path} is not read, and nothing of it was run: {why}",
            hint="copy it again, or take a checkpoint that holds tensors alone",
        ) from error
    for key in ("model_dict", "state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not all(isinstance(v, torch.Tensor) for v in content.values()):
        raise ArtifactError(f"{path} holds {type(content).__name__}, expected weights by name")
    return {str(name).removeprefix("module."): value for name, value in content.items()}
