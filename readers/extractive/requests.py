"""Checks of what a caller hands to a reader, and each passage once."""

from __future__ import annotations

from collections.abc import Sequence

from rag.core.errors import ConfigError, DataError
from rag.core.types import Passage

__all__ = ["MAX_PASSAGE_CHARS", "MAX_QUESTION_CHARS", "Pair", "check_request", "unique_passages"]

MAX_QUESTION_CHARS = 4_000
MAX_PASSAGE_CHARS = 200_000

Pair = tuple[int, int, int]
"""Number of the question, place in that question's list, index of the unique passage."""


def check_request(
    questions: Sequence[str],
    passages: Sequence[Sequence[Passage]],
    scores: Sequence[Sequence[float]],
    n_best: int,
) -> None:
    """Refuse what cannot be read.

    Raises:
        ConfigError: if `n_best` is below 1 or the lists do not match in length.
        DataError: if a question is blank, or a question or passage is too long.
    """
    if n_best < 1:
        raise ConfigError(f"n_best is {n_best}, expected at least 1")
    if not len(questions) == len(passages) == len(scores):
        raise ConfigError(
            f"{len(questions)} questions, {len(passages)} lists of passages, {len(scores)} lists of scores: "
            "expected one of each per question"
        )
    for question, found, given in zip(questions, passages, scores, strict=True):
        if not question.strip():
            raise DataError("a question is blank")
        if len(question) > MAX_QUESTION_CHARS:
            raise DataError(
                f"a question has {len(question)} characters, at most {MAX_QUESTION_CHARS} are accepted"
            )
        if len(found) != len(given):
            raise ConfigError(
                f"{len(found)} passages but {len(given)} scores for the question {question[:60]!r}"
            )
        for passage in found:
            if len(passage.text) > MAX_PASSAGE_CHARS:
                raise DataError(
                    f"passage {passage.id!r} has {len(passage.text)} characters, at most {MAX_PASSAGE_CHARS} "
                    "are accepted",
                    hint="split documents when indexing (`rag index --split words100`)",
                )


def unique_passages(passages: Sequence[Sequence[Passage]]) -> tuple[list[Pair], list[Passage]]:
    """All (question, passage) pairs, and the different passages among them: each text is tokenised once."""
    seen: dict[tuple[str, str], int] = {}
    unique: list[Passage] = []
    pairs: list[Pair] = []
    for question, found in enumerate(passages):
        for place, passage in enumerate(found):
            key = (passage.title, passage.text)
            if key not in seen:
                seen[key] = len(unique)
                unique.append(passage)
            pairs.append((question, place, seen[key]))
    return pairs, unique
