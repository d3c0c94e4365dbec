"""Which examples a run trains on and which it holds out: decided by question, the same at every start."""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from rag.core.errors import DataError
from rag.core.files import atomic_write_json, fingerprint, read_json, sha256_file
from rag.core.log import get_logger
from rag.data.examples import Example, Needed, read_examples, write_examples
from rag.data.selection import least_held_out, place_of
from retrievers.training.config import ValidatedTrainConfig

_FEW = 2000  # questions or articles, below which a share may hold out next to nothing


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


def split_examples(config: ValidatedTrainConfig, folder: Path) -> ExampleSplit:
    """Divide the examples of `config.train_files`, and keep what is held out in `folder`.

    With a `validation_file`, its questions are held out, and left out of the training files. Otherwise the
    questions or articles are held out whose hash (`place_of`) lies below `validation_fraction`, and at least
    the `least_held_out` with the lowest hashes. The sample of `train_questions` has the lowest hashes among
    the rest, by the text of the question.

    Raises:
        DataError: a file is missing or malformed, or nothing is left to train on or to validate with.
    """
    given = (*config.train_files, *([config.validation_file] if config.validation_file else []))
    for path in given:
        if not path.is_file():
            raise DataError(f"{path}: no such file")
    fraction = config.data.validation_fraction if config.validation_file is None else 0.0
    data, seed = config.data, config.run.seed
    decided: list[object] = [fraction, data.validation_questions, data.train_questions, seed]
    if data.hold_out != "question":
        decided.append(data.hold_out)
    if config.needs != "positives":
        decided.append(config.needs)
    key = fingerprint([[sha256_file(path) for path in given], decided])
    kept = folder / f"held-out-{key[:16]}.json"
    bounds_file = folder / f"split-{key[:16]}.json"
    if not bounds_file.is_file():
        _divide(config, fraction, kept, bounds_file)
    bounds = read_json(bounds_file)
    held_out = tuple(_read((kept,), config.needs)) if kept.is_file() else ()
    left_out = set(bounds.get("left_out", ()))  # a run that began before there were any has none

    def training() -> Iterator[Example]:
        for example in _read(config.train_files, config.needs, quiet=True):
            place = place_of(example.question, seed)
            in_training = place_of(_divided_by(config, example), seed) >= bounds["low"]
            if in_training and place <= bounds["high"] and place not in left_out:
                yield example

    return ExampleSplit(key, held_out, training)


def _divide(config: ValidatedTrainConfig, fraction: float, kept: Path, bounds_file: Path) -> None:
    """The places of all training questions, and the examples that are held out."""
    seed, sampled, lowest = config.run.seed, list[float](), set[float]()
    other, left_out = (config.validation_file,) if config.validation_file else (), set[float]()
    known = {place_of(example.question, seed) for example in _read(other, config.needs, quiet=True)}
    read = 0

    def below() -> Iterator[tuple[float, int, Example]]:
        nonlocal read
        for number, example in enumerate(_read(config.train_files, config.needs)):
            read += 1
            place, group = (place_of(text, seed) for text in (example.question, _divided_by(config, example)))
            if len(lowest) < _FEW:
                lowest.add(group)
            if group < fraction:
                yield place, number, example
            elif place in known:
                left_out.add(place)
            else:
                sampled.append(place)

    def given() -> Iterator[tuple[float, int, Example]]:
        for number, example in enumerate(_read(other, config.needs)):
            yield place_of(example.question, seed), number, example

    chosen = heapq.nsmallest(
        config.data.validation_questions, chain(below(), given()), key=lambda found: found[:2]
    )
    if fraction and len(lowest) < _FEW:  # all groups are known: of a small set the share is too little
        places = sorted(lowest)
        least = least_held_out(len(places))
        if len(places) > least and places[least - 1] >= fraction:
            return _divide(config, float(np.nextafter(places[least - 1], 1)), kept, bounds_file)
    train = np.sort(np.asarray(sampled))
    if not len(train):
        raise DataError(
            f"none of {read} questions is left to train on",
            hint="give others than those of validation_file" if other else "lower validation_fraction",
        )
    if left_out:
        get_logger(__name__).warning(
            "%d training questions are in %s too, and are not trained on", len(left_out), *other
        )
    if config.validates and not chosen:
        raise DataError(
            f"none of {read} questions falls into the held-out {100 * fraction:g} %",
            hint="raise validation_fraction, give a validation_file, or set validation_fraction=0",
        )
    wanted = min(config.data.train_questions or len(train), len(train))
    if chosen:
        write_examples(kept, (example for _, _, example in sorted(chosen, key=lambda c: c[1])))
    bounds = {"low": fraction, "high": float(train[wanted - 1]), "left_out": sorted(left_out)}
    atomic_write_json(bounds_file, bounds)


def _read(files: tuple[Path, ...], needs: Needed, *, quiet: bool = False) -> Iterator[Example]:
    for path in files:
        yield from read_examples(path, needs=needs, quiet=quiet)


def _divided_by(config: ValidatedTrainConfig, example: Example) -> str:
    """The text whose place decides whether an example is held out."""
    return example.article if config.data.hold_out == "title" else example.question
