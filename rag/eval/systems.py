"""Systems that can be evaluated: they retrieve passages and read them, read gold passages, or are a file."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from rag.core.errors import DataError
from rag.core.types import AnswerSet, Hit, Passage, Paths, Question, RankedPassages
from rag.data.examples import read_examples
from readers.answers import read_answers
from readers.protocols import Reader


class ReadsPassages(Protocol):
    """Reads given passages, so that a question is searched once and gold passages can be read too."""

    @property
    def reader(self) -> Reader | None:
        """None if it only retrieves."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """Retriever, reader, models with their hashes, index version."""

    def read(
        self,
        questions: Sequence[str],
        found: Sequence[RankedPassages],
        n_best: int,
        paths: Sequence[Paths] = (),
    ) -> list[AnswerSet]:
        """One answer set per question."""


@runtime_checkable
class AnswersQuestions(ReadsPassages, Protocol):
    """Retrieves passages and reads them, as a pipeline with a reader does."""

    def retrieve_paths(
        self, questions: Sequence[str], top_k: int
    ) -> tuple[Sequence[RankedPassages], Sequence[Paths]]:
        """The best passages of each question, best first, and its paths, if the system finds such."""


class GoldReader:
    """A reader alone, for gold passages."""

    def __init__(self, reader: Reader) -> None:
        self.reader: Reader | None = reader
        self.identity = {"reader": getattr(reader, "name", type(reader).__name__), "index_version": ""}

    def read(
        self,
        questions: Sequence[str],
        found: Sequence[RankedPassages],
        n_best: int,
        paths: Sequence[Paths] = (),
    ) -> list[AnswerSet]:
        """Answers from the passages given; questions without passages get none."""
        assert self.reader is not None
        return read_answers(self.reader, questions, found, paths or [()] * len(questions), n_best, "")


class RunFile:
    """Search results that another program wrote: a TREC run, or DPR's JSON, which has the passages' texts.

    Args:
        path: `*.json` for DPR's results; anything else is read as a TREC run.
        lookup: passage id → passage, for the texts of a TREC run; without it only gold ids can be judged.

    Attributes:
        depth: the most passages that a question has.
        has_texts: whether it is known what stands in the passages.

    Raises:
        DataError: the file is missing, malformed or empty.
    """

    reader: Reader | None = None

    def __init__(self, path: str | Path, lookup: Callable[[str], Passage | None] | None = None) -> None:
        path = Path(path)
        if not path.is_file():
            raise DataError(f"{path}: no such file", hint="give a TREC run, or the JSON of `rag retrieve`")
        is_json = ".json" in path.suffixes
        self._by_question = _read_dpr(path) if is_json else _read_trec(path, lookup)
        self.has_texts = is_json or lookup is not None
        self.depth = max(map(len, self._by_question.values()), default=0)
        self.identity = {"retriever": path.name, "reader": None, "index_version": ""}
        if not self.depth:
            raise DataError(f"{path}: there are no results in it")

    def results_of(self, questions: Sequence[Question], top_k: int) -> list[RankedPassages]:
        """The ranking of each question, by its id or its text; empty where the file has none."""
        rankings = self._by_question
        return [rankings.get(question.id, rankings.get(question.text, ()))[:top_k] for question in questions]

    def read(self, *_: Any, **__: Any) -> list[AnswerSet]:
        """Nothing reads here."""
        raise NotImplementedError("a file of search results has no reader")


def _read_dpr(path: Path) -> dict[str, RankedPassages]:
    rankings: dict[str, RankedPassages] = {}
    for example in read_examples(path, needs="passages", quiet=True):
        ranking = [
            (Hit(-1, candidate.passage.id or f"{rank}", candidate.score or -float(rank)), candidate.passage)
            for rank, candidate in enumerate(example.candidates)
        ]
        rankings[example.question] = ranking
    return rankings


def _read_trec(path: Path, lookup: Callable[[str], Passage | None] | None) -> dict[str, RankedPassages]:
    from ir_measures import read_trec_run

    rankings: dict[str, list[tuple[Hit, Passage]]] = {}
    try:
        for row in read_trec_run(str(path)):
            hit = Hit(-1, row.doc_id, float(row.score))
            passage = lookup(row.doc_id) if lookup is not None else Passage(row.doc_id, "", "")
            if passage is None:
                raise DataError(
                    f"{path}: the index has no passage {row.doc_id!r}",
                    hint="give the index that was searched",
                )
            rankings.setdefault(row.query_id, []).append((hit, passage))
    except (ValueError, IndexError) as error:
        raise DataError(
            f"{path}: no TREC run ({error})", hint="expected: qid Q0 docid rank score tag"
        ) from error
    return {
        question: sorted(ranking, key=lambda pair: Hit.sort_key(pair[0]))
        for question, ranking in rankings.items()
    }
