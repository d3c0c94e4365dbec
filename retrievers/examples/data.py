"""The examples of a run in one Arrow file, which is mapped: to draw batches from, and held-out ones.

A row is a question with a list of passages: those of earlier hops, then the candidates with their
roles and targets. A batch reads roles and targets of its questions as arrays, and the texts of the
passages that it draws alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rag.core.arrays import Bool, Float64, Int64, ranges
from rag.core.errors import DataError
from rag.core.files import atomic_path
from rag.core.log import get_logger
from rag.core.types import AnswerProfile, Passage, Query, Question
from rag.data.examples import Candidate, Example, Role, read_examples
from rag.data.selection import least_held_out, place_of
from rag.data.text import REGEX_PROFILE, AnswerMatcher

if TYPE_CHECKING:
    from retrievers.training.config import QuestionsConfig

_FEW = 2000  # of fewer questions, far more or fewer than the share may have low hashes
_WINDOW = 1024  # examples in memory at once
_ROLES: tuple[Role, ...] = ("positive", "hard_negative", "negative", "retrieved")
_TAUGHT = ("positive", "hard_negative")  # other passages are stored only with a target
_CONTEXT = -1  # in place of a role: a passage of an earlier hop
_PASSAGE = pa.struct(
    {
        "id": pa.string(),
        "title": pa.string(),
        "text": pa.string(),
        "role": pa.int8(),
        "target": pa.float64(),
    }
)
_SCHEMA = pa.schema(
    {
        "id": pa.string(),
        "question": pa.string(),
        "answers": pa.list_(pa.string()),
        "answer_profile": pa.string(),
        "answer_starts": pa.list_(pa.int64()),
        "target_answer": pa.string(),
        "passages": pa.list_(_PASSAGE),
        "is_validation": pa.bool_(),
        "place": pa.float64(),
    }
)
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


class _Rows:
    """The rows of record batches, any of which are read by number; no others are touched."""

    def __init__(self, batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> None:
        self._batches = batches
        self._table = pa.Table.from_batches(batches, schema)
        self._starts = np.cumsum([0, *(batch.num_rows for batch in batches)])[:-1]

    def column(self, name: str) -> pa.ChunkedArray:
        """All values of a column."""
        return self._table.column(name)

    def take(self, rows: Int64, names: Sequence[str]) -> list[dict[str, Any]]:
        """Some columns of some rows, in that order."""
        numbers = np.searchsorted(self._starts, rows, side="right") - 1
        offsets = rows - self._starts[numbers]
        taken = []
        for number, offset in zip(numbers.tolist(), offsets.tolist(), strict=True):
            batch = self._batches[number]
            taken.append({name: batch.column(name)[offset].as_py() for name in names})
        return taken


class ExampleTable:
    """Q examples by number: what training needs of them, with each passage once.

    Attributes:
        targets: of all passages, by row; NaN for those that have none.
    """

    def __init__(self, batches: Sequence[pa.RecordBatch], rows: Int64 | None = None) -> None:
        self._batches = batches
        self._examples = _Rows(batches, _SCHEMA)
        lists = [batch.column("passages") for batch in batches]
        flat = [pa.RecordBatch.from_struct_array(passages.values) for passages in lists]
        self._passages = _Rows(flat, pa.schema(list(_PASSAGE)))
        counts = [np.asarray(passages.value_lengths(), np.int64) for passages in lists]
        self._counts = np.concatenate([np.zeros(0, np.int64), *counts])
        self._starts = np.cumsum(self._counts) - self._counts
        self._roles = self._passages.column("role").to_numpy()
        self.targets: Float64 = self._passages.column("target").to_numpy()
        self._rows = np.arange(len(self._counts)) if rows is None else rows

    @classmethod
    def of(cls, examples: Iterable[Example]) -> ExampleTable:
        """A table in memory."""
        return cls(list(_record_batches(examples, seed=0)))

    @classmethod
    def open(cls, file: Path) -> ExampleTable:
        """The table in a file, mapped."""
        return cls(pa.ipc.open_stream(pa.memory_map(str(file))).read_all().to_batches())

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Example]:
        for start in range(0, len(self), _WINDOW):
            yield from self.take(np.arange(start, min(start + _WINDOW, len(self))))

    def of_rows(self, rows: Int64) -> ExampleTable:
        """Some examples of the table, by their numbers in the file."""
        return ExampleTable(self._batches, rows)

    def take(self, numbers: Int64) -> list[Example]:
        """Some of the examples, in that order."""
        records = self._examples.take(self._rows[numbers], _SCHEMA.names[:7])
        return [_example(record) for record in records]

    def queries(self, numbers: Int64) -> list[Query]:
        """The queries of some examples: question, and passages of earlier hops."""
        records = self._examples.take(self._rows[numbers], ["question"])
        queries = []
        for record, rows in zip(records, self._passages_of(numbers), strict=True):
            context = self.passages(rows[self._roles[rows] == _CONTEXT])
            queries.append(Query(record["question"], tuple(context)))
        return queries

    def rows_of(self, numbers: Int64, role: Role) -> list[Int64]:
        """Rows of each example's passages in a role, for `passages`."""
        code = _ROLES.index(role)
        return [rows[self._roles[rows] == code] for rows in self._passages_of(numbers)]

    def rows_with_targets(self, numbers: Int64) -> list[Int64]:
        """Rows of each example's passages that have a target."""
        lists = self._passages_of(numbers)
        return [rows[~np.isnan(self.targets[rows])] for rows in lists]

    def passages(self, rows: Int64) -> list[Passage]:
        """The passages in some rows, in that order."""
        records = self._passages.take(rows, ["id", "title", "text"])
        return [Passage(**record) for record in records]

    def _passages_of(self, numbers: Int64) -> list[Int64]:
        if not len(numbers):
            return []
        rows = self._rows[numbers]
        counts = self._counts[rows]
        return np.split(ranges(self._starts[rows], counts), np.cumsum(counts)[:-1])

    def column(self, name: str) -> NDArray[np.generic]:
        """A column of the examples: "id", "place", or "is_validation"."""
        return self._examples.column(name).to_numpy()[self._rows]

    @property
    def has_negatives(self) -> bool:
        """Whether an example has a hard negative."""
        lists = self.rows_of(np.arange(len(self)), "hard_negative")
        return any(len(rows) for rows in lists)


def _example(record: dict[str, Any]) -> Example:
    """An example of a row."""
    context = []
    candidates = []
    for row in record.pop("passages"):
        role = row.pop("role")
        target = row.pop("target")
        passage = Passage(**row)
        if role == _CONTEXT:
            context.append(passage)
        else:
            candidates.append(Candidate(passage, _ROLES[role], target=target))
    record["answers"] = tuple(record["answers"])
    record["answer_starts"] = tuple(record["answer_starts"])
    return Example(**record, candidates=tuple(candidates), context=tuple(context))


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
    config: QuestionsConfig,
    folder: Path,
    read: Callable[[Sequence[Path]], Iterable[Example]] | None = None,
) -> ExampleSplit:
    """Divide the examples of `config.train_files`, a `QuestionsConfig`; they are read once, into
    `folder`, which belongs to this configuration.

    With a `validation_file`, its questions are held out, and left out of the training files.
    Without, those are whose hash (`place_of`) lies below `validation_fraction`; of fewer than 2,000
    questions exactly this share with the lowest hashes, and at least `least_held_out`. The sample
    of `train_questions` has the lowest hashes among the rest. All examples of a question stay
    together.

    Args:
        read: files → examples, where these are of another kind; several may be of one question.

    Raises:
        DataError: a file is missing or malformed, or nothing is left to train on or to validate
            with.
    """
    table = _stored_examples(config, folder / "examples.arrow", read)
    is_validation: Bool = table.column("is_validation").astype(bool)
    places: Float64 = table.column("place").astype(np.float64)

    fraction = 0.0 if config.validation_file is not None else config.validation_fraction
    distinct = np.unique(places[~is_validation])
    if fraction and 0 < len(distinct) < _FEW:
        least = least_held_out(len(distinct))
        count = max(least, round(fraction * len(distinct)))
        get_logger(__name__).info(
            "%d of %d questions are held out: validation_fraction=%g of them, but at least %d",
            *(count, len(distinct), fraction, least),
        )
        fraction = float(np.nextafter(distinct[count - 1], 1))
    is_held_out = is_validation | (places < fraction)
    held_out = _of_first_questions(is_held_out, places, config.validation_questions)
    is_double = ~is_held_out & np.isin(places, places[is_validation])
    trained = _of_first_questions(~is_held_out & ~is_double, places, config.train_questions)
    if not len(trained) or (config.validates and not len(held_out)):
        raise DataError(
            f"of {(~is_validation).sum()} questions {len(trained)} are left to train on, {len(held_out)} are "
            "held out",
            hint="change validation_fraction, or give others than those of the validation_file",
        )
    doubles = int(is_double.sum())
    if doubles:
        get_logger(__name__).warning(
            "%d training questions are in the validation file too, and are not trained on", doubles
        )
    return ExampleSplit(tuple(table.of_rows(held_out)), table.of_rows(trained))


def _of_first_questions(is_usable: Bool, places: Float64, count: int) -> Int64:
    """Usable rows of the `count` questions with the lowest places; 0 takes all questions."""
    rows = np.flatnonzero(is_usable)
    questions = np.unique(places[rows])
    if count:
        questions = questions[:count]
    return rows[np.isin(places[rows], questions)]


def _stored_examples(
    config: QuestionsConfig,
    file: Path,
    read: Callable[[Sequence[Path]], Iterable[Example]] | None,
) -> ExampleTable:
    """The table of all files, which are read if it is not there yet."""

    def read_all(files: Sequence[Path]) -> Iterator[Example]:
        for path in files:
            yield from read_examples(path, needs=config.needs)

    held_out_files = () if config.validation_file is None else (config.validation_file,)
    for path in (*config.train_files, *held_out_files):
        if path.is_dir():
            raise DataError(
                f"{path} is a folder, expected a file of examples",
                hint="`rag mine` makes examples of questions, also of a BEIR folder, and an index",
            )
        if not path.is_file():
            raise DataError(f"{path}: no such file")
    if not file.is_file():
        read = read or read_all
        with (
            atomic_path(file) as temporary,
            pa.OSFile(str(temporary), "wb") as sink,
            pa.ipc.new_stream(sink, _SCHEMA) as stream,
        ):
            for files, is_validation in ((config.train_files, False), (held_out_files, True)):
                examples = read(files) if files else ()
                for batch in _record_batches(examples, config.seed, is_validation=is_validation):
                    stream.write_batch(batch)
    return ExampleTable.open(file)


def _record_batches(
    examples: Iterable[Example], seed: int, *, is_validation: bool = False
) -> Iterator[pa.RecordBatch]:
    """The rows of examples, some at a time."""
    remaining = iter(examples)
    while window := list(islice(remaining, _WINDOW)):
        rows = []
        for example in window:
            row = {name: getattr(example, name) for name in _SCHEMA.names[:6]}
            row["passages"] = _passage_rows(example)
            row["is_validation"] = is_validation
            row["place"] = place_of(example.question, seed)
            rows.append(row)
        yield pa.RecordBatch.from_pylist(rows, _SCHEMA)


def _passage_rows(example: Example) -> list[dict[str, Any]]:
    """The rows of an example's passages: each once, with its target, in the first of its roles.

    So a negative that is a positive too is none.
    """
    rows = [_passage_row(passage, _CONTEXT) for passage in example.context]
    targets = {}
    for candidate in example.candidates:
        if candidate.target is not None:
            targets[candidate.passage.content] = candidate.target
    present = set()
    for candidate in example.candidates:
        content = candidate.passage.content
        is_taught = candidate.role in _TAUGHT or candidate.target is not None
        if is_taught and content not in present:
            present.add(content)
            role = _ROLES.index(candidate.role)
            rows.append(_passage_row(candidate.passage, role, targets.get(content)))
    return rows


def _passage_row(passage: Passage, role: int, target: float | None = None) -> dict[str, Any]:
    title, text = passage.content
    return {"id": passage.id, "title": title, "text": text, "role": role, "target": target}
