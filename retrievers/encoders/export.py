"""Write finished encoders as folders that sentence-transformers opens too.

`DIR/` itself where one tower does both, or one such folder per tower under `DIR/query_encoder/` and
`DIR/passage_encoder/`. Encoders with one vector per token become a `MultiVectorEncoder`. The same
weights give the same bytes.
"""

import copy
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from safetensors.torch import save_file
from torch import Tensor, nn

from rag.core.files import atomic_path, atomic_write_json
from rag.runtime.model_files import TOWER_NAMES, copy_tokenizer, read_config
from retrievers.encoders.folders import transformer_settings, write_modules
from retrievers.encoders.head import Head, Linear
from retrievers.encoders.settings import EncoderSettings
from retrievers.encoders.tokenization import marked_tokenizer
from retrievers.encoders.tower import Tower

_TOKENIZER_FILES = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
)
_DROPPED = ("_name_or_path", "dtype", "torch_dtype", "transformers_version", "projection_dim")
_CLASSES = {
    "Transformer": "base.modules.transformer.Transformer",
    "Dense": "base.modules.dense.Dense",
    "Normalize": "base.modules.normalize.Normalize",
    "Pooling": "sentence_transformer.modules.pooling.Pooling",
    "LayerNorm": "sentence_transformer.modules.layer_norm.LayerNorm",
    "MultiVectorMask": "multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask",
}


def write_encoder(
    folder: Path,
    question: Tower,
    passage: Tower | None,
    weights: Mapping[str, Tensor],
    settings: EncoderSettings,
) -> Path:
    """Write a bi-encoder into `folder`, which is returned; what it held before is replaced.

    Args:
        question: question tower, or the only one.
        weights: fp32 by the names of the model's parameters (`question.encoder.…`); others stay as
            they are.
        settings: how the finished encoder reads texts.
    """
    with atomic_path(folder, folder=True) as temporary:
        of_passages, of_questions = TOWER_NAMES[0]
        if passage is None:
            _write_tower(temporary, question, "question.", weights, settings)
        else:
            _write_tower(temporary / of_questions, question, "question.", weights, settings)
            _write_tower(temporary / of_passages, passage, "passage.", weights, settings)
    return folder


def _write_tower(
    folder: Path,
    tower: Tower,
    prefix: str,
    weights: Mapping[str, Tensor],
    settings: EncoderSettings,
) -> None:
    _write_transformer(folder, tower, settings)
    _write_weights(folder, tower.bare("encoder", weights, prefix))
    head = copy.deepcopy(tower.head)
    head.load_state_dict(tower.bare("head", weights, prefix))
    modules = {"": _CLASSES["Transformer"]}
    for kind, layer, config in _head_modules(head, settings):
        path = f"{len(modules)}_{kind}"
        modules[path] = _CLASSES[kind]
        atomic_write_json(folder / path / "config.json", config)
        if layer is not None:
            part = "linear" if isinstance(layer, Linear) else "norm"
            state = {f"{part}.{name}": tensor for name, tensor in layer.state_dict().items()}
            _write_weights(folder / path, state)
    kind = "SentenceTransformer" if settings.interaction is None else "MultiVectorEncoder"
    library: dict[str, Any] = {
        "model_type": kind,
        "prompts": {"query": settings.query_prefix, "document": settings.passage_prefix},
        "default_prompt_name": None,
        "similarity_fn_name": settings.similarity,
        "passage_layout": settings.layout,
    }
    if settings.straight_apostrophes:
        library["straight_apostrophes"] = True
    write_modules(folder, modules, library)


def _write_transformer(folder: Path, tower: Tower, settings: EncoderSettings) -> None:
    """Configuration and tokenizer of the network, and how it reads texts."""
    source = tower.settings.weights_dir
    interaction = settings.interaction
    config = read_config(source)  # as the folder states it: dropout may be another in training
    if config["model_type"] == "dpr":
        config["model_type"] = "bert"
    config["architectures"] = [type(tower.encoder).__name__]
    for name in _DROPPED:
        config.pop(name, None)
    atomic_write_json(folder / "config.json", config)
    if interaction is not None and interaction.marked:
        marked_tokenizer(settings).save(str(folder / "tokenizer.json"))
    else:
        copy_tokenizer(source, folder / "tokenizer.json")
    for name in _TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    lowers = bool(transformer_settings(source).get("do_lower_case"))
    reading: dict[str, Any] = {"max_seq_length": settings.max_length, "do_lower_case": lowers}
    if interaction is not None:
        length = interaction.query_tokens
        reading |= {"document_length": settings.max_length, "query_length": length}
        if interaction.expanded:
            attend = interaction.attended
            reading["query_expansion"] = {"strategy": "fixed", "attend": attend, "length": length}
    atomic_write_json(folder / "sentence_bert_config.json", reading)


def _head_modules(
    head: Head, settings: EncoderSettings
) -> Iterator[tuple[str, nn.Module | None, dict[str, Any]]]:
    """The modules behind the network, in order: kind, layer if it has weights, configuration."""
    is_late = settings.interaction is not None
    on_tokens = settings.on_tokens or is_late
    per_token = {"module_input_name": "token_embeddings"} if on_tokens else {}
    if not on_tokens:
        yield "Pooling", None, {"embedding_dimension": head.size, "pooling_mode": head.pooling}
    for layer in cast(Iterable[Linear | nn.LayerNorm], head.layers):
        if isinstance(layer, Linear):
            activation = getattr(nn, layer.activation)
            config = {
                "in_features": layer.in_features,
                "out_features": layer.out_features,
                "bias": layer.bias is not None,
                "activation_function": f"{activation.__module__}.{activation.__name__}",
            }
            yield "Dense", layer, {**config, **per_token}
        else:
            yield "LayerNorm", layer, {"dimension": layer.weight.shape[0]}
    if settings.interaction is not None:
        skipped = list(settings.interaction.skipped)
        yield "MultiVectorMask", None, {"skiplist_words": skipped, "skiplist_tasks": ["document"]}
    elif on_tokens:
        yield "Pooling", None, {"embedding_dimension": head.dim, "pooling_mode": head.pooling}
    if settings.normalize:
        yield "Normalize", None, per_token if is_late else {}


def _write_weights(folder: Path, state: Mapping[str, Tensor]) -> None:
    floats = {name: tensor for name, tensor in sorted(state.items()) if tensor.is_floating_point()}
    stored = {name: tensor.detach().float().cpu().contiguous() for name, tensor in floats.items()}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
