"""Ranges of a reader's activations, measured on text, for inference in int8."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from rag.core.files import atomic_path, sha256_file
from rag.runtime.fast.int8_bert import RangeRecorder
from readers.extractive.fast import FastSpanModel
from readers.extractive.files import load_parts
from readers.extractive.reader import ExtractiveReader
from readers.extractive.settings import read_manifest
from readers.training.data import Example

__all__ = ["RANGES_FILE", "add_ranges"]

RANGES_FILE = "ranges.safetensors"
_PASSAGES = 2


def add_ranges(folder: Path, examples: Sequence[Example]) -> bool:
    """Measure the ranges of a finished reader's activations and put them beside its weights.

    Args:
        folder: a finished reader.
        examples: read with their first passages; a few hundred are enough, none of them from a test set.

    Returns:
        Whether there are ranges now; there are none for a network that int8 inference does not cover.
    """
    parts = load_parts(folder)
    if not FastSpanModel.supports(parts.model):
        return False
    encoder: Any = parts.model.encoder
    recorder = RangeRecorder(encoder.state_dict(), encoder.config)
    model = FastSpanModel(parts.model, "fp32")
    model.encoder = recorder
    reader = ExtractiveReader(model, parts.tokenizer, parts.settings, name=parts.name)
    passages = [[candidate.passage for candidate in example.candidates[:_PASSAGES]] for example in examples]
    reader.score([example.question.text for example in examples], passages)
    reader.close()
    path = folder / RANGES_FILE
    with atomic_path(path) as temporary:
        save_file({name: tensor.clone() for name, tensor in recorder.ranges.items()}, temporary)
        temporary.chmod(0o644)
    changes = {"ranges_file": RANGES_FILE, "ranges_sha256": sha256_file(path)}
    read_manifest(folder).model_copy(update=changes).save(folder)
    return True
