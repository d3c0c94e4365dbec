"""Which examples a run trains on and which it holds out: decided by question, the same at every start."""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rag.core.errors import DataError
from rag.core.files import atomic_write_json, fingerprint, read_json, sha256_file
from rag.core.log import get_logger
from rag.data.examples import Example, Needed, read_examples, write_examples
from rag.data.selection import least_held_out, place_of
from retrievers.training.config import ValidatedTrainConfig

_FEW = 2000  # a share of fewer questions or articles may hold out next to nothing


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
    left_out = set(bounds.get("left_out", ()))  # files of older versions lack it

    def training() -> Iterator[Example]:
        for example in _read(config.train_files, config.needs, quiet=True):
            place = place_of(example.question, seed)
            in_training = place_of(_divided_by(config, example), seed) >= bounds["low"]
            if in_training and place <= bounds["high"] and place not in left_out:
                yield example

    return ExampleSplit(key, held_out, training)


@dataclass(slots=True)
class _Places:
    """The training questions by their place, after one reading of all files.

    Attributes:
        low: groups (questions or articles) below it are held out.
        read: number of examples in the training files.
        training: places of the questions to train on.
        left_out: places of those that are in the validation file too.
        groups: places of groups, of the first 2,000.
        held_out: the examples to measure on, in the order of the files.
    """

    low: float
    read: int = 0
    training: list[float] = field(default_factory=list)
    left_out: set[float] = field(default_factory=set)
    groups: set[float] = field(default_factory=set)
    held_out: list[Example] = field(default_factory=list)


def _divide(config: ValidatedTrainConfig, fraction: float, kept: Path, bounds_file: Path) -> None:
    """Write the bounds between which questions are trained on, and the examples that are held out."""
    places = _places(config, fraction)
    if fraction and (least := _least_bound(places.groups)) > fraction:
        places = _places(config, least)
    bounds = _bounds(config, places)
    if places.held_out:
        write_examples(kept, places.held_out)
    atomic_write_json(bounds_file, bounds)


def _places(config: ValidatedTrainConfig, low: float) -> _Places:
    places, seed = _Places(low), config.run.seed
    other = (config.validation_file,) if config.validation_file else ()
    known = {place_of(example.question, seed) for example in _read(other, config.needs, quiet=True)}

    def candidates() -> Iterator[tuple[float, int, Example]]:
        for number, example in enumerate(_read(config.train_files, config.needs), start=1):
            places.read = number
            place, group = (place_of(text, seed) for text in (example.question, _divided_by(config, example)))
            if len(places.groups) < _FEW:
                places.groups.add(group)
            if group < low:
                yield place, number, example
            elif place in known:
                places.left_out.add(place)
            else:
                places.training.append(place)
        for number, example in enumerate(_read(other, config.needs)):
            yield place_of(example.question, seed), number, example

    chosen = heapq.nsmallest(config.data.validation_questions, candidates(), key=lambda found: found[:2])
    places.held_out = [example for _, _, example in sorted(chosen, key=lambda found: found[1])]
    return places


def _least_bound(groups: set[float]) -> float:
    """The bound that holds out the fewest groups allowed of a small set; 0 if there may be more groups."""
    least = least_held_out(len(groups))
    return float(np.nextafter(sorted(groups)[least - 1], 1)) if least < len(groups) < _FEW else 0.0


def _bounds(config: ValidatedTrainConfig, places: _Places) -> dict[str, Any]:
    if not places.training:
        raise DataError(
            f"none of {places.read} questions is left to train on",
            hint="give others than those of validation_file"
            if config.validation_file
            else "lower validation_fraction",
        )
    if places.left_out:
        get_logger(__name__).warning(
            "%d training questions are in %s too, and are not trained on",
            *(len(places.left_out), config.validation_file),
        )
    if config.validates and not places.held_out:
        raise DataError(
            f"none of {places.read} questions falls into the held-out {100 * places.low:g} %",
            hint="raise validation_fraction, give a validation_file, or set validation_fraction=0",
        )
    training = np.sort(np.asarray(places.training))
    wanted = min(config.data.train_questions or len(training), len(training))
    return {"low": places.low, "high": float(training[wanted - 1]), "left_out": sorted(places.left_out)}


def _read(files: tuple[Path, ...], needs: Needed, *, quiet: bool = False) -> Iterator[Example]:
    for path in files:
        yield from read_examples(path, needs=needs, quiet=quiet)


def _divided_by(config: ValidatedTrainConfig, example: Example) -> str:
    """The text whose place decides whether an example is held out."""
    return example.article if config.data.hold_out == "title" else example.question
