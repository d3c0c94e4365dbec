"""After the last step: export, choose the ranking and calibrate on held-out questions, score, describe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from rag.core.files import atomic_write_json, atomic_write_text, read_json
from rag.core.log import get_logger
from rag.core.types import Passage
from rag.runtime.seeds import generator
from readers.extractive.model import SpanModel
from readers.extractive.reader import ExtractiveReader
from readers.extractive.settings import Calibration, ReaderSettings, read_manifest
from readers.training.calibrate import HeldOut, tune
from readers.training.card import model_card
from readers.training.config import ReaderTrainConfig
from readers.training.data import SquadQuestion, read_results, read_squad
from readers.training.evaluation import gold_paragraph_scores
from readers.training.export import export_int8, export_trained
from readers.training.ranges import add_ranges

__all__ = ["finish", "sample_questions"]

_RANGE_QUESTIONS = 200  # whose paragraphs show how large activations get


def finish(
    config: ReaderTrainConfig,
    model: SpanModel,
    weights: dict[str, torch.Tensor],
    tokenizer: Any,
    held_out: Sequence[SquadQuestion],
    settings: ReaderSettings,
) -> Path:
    """Write `trained/`, `reader/` and `figures.json` into `config.out`; what was measured is not redone.

    Args:
        config: of the run.
        model: gives configuration and names.
        weights: the trained fp32 weights by the model's names.
        tokenizer: of the encoder.
        held_out: questions of the validation articles.
        settings: what the ranking is tuned from.

    Returns:
        The folder of the finished reader.
    """
    trained, finished = config.out / "trained", config.out / "reader"
    export_trained(trained, model, weights, tokenizer)

    def export(settings: ReaderSettings, calibration: Calibration) -> ExtractiveReader:
        export_int8(
            finished, model, weights, tokenizer, name=config.name, settings=settings, calibration=calibration
        )
        add_ranges(finished, sample_questions(held_out, _RANGE_QUESTIONS, config.seed, 7))
        return ExtractiveReader.load(finished, precision=config.precision)

    reader = export(settings, Calibration())
    figures = _Figures(config.out / "figures.json", read_manifest(finished).weights_sha256)
    figures.once("gold paragraph, held-out", "", lambda: gold_paragraph_scores(reader, held_out))

    results = config.held_out_file or config.negatives_file
    if results is not None:

        def tuned() -> dict[str, Any]:
            chosen = sample_questions(held_out, config.calibration_questions, config.seed, 5)
            found = tune(reader, _retrieved(results, chosen))
            choice = {"settings": found.settings.model_dump(), "calibration": found.calibration.model_dump()}
            figures.note("choice", choice)
            return found.figures

        figures.once("retrieved, held-out", f"{results} {config.calibration_questions}", tuned)
        choice = figures.notes["choice"]
        reader.close()
        reader = export(ReaderSettings(**choice["settings"]), Calibration(**choice["calibration"]))

    if config.test_file is not None:
        test, source = read_squad(config.test_file), str(config.test_file)
        readers = {
            "shipped weights": lambda: reader,
            "trained weights": lambda: _trained(trained, reader.settings, config.precision),
            "trained weights in fp32": lambda: _trained(trained, reader.settings, "fp32"),
        }
        for name, opened in readers.items():
            figures.once(f"gold paragraph, test, {name}", source, _scorer(opened, test))
    card = model_card(config, read_manifest(finished), figures.values)
    atomic_write_text(finished / "README.md", card)
    return finished


def _trained(folder: Path, settings: ReaderSettings, precision: str) -> ExtractiveReader:
    return ExtractiveReader.load(folder, precision=precision, **settings.model_dump())


def _scorer(
    opened: Callable[[], ExtractiveReader], test: Sequence[SquadQuestion]
) -> Callable[[], dict[str, float]]:
    return lambda: gold_paragraph_scores(opened(), test)


class _Figures:
    """figures.json: what was measured on which weights, saved after each measurement."""

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

    def note(self, name: str, value: Any) -> None:
        """Remember something beside the figures."""
        self.notes[name] = value

    def _save(self) -> None:
        atomic_write_json(
            self._path,
            {
                "weights_sha256": self._sha,
                "figures": self.values,
                "notes": self.notes,
                "sources": self._sources,
            },
        )


def _retrieved(path: Path, questions: Sequence[SquadQuestion]) -> list[HeldOut]:
    results = read_results(path, {question.question for question in questions})
    found = []
    for question in questions:
        ctxs = results.get(question.question)
        if ctxs:
            found.append(
                HeldOut(
                    question.question,
                    question.answers,
                    tuple(Passage(str(n), ctx["title"], ctx["text"]) for n, ctx in enumerate(ctxs)),
                    tuple(float(ctx["score"]) for ctx in ctxs),
                    tuple(bool(ctx["has_answer"]) for ctx in ctxs),
                )
            )
    return found


def sample_questions(
    questions: Sequence[SquadQuestion], count: int, seed: int, key: int
) -> list[SquadQuestion]:
    """`count` questions (or all, if fewer) in an order that depends on `seed` and `key` alone."""
    order = generator(seed, key).permutation(len(questions))[:count]
    return [questions[int(i)] for i in order]
