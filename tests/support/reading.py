"""Readers called with plain lists, and a reader that answers by a function."""

from collections.abc import Callable, Sequence
from typing import Any

from rag.core.types import AnswerSet, Passage
from readers.extractive.reader import ExtractiveReader
from readers.protocols import Reader, ReadRequest


class MadeReader(Reader):
    """Answers each question by a function."""

    name = "made"

    def __init__(self, answer: Callable[[ReadRequest], AnswerSet]) -> None:
        self._answer = answer

    def read(self, requests: Sequence[ReadRequest], n_best: int = 5) -> list[AnswerSet]:
        return [self._answer(request) for request in requests]


def requests_of(
    questions: Sequence[str],
    passages: Sequence[Sequence[Passage]],
    scores: Sequence[Sequence[float]],
) -> list[ReadRequest]:
    return [ReadRequest.of(*row) for row in zip(questions, passages, scores, strict=True)]


def read_lists(
    reader: Reader,
    questions: Sequence[str],
    passages: Sequence[Sequence[Passage]],
    scores: Sequence[Sequence[float]],
    n_best: int = 5,
) -> list[AnswerSet]:
    return reader.read(requests_of(questions, passages, scores), n_best)


def read_one(
    reader: Reader,
    question: str,
    passages: Sequence[Passage],
    scores: Sequence[float] | None = None,
    n_best: int = 5,
) -> AnswerSet:
    return reader.read([ReadRequest.of(question, passages, scores)], n_best)[0]


def with_settings(reader: ExtractiveReader, **settings: Any) -> ExtractiveReader:
    """The same network, read with other settings."""
    changed = reader.settings.replaced(**settings)
    return ExtractiveReader(reader.model, reader.tokenizer, changed)


def likelihoods_of(
    reader: Any,
    questions: Sequence[str],
    passages: Sequence[Sequence[Passage]],
    scores: Sequence[Sequence[float]],
    answers: Sequence[str],
) -> list[float]:
    values: list[float] = reader.log_likelihood(requests_of(questions, passages, scores), answers)
    return values
