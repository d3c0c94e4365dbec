"""The examples of a run in one Arrow file that `datasets` maps: to draw batches from, and held-out
ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import TypeAdapter

from rag.core.arrays import Int64
from rag.core.errors import DataError
from rag.core.files import atomic_path
from rag.core.log import get_logger
from rag.core.types import AnswerProfile, Passage, Question
from rag.data.examples import Candidate, Example, read_examples
from rag.data.selection import least_held_out, place_of
from rag.data.text import REGEX_PROFILE, AnswerMatcher

_FEW = 2000  # a share of fewer questions may hold out next to nothing
_WINDOW = 1024  # examples in memory at once
_TAUGHT = ("positive", "hard_negative")  # other passages are stored only with a target
_SCHEMA = pa.schema(
    {
        "id": pa.string(),
        "record": pa.binary(),
        "has_negatives": pa.bool_(),
        "is_validation": pa.bool_(),
        "place": pa.float64(),
    }
)
_JSON = TypeAdapter(Example)
_UNMATCHABLE = frozenset({"yes", "no", "noanswer"})


def matchable_answers(answers: Sequence[str], profile: AnswerProfile) -> tuple[str, ...]:
    """The answers whose occurrence in a passage means something: all but "yes" and "no", and all
    patterns.

    Example:
        >>> matchable_answers(["No", "Goethe"], "squad")
        ('Goethe',)
    """
    return tuple(
        a for a in answers if profile == REGEX_PROFILE or a.strip().lower() not in _UNMATCHABLE
    )


def answer_matcher(question: Question | Example) -> AnswerMatcher:
    """Finds the `matchable_answers` of a question in passages."""
    profile = question.answer_profile
    return AnswerMatcher(matchable_answers(question.answers, profile), profile)


class ExampleTable:
    """Q examples by number: what training needs of them, with each passage once per role."""

    def __init__(self, dataset: Any, rows: Int64) -> None:
        self._dataset, self._rows = dataset, rows

    @classmethod
    def of(cls, examples: Iterable[Example]) -> ExampleTable:
        """A table in memory."""
        from datasets import Dataset

        sink = pa.BufferOutputStream()
        _write(sink, examples)
        dataset = Dataset.from_buffer(sink.getvalue())
        return cls(dataset, np.arange(len(dataset)))

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Example]:
        for start in range(0, len(self), _WINDOW):
            yield from self.take(np.arange(start, min(start + _WINDOW, len(self))))

    def take(self, numbers: Int64) -> list[Example]:
        """Some of the examples, in that order."""
        return [
            _JSON.validate_json(record)
            for record in self._dataset[self._rows[numbers].tolist()]["record"]
        ]

    @property
    def ids(self) -> list[str]:
        """The examples' ids."""
        return list(self._dataset.data.column("id").take(pa.array(self._rows)).to_pylist())

    @property
    def has_negatives(self) -> bool:
        """Whether an example has a hard negative."""
        return bool(np.asarray(self._dataset.data.column("has_negatives"))[self._rows].any())


@dataclass(frozen=True, slots=True)
class ExampleSplit:
    """Examples to train on, and held-out ones in memory.

    Attributes:
        held_out: at most `validation_questions`; empty if there is no validation.
        training: in the order of the files.
    """

    held_out: tuple[Example, ...]
    training: ExampleTable


def split_examples(
    config: Any,
    folder: Path,
    read: Callable[[Sequence[Path]], Iterable[Example]] | None = None,
    *,
    per_question: int = 1,
) -> ExampleSplit:
    """Divide the examples of `config.train_files`, a `QuestionsConfig`; they are read once, into
    `folder`, which belongs to this configuration.

    With a `validation_file`, its questions are held out, and left out of the training files.
    Without, those are whose hash (`place_of`) lies below `validation_fraction`, and at least the
    `least_held_out` with the lowest hashes. The sample of `train_questions` has the lowest hashes
    among the rest.

    Args:
        read: files → examples, where these are of another kind; it draws the sample itself.
        per_question: maximum number of examples that it makes of a question.

    Raises:
        DataError: a file is missing or malformed, or nothing is left to train on or to validate
            with.
    """
    dataset = _stored_examples(config, folder / "examples.arrow", read)
    is_validation, places = (
        np.asarray(dataset.data.column(name)) for name in ("is_validation", "place")
    )

    fraction = 0.0 if config.validation_file is not None else config.validation_fraction
    distinct = np.unique(places[~is_validation])
    least = least_held_out(len(distinct))
    if fraction and least < len(distinct) < _FEW:
        fraction = max(fraction, float(np.nextafter(distinct[least - 1], 1)))
    is_held_out = is_validation | (places < fraction)
    candidates = np.flatnonzero(is_held_out)
    most = config.validation_questions * per_question
    chosen = np.sort(candidates[np.lexsort((candidates, places[candidates]))[:most]])
    is_double = ~is_held_out & np.isin(places, places[is_validation])
    trained = np.flatnonzero(~is_held_out & ~is_double)
    if not len(trained) or (config.validates and not len(chosen)):
        raise DataError(
            f"of {(~is_validation).sum()} questions {len(trained)} are left to train on, {len(chosen)} are "
            "held out",
            hint="change validation_fraction, or give others than those of the validation_file",
        )
    if doubles := int(is_double.sum()):
        get_logger(__name__).warning(
            "%d training questions are in the validation file too, and are not trained on", doubles
        )
    if config.train_questions and read is None:
        highest = np.sort(places[trained])[min(config.train_questions, len(trained)) - 1]
        trained = trained[places[trained] <= highest]
    return ExampleSplit(tuple(ExampleTable(dataset, chosen)), ExampleTable(dataset, trained))


def _stored_examples(
    config: Any, place: Path, read: Callable[[Sequence[Path]], Iterable[Example]] | None
) -> Any:
    """The data set of all files, which are read if it is not there yet."""
    from datasets import Dataset

    def read_all(files: Sequence[Path]) -> Iterable[Example]:
        return chain.from_iterable(read_examples(path, needs=config.needs) for path in files)

    held_out_files = () if config.validation_file is None else (config.validation_file,)
    if missing := [path for path in (*config.train_files, *held_out_files) if not path.is_file()]:
        raise DataError(f"{missing[0]}: no such file")
    if not place.is_file():
        parts = [
            (read or read_all)(paths) for paths in (config.train_files, held_out_files) if paths
        ]
        with atomic_path(place) as temporary, pa.OSFile(str(temporary), "wb") as sink:
            _write(sink, *parts, seed=config.seed)
    return Dataset.from_file(str(place))


def _write(
    sink: Any, training: Iterable[Example], validation: Iterable[Example] = (), *, seed: int = 0
) -> None:
    with pa.ipc.new_stream(sink, _SCHEMA) as stream:
        for is_validation, examples in ((False, iter(training)), (True, iter(validation))):
            while window := list(islice(examples, _WINDOW)):
                rows = [{**_row(e, seed), "is_validation": is_validation} for e in window]
                stream.write_batch(pa.RecordBatch.from_pylist(rows, _SCHEMA))


def _row(example: Example, seed: int) -> dict[str, Any]:
    targets = {_content(c.passage): c.target for c in example.candidates if c.target is not None}
    candidates: dict[tuple[str, str, str], Candidate] = {}
    for c in example.candidates:
        key = (c.role, *_content(c.passage))
        if key not in candidates and (c.role in _TAUGHT or c.target is not None):
            target = None if c.target is None else targets.pop(key[1:], None)
            candidates[key] = Candidate(_bare(c.passage), c.role, target=target)
    context = tuple(map(_bare, example.context))
    stored = replace(example, candidates=tuple(candidates.values()), context=context)
    return {
        "id": example.id,
        "record": _JSON.dump_json(stored),
        "has_negatives": bool(stored.negatives),
        "place": place_of(example.question, seed),
    }


def _content(passage: Passage) -> tuple[str, str]:
    return passage.title, passage.text


def _bare(passage: Passage) -> Passage:
    return Passage(passage.id, passage.title, passage.text)
