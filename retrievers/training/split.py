"""Which examples a run trains on and which it holds out: decided by question, the same at every start."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rag.core.arrays import Int64
from rag.core.errors import DataError
from rag.core.files import atomic_path, fingerprint, sha256_file
from rag.core.log import get_logger
from rag.data.examples import Example, example_from_json, example_to_json, read_examples
from rag.data.selection import least_held_out, place_of
from retrievers.training.config import ExamplesConfig

_FEW = 2000  # a share of fewer questions or articles may hold out next to nothing
_WINDOW = 1024  # examples in memory at once
_SCHEMA = pa.schema({
    "record": pa.string(), "is_validation": pa.bool_(), "place": pa.float64(), "group": pa.float64()
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class ExampleSplit:
    """Training examples, streamed (none without files), and held-out ones, in memory.

    Attributes:
        key: hex sha256 of the files and of every setting that decides which examples these are.
        held_out: at most `validation_questions`; empty if there is no validation.
        training: the training examples in the order of the files.
    """

    key: str
    held_out: tuple[Example, ...]
    training: Callable[[], Iterator[Example]] = lambda: iter(())


def split_examples(config: ExamplesConfig, folder: Path) -> ExampleSplit:
    """Divide the examples of `config.train_files`; see `divide`.

    With a `validation_file`, its questions are held out, and left out of the training files.

    Raises:
        DataError: a file is missing or malformed, or nothing is left to train on or to validate with.
    """
    validation = config.validation_file
    sums = file_sums([*config.train_files, *([validation] if validation else [])])
    return divide(
        folder, [sums, config.needs],
        chain.from_iterable(read_examples(path, needs=config.needs) for path in config.train_files),
        None if validation is None else read_examples(validation, needs=config.needs),
        fraction=config.validation_fraction, most_held_out=config.validation_questions,
        train_questions=config.train_questions, by_article=config.hold_out == "title", seed=config.seed,
    )  # fmt: skip


def file_sums(files: Sequence[Path]) -> list[str]:
    """SHA-256 of files.

    Raises:
        DataError: one of them is missing.
    """
    for path in files:
        if not path.is_file():
            raise DataError(f"{path}: no such file")
    return [sha256_file(path) for path in files]


def divide(
    folder: Path,
    decided_by: list[Any],
    training: Iterable[Example],
    validation: Iterable[Example] | None = None,
    *,
    fraction: float,
    most_held_out: int,
    train_questions: int = 0,
    by_article: bool = False,
    seed: int,
) -> ExampleSplit:
    """Divide examples into training and held-out ones; they are read once and kept in `folder`.

    Without `validation`, the questions or articles are held out whose hash (`place_of`) lies below
    `fraction`, and at least the `least_held_out` with the lowest hashes. The sample of `train_questions` has
    the lowest hashes among the rest, by the text of the question.

    Args:
        decided_by: everything that decides which examples these are.
        most_held_out: maximum number of held-out examples.
        train_questions: number of training examples; 0 takes all.
        by_article: hold out whole articles, by the title of the first positive.

    Raises:
        DataError: nothing is left to train on or to validate with.
    """
    from datasets import Dataset

    if validation is not None:
        fraction = 0.0
    place_file = folder / f"examples-{fingerprint([decided_by, by_article, seed])[:16]}.arrow"
    if not place_file.is_file():
        with atomic_path(place_file) as temporary, pa.OSFile(str(temporary), "wb") as sink:
            _write(sink, training, validation or (), by_article, seed)
    rows = Dataset.from_file(str(place_file))
    names = ("is_validation", "place", "group")
    is_validation, places, groups = (np.asarray(rows.data.column(name)) for name in names)
    distinct = np.unique(groups[~is_validation])
    least = least_held_out(len(distinct))
    if fraction and least < len(distinct) < _FEW:
        fraction = max(fraction, float(np.nextafter(distinct[least - 1], 1)))

    is_held_out = is_validation | (groups < fraction)
    candidates = np.flatnonzero(is_held_out)
    chosen = np.sort(candidates[np.lexsort((candidates, places[candidates]))[:most_held_out]])
    is_double = ~is_held_out & np.isin(places, places[is_validation])
    trained = np.flatnonzero(~is_held_out & ~is_double)
    count = int((~is_validation).sum())
    if not len(trained):
        raise DataError(
            f"none of {count} questions is left to train on",
            hint="lower validation_fraction"
            if validation is None
            else "give others than those of validation_file",
        )
    if doubles := int(is_double.sum()):
        get_logger(__name__).warning(
            "%d training questions are in the validation file too, and are not trained on", doubles
        )
    if (fraction or validation is not None) and not len(chosen):
        raise DataError(
            f"none of {count} questions falls into the held-out {100 * fraction:g} %",
            hint="raise validation_fraction, give a validation_file, or set validation_fraction=0",
        )
    if train_questions:
        highest = np.sort(places[trained])[min(train_questions, len(trained)) - 1]
        trained = trained[places[trained] <= highest]
    decided = [decided_by, fraction, most_held_out, train_questions, by_article, seed]
    return ExampleSplit(
        fingerprint(decided), tuple(_examples(rows, chosen)), lambda: _examples(rows, trained)
    )


def _write(
    sink: Any, training: Iterable[Example], validation: Iterable[Example], by_article: bool, seed: int
) -> None:
    with pa.ipc.new_stream(sink, _SCHEMA) as stream:
        for is_validation, examples in ((False, iter(training)), (True, iter(validation))):
            while window := list(islice(examples, _WINDOW)):
                divided_by = [example.article if by_article else example.question for example in window]
                columns = {
                    "record": [json.dumps(example_to_json(example)) for example in window],
                    "is_validation": [is_validation] * len(window),
                    "place": [place_of(example.question, seed) for example in window],
                    "group": [place_of(text, seed) for text in divided_by],
                }
                stream.write_batch(pa.RecordBatch.from_pydict(columns, _SCHEMA))


def _examples(rows: Any, chosen: Int64) -> Iterator[Example]:
    records = rows.select_columns(["record"])
    for start in range(0, len(chosen), _WINDOW):
        for record in records[chosen[start : start + _WINDOW].tolist()]["record"]:
            yield example_from_json(json.loads(record), "")
