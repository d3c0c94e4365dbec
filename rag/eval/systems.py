"""The systems that are evaluated: a pipeline, a reader of gold passages, or search results that
another program wrote.
"""

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Protocol
from urllib.parse import unquote

import numpy as np

from rag.answering import AnswerOptions, Outcome, answer_questions
from rag.core.errors import ConfigError, DataError, ReaderError
from rag.core.files import sha256_file
from rag.core.log import Timer, in_batches
from rag.core.types import Hit, Passage, Question, RankedPassages, SearchResult
from rag.data.examples import read_examples, run_id
from rag.data.files.rows import read_rows, refuse_bad
from rag.data.formats import head_of, open_binary
from rag.eval.gold import PassageLookup, gold_passages
from rag.policies import Policy
from readers.protocols import Reader, reader_name
from retrievers.protocols import check_results

# An object of scores by passage, of the first question.
_SCORES = re.compile(rb'\{\s*"[^"]*"\s*:\s*\{')


class AnswersQuestions(Protocol):
    """Searches for passages, and has a reader of them, as a pipeline does."""

    @property
    def reader(self) -> Reader | None:
        """None if it only searches."""

    @property
    def identity(self) -> Mapping[str, object]:
        """Retriever, reader, models with their hashes, index version."""

    def search(
        self, queries: Sequence[str], top_k: int, *, timer: Timer = None
    ) -> Sequence[SearchResult]:
        """The best passages of each query, best first, and its paths, if the system finds such."""


@dataclass(frozen=True, slots=True)
class System:
    """A search, with or without a reader, that answers the questions of an evaluation.

    Attributes:
        reader: None if it only searches.
        search: of a pipeline, or of an object with the same method.
        find: a question and a number of passages → the passages that stand for its first search.
        document_of: passage id → id of its document, as the index has it.
        policy: decides when to search and read; None: search once, and read.
    """

    identity: Mapping[str, object]
    reader: Reader | None
    search: Callable[..., Sequence[SearchResult]]
    find: Callable[[Question, int], RankedPassages] | None = None
    document_of: Callable[[str], str] = str
    policy: Policy | None = None
    _lock: Lock = field(default_factory=Lock)

    def answer(
        self, questions: Sequence[Question], options: AnswerOptions, failures: list[ReaderError]
    ) -> list[Outcome]:
        """An outcome of each question, with answers if there is a reader.

        Several threads may call it: they search one at a time.

        Args:
            failures: gets the errors of reading.
        """
        # A passage that is not ranked takes no other's place.
        top_k = options.top_k + any(question.is_left_out for question in questions)
        first_results = None
        if self.find is not None:
            first_results = [SearchResult(q.text, self.find(q, top_k)) for q in questions]
        return answer_questions(
            [question.text for question in questions],
            replace(options, top_k=top_k),
            search=self._search_alone,
            reader=self.reader,
            first_results=first_results,
            failures=failures,
        )

    def _search_alone(
        self, queries: Sequence[str], top_k: int, timer: Timer
    ) -> Sequence[SearchResult]:
        with self._lock:
            results = self.search(queries, top_k, timer=timer)
        check_results(queries, results)
        return results


def system_of(pipeline: AnswersQuestions) -> System:
    """The system of an open pipeline, or of an object with the same methods."""
    return System(pipeline.identity, pipeline.reader, pipeline.search)


def gold_system(
    reader: Reader, lookup: PassageLookup | None, identity: Mapping[str, object] | None = None
) -> System:
    """A reader over the gold passages of each question, in place of a search.

    Args:
        lookup: passage id → passage, for the texts of gold ids; None: questions quote them.
        identity: of the pipeline that the reader belongs to; the reader's name by default.
    """

    def find(question: Question, top_k: int) -> RankedPassages:
        passages = gold_passages(question, lookup)
        if not passages:
            raise DataError(
                f"question {question.id!r} comes without its gold passage",
                hint="give a set that quotes its paragraphs (SQuAD, DPR's training JSON), or their index",
            )
        return [(Hit(-1, passage.id, 0.0), passage) for passage in passages]

    alone = {"reader": reader_name(reader), "index_version": ""}
    return System(identity or alone, reader, _search_nowhere, find)


def _search_nowhere(queries: Sequence[str], top_k: int, *, timer: Timer) -> Sequence[SearchResult]:
    raise ConfigError(
        "a policy that searches on has nothing to search here",
        hint="leave {policy} out, or evaluate an index without gold passages",
        arguments=["policy"],
    )


def ask_all(
    system: System, questions: Sequence[Question], options: AnswerOptions, batch_size: int
) -> Iterator[tuple[Question, Outcome]]:
    """Every question with its outcome.

    Raises:
        ReaderError: a question could not be read, so that nothing can be said of its answer.
    """
    failures = list[ReaderError]()
    for part in in_batches(questions, batch_size, "questions", "ask"):
        outcomes = system.answer(part, options, failures)
        if failures:
            raise failures[0]
        yield from zip(part, outcomes, strict=True)


def open_results(path: Path, lookup: PassageLookup | None) -> tuple[System, int]:
    """Search results that another program wrote, as a system, and the most passages of a question.

    Rankings go by the id or the text of their question; one that they lack has an empty ranking.

    Args:
        path: `*.json` for DPR's results, which have the passages' texts; anything else is read as a
            run (see `_run_rows`).
        lookup: passage id → passage, for the texts of a TREC run; without it only gold ids can be
            judged.

    Raises:
        DataError: the file is missing, malformed or empty.
    """
    if not path.is_file():
        raise DataError(
            f"{path}: no such file", hint="give a TREC run, or the JSON of `rag retrieve`"
        )
    rankings = _read_dpr(path) if has_texts(path) else _read_trec(path, lookup)
    if not any(rankings.values()):
        raise DataError(f"{path}: there are no results in it")

    def find(question: Question, top_k: int) -> RankedPassages:
        # A run does not say whether an id is encoded; a gold id is known in both forms.
        names = {run_id(gold): gold for gold in question.gold_passage_ids}
        found = rankings.get(question.id, rankings.get(question.text, ()))[:top_k]
        return [(hit, replace(text, id=names.get(text.id, text.id))) for hit, text in found]

    identity = {
        "retriever": path.name,
        "sha256": sha256_file(path),
        "reader": None,
        "index_version": "",
    }
    system = System(identity, None, _search_nowhere, find)
    return system, max(map(len, rankings.values()))


def has_texts(path: Path) -> bool:
    """Whether these are DPR's results with the passages' texts, and no run: `*.json` that does not
    begin with a score by question and passage.
    """
    if ".json" not in path.suffixes:
        return False
    with open_binary(path) as stream:
        return _SCORES.match(head_of(stream)) is None


def _read_dpr(path: Path) -> dict[str, RankedPassages]:
    rankings: dict[str, RankedPassages] = {}
    try:
        examples = list(read_examples(path, needs="passages"))
    except DataError as error:
        hint = (
            "expected DPR's list of {question, answers, ctxs: [{id, title, text, score}]}; write what "
            "other programs found as a TREC run: qid Q0 docid rank score tag"
        )
        raise DataError(error.message, hint=hint) from error
    for example in examples:
        ranking = []
        for rank, candidate in enumerate(example.candidates):
            passage = candidate.passage
            score = -float(rank) if candidate.score is None else candidate.score
            ranking.append((Hit(-1, passage.id or str(rank), score), passage))
        if rankings.setdefault(example.question, ranking) != ranking:
            raise DataError(
                f"{path}: the question {example.question!r} is there twice, with other passages",
                hint="leave one of the two out, or give a TREC run, where questions have ids",
            )
    return rankings


def _read_trec(path: Path, lookup: PassageLookup | None) -> dict[str, RankedPassages]:
    find = lookup or _unknown
    rankings: dict[str, dict[str, tuple[Hit, Passage]]] = {}
    try:
        for question_id, passage_id, score in _run_rows(path):
            # Our own runs hold ids with white space encoded.
            passage = find(passage_id) or find(unquote(passage_id))
            if passage is None:
                message = f"{path}: the index has no passage {passage_id!r}"
                raise DataError(
                    message,
                    hint="give the index that was searched, uncut (split none) where it was of documents",
                )
            found = rankings.setdefault(question_id, {})
            if passage.id in found or not math.isfinite(score):
                raise ValueError(
                    f"{question_id} {passage_id} {score}: a passage comes twice, or with a score that "
                    "is no number"
                )
            found[passage.id] = (Hit(-1, passage.id, score), passage)
    except (ValueError, TypeError, AttributeError) as error:
        hint = (
            "expected lines of one search: qid Q0 docid rank score tag, or qid docid and a rank (MS "
            "MARCO), a score (Tevatron) or both (ColBERT); or JSON of scores by question and passage"
        )
        raise DataError(f"{path}: no TREC run ({error})", hint=hint) from error

    def trec_order(pair: tuple[Hit, Passage]) -> tuple[np.float32, str]:
        """By which trec_eval orders, the largest first: the score in 32 bits, then the id."""
        return np.float32(pair[0].score), pair[1].id

    return {
        name: sorted(found.values(), key=trec_order, reverse=True)
        for name, found in rankings.items()
    }


def _run_rows(path: Path) -> Iterator[tuple[str, str, float]]:
    """Question, passage and score of ranx's and BEIR's JSON, or of each line of a run with TREC's six
    columns, ColBERT's four (the last is the score), or three.

    The third of three is a rank in MS MARCO's runs, whose ranks are 1, 2, … for each question, and a
    score in Tevatron's.

    Raises:
        ValueError: a line has other columns, or whole numbers in the third column are no ranks.
    """
    if ".json" in path.suffixes:
        with open_binary(path) as stream:
            for question_id, found in json.load(stream).items():
                for passage_id, score in found.items():
                    yield question_id, passage_id, float(score)
        return
    ranks = defaultdict[str, list[int]](list)
    for record in read_rows(str(path), format="text"):
        cells = refuse_bad(record)["question"].split()
        if len(cells) == 6:
            # Without "Q0" and the tag they are ColBERT's columns.
            cells = [cells[0], *cells[2:5]]
        if len(cells) == 4:
            yield cells[0], cells[1], float(cells[3])
            continue
        if len(cells) != 3:
            raise ValueError(f"{record.location}: {len(cells)} columns")
        rank = 0
        score = float(cells[2])
        if cells[2].isdecimal():
            rank = int(score)
            score = -score
        ranks[cells[0]].append(rank)
        yield cells[0], cells[1], score
    for question_id, found in ranks.items():
        # A whole number among scores would be taken for a rank.
        if any(found) and sorted(found) != list(range(1, len(found) + 1)):
            raise ValueError(
                f"the whole numbers of question {question_id} are not its ranks 1, 2, …"
            )


def _unknown(passage_id: str) -> Passage:
    """A passage of which the id alone is known."""
    return Passage(passage_id, "", "")
