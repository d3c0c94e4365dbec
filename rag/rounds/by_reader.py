"""Rounds of distillation: a reader scores the retrieved passages, and the retriever is trained on the scores.

A round's folder has `reader/`, if one is trained, and `scored.json`, the passages with their scores.

Source:
    Izacard and Grave 2021, "Distilling Knowledge from Reader to Retriever for Question Answering", section
    3.3.
"""

from __future__ import annotations

from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from rag.config import recipe_of
from rag.core.errors import ConfigError
from rag.recipes import RECIPES, read_config, train
from rag.rounds.config import DistillRoundsConfig
from rag.rounds.scoring import score_examples
from rag.rounds.signals import Judge, check_signal, judge_kind

if TYPE_CHECKING:
    from rag.rounds.rounds import Round

_READERS = {"reader": ("extractive", "train"), "generator": ("generative", "train_files")}
"""Recipe → kind of the reader that it trains, and the name of the setting for its training files."""


def check_reader(config: DistillRoundsConfig) -> None:
    """Check that the reader can give the signal, before anything long begins.

    Raises:
        ArtifactError: there is no such reader.
        ConfigError: it cannot give the signal, or is not trained by the recipe of a reader.
        DataError: its training names a file that is missing.
    """
    if config.train_reader is None:
        check_signal(judge_kind(config.reader), config.signal, config.reader or "the shipped reader")
        return
    recipe = recipe_of(config.train_reader)
    if recipe not in _READERS:
        raise ConfigError(
            f"--train-reader {config.train_reader}: recipe {recipe!r}, expected one of {', '.join(_READERS)}",
            hint="give a preset or file whose first key is recipe: reader, or recipe: generator",
        )
    kind, files = _READERS[recipe]
    check_signal(kind, config.signal, f"--train-reader {config.train_reader}")
    made = {"out": str(config.out), files: [str(config.out / "found.json")]}
    read_config(resolve_name(RECIPES[recipe].config), config.train_reader, made)


def scored_examples(config: DistillRoundsConfig, current: Round, found: Path) -> tuple[Path, dict[str, Any]]:
    """The retrieved passages with the reader's scores as targets, and counts of them."""
    scored, reader = current.folder / "scored.json", config.reader
    if config.train_reader is not None:
        reader = current.stage("read", lambda: str(_trained(str(config.train_reader), found, current.folder)))

    def score() -> dict[str, Any]:
        judge = Judge.open(reader, config.signal)
        counts = score_examples(found, scored, judge).counts
        judge.close()
        return {
            "questions": counts["questions"], "without the answer": counts["no passage holds an answer"],
            "constant": counts["constant"],
        }  # fmt: skip

    return scored, current.stage("score", score)


def _trained(source: str, found: Path, folder: Path) -> Path:
    recipe = recipe_of(source)
    return train(recipe, folder / "reader", config=source, **{_READERS[recipe][1]: [str(found)]})
