"""Small parts that a pipeline is put together of where no model and no index is needed."""

from collections.abc import Callable, Sequence
from typing import Any

from rag.core.types import Answer, AnswerSet, Hit, Passage
from readers.protocols import Reader, ReadRequest
from retrievers.protocols import Retriever


class Store(list[Passage]):
    """The part of a passage store that a pipeline uses."""

    def ids(self, rows: Sequence[int]) -> list[str]:
        return [self[row].id for row in rows]

    def get_many(self, rows: Sequence[int]) -> list[Passage]:
        return [self[row] for row in rows]

    def find(self, passage_id: str) -> Passage | None:
        return next((passage for passage in self if passage.id == passage_id), None)


class MadeRetriever(Retriever):
    """Searches by a function of questions and a number of hits."""

    def __init__(self, search: Callable[[Sequence[str], int], list[list[Hit]]]) -> None:
        self._search = search

    def search(self, questions: Sequence[str], top_k: int, **_: Any) -> list[list[Hit]]:
        return self._search(questions, top_k)


class LastWordsReader(Reader):
    """Answers with the last two words of each passage."""

    def read(self, requests: Sequence[ReadRequest], n_best: int = 5) -> list[AnswerSet]:
        results = []
        for request in requests:
            spans = []
            for number, passage in enumerate(request.passages[:n_best]):
                start = len(passage.text) - len(" ".join(passage.text.split()[-2:]))
                end = len(passage.text) - 1
                evidence = request.evidence(number, (start, end))
                spans.append(
                    Answer(passage.text[start:end], 5.0 - number, 0.9 / (1 + number), evidence)
                )
            results.append(AnswerSet(request.question, tuple(spans), 0.05 if spans else 1.0))
        return results
