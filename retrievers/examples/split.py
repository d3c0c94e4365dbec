"""Which examples a run trains on and which it holds out: decided by question, the same at every start."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from rag.core.errors import DataError
from rag.core.files import atomic_write_json, fingerprint, hash64, read_json, sha256_file
from rag.data.examples import (
    Example,
    Needed,
    read_examples,
    write_examples,
)
from retrievers.training.config import RetrieverTrainConfig


@dataclass(frozen=True, slots=True)
class ExampleSplit:
    """Training examples, streamed (none without files), and held-out ones, in memory.

    Attributes:
        key: hex sha256 of the files and of every setting that decides which examples these are.
        held_out: at most `validation_questions`; empty if there is no validation.
        training: the training examples in the order of the files, read anew at each call.
    """

    key: str
    held_out: tuple[Example, ...]
    training: Callable[[], Iterator[Example]] = lambda: iter(())


def split_examples(config: RetrieverTrainConfig, folder: Path) -> ExampleSplit:
    """Divide the examples of `config.train_files`, and keep what is held out in `folder`.

    Every question has a place in [0, 1) that depends on its text (or its title, see `hold_out`) and the seed
    alone: those below `validation_fraction` are held out, so a question that occurs twice is on one side. The
    lowest of the rest, by their text, are the sample of `train_questions`.

    Raises:
        DataError: a file is missing or malformed, or nothing is left to train on or to validate with.
    """
    given = (*config.train_files, *([config.validation_file] if config.validation_file else []))
    for path in given:
        if not path.is_file():
            raise DataError(f"{path}: no such file")
    fraction = config.data.validation_fraction if config.validation_file is None else 0.0
    said = config.data
    decided: list[object] = [fraction, said.validation_questions, said.train_questions, config.run.seed]
    if said.hold_out != "question":
        decided.append(said.hold_out)
    if config.needs != "positives":
        decided.append(config.needs)
    key = fingerprint([[sha256_file(path) for path in given], decided])
    kept = folder / f"held-out-{key[:16]}.json"
    stated = folder / f"split-{key[:16]}.json"
    if not stated.is_file():
        _divide(config, fraction, kept, stated)
    bounds = read_json(stated)
    held_out = tuple(_read((kept,), config.needs)) if kept.is_file() else ()

    def training() -> Iterator[Example]:
        for example in _read(config.train_files, config.needs, quiet=True):
            in_training = _place(config, _divided_by(config, example)) >= bounds["low"]
            if in_training and _place(config, example.question) <= bounds["high"]:
                yield example

    return ExampleSplit(key, held_out, training)


def _divide(config: RetrieverTrainConfig, fraction: float, kept: Path, stated: Path) -> None:
    """One reading: the places of all training questions, and the examples that are held out."""
    sampled: list[float] = []
    read = 0

    def below() -> Iterator[tuple[float, int, Example]]:
        nonlocal read
        for number, example in enumerate(_read(config.train_files, config.needs)):
            read += 1
            place = _place(config, example.question)
            if _place(config, _divided_by(config, example)) < fraction:
                yield place, number, example
            else:
                sampled.append(place)

    def given() -> Iterator[tuple[float, int, Example]]:
        if config.validation_file is not None:
            for number, example in enumerate(_read((config.validation_file,), config.needs)):
                yield _place(config, example.question), number, example

    chosen = heapq.nsmallest(
        config.data.validation_questions, chain(below(), given()), key=lambda found: found[:2]
    )
    train = np.sort(np.asarray(sampled))
    if not len(train):
        raise DataError(f"none of {read} questions is left to train on", hint="lower validation_fraction")
    if config.validates and not chosen:
        raise DataError(
            f"none of {read} questions falls into the held-out {100 * fraction:g} %",
            hint="raise validation_fraction, give a validation_file, or set validation_fraction=0",
        )
    wanted = min(config.data.train_questions or len(train), len(train))
    if chosen:
        write_examples(kept, (example for _, _, example in sorted(chosen, key=lambda c: c[1])))
    atomic_write_json(stated, {"low": fraction, "high": float(train[wanted - 1])})


def _read(files: tuple[Path, ...], needs: Needed, *, quiet: bool = False) -> Iterator[Example]:
    for path in files:
        yield from read_examples(path, needs=needs, quiet=quiet)


def _divided_by(config: RetrieverTrainConfig, example: Example) -> str:
    """The text whose place decides whether an example is held out."""
    positives = example.positives if config.data.hold_out == "title" else ()
    return positives[0].title if positives and positives[0].title else example.question


def _place(config: RetrieverTrainConfig, text: str) -> float:
    """Where a text stands in [0, 1): uniform, by the seed."""
    return hash64(f"{config.run.seed}\n{text}".encode("utf-8", "surrogatepass")) / 2**64
