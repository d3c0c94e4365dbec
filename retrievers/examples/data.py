"""The training set as arrays: questions, deduplicated passages, positives and negatives of each question."""

from __future__ import annotations

import errno
import hashlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rag.core.arrays import Float32, Int32, UInt64
from rag.core.errors import DataError
from rag.core.files import atomic_path, atomic_write_json, hash64, read_json
from rag.core.log import get_logger
from rag.core.manifest import MANIFEST_NAME, read_manifest, write_manifest
from rag.core.npy import load_npy, save_npy
from rag.core.types import Passage, Query
from rag.data.examples import Example
from rag.data.text import AnswerMatcher, nfd, simple_tokenize
from retrievers.examples.tokens import TextsToIds, TokenTable, TokenTableWriter

_KIND = "training-set"
_FORMAT = "5"
_WINDOW = 4096  # texts that are tokenised at once
_OF_QUESTIONS = ("questions", "answers", "question_answers", "positives", "negatives", "scored")
_TABLES = (*_OF_QUESTIONS, "passages", "words")
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


@dataclass(frozen=True, slots=True)
class TrainingArrays:
    """Q examples over a table of N passages, stored as arrays without a Python object per passage.

    Made by `build`. If a corpus was given, its passages come first, so that rows are those of the index.

    Attributes:
        ids: Q question ids.
        questions: Q tokenised queries: questions, and the passages that belong to the query.
        passages: N tokenised passages.
        words: N passages as word numbers of DPR's tokenisation (lower-cased, NFD, without the title), for
            finding answers; empty rows without `match_answers`.
        answers: all answers in the same words.
        question_answers: Q lists of rows of `answers`.
        positives: Q lists of passage rows, the gold one first.
        negatives: Q lists of passage rows, hardest first.
        canonical: (N,) first row with the same title and text.
        scored: Q lists of passage rows that have a target, whatever their role.
        targets: (T,) float32, one for each entry of `scored.values`.
        corpus_rows: number of passages, from the first, that belong to the corpus.
        hashes: (N,) uint64, `passage_hash` of each passage.
    """

    ids: tuple[str, ...]
    questions: TokenTable
    passages: TokenTable
    words: TokenTable
    answers: TokenTable
    question_answers: TokenTable
    positives: TokenTable
    negatives: TokenTable
    canonical: Int32
    scored: TokenTable
    targets: Float32
    corpus_rows: int
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
        match_answers: bool = True,
        folder: Path | None = None,
        key: str = "",
    ) -> TrainingArrays:
        """Tokenise everything once, streaming: of each passage only numbers are kept.

        Args:
            examples: read once; not at all if `folder` contains the finished set already.
            tokenizer: tokenizer of the encoder to train.
            corpus: passages to put first, for example an index's, so that mined rows can be used as they are.
            match_answers: store passages as words too, so that batches can mask passages that contain an
                answer. Regular expressions need the texts, which are not stored: for them a question's own
                negatives are searched here, and left out if they match.
            folder: folder for finished sets, each under its key; None keeps this one in memory.
            key: identifies the examples and the corpus, for example by their files' checksums. Sets made with
                another key, tokenizer or settings are never used in place of this one.

        Raises:
            DataError: no examples, or `folder` without `key`.
            ArtifactError: the kept set is damaged.

        Note:
            Passages are compared by 64-bit hashes of title and text: the probability that two different ones
            among a million have the same hash is 3e-8.
        """
        make = partial(_build, examples, tokenizer, corpus, match_answers)
        if folder is None:
            return make(None)
        if not key:
            raise DataError(
                "a training set can only be stored under a key that identifies its examples",
                hint="pass the checksums of the files",
            )
        name = hashlib.sha256(
            "\n".join([key, tokenizer.fingerprint, str(match_answers), _FORMAT]).encode()
        ).hexdigest()[:16]
        place = folder / name
        if not (place / MANIFEST_NAME).is_file():
            try:
                with atomic_path(place) as temporary:
                    temporary.mkdir()
                    make(temporary)
            except OSError as error:  # another process finished the same set first
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
        return cls.open(place)

    @classmethod
    def open(cls, folder: Path) -> TrainingArrays:
        """Map a kept set into memory.

        Raises:
            ArtifactError: unfinished, damaged, or something else.
        """
        manifest = read_manifest(folder, kind=_KIND)
        shapes = manifest["tables"]
        tables = {name: TokenTable.read(folder, name, shapes[name]) for name in _TABLES}
        ids = tuple(read_json(folder / "ids.json"))
        rows = (len(tables["passages"]),)
        return cls(
            ids=ids,
            canonical=load_npy(folder / "canonical.npy", dtype=np.int32, shape=rows),
            hashes=load_npy(folder / "hashes.npy", dtype=np.uint64, shape=rows),
            targets=load_npy(
                folder / "targets.npy", dtype=np.float32, shape=(int(shapes["scored"]["values"]),)
            ),
            corpus_rows=int(manifest["corpus_rows"]),
            **tables,
        )


def passage_hash(passage: Passage) -> int:
    """A 64-bit hash of title and text, by which passages are told apart."""
    return hash64(f"{len(passage.title)} {passage.title}{passage.text}".encode())


class _Passages:
    """The growing passage table: rows by content, tokens and words window by window."""

    def __init__(self, tokenizer: TextsToIds, match_answers: bool, folder: Path | None) -> None:
        self._tokenizer = tokenizer
        self._match = match_answers
        self.tokens = TokenTableWriter(None if folder is None else folder / "passages.raw")
        self.words = TokenTableWriter(None if folder is None else folder / "words.raw")
        self.vocabulary: dict[str, int] = {}
        self.canonical = array("i")
        self.hashes = array("Q")
        self._rows: dict[int, int] = {}
        self._titles: list[str] = []
        self._texts: list[str] = []

    def add(self, passage: Passage, *, always: bool = False) -> int:
        """Row of a passage; a known one gets no second row, unless `always`."""
        content = passage_hash(passage)
        row = self._rows.setdefault(content, len(self.canonical))
        if row < len(self.canonical) and not always:
            return row
        self.canonical.append(row)
        self.hashes.append(content)
        self._titles.append(passage.title)
        self._texts.append(passage.text)
        if len(self._texts) == _WINDOW:
            self.flush()
        return len(self.canonical) - 1

    def flush(self) -> None:
        self.tokens.append(self._tokenizer.passages(self._titles, self._texts))
        self.words.append([self.word_ids(text) if self._match else [] for text in self._texts])
        self._titles, self._texts = [], []

    def word_ids(self, text: str) -> list[int]:
        tokens = simple_tokenize(nfd(text))
        known = self.vocabulary
        # lower-cased as one string: `AnswerMatcher` does the same, and a sigma looks at its neighbours
        words = " ".join(tokens).lower().split(" ") if tokens else []
        return [known.setdefault(word, len(known)) for word in words]


def _build(
    examples: Iterable[Example],
    tokenizer: TextsToIds,
    corpus: Iterable[Passage],
    match_answers: bool,
    folder: Path | None,
) -> TrainingArrays:
    passages = _Passages(tokenizer, match_answers, folder)
    for passage in corpus:
        passages.add(passage, always=True)
    corpus_rows = len(passages.canonical)
    ids: list[str] = []
    queries: list[Query] = []
    targets = array("f")
    patterns = 0
    writers = {name: TokenTableWriter(None) for name in _OF_QUESTIONS}
    for example in examples:
        ids.append(example.id)
        queries.append(example.query)
        positives, negatives = example.positives, example.negatives
        matched = matchable_answers(example.answers, example.answer_mode) if match_answers else ()
        if matched and example.answers_are_regex:
            patterns, pattern, matched = patterns + 1, AnswerMatcher(matched, "regex"), ()
            negatives = tuple(n for n in negatives if not pattern.matches(n.passage.text))
        for role, listed in (("positives", positives), ("negatives", [n.passage for n in negatives])):
            writers[role].append([list(dict.fromkeys(map(passages.add, listed)))])
        scored = {passages.add(c.passage): c.target for c in example.candidates if c.target is not None}
        writers["scored"].append([list(scored)])
        targets.extend(scored.values())
        words = [passages.word_ids(answer) for answer in matched]
        known = [list(answer) for answer in dict.fromkeys(map(tuple, words)) if answer]
        first = writers["answers"].rows
        writers["answers"].append(known)
        writers["question_answers"].append([range(first, first + len(known))])
        if len(queries) == _WINDOW:
            writers["questions"].append(tokenizer.queries(queries))
            queries = []
    if not ids:
        raise DataError("there are no training examples")
    writers["questions"].append(tokenizer.queries(queries))
    passages.flush()
    if patterns:
        get_logger(__name__).warning(
            "the answers of %d questions are regular expressions: their own negatives that match are left "
            "out, but not the passages that other questions bring into a batch",
            patterns,
        )
    tables = {name: writer.finish() for name, writer in writers.items()}
    tables |= {"passages": passages.tokens.finish(), "words": passages.words.finish()}
    canonical = np.frombuffer(passages.canonical, np.int32)
    built = TrainingArrays(
        ids=tuple(ids),
        canonical=canonical,
        targets=np.frombuffer(targets, np.float32),
        corpus_rows=corpus_rows,
        hashes=np.frombuffer(passages.hashes, np.uint64),
        **tables,
    )
    if folder is not None:
        _write(built, folder)
    get_logger(__name__).info(
        "examples: %d questions, %d passages (%d of the corpus), %.1f tokens per passage",
        *(len(ids), len(canonical), corpus_rows, len(built.passages.values) / max(1, len(canonical))),
    )
    return built


def _write(built: TrainingArrays, folder: Path) -> None:
    shapes: dict[str, Any] = {name: getattr(built, name).write(folder, name) for name in _TABLES}
    save_npy(folder / "canonical.npy", built.canonical)
    save_npy(folder / "hashes.npy", built.hashes)
    save_npy(folder / "targets.npy", built.targets)
    atomic_write_json(folder / "ids.json", list(built.ids))
    for raw in folder.glob("*.raw"):
        raw.unlink()
    write_manifest(folder, {"kind": _KIND, "tables": shapes, "corpus_rows": built.corpus_rows})
