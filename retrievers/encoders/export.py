"""Write finished encoders as folders that transformers and sentence-transformers open too.

Two BERT towers that read [CLS] become DPR's layout, which transformers loads:

    DIR/question_encoder/    config.json (model_type dpr), model.safetensors, tokenizer
    DIR/ctx_encoder/         the same

Everything else becomes sentence-transformers' layout (PyLate's, where tokens keep their vectors): `DIR/`
itself where one tower does both, or one such folder per tower under `DIR/query_encoder/` and
`DIR/passage_encoder/`. `rag index --encoder DIR` takes all three. The same weights give the same bytes.
"""

import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import nn

from rag.core.errors import ArtifactError
from rag.core.files import replaced_folder
from retrievers.encoders.head import ACTIVATIONS, Linear
from retrievers.encoders.layout import PAIR
from retrievers.encoders.settings import POOLING_KEYS, EncoderForm

_TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.txt", "vocab.json", "merges.txt", "spiece.model", "sentencepiece.bpe.model"),
)
_POSITION_BUFFER = "embeddings.position_ids"
_MODULES, _PYLATE_DENSE = "sentence_transformers.models", "pylate.models.Dense.Dense"


@dataclass(frozen=True, slots=True)
class TowerWeights:
    """One tower as it leaves training.

    Attributes:
        config: configuration of the bare transformers model, as in its config.json.
        state: weights under the bare model's names (`embeddings.word_embeddings.weight`, …).
        tokenizer_dir: folder whose tokenizer files are copied.
        head: the layers that follow the token vectors, in order.
    """

    config: Mapping[str, Any]
    state: Mapping[str, torch.Tensor]
    tokenizer_dir: Path
    head: tuple[Linear | nn.LayerNorm, ...] = ()


def _is_dpr(form: EncoderForm, towers: Iterable[TowerWeights]) -> bool:
    """Whether DPR's layout says all there is to say."""
    plain = not (form.normalize or form.query_prefix or form.passage_prefix or form.lower_case)
    plain = plain and not form.segments and form.pooling == "cls" and form.layout == PAIR
    return plain and all(
        tower.config.get("model_type") == "bert"
        and len(tower.head) <= 1
        and all(
            isinstance(e, Linear) and e.bias is not None and e.activation == "Identity" for e in tower.head
        )
        for tower in towers
    )


def write_encoder(
    folder: Path, question: TowerWeights, passage: TowerWeights | None, form: EncoderForm
) -> Path:
    """Write a bi-encoder; what `folder` held before is replaced.

    Args:
        question: question tower, or the only one.

    Returns:
        `folder`.
    """
    with replaced_folder(folder) as temporary:
        if passage is None:
            _write_sentence_tower(temporary, question, form)
        elif _is_dpr(form, (question, passage)):
            write_dpr_tower(temporary / "question_encoder", question, role="question_encoder")
            write_dpr_tower(temporary / "ctx_encoder", passage, role="ctx_encoder")
        else:
            _write_sentence_tower(temporary / "query_encoder", question, form)
            _write_sentence_tower(temporary / "passage_encoder", passage, form)
    return folder


def write_dpr_tower(
    folder: Path, tower: TowerWeights, *, role: Literal["question_encoder", "ctx_encoder"]
) -> None:
    """Write one tower as `DPRQuestionEncoder` or `DPRContextEncoder` loads it; the pooler is left out."""
    kept = {name: t for name, t in tower.state.items() if not name.startswith("pooler.")}
    state = {f"{role}.bert_model.{name}": tensor for name, tensor in kept.items()}
    dim = 0
    for layer in tower.head:
        dim = layer.weight.shape[0]
        state[f"{role}.encode_proj.weight"] = layer.weight
        state[f"{role}.encode_proj.bias"] = torch.zeros(dim) if layer.bias is None else layer.bias
    kind = "DPRQuestionEncoder" if role == "question_encoder" else "DPRContextEncoder"
    config = {**tower.config, "model_type": "dpr", "architectures": [kind], "projection_dim": dim}
    _write_model(folder, config, state)
    _copy_tokenizer(tower.tokenizer_dir, folder)


def _write_sentence_tower(folder: Path, tower: TowerWeights, form: EncoderForm) -> None:
    _write_model(folder, tower.config, tower.state)
    _copy_tokenizer(tower.tokenizer_dir, folder)
    _write_json(
        folder / "sentence_bert_config.json",
        {"max_seq_length": form.max_length, "do_lower_case": form.lower_case},
    )
    modules = [("", "Transformer")]
    several = form.interaction is not None

    def add_layers() -> None:
        for layer in tower.head:
            kind = "Dense" if isinstance(layer, Linear) else "LayerNorm"
            modules.append((f"{len(modules)}_{kind}", kind))
            _write_layer(folder / modules[-1][0], layer, on_tokens=form.on_tokens and not several)

    if form.on_tokens:
        add_layers()
    if form.pooling != "tokens":
        modules.append((f"{len(modules)}_Pooling", "Pooling"))
        wanted = "cls" if form.pooling == "pooler" else form.pooling
        modes = {key: how == wanted for key, how in POOLING_KEYS.items()}
        words = next(t for name, t in tower.state.items() if name.endswith("word_embeddings.weight"))
        size = int(tower.config.get("hidden_size") or tower.config.get("dim") or words.shape[1])
        if form.on_tokens and tower.head:
            size = len(tower.head[-1].weight)
        _write_json(
            folder / modules[-1][0] / "config.json",
            {"word_embedding_dimension": size, **modes, "include_prompt": True},
        )
    if not form.on_tokens:
        add_layers()
    if form.normalize and not several:
        modules.append((f"{len(modules)}_Normalize", "Normalize"))
    types = {"Dense": _PYLATE_DENSE} if several else {}
    listed = [
        {"idx": n, "name": str(n), "path": path, "type": types.get(kind, f"{_MODULES}.{kind}")}
        for n, (path, kind) in enumerate(modules)
    ]
    _write_json(folder / "modules.json", listed)
    settings: dict[str, Any] = {
        "prompts": {"query": form.query_prefix, "document": form.passage_prefix},
        "default_prompt_name": None,
        "similarity_fn_name": "MaxSim" if form.pooling == "tokens" else form.similarity,
        "passage_layout": form.layout,
    }
    if form.segments:
        settings["token_types"] = True
    if form.interaction is not None:
        settings |= {**form.interaction.to_pylate(), "document_length": form.max_length}
        settings |= {} if form.normalize else {"normalize": False}
    _write_json(folder / "config_sentence_transformers.json", settings)


def _write_layer(folder: Path, layer: Linear | nn.LayerNorm, *, on_tokens: bool) -> None:
    """A Dense or LayerNorm module."""
    part = "linear" if isinstance(layer, Linear) else "norm"
    state = {f"{part}.weight": layer.weight} | ({} if layer.bias is None else {f"{part}.bias": layer.bias})
    config: dict[str, Any] = {"dimension": len(layer.weight)}
    if isinstance(layer, Linear):
        activation = ACTIVATIONS[layer.activation]
        config = {
            "in_features": layer.weight.shape[1],
            "out_features": layer.weight.shape[0],
            "bias": layer.bias is not None,
            "activation_function": f"{activation.__module__}.{activation.__name__}",
        }
        if on_tokens:
            config |= dict.fromkeys(("module_input_name", "module_output_name"), "token_embeddings")
    _write_model(folder, config, state)


def _write_model(folder: Path, config: Mapping[str, Any], state: Mapping[str, torch.Tensor]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    kept = {
        name: tensor.detach().float().cpu().contiguous()
        for name, tensor in sorted(state.items())
        if tensor.is_floating_point() and not name.endswith(_POSITION_BUFFER)
    }
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    dropped = ("_name_or_path", "dtype", "torch_dtype", "transformers_version")
    _write_json(folder / "config.json", {k: v for k, v in config.items() if k not in dropped})


def _write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def _copy_tokenizer(source: Path, folder: Path) -> None:
    """The files as they are: a tokenizer that was loaded and saved again need not be the same."""
    found = [source / name for name in _TOKENIZER_FILES if (source / name).is_file()]
    if not any(path.name in ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model") for path in found):
        raise ArtifactError(f"{source} has no tokenizer files", hint="give a whole model folder")
    for path in found:
        shutil.copyfile(path, folder / path.name)
