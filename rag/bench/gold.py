"""Which rows of a passage store answer a question: by passage id, by gold text, or by answer string."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from indexers.gold import GoldLookup
from rag.core.errors import ConfigError, DataError
from rag.core.types import Hit, Question
from rag.data.text import AnswerMatcher

__all__ = ["GoldKind", "GoldRows", "find_gold", "gold_rank", "has_gold"]

GoldKind = Literal["id", "text", "answer"]


def has_gold(question: Question) -> bool:
    """Whether there is anything to judge a search by; unanswerable questions have nothing."""
    return bool(question.gold_passage_ids or question.answers or _is_quoted(question))


def _is_quoted(question: Question) -> bool:
    return any(gold.passage.text for gold in question.gold)


@dataclass(frozen=True, slots=True)
class GoldRows:
    """Gold rows of each question.

    Attributes:
        kind: how they were found; for "answer" any passage with an answer counts, and `rows` is empty.
        rows: one set of rows a question; empty where the store does not hold the gold passage.
        found: questions with at least one gold row.
    """

    kind: GoldKind
    rows: tuple[frozenset[int], ...]
    found: int


def find_gold(questions: Sequence[Question], passages: Any, *, kind: str = "auto") -> GoldRows:
    """Look the gold passages of questions up in a passage store.

    Args:
        questions: with gold passage ids, gold texts, or answers.
        passages: a `PassageStore`.
        kind: how; "auto" takes ids if most questions have them in this store, else texts, else answers.

    Raises:
        ConfigError: unknown kind.
        DataError: fewer than half of the questions have a gold passage in this store.
    """
    if not questions:
        raise DataError("no question has a gold passage or an answer", hint="choose another question file")
    if kind not in ("auto", "id", "text", "answer"):
        raise ConfigError(f"--gold {kind!r}: unknown", hint="use auto, id, text or answer")
    lookup = GoldLookup(passages)
    if kind in ("auto", "id"):
        rows = tuple(frozenset(lookup.by_id(question)) for question in questions)
        if kind == "id" or 2 * sum(map(bool, rows)) >= len(rows):
            return _checked("id", rows)
    if kind in ("auto", "text") and (kind == "text" or any(map(_is_quoted, questions))):
        found = [[row for _, rows in lookup.by_text(question) for row in rows] for question in questions]
        return _checked("text", tuple(map(frozenset, found)))
    if not any(question.answers for question in questions):
        raise DataError(
            "the questions have neither gold passages nor answers", hint="choose another question file"
        )
    return GoldRows("answer", tuple(frozenset() for _ in questions), sum(bool(q.answers) for q in questions))


def _checked(kind: GoldKind, rows: tuple[frozenset[int], ...]) -> GoldRows:
    found = sum(bool(row) for row in rows)
    if found * 2 < len(rows):
        raise DataError(
            f"only {found} of {len(rows)} questions have their gold passage in this index (by {kind})",
            hint="index the corpus with --split none, so that passages stay whole, or use --gold answer",
        )
    return GoldRows(kind, rows, found)


def gold_rank(
    question: Question, gold: frozenset[int], kind: GoldKind, hits: Sequence[Hit], passages: Any
) -> int | None:
    """1-based rank of the first gold hit, or None.

    For kind "answer" a hit counts if its passage contains an answer (the open-domain convention).
    """
    if kind != "answer":
        return next((rank for rank, hit in enumerate(hits, 1) if hit.row in gold), None)
    matcher = AnswerMatcher(question.answers)
    return next((rank for rank, hit in enumerate(hits, 1) if matcher.matches(passages[hit.row].text)), None)
