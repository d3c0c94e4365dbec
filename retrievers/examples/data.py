"""The examples of a run in one Arrow file that `datasets` maps: to draw batches from, and held-out ones.

Memory grows with what is touched: a batch reads the texts of the passages that it drew, and no others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rag.core.arrays import Int64
from rag.core.errors import DataError
from rag.core.files import atomic_path, fingerprint, sha256_file
from rag.core.log import get_logger
from rag.core.types import Passage, Query
from rag.data.examples import Candidate, Example, read_examples
from rag.data.selection import least_held_out, place_of
from rag.data.text import AnswerMatcher

_FEW = 2000  # a share of fewer questions or articles may hold out next to nothing
_WINDOW = 1024  # examples in memory at once
_TAUGHT = ("positive", "hard_negative")  # other passages are stored only with a target
_PASSAGE = [(name, pa.string()) for name in ("id", "title", "text")]
_SCHEMA = pa.schema({
    "id": pa.string(), "question": pa.string(), "answers": pa.list_(pa.string()),
    "answers_are_regex": pa.bool_(), "context": pa.list_(pa.struct(_PASSAGE)),
    "candidates": pa.list_(pa.struct([*_PASSAGE, ("role", pa.string()), ("target", pa.float32())])),
    "negatives": pa.int32(), "is_validation": pa.bool_(), "place": pa.float64(), "group": pa.float64(),
})  # fmt: skip
_UNMATCHABLE = frozenset({"yes", "no", "noanswer"})


def matchable_answers(answers: Sequence[str], mode: Literal["regex", "tokens"]) -> tuple[str, ...]:
    """The answers whose occurrence in a passage means something: all but "yes" and "no", and all patterns.

    Example:
        >>> matchable_answers(["No", "Goethe"], "tokens")
        ('Goethe',)
    """
    return tuple(a for a in answers if mode == "regex" or a.strip().lower() not in _UNMATCHABLE)


def answer_matcher(answers: Sequence[str], mode: Literal["regex", "tokens"]) -> AnswerMatcher:
    """Finds `matchable_answers` in passages."""
    return AnswerMatcher(matchable_answers(answers, mode), mode)


class CandidateLists:
    """Some examples' queries and candidates, one list behind the other; texts are read where they are wanted.

    Attributes:
        queries: B queries.
        owners: (C,) position of each candidate's example, ascending.
        is_positive, is_negative: (C,) whether it answers the question, and whether it is a hard negative.
        targets: (C,) float32, NaN without a target.
    """

    def __init__(self, table: pa.Table) -> None:
        rows = table.select(["question", "context"]).to_pylist()
        self.queries = [Query(row["question"], _passages(row["context"])) for row in rows]
        lists = table.column("candidates").combine_chunks()
        self._records: Any = lists.flatten()
        self.owners = np.repeat(np.arange(len(lists)), lists.value_lengths().to_numpy())
        roles = self._records.field("role")
        self.is_positive, self.is_negative = (np.asarray(pc.equal(roles, role)) for role in _TAUGHT)
        self.targets = np.asarray(self._records.field("target").fill_null(float("nan")))

    def passages(self, places: Int64) -> list[Passage]:
        """The passages at some places of the lists, in that order."""
        return list(_passages(self._records.take(pa.array(places)).to_pylist()))


class ExampleTable:
    """Q examples by number: what training needs of them, with each passage once per role."""

    def __init__(self, dataset: Any, rows: Int64) -> None:
        self._dataset, self._rows = dataset.with_format("arrow"), rows

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

    def __getitem__(self, number: int) -> Example:
        return self.take(np.array([number]))[0]

    def __iter__(self) -> Iterator[Example]:
        for start in range(0, len(self), _WINDOW):
            yield from self.take(np.arange(start, min(start + _WINDOW, len(self))))

    def take(self, numbers: Int64) -> list[Example]:
        """Some of the examples, in that order."""
        return [_example(row) for row in self._read(numbers).to_pylist()]

    def candidates(self, numbers: Int64) -> CandidateLists:
        """Their queries and candidates."""
        return CandidateLists(self._read(numbers))

    @property
    def ids(self) -> list[str]:
        """The examples' ids."""
        return list(self._dataset.data.column("id").take(pa.array(self._rows)).to_pylist())

    @property
    def has_negatives(self) -> bool:
        """Whether an example has a hard negative."""
        return bool(np.asarray(self._dataset.data.column("negatives"))[self._rows].any())

    def _read(self, numbers: Int64) -> Any:
        return self._dataset[self._rows[numbers].tolist()]


@dataclass(frozen=True, slots=True)
class ExampleSplit:
    """Examples to train on, and held-out ones in memory.

    Attributes:
        key: hex sha256 of the files and of every setting that decides which examples these are.
        held_out: at most `validation_questions`; empty if there is no validation.
        training: in the order of the files.
    """

    key: str
    held_out: tuple[Example, ...]
    training: ExampleTable


def split_examples(config: Any, folder: Path) -> ExampleSplit:
    """Divide the examples of `config.train_files`, an `ExamplesConfig`; see `divide`.

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
    """SHA-256 of each file.

    Raises:
        DataError: a file is missing.
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
    dataset = Dataset.from_file(str(place_file))
    names = ("is_validation", "place", "group")
    is_validation, places, groups = (np.asarray(dataset.data.column(name)) for name in names)
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
        fingerprint(decided), tuple(ExampleTable(dataset, chosen)), ExampleTable(dataset, trained)
    )


def _write(
    sink: Any,
    training: Iterable[Example],
    validation: Iterable[Example] = (),
    by_article: bool = False,
    seed: int = 0,
) -> None:
    with pa.ipc.new_stream(sink, _SCHEMA) as stream:
        for is_validation, examples in ((False, iter(training)), (True, iter(validation))):
            while window := list(islice(examples, _WINDOW)):
                rows = [{**_row(e, by_article, seed), "is_validation": is_validation} for e in window]
                stream.write_batch(pa.RecordBatch.from_pylist(rows, _SCHEMA))


def _row(example: Example, by_article: bool, seed: int) -> dict[str, Any]:
    targets = {_content(c.passage): c.target for c in example.candidates if c.target is not None}
    candidates: dict[tuple[str, str, str], dict[str, Any]] = {}
    for candidate in example.candidates:
        key = (candidate.role, *_content(candidate.passage))
        if key not in candidates and (candidate.role in _TAUGHT or candidate.target is not None):
            target = None if candidate.target is None else targets.pop(key[1:], None)
            candidates[key] = {**_record(candidate.passage), "role": candidate.role, "target": target}
    return {
        "id": example.id, "question": example.question, "answers": list(example.answers),
        "answers_are_regex": example.answers_are_regex, "context": list(map(_record, example.context)),
        "candidates": list(candidates.values()),
        "negatives": sum(role == "hard_negative" for role, *_ in candidates),
        "place": place_of(example.question, seed),
        "group": place_of(example.article if by_article else example.question, seed),
    }  # fmt: skip


def _example(row: dict[str, Any]) -> Example:
    candidates = (
        Candidate(passage, record["role"], target=record["target"])
        for passage, record in zip(_passages(row["candidates"]), row["candidates"], strict=True)
    )
    return Example(
        row["id"], row["question"], tuple(row["answers"]), tuple(candidates), _passages(row["context"]),
        answers_are_regex=row["answers_are_regex"],
    )  # fmt: skip


def _content(passage: Passage) -> tuple[str, str]:
    return passage.title, passage.text


def _record(passage: Passage) -> dict[str, str]:
    return {"id": passage.id, "title": passage.title, "text": passage.text}


def _passages(records: Iterable[dict[str, Any]]) -> tuple[Passage, ...]:
    return tuple(Passage(record["id"], record["title"], record["text"]) for record in records)
