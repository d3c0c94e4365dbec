"""What is evaluated: a pipeline, a reader of gold passages, or search results that another program
wrote.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from rag.core.errors import DataError
from rag.core.files import sha256_file
from rag.core.types import AnswerSet, Hit, Passage, Paths, Question, RankedPassages
from rag.data.examples import read_examples
from rag.eval.gold import PassageLookup, gold_passages
from readers.answers import read_answers
from readers.protocols import Reader

SearchResults = tuple[Sequence[RankedPassages], Sequence[Paths]]


class AnswersQuestions(Protocol):
    """Retrieves passages and reads them, as a pipeline does; each question is searched once."""

    @property
    def reader(self) -> Reader | None:
        """None if it only retrieves."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """Retriever, reader, models with their hashes, index version."""

    def retrieve_paths(self, questions: Sequence[str], top_k: int) -> SearchResults:
        """The best passages of each question, best first, and its paths, if the system finds
        such.
        """

    def read(
        self,
        questions: Sequence[str],
        ranked: Sequence[RankedPassages],
        n_best: int,
        paths: Sequence[Paths],
    ) -> list[AnswerSet]:
        """One answer set per question."""


@dataclass(frozen=True, slots=True)
class System:
    """A search, and what reads its passages.

    Attributes:
        search: questions and a number of passages → the best passages of each question, and its
            paths.
        read: as `AnswersQuestions.read`; None if there is no reader.
        document_of: passage id → id of its document, as the index has it.
    """

    identity: Mapping[str, Any]
    search: Callable[[Sequence[Question], int], SearchResults]
    read: Callable[..., list[AnswerSet]] | None = None
    document_of: Callable[[str], str] = str


def system_of(pipeline: AnswersQuestions) -> System:
    """The system of an open pipeline, or of an object with the same methods."""

    def search(questions: Sequence[Question], top_k: int) -> SearchResults:
        return pipeline.retrieve_paths([question.text for question in questions], top_k)

    return System(pipeline.identity, search, None if pipeline.reader is None else pipeline.read)


def gold_reader(reader: Reader) -> System:
    """The system of a reader alone, for gold passages that the questions quote."""

    def read(
        questions: Sequence[str],
        ranked: Sequence[RankedPassages],
        n_best: int,
        paths: Sequence[Paths],
    ) -> list[AnswerSet]:
        return read_answers(reader, questions, ranked, paths, n_best, "")

    identity = {"reader": getattr(reader, "name", type(reader).__name__), "index_version": ""}
    return over_gold(System(identity, lambda questions, top_k: ((), ()), read), None)


def over_gold(system: System, lookup: PassageLookup | None) -> System:
    """The same reader over the gold passages of each question, in place of a search.

    Args:
        lookup: passage id → passage, for the texts of gold ids.
    """

    def gold(question: Question) -> RankedPassages:
        if not (passages := gold_passages(question, lookup)):
            raise DataError(
                f"question {question.id!r} comes without its gold passage",
                hint="give a set that quotes its paragraphs (SQuAD, DPR's training JSON), or their index",
            )
        return [(Hit(-1, passage.id, 0.0), passage) for passage in passages]

    return replace(
        system, search=lambda questions, top_k: ([*map(gold, questions)], [()] * len(questions))
    )


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

    def search(questions: Sequence[Question], top_k: int) -> SearchResults:
        hits = [rankings.get(each.id, rankings.get(each.text, ()))[:top_k] for each in questions]
        return hits, [()] * len(questions)

    identity = {
        "retriever": path.name,
        "sha256": sha256_file(path),
        "reader": None,
        "index_version": "",
    }
    return System(identity, search), max(map(len, rankings.values()))


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
            if passage is None:
                message = f"{path}: the index has no passage {row.doc_id!r}"
                raise DataError(message, hint="give the index that was searched")
            ranking = rankings.setdefault(row.query_id, [])
            ranking.append((Hit(-1, row.doc_id, float(row.score)), passage))
    except (ValueError, IndexError) as error:
        hint = "expected: qid Q0 docid rank score tag"
        raise DataError(f"{path}: no TREC run ({error})", hint=hint) from error
    return {
        question: sorted(ranking, key=lambda pair: Hit.sort_key(pair[0]))
        for question, ranking in rankings.items()
    }
