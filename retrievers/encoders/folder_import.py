"""Model folders with pickled weights become the same folders with their weights in safetensors.

transformers would convert such a folder only as far as the class that reads it knows its weights: a
projection behind the encoder, or DPR's passage tower, would be lost without an error. Here every tensor keeps
its name.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from rag.core.errors import ArtifactError, ConfigError, IncompleteArtifactError
from rag.core.files import atomic_path, atomic_write_json, check_target, read_json
from rag.runtime.model_files import read_config
from retrievers.encoders.checkpoint_import import named_weights, read_pickled

_PICKLED, _PLAIN = "pytorch_model", "model"
_INDEX = f"{_PICKLED}.bin.index.json"
_COPIED = ("*.json", "*.txt", "*.model", "*.metadata", "model*.safetensors")


def import_folder(source: Path, out: Path) -> Path:
    """Write a folder of transformers or sentence-transformers anew, with its weights in safetensors.

    Configurations and tokenizers are copied as they are, also those of modules in folders below. Code, and
    weights for other frameworks, are left out.

    Args:
        source: folder with `pytorch_model.bin`, or its parts and their index.
        out: must not exist, or be empty.

    Returns:
        `out`, which opens as an encoder, a reader or a re-ranker, whatever `source` is.

    Raises:
        ArtifactError: there is nothing to convert, it is damaged, or it holds a program instead of weights.
        IncompleteArtifactError: a part of the weights is missing.
        ConfigError: `out` holds something, or the weights are in safetensors already.
    """
    check_target(out, folder=True, is_new=True)
    if (source / "config.json").is_file() and not (source / "modules.json").is_file():
        read_config(source)  # a damaged one is named; old sentence-transformers wrote another kind of file
    folders = [
        source,
        *(path for path in sorted(source.rglob("*")) if path.is_dir() and _is_part(path, source)),
    ]
    pickled = [folder for folder in folders if any(folder.glob(f"{_PICKLED}*.bin")) and not _is_plain(folder)]
    if not pickled:
        if any(map(_is_plain, folders)):
            raise ConfigError(
                f"{source} has its weights in safetensors: there is nothing to convert",
                hint=f"it opens as it is: rag index … --encoder {source}, or rag ask … --reader {source}",
            )
        raise ArtifactError(
            f"{source}: no weights to convert",
            hint=f"expected a folder with config.json and {_PICKLED}.bin or of RAG, a .cp file of DPR, or "
            "a GGUF file",
        )
    with atomic_path(out) as temporary:
        for folder in folders:
            place = temporary / folder.relative_to(source)
            place.mkdir(parents=True)
            for file in (file for pattern in _COPIED for file in sorted(folder.glob(pattern))):
                if file.name != _INDEX:
                    shutil.copyfile(file, place / file.name)
            if folder in pickled:
                _convert(folder, place)
    return out


def _convert(folder: Path, place: Path) -> None:
    """Write the pickled weights of one folder into `place`, part by part."""
    index = folder / _INDEX
    parts = (
        {str(name): file for name, file in read_json(index)["weight_map"].items()} if index.is_file() else {}
    )
    names = sorted(set(parts.values())) or [f"{_PICKLED}.bin"]
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise IncompleteArtifactError(
            f"{folder}: {missing[0]} is missing, {len(names) - len(missing)} of {len(names)} parts are there",
            hint="copy or download the whole folder again",
        )
    for name in names:
        save_file(_tensors(folder / name), place / _renamed(name), {"format": "pt"})
    if parts:
        weight_map = {name: _renamed(file) for name, file in parts.items()}
        atomic_write_json(
            place / f"{_PLAIN}.safetensors.index.json", {"metadata": {}, "weight_map": weight_map}
        )


def _tensors(file: Path) -> dict[str, torch.Tensor]:
    """The tensors of a file by name, each with memory of its own."""
    return {
        name: tensor.clone().contiguous() for name, tensor in named_weights(read_pickled(file), file).items()
    }


def _renamed(name: str) -> str:
    """`pytorch_model-00001-of-00002.bin` → `model-00001-of-00002.safetensors`."""
    return name.replace(_PICKLED, _PLAIN, 1).removesuffix(".bin") + ".safetensors"


def _is_plain(folder: Path) -> bool:
    return any(folder.glob(f"{_PLAIN}*.safetensors"))


def _is_part(folder: Path, source: Path) -> bool:
    """Whether a folder below belongs to the model: visible, with a configuration of its own."""
    is_visible = not any(part.startswith(".") for part in folder.relative_to(source).parts)
    return is_visible and (folder / "config.json").is_file()
