"""The training set: tokenised questions and deduplicated passages, mapped from Arrow files by `datasets`."""

from __future__ import annotations

import errno
import hashlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import feather

from rag.core.arrays import Float32, Int32, Int64, UInt64
from rag.core.errors import ArtifactError, DataError
from rag.core.files import atomic_path, hash64
from rag.core.log import get_logger
from rag.core.types import Passage
from rag.data.examples import Example
from rag.data.text import AnswerMatcher
from retrievers.examples.tokens import TextsToIds

_FORMAT = "6"
_WINDOW = 4096  # texts that are tokenised at once
_LISTS = pa.list_(pa.int32())
_QUESTIONS = pa.schema({
    "id": pa.string(), "tokens": _LISTS, "positives": _LISTS, "negatives": _LISTS, "scored": _LISTS,
    "targets": pa.list_(pa.float32()),
})  # fmt: skip
_PASSAGES = pa.schema({"tokens": _LISTS, "canonical": pa.int32(), "hash": pa.uint64()})
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


def row_lists(lists: Sequence[Sequence[int]]) -> pa.ListArray:
    """A list of passage rows for each example."""
    return pa.array(lists, _LISTS)


def gather(lists: pa.ListArray, examples: Int64) -> tuple[Int64, Int64]:
    """The concatenated lists of `examples`, and for each row the position in `examples` it came from.

    Example:
        >>> rows, owners = gather(row_lists([[7, 8], [], [9]]), np.array([2, 0]))
        >>> rows.tolist(), owners.tolist()
        ([9, 7, 8], [0, 1, 1])
    """
    taken = lists.take(pa.array(examples))
    owners = np.repeat(np.arange(len(examples)), taken.value_lengths().to_numpy())
    return taken.flatten().to_numpy().astype(np.int64), owners


def replace_lists(lists: pa.ListArray, others: pa.ListArray) -> pa.ListArray:
    """These lists, each replaced by that of `others` where the latter is not empty.

    Example:
        >>> replace_lists(row_lists([[7, 8], [6], [9]]), row_lists([[], [1, 2], []])).to_pylist()
        [[7, 8], [1, 2], [9]]
    """
    return pc.if_else(pc.greater(pc.list_value_length(others), 0), others, lists)


def write_lists(lists: pa.ListArray, path: Path) -> None:
    """Write lists of rows as an Arrow file."""
    feather.write_feather(pa.table({"rows": lists}), str(path), compression="uncompressed")


def read_lists(path: Path) -> pa.ListArray:
    """Map a file of `write_lists`.

    Raises:
        ArtifactError: it is missing or damaged.
    """
    try:
        column = feather.read_table(str(path), memory_map=True).column("rows")
    except (OSError, KeyError, pa.ArrowInvalid) as error:
        raise ArtifactError(f"{path}: no lists of passages ({error})", hint="delete its folder") from error
    return column.combine_chunks()


class Tokens:
    """Token ids of texts by row, memory-mapped."""

    def __init__(self, dataset: Any) -> None:
        self._rows = dataset.select_columns(["tokens"]).with_format("arrow")

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> Int32:
        """(L,) int32."""
        return self.take(np.array([row]))[0]

    def take(self, rows: Int64) -> list[Int32]:
        """The texts of some rows, in that order."""
        if not len(rows):
            return []
        column = self._rows[rows.tolist()].column("tokens").combine_chunks()
        bounds = np.cumsum(column.value_lengths().to_numpy())
        return np.split(column.flatten().to_numpy(), bounds[:-1])


@dataclass(frozen=True, slots=True)
class TrainingSet:
    """Q examples over a table of N passages; passages are tokens alone, without a Python object for each.

    Made by `build`. If a corpus was given, its passages come first, so that rows are those of the index.

    Attributes:
        ids: Q question ids.
        questions: Q tokenised queries: questions, and the passages that belong to the query.
        passages: N tokenised passages.
        positives: Q lists of passage rows, the gold one first.
        negatives: Q lists of passage rows, hardest first.
        scored: Q lists of passage rows that have a target, whatever their role.
        targets: (T,) float32, one for each entry of `scored.values`.
        canonical: (N,) first row with the same title and text.
        hashes: (N,) uint64, `passage_hash` of each passage.
    """

    ids: tuple[str, ...]
    questions: Tokens
    passages: Tokens
    positives: pa.ListArray
    negatives: pa.ListArray
    scored: pa.ListArray
    targets: Float32
    canonical: Int32
    hashes: UInt64

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def build(
        cls,
        examples: Iterable[Example],
        tokenizer: TextsToIds,
        *,
        corpus: Iterable[Passage] = (),
        folder: Path | None = None,
        key: str = "",
    ) -> TrainingSet:
        """Tokenise everything once, streaming: of each passage only numbers are kept.

        Args:
            examples: read once; not at all if `folder` contains the finished set already.
            tokenizer: tokenizer of the encoder to train.
            corpus: passages to put first, for example an index's, so that mined rows can be used as they are.
            folder: folder for finished sets, each under its key; None keeps this one in memory.
            key: identifies the examples and the corpus, for example by their files' checksums. Sets made with
                another key or tokenizer are never used in place of this one.

        Raises:
            DataError: no examples, or `folder` without `key`.

        Note:
            Passages are compared by 64-bit hashes of title and text: the probability that two different ones
            among a million have the same hash is 3e-8.
        """
        from datasets import Dataset

        if folder is None:
            sinks = [pa.BufferOutputStream(), pa.BufferOutputStream()]
            _write(examples, tokenizer, corpus, *sinks)
            return cls._of(*(Dataset.from_buffer(sink.getvalue()) for sink in sinks))
        if not key:
            raise DataError(
                "a training set can only be stored under a key that identifies its examples",
                hint="pass the checksums of the files",
            )
        name = hashlib.sha256("\n".join([key, tokenizer.fingerprint, _FORMAT]).encode()).hexdigest()[:16]
        place = folder / f"tokens-{name}"
        if not place.is_dir():
            try:
                with atomic_path(place) as temporary:
                    temporary.mkdir()
                    with (
                        pa.OSFile(str(temporary / "questions.arrow"), "wb") as questions,
                        pa.OSFile(str(temporary / "passages.arrow"), "wb") as passages,
                    ):
                        _write(examples, tokenizer, corpus, questions, passages)
            except OSError as error:  # another process finished the same set first
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
        return cls._of(*(Dataset.from_file(str(place / f"{n}.arrow")) for n in ("questions", "passages")))

    @classmethod
    def _of(cls, questions: Any, passages: Any) -> TrainingSet:
        table = questions.data
        lists = {name: table.column(name).combine_chunks() for name in ("positives", "negatives", "scored")}
        return cls(
            ids=tuple(table.column("id").to_pylist()),
            questions=Tokens(questions),
            passages=Tokens(passages),
            targets=np.asarray(table.column("targets").combine_chunks().flatten()),
            canonical=np.asarray(passages.data.column("canonical")),
            hashes=np.asarray(passages.data.column("hash")),
            **lists,
        )


def passage_hash(passage: Passage) -> int:
    """A 64-bit hash of title and text, by which passages are told apart."""
    return hash64(f"{len(passage.title)} {passage.title}{passage.text}".encode())


class _Passages:
    """The growing passage table: rows by content, tokens window by window."""

    def __init__(self, tokenizer: TextsToIds, sink: Any) -> None:
        self._tokenizer, self._stream = tokenizer, pa.ipc.new_stream(sink, _PASSAGES)
        self._rows: dict[int, int] = {}
        self._canonical, self._hashes = array("i"), array("Q")
        self._titles: list[str] = []
        self._texts: list[str] = []
        self.count = self.tokens = 0

    def add(self, passage: Passage, *, always: bool = False) -> int:
        """Row of a passage; one that was added before gets no second row, unless `always`."""
        content = passage_hash(passage)
        row = self._rows.setdefault(content, self.count)
        if row < self.count and not always:
            return row
        self._canonical.append(row)
        self._hashes.append(content)
        self._titles.append(passage.title)
        self._texts.append(passage.text)
        self.count += 1
        if len(self._texts) == _WINDOW:
            self.flush()
        return self.count - 1

    def flush(self) -> None:
        tokens = self._tokenizer.passages(self._titles, self._texts)
        self.tokens += sum(map(len, tokens))
        columns = {"tokens": tokens, "canonical": self._canonical, "hash": self._hashes}
        self._stream.write_batch(pa.RecordBatch.from_pydict(columns, _PASSAGES))
        self._titles, self._texts, self._canonical, self._hashes = [], [], array("i"), array("Q")

    def close(self) -> None:
        self.flush()
        self._stream.close()


def _write(
    examples: Iterable[Example], tokenizer: TextsToIds, corpus: Iterable[Passage], questions: Any, sink: Any
) -> None:
    """Write both tables into two sinks."""
    passages = _Passages(tokenizer, sink)
    for passage in corpus:
        passages.add(passage, always=True)
    corpus_rows, count = passages.count, 0
    rows: list[dict[str, Any]] = []
    with pa.ipc.new_stream(questions, _QUESTIONS) as stream:

        def flush() -> None:
            tokens = tokenizer.queries([row.pop("query") for row in rows])
            batch = [{**row, "tokens": ids} for row, ids in zip(rows, tokens, strict=True)]
            stream.write_batch(pa.RecordBatch.from_pylist(batch, _QUESTIONS))
            rows.clear()

        for example in examples:
            count += 1
            listed = (example.positives, [negative.passage for negative in example.negatives])
            positives, negatives = (list(dict.fromkeys(map(passages.add, role))) for role in listed)
            scored = {passages.add(c.passage): c.target for c in example.candidates if c.target is not None}
            rows.append({
                "id": example.id, "query": example.query, "positives": positives, "negatives": negatives,
                "scored": list(scored), "targets": list(scored.values()),
            })  # fmt: skip
            if len(rows) == _WINDOW:
                flush()
        if not count:
            raise DataError("there are no training examples")
        flush()
    passages.close()
    get_logger(__name__).info(
        "examples: %d questions, %d passages (%d of the corpus), %.1f tokens per passage",
        *(count, passages.count, corpus_rows, passages.tokens / max(1, passages.count)),
    )
