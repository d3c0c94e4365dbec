"""After the last step: export, choose the ranking and calibrate on held-out questions, score, describe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rag.core.files import atomic_write_json, fingerprint, read_json, replaced_folder
from rag.core.log import get_logger
from rag.core.types import Passage
from rag.data.examples import Example
from rag.data.text import f1
from rag.runtime.seeds import generator
from rag.training.card import Card
from readers.extractive.model import SpanModel
from readers.extractive.reader import ExtractiveReader
from readers.extractive.settings import ReaderManifest, ReaderSettings
from readers.extractive.training.calibrate import too_few, tune
from readers.extractive.training.config import ReaderTrainConfig, TrainingSet
from readers.extractive.training.data import is_right, read_set
from readers.extractive.training.export import add_ranges, export_int8, export_trained
from readers.manifest import Calibration, load_manifest
from readers.protocols import Reader

_CHUNK = 256
_RETRIEVED = 5  # retrieved passages that are read for a question without gold ones
RANGE_QUESTIONS = 200  # on whose passages the ranges of activations are measured


def check_held_out(config: ReaderTrainConfig, held_out: Mapping[str, Sequence[Example]]) -> None:
    """Check before training that there are enough held-out questions to calibrate on afterwards.

    Raises:
        DataError: only one held-out question has retrieved passages.
    """
    count = sum(len(held_out[one.label]) for one in config.train if one.serving or one.retrieved)
    if count == 1 and not config.calibrate:
        raise too_few()


def finish(
    config: ReaderTrainConfig,
    model: SpanModel,
    weights: dict[str, torch.Tensor],
    tokenizer: Any,
    held_out: Mapping[str, Sequence[Example]],
    settings: ReaderSettings,
    calibration: Calibration,
    learnt: Sequence[Example],
) -> dict[str, Any]:
    """Write `trained/` and `reader/` into `config.out`; figures in `measured.json` are not measured again.

    Args:
        weights: the trained fp32 weights by the model's names.
        held_out: held-out questions by set.
        settings, calibration: settings from which the tuning of ranking and confidence starts, or those that
            are kept.
        learnt: examples of the training, to measure ranges of activations on where none is held out.

    Returns:
        Figures by name.
    """
    export_trained(config.out / "trained", model, weights, tokenizer)
    sets = {} if config.keep_ranking else _serving(config, held_out)
    everything = [example for examples in held_out.values() for example in examples]
    everything = everything or [example for examples in sets.values() for example in examples] or [*learnt]
    ranged = draw(everything, RANGE_QUESTIONS, config, 7)

    def export(folder: Path, settings: ReaderSettings, calibration: Calibration) -> ExtractiveReader:
        export_int8(
            folder, model, weights, tokenizer, name=config.name, settings=settings, calibration=calibration
        )
        if ranged:
            add_ranges(folder, ranged)
        return ExtractiveReader.load(folder, precision=config.optim.precision)

    finished = config.out / "reader"
    with replaced_folder(finished) as folder:  # it appears only with ranking and confidence
        reader = export(folder, settings, calibration)
        figures = _Figures(config.out / "measured.json", load_manifest(ReaderManifest, folder).weights_sha256)
        for label, examples in held_out.items():
            if shown := draw(examples, config.validation_questions, config, 4):
                figures.once(f"gold passages, held-out {label}", "", partial(reading_scores, reader, shown))
        if sets:
            chosen = _chosen(config, reader, sets, figures)
            reader.close()
            reader = export(folder, *chosen)
        if config.test_file is not None:
            full = model.to_compute(torch.float32).cpu()
            full.load_state_dict(weights, strict=False)
            exact = ExtractiveReader(full, tokenizer, reader.settings, reader.calibration)
            _score_test(config.test_file, {"shipped weights": reader, "weights in fp32": exact}, figures)
        reader.close()
    return figures.values


def _chosen(
    config: ReaderTrainConfig,
    reader: ExtractiveReader,
    sets: Mapping[str, Sequence[Example]],
    figures: _Figures,
) -> tuple[ReaderSettings, Calibration]:
    """Ranking and confidence by `tune`, or as an earlier attempt noted them."""

    def tuned() -> dict[str, Any]:
        found = tune(reader, sets)
        figures.notes["choice"] = {
            "settings": found.settings.model_dump(),
            "calibration": found.calibration.model_dump(),
        }
        return found.figures

    figures.once("retrieved, held-out", _source(config, sets), tuned)
    choice = figures.notes["choice"]
    return ReaderSettings(**choice["settings"]), Calibration(**choice["calibration"])


def _score_test(file: Path, readers: Mapping[str, ExtractiveReader], figures: _Figures) -> None:
    """Score readers, by the name of their weights, on test questions with their gold passages."""
    test = read_set(TrainingSet(questions=file))
    source = f"{file} {fingerprint(figures.notes.get('choice'))[:16]}"
    for weights, reader in readers.items():
        figures.once(f"gold passages, test, {weights}", source, partial(reading_scores, reader, test))


def reader_card(config: ReaderTrainConfig) -> Card:
    """The model card of the finished reader."""
    manifest = partial(load_manifest, ReaderManifest, config.out / "reader")
    return Card("readers.extractive.training", "reader.md", {"load_manifest": manifest})


def _source(config: ReaderTrainConfig, sets: Mapping[str, Sequence[Example]]) -> str:
    """The inputs, beside the weights, that decide the choice of settings."""
    ids = {label: [example.id for example in examples] for label, examples in sets.items()}
    files = {
        str(path): path.stat().st_size
        for one in (*config.train, *config.calibrate)
        for path in (one.questions, one.retrieved, one.serving)
        if path is not None and path.is_file()
    }
    digest = fingerprint([ids, files])[:16]
    return " ".join([*(f"{label} {len(examples)}" for label, examples in sets.items()), digest])


def _serving(
    config: ReaderTrainConfig, held_out: Mapping[str, Sequence[Example]]
) -> dict[str, Sequence[Example]]:
    """By set, held-out questions with what a retriever found for them and nothing else."""
    found: dict[str, Sequence[Example]] = {}
    for one in (*config.train, *config.calibrate):
        chosen = {example.id for example in held_out.get(one.label, ())}
        is_learnt = one in config.train
        if is_learnt and not (chosen and (one.serving or one.retrieved)):
            continue
        examples = read_set(one, serving=True)
        examples = [e for e in examples if e.candidates and (e.id in chosen or not is_learnt)]
        if examples:
            found[one.label] = draw(examples, config.calibration_questions, config, 5)
    return found


class _Figures:
    """Measurements of given weights, saved after each one, with notes."""

    def __init__(self, path: Path, weights_sha256: str) -> None:
        self._path, self._sha = path, weights_sha256
        self.values: dict[str, Any] = {}
        self.notes: dict[str, Any] = {}
        self._sources: dict[str, str] = {}
        if path.exists():
            found = read_json(path)
            if found.get("weights_sha256") == weights_sha256:
                self.values, self.notes, self._sources = found["figures"], found["notes"], found["sources"]

    def once(self, name: str, source: str, measure: Callable[[], dict[str, Any]]) -> None:
        """Measure `name`, unless it was measured on the same weights from the same `source`."""
        if name not in self.values or self._sources.get(name) != source:
            self.values[name] = measure()
            self._sources[name] = source
            self._save()
        get_logger(__name__).info("%s: %s", name, self.values[name])

    def _save(self) -> None:
        measured = {"figures": self.values, "notes": self.notes, "sources": self._sources}
        atomic_write_json(self._path, {"weights_sha256": self._sha, **measured})


def draw(examples: Sequence[Example], count: int, config: ReaderTrainConfig, key: int) -> list[Example]:
    """`count` examples (or all, if fewer) in an order that depends on the seed and `key` alone."""
    order = generator(config.run.seed, key).permutation(len(examples))[:count]
    return [examples[int(i)] for i in order]


def reading_scores(reader: Reader, examples: Sequence[Example]) -> dict[str, float]:
    """EM and F1 in percent, by the official SQuAD 1.1 rules, of questions with their gold passages alone.

    Questions without gold passages are read with their first few other passages. A missing answer is wrong.
    """
    scores: list[tuple[float, float]] = []
    for begin in range(0, len(examples), _CHUNK):
        part = examples[begin : begin + _CHUNK]
        passages = [_passages(example) for example in part]
        given = [[1.0] * len(found) for found in passages]
        results = reader.read([example.question for example in part], passages, given, n_best=1)
        for example, result in zip(part, results, strict=True):
            text = result.answers[0].text if result.answers else ""
            right = float(is_right(text, example))
            overlap = right if example.answers_are_regex else f1(text, example.answers)
            scores.append((right, overlap))
    em, overlap = 100.0 * np.array(scores).reshape(-1, 2).sum(axis=0) / max(1, len(examples))
    return {"em": round(float(em), 2), "f1": round(float(overlap), 2)}


def _passages(example: Example) -> Sequence[Passage]:
    return example.positives or example.passages[:_RETRIEVED]
