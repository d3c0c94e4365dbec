"""Published bi-encoder checkpoints in pickle form become folders of safetensors.

Original DPR checkpoints (`.cp`), ANCE's, and any state dict with the same names are read without running
anything in them, compared name by name with the BERT they claim to be, and written in DPR's Hugging Face
layout. A pickle is a program: it names functions and calls them. torch's weights-only reader knows the few
that make tensors and refuses every other name. Other content of checkpoints (an optimiser's state, a
configuration) is replaced by empty objects.

Source:
    Karpukhin et al. 2020; the names on both sides are those of DPR's code and of transformers'
    `DPRQuestionEncoder` and `DPRContextEncoder`.
"""

from __future__ import annotations

import pickle
import re
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from rag.core.errors import ArtifactError, ConfigError, MismatchedArtifactError
from rag.core.files import check_target, replaced_folder, sha256_file
from rag.core.log import get_logger
from rag.runtime.model_files import embedded_encoder_dir, model_folder, plain_name, read_config
from retrievers.encoders.export import TowerWeights, write_dpr_tower
from retrievers.encoders.head import Linear, linear_of

_TOWERS = {"question_model.": "question_encoder", "ctx_model.": "ctx_encoder"}
_HEAD_SIZE = 64  # of an attention head, in every published BERT
_BERT_VOCABULARY = 30522
_SHOWN = 5
CHECKPOINT_FIELDS = ("model_dict", "optimizer_dict", "scheduler_dict", "offset", "epoch", "encoder_params")
"""The fields of DPR's `CheckpointState`, in order."""

_IGNORED = (
    *("argparse.Namespace", "copyreg._reconstructor", "typing.Any"),
    *("numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar", "numpy.dtype"),
    *(f"builtins.{name}" for name in ("dict", "list", "object", "set", "tuple")),
    *(f"omegaconf.base.{name}" for name in ("ContainerMetadata", "Metadata")),
    *(f"omegaconf.nodes.{name}" for name in ("AnyNode", "StringNode", "IntegerNode", "FloatNode")),
    *("omegaconf.nodes.BooleanNode", "omegaconf.dictconfig.DictConfig", "omegaconf.listconfig.ListConfig"),
)
_DAMAGED = (
    *(ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, MemoryError, RecursionError),
    *(RuntimeError, TypeError, ValueError, NotImplementedError),
    *(pickle.UnpicklingError, struct.error, zipfile.BadZipFile),
)


def import_checkpoint(source: Path, out: Path, *, base: str | Path | None = None) -> Path:
    """Convert a checkpoint to the folder `out`, with both towers in safetensors.

    Args:
        source: file written by `torch.save`.
        out: must not exist, or be empty.
        base: folder or Hugging Face name whose configuration and tokenizer the towers have. By default the
            configuration follows from the weights' shapes, and the tokenizer is that of bert-base-uncased.

    Returns:
        `out`: `rag index --encoder OUT` and transformers' DPR classes load it.

    Raises:
        ArtifactError: `source` is not readable, or holds a program instead of weights.
        MismatchedArtifactError: weights are missing, unknown, or of another shape; they are named.
        ConfigError: `out` holds something, or the towers need a `base`.
    """
    check_target(out, folder=True, is_new=True)
    found = read_pickled(source)
    weights = named_weights(found, source)
    towers = _towers(weights, source)
    named = _named_base(found)
    if named is None and base is None:
        get_logger(__name__).warning(
            "%s names no model: taking the tokenizer of bert-base-uncased; --base changes it", source
        )
    with replaced_folder(out) as folder:
        for role, (state, head) in towers.items():
            config, tokenizer_dir = _base(state, base, named)
            _check(source, role, state, config)
            tower = TowerWeights(config, state, tokenizer_dir, head)
            write_dpr_tower(folder / role, tower, role=role)  # type: ignore[arg-type]  # one of the two
        (folder / "README.md").write_text(_card(source, out, base, named), encoding="utf-8")
    return out


def named_weights(found: Any, source: Path) -> dict[str, torch.Tensor]:
    """The state dict, wherever in the file it is, without `module.` of a parallel wrapper.

    Raises:
        ArtifactError: there is none.
    """
    for key in ("model_dict", "state_dict", "model"):
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
            break
    if not isinstance(found, dict) or not any(isinstance(value, torch.Tensor) for value in found.values()):
        raise ArtifactError(
            f"{source} holds {type(found).__name__}, expected a checkpoint with weights by name",
            hint="give the .cp file of a DPR bi-encoder, or a state dict with the same names",
        )
    odd = [str(name) for name, value in found.items() if not isinstance(value, torch.Tensor)]
    if odd:
        raise MismatchedArtifactError(f"{source}: {_list(odd)} are not tensors")
    return {str(name).removeprefix("module."): value for name, value in found.items()}


def _towers(
    weights: Mapping[str, torch.Tensor], source: Path
) -> dict[str, tuple[dict[str, torch.Tensor], tuple[Linear, ...]]]:
    """Role → weights under BERT's names, and the head: the projection if there is one."""
    extra = [name for name in weights if not name.startswith(tuple(_TOWERS))]
    if extra or not weights:
        what = "a reader, not a bi-encoder" if any("qa_outputs" in name for name in extra) else "unknown"
        raise MismatchedArtifactError(
            f"{source} has weights beside question_model.* and ctx_model.*: {_list(extra)} ({what})",
            hint="only bi-encoders with the names of DPR's code are converted",
        )
    towers: dict[str, Any] = {}
    for prefix, role in _TOWERS.items():
        state: dict[str, torch.Tensor] = {}
        projection: dict[str, torch.Tensor] = {}
        for name, saved in weights.items():
            bare = plain_name(name, prefix)
            if not name.startswith(prefix) or bare.endswith("position_ids") or bare.startswith("pooler."):
                continue
            tensor = saved.float()
            if not bool(torch.isfinite(tensor).all()):
                raise ArtifactError(f"{source}: {name} has numbers that are not finite")
            part = bare.removeprefix("encode_proj.")
            (projection if part != bare else state)[part] = tensor
        if not state:
            raise MismatchedArtifactError(f"{source} has no weights {prefix}*, expected two towers")
        if projection.keys() - {"weight", "bias"} or (projection and "weight" not in projection):
            raise MismatchedArtifactError(f"{source}: unknown projection {_list(list(projection))}")
        head = (linear_of(projection["weight"], projection.get("bias")),) if projection else ()
        towers[role] = (state, head)
    return towers


def _named_base(found: Any) -> str | None:
    """The model from which, according to the checkpoint, training started."""
    parameters = found.get("encoder_params") if isinstance(found, dict) else None
    name = parameters.get("pretrained_model_cfg") if isinstance(parameters, dict) else None
    return name if isinstance(name, str) and name else None


def _base(
    state: Mapping[str, torch.Tensor], base: str | Path | None, named: str | None
) -> tuple[dict[str, Any], Path]:
    """Configuration and tokenizer folder of a tower."""
    if base is not None:
        folder = model_folder(base)
        stated = read_config(folder)
        if stated["model_type"] != "bert":
            raise ConfigError(
                f"{base} is a {stated['model_type']} model, DPR's layout takes bert",
                hint="name the BERT model the checkpoint was trained from",
            )
        return {key: value for key, value in stated.items() if key != "architectures"}, folder
    config = _config_from_shapes(state)
    usual = named is None or named.rpartition("/")[2] == "bert-base-uncased"
    if not usual or config is None or config["vocab_size"] != _BERT_VOCABULARY:
        raise ConfigError(
            f"the checkpoint was trained from {named or 'a model that it does not name'}, "
            "whose vocabulary and configuration it does not hold",
            hint="add --base with that model's folder or Hugging Face name",
        )
    return config, embedded_encoder_dir()  # its vocabulary is that of bert-base-uncased


def _config_from_shapes(state: Mapping[str, torch.Tensor]) -> dict[str, Any] | None:
    """BERT's configuration as far as shapes tell it; None if they are not those of a BERT."""
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    words = shapes.get("embeddings.word_embeddings.weight", ())
    positions = shapes.get("embeddings.position_embeddings.weight", ())
    types = shapes.get("embeddings.token_type_embeddings.weight", ())
    inner = shapes.get("encoder.layer.0.intermediate.dense.weight", ())
    layers = {int(m[1]) for name in shapes if (m := re.match(r"encoder\.layer\.(\d+)\.", name))}
    if not layers or any(len(shape) != 2 for shape in (words, positions, types, inner)):
        return None
    if words[1] % _HEAD_SIZE:
        return None
    return {
        "model_type": "bert",
        "vocab_size": words[0],
        "hidden_size": words[1],
        "num_hidden_layers": max(layers) + 1,
        "num_attention_heads": words[1] // _HEAD_SIZE,
        "intermediate_size": inner[0],
        "max_position_embeddings": positions[0],
        "type_vocab_size": types[0],
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
    }


def _check(source: Path, role: str, state: Mapping[str, torch.Tensor], config: dict[str, Any]) -> None:
    """Compare with a BERT of this configuration, name by name and shape by shape."""
    from transformers import BertConfig, BertModel

    with torch.device("meta"):
        model = BertModel(BertConfig(**config), add_pooling_layer=False)
    expected = {name: tuple(tensor.shape) for name, tensor in model.named_parameters()}
    found = {name: tuple(tensor.shape) for name, tensor in state.items()}
    problems = {
        "missing": sorted(expected.keys() - found.keys()),
        "unknown": sorted(found.keys() - expected.keys()),
        "of another shape": sorted(n for n in expected.keys() & found.keys() if expected[n] != found[n]),
    }
    if any(problems.values()):
        details = "; ".join(f"{kind}: {_list(names)}" for kind, names in problems.items() if names)
        raise MismatchedArtifactError(
            f"{source}: the weights of {role} are not those of its configuration ({details})",
            hint="give the model it was trained from with --base; nothing was written",
        )


def _list(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _card(source: Path, out: Path, base: str | Path | None, named: str | None) -> str:
    return f"""# {out.name}

A dense retriever with two BERT towers, converted from `{source.name}` (sha256 `{sha256_file(source)}`) by
`rag import`. Vectors are the last hidden state of [CLS], compared by inner product; questions are
`[CLS] question [SEP]`, passages `[CLS] title [SEP] text [SEP]`.

Configuration and tokenizer: {Path(str(base)).name if base is not None else "bert-base-uncased"}\
{f" (the checkpoint names {named})" if named else ""}. Pooler weights and position ids, which
are not used, were left out.

The weights stay under the licence of their source; those published with DPR are CC BY-NC 4.0.
"""


class _Ignored:
    """Takes whatever a pickle does to an object, and keeps nothing of it."""

    def __new__(cls, *arguments: Any) -> _Ignored:
        return super().__new__(cls)

    def __init__(self, *arguments: Any) -> None: ...

    def __setstate__(self, state: Any) -> None: ...


def _plain_dict(*arguments: Any) -> dict[Any, Any]:
    """In place of a defaultdict: its items follow."""
    return {}


class _CheckpointState(dict[str, Any]):
    """DPR's named tuple as a dict of its fields; a pickle makes it by `__new__` alone."""

    def __new__(cls, *values: Any) -> _CheckpointState:
        made = super().__new__(cls)
        made.update(zip(CHECKPOINT_FIELDS, values, strict=False))
        return made

    def __init__(self, *values: Any) -> None: ...


def read_pickled(path: Path) -> Any:
    """Read a file of `torch.save`: a zip archive, or the plain stream of torch before 1.6.

    Returns:
        Dicts, lists, plain values and tensors (of an archive, memory-mapped). DPR's `CheckpointState` becomes
        a dict of its fields; configuration objects become empty.

    Raises:
        ArtifactError: no such file, not a file of `torch.save`, damaged, or it names something that weights
            do not need (a program instead of weights).
    """
    known: list[Any] = [(_Ignored, name) for name in _IGNORED]
    known.append((_plain_dict, "collections.defaultdict"))
    known.append((_CheckpointState, "dpr.utils.model_utils.CheckpointState"))
    try:
        with torch.serialization.safe_globals(known):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror or error}") from error
    except _DAMAGED as error:
        found = re.search(r"\bGLOBAL (\S+)", str(error))
        if found is not None:
            raise ArtifactError(
                f"{path} asks for {found[1]}, which weights do not need: refused, and nothing of it was run",
                hint="use a checkpoint from a source you trust; this program reads tensors, dicts and DPR's "
                "CheckpointState",
            ) from error
        why = re.split(r"\.\s", str(error))[0]  # torch goes on to recommend running what is in it
        raise ArtifactError(
            f"{path} is not a file that torch.save wrote, or it is damaged ({type(error).__name__}: {why})",
            hint="copy or download it again",
        ) from error
