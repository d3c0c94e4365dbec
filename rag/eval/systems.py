"""What is evaluated: a pipeline, a reader of gold passages, or search results that another program
wrote.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Protocol
from urllib.parse import unquote

from rag.answering import (
    AnswerOptions,
    Outcome,
    Searcher,
    answer_questions,
    check_results,
)
from rag.core.errors import ConfigError, DataError, ReaderError
from rag.core.files import sha256_file
from rag.core.log import Timer
from rag.core.types import Hit, Passage, Question, RankedPassages, SearchResult
from rag.data.examples import read_examples
from rag.eval.gold import PassageLookup, gold_passages
from readers.protocols import Reader, reader_name


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
    """What answers the questions of an evaluation.

    Attributes:
        answer: questions, options and a list for the errors of reading → an outcome of each, with
            answers if there is a `reader`. Several threads may call it: they search one at a time.
        document_of: passage id → id of its document, as the index has it.
    """

    identity: Mapping[str, object]
    reader: Reader | None
    answer: Callable[[Sequence[Question], AnswerOptions, list[ReaderError]], list[Outcome]]
    document_of: Callable[[str], str] = str


def system_of(pipeline: AnswersQuestions, *, is_checked: bool = False) -> System:
    """The system of an open pipeline, or of an object with the same methods.

    Args:
        is_checked: its searches check their results themselves.
    """

    def search(queries: Sequence[str], top_k: int, timer: Timer) -> Sequence[SearchResult]:
        results = pipeline.search(queries, top_k, timer=timer)
        if not is_checked:
            check_results(queries, results)
        return results

    return _system(pipeline.identity, pipeline.reader, search, None)


def gold_system(
    reader: Reader, lookup: PassageLookup | None, identity: Mapping[str, object] | None = None
) -> System:
    """A reader over the gold passages of each question, in place of a search.

    Args:
        lookup: passage id → passage, for the texts of gold ids; None: questions quote them.
        identity: of the pipeline that the reader belongs to; the reader's name by default.
    """

    def find(question: Question, top_k: int) -> RankedPassages:
        return _gold(question, lookup)

    alone = {"reader": reader_name(reader), "index_version": ""}
    return _system(identity or alone, reader, _search_nowhere, find)


def _system(
    identity: Mapping[str, object],
    reader: Reader | None,
    search: Searcher,
    find: Callable[[Question, int], RankedPassages] | None,
) -> System:
    """A system that searches, or takes what `find` returns for a question for its first search."""
    lock = Lock()

    def search_alone(queries: Sequence[str], top_k: int, timer: Timer) -> Sequence[SearchResult]:
        with lock:
            return search(queries, top_k, timer)

    def answer(
        questions: Sequence[Question], options: AnswerOptions, failures: list[ReaderError]
    ) -> list[Outcome]:
        found = None
        if find is not None:
            found = [SearchResult(q.text, find(q, options.top_k)) for q in questions]
        return answer_questions(
            [question.text for question in questions],
            options,
            search=search_alone,
            reader=reader,
            found=found,
            index_version=str(identity.get("index_version", "")),
            failures=failures,
        )

    return System(identity, reader, answer)


def _search_nowhere(queries: Sequence[str], top_k: int, timer: Timer) -> Sequence[SearchResult]:
    raise ConfigError(
        "a policy that searches on has nothing to search here",
        hint="leave the policy at once, or evaluate an index without gold passages",
    )


def _gold(question: Question, lookup: PassageLookup | None) -> RankedPassages:
    passages = gold_passages(question, lookup)
    if not passages:
        raise DataError(
            f"question {question.id!r} comes without its gold passage",
            hint="give a set that quotes its paragraphs (SQuAD, DPR's training JSON), or their index",
        )
    return [(Hit(-1, passage.id, 0.0), passage) for passage in passages]


def open_results(path: Path, lookup: PassageLookup | None) -> tuple[System, int]:
    """Search results that another program wrote, as a system, and the most passages of a question.

    Rankings go by the id or the text of their question; one that they lack has an empty ranking.

    Args:
        path: `*.json` for DPR's results, which have the passages' texts; anything else is read as a
            TREC run.
        lookup: passage id → passage, for the texts of a TREC run; without it only gold ids can be
            judged.

    Raises:
        DataError: the file is missing, malformed or empty.
    """
    if not path.is_file():
        raise DataError(
            f"{path}: no such file", hint="give a TREC run, or the JSON of `rag retrieve`"
        )
    rankings = _read_dpr(path) if ".json" in path.suffixes else _read_trec(path, lookup)
    if not any(rankings.values()):
        raise DataError(f"{path}: there are no results in it")

    def find(question: Question, top_k: int) -> RankedPassages:
        return rankings.get(question.id, rankings.get(question.text, ()))[:top_k]

    identity = {
        "retriever": path.name,
        "sha256": sha256_file(path),
        "reader": None,
        "index_version": "",
    }
    system = _system(identity, None, _search_nowhere, find)
    return system, max(map(len, rankings.values()))


def _read_dpr(path: Path) -> dict[str, RankedPassages]:
    return {
        example.question: [
            (
                Hit(-1, candidate.passage.id or f"{rank}", candidate.score or -float(rank)),
                candidate.passage,
            )
            for rank, candidate in enumerate(example.candidates)
        ]
        for example in read_examples(path, needs="passages")
    }


def _read_trec(path: Path, lookup: PassageLookup | None) -> dict[str, RankedPassages]:
    from ir_measures import read_trec_run

    rankings: dict[str, list[tuple[Hit, Passage]]] = {}
    try:
        for row in read_trec_run(str(path)):
            passage = lookup(row.doc_id) if lookup is not None else Passage(row.doc_id, "", "")
            # our own runs hold ids with white space encoded
            if passage is None and lookup is not None:
                passage = lookup(unquote(row.doc_id))
            if passage is None:
                message = f"{path}: the index has no passage {row.doc_id!r}"
                raise DataError(message, hint="give the index that was searched")
            ranking = rankings.setdefault(row.query_id, [])
            ranking.append((Hit(-1, passage.id, float(row.score)), passage))
    except (ValueError, IndexError) as error:
        hint = "expected: qid Q0 docid rank score tag"
        raise DataError(f"{path}: no TREC run ({error})", hint=hint) from error
    return {
        question: sorted(ranking, key=lambda pair: Hit.sort_key(pair[0]))
        for question, ranking in rankings.items()
    }
