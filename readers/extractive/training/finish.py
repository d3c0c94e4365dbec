"""After the last step: export, choose the ranking and calibrate on held-out questions, score, describe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
import torch

from rag.core.files import replaced_folder
from rag.data.examples import Example
from rag.data.text import f1
from rag.runtime.seeds import generator
from rag.training.card import Card
from readers.extractive.model import SpanModel
from readers.extractive.reader import ExtractiveReader
from readers.extractive.settings import ReaderManifest, ReaderSettings
from readers.extractive.training.calibrate import tune
from readers.extractive.training.config import ReaderTrainConfig
from readers.extractive.training.data import is_right, read_set
from readers.extractive.training.export import add_ranges, export_int8, export_trained
from readers.manifest import load_manifest
from readers.protocols import Reader

_CHUNK = 256
_RETRIEVED = 5  # retrieved passages that are read for a question without gold ones
RANGE_QUESTIONS = 200  # on whose passages the ranges of activations are measured


def finish(
    config: ReaderTrainConfig,
    model: SpanModel,
    weights: dict[str, torch.Tensor],
    tokenizer: Any,
    held_out: Mapping[str, Sequence[Example]],
    settings: ReaderSettings,
    learnt: Sequence[Example],
) -> dict[str, Any]:
    """Write `trained/` and `reader/` into `config.out`.

    Args:
        weights: the trained fp32 weights by the model's names.
        held_out: held-out questions by set.
        settings: from which the tuning of ranking and confidence starts.
        learnt: examples of the training, to measure ranges of activations on.

    Returns:
        Figures by name.
    """
    export_trained(config.out / "trained", model, weights, tokenizer)
    sets = _serving(config, held_out)
    figures: dict[str, Any] = {}
    with replaced_folder(config.out / "reader") as folder:  # it appears only with ranking and confidence
        export_int8(folder, model, weights, tokenizer, name=config.name, settings=settings)
        manifest = add_ranges(folder, learnt)
        with closing(ExtractiveReader.load(folder, precision=config.precision)) as reader:
            for label, examples in held_out.items():
                if shown := draw(examples, config.validation_questions, config, 4):
                    figures[f"gold passages, held-out {label}"] = reading_scores(reader, shown)
            if sets:
                tuned = tune(reader, sets)
                figures["retrieved, held-out"] = tuned.figures
                changes = {"settings": tuned.settings, "calibration": tuned.calibration}
                manifest.model_copy(update=changes).save(folder)
    return figures


def reader_card(config: ReaderTrainConfig) -> Card:
    """The model card of the finished reader."""
    manifest = partial(load_manifest, ReaderManifest, config.out / "reader")
    return Card("readers.extractive.training", "reader.md", {"load_manifest": manifest})


def _serving(
    config: ReaderTrainConfig, held_out: Mapping[str, Sequence[Example]]
) -> dict[str, Sequence[Example]]:
    """By set, held-out questions with what a retriever found for them and nothing else."""
    found: dict[str, Sequence[Example]] = {}
    for one in (*config.train, *config.calibrate):
        chosen = {example.id for example in held_out.get(one.label, ())}
        is_learnt = one in config.train
        if is_learnt and not (chosen and one.retrieved):
            continue
        examples = read_set(one, serving=True)
        examples = [e for e in examples if e.candidates and (e.id in chosen or not is_learnt)]
        if examples:
            found[one.label] = draw(examples, config.calibration_questions, config, 5)
    return found


def draw(examples: Sequence[Example], count: int, config: ReaderTrainConfig, key: int) -> list[Example]:
    """`count` examples (or all, if fewer) in an order that depends on the seed and `key` alone."""
    order = generator(config.seed, key).permutation(len(examples))[:count]
    return [examples[int(i)] for i in order]


def reading_scores(reader: Reader, examples: Sequence[Example]) -> dict[str, float]:
    """EM and F1 in percent, by the official SQuAD 1.1 rules, of questions with their gold passages alone.

    Questions without gold passages are read with their first few other passages. A missing answer is wrong.
    """
    scores: list[tuple[float, float]] = []
    for begin in range(0, len(examples), _CHUNK):
        part = examples[begin : begin + _CHUNK]
        passages = [e.positives or e.passages[:_RETRIEVED] for e in part]
        given = [[1.0] * len(found) for found in passages]
        results = reader.read([example.question for example in part], passages, given, n_best=1)
        for example, result in zip(part, results, strict=True):
            text = result.answers[0].text if result.answers else ""
            right = float(is_right(text, example))
            overlap = right if example.answers_are_regex else f1(text, example.answers)
            scores.append((right, overlap))
    em, overlap = 100.0 * np.array(scores).reshape(-1, 2).sum(axis=0) / max(1, len(examples))
    return {"em": round(float(em), 2), "f1": round(float(overlap), 2)}
