"""How the gold passages of a question are named and compared: by passage id, or by article title."""

from __future__ import annotations

from collections.abc import Callable

from rag.core.types import GoldPassage, Passage, Question

__all__ = [
    "PassageLookup",
    "gold_facts",
    "gold_keys",
    "gold_passages",
    "is_yes_no",
    "needs_all",
    "passage_key",
]

PassageLookup = Callable[[str], Passage | None]


def gold_facts(question: Question) -> tuple[tuple[str, int], ...]:
    """Supporting (title, sentence index) pairs, if the set has them."""
    return tuple((gold.passage.title, sentence) for gold in question.gold for sentence in gold.supporting)


def gold_keys(question: Question) -> tuple[str, tuple[str, ...]]:
    """How gold passages of this question are named.

    Returns:
        ("id", passage ids), ("title", article titles; multi-hop sets, whose passages have no ids) or ("", ())
        if the set names none.

    Example:
        >>> steps = tuple(GoldPassage(Passage("", title, "")) for title in ("A", "B"))
        >>> gold_keys(Question("1", "q", gold=steps))
        ('title', ('A', 'B'))
    """
    if question.gold_passage_ids:
        return "id", tuple(dict.fromkeys(question.gold_passage_ids))
    lone = question.gold[0] if len(question.gold) == 1 else None
    if question.gold_are_alternatives or not question.gold or (lone and _is_running_text(lone)):
        return "", ()
    return "title", tuple(dict.fromkeys(gold.passage.title for gold in question.gold))


def _is_running_text(gold: GoldPassage) -> bool:
    """Whether it is a paragraph as SQuAD has it, one of many with its title, and no whole document."""
    return bool(gold.passage.text) and not gold.sentences


def needs_all(question: Question) -> bool:
    """Whether the gold passages are steps that are all needed, not alternatives."""
    return len(gold_keys(question)[1]) > 1 and not question.gold_are_alternatives


def passage_key(passage: Passage, kind: str) -> str:
    """The name of a passage in the terms of `gold_keys`."""
    return passage.title if kind == "title" else passage.id


def is_yes_no(question: Question) -> bool:
    """Whether the answer is yes or no, which no passage "contains"."""
    return any(answer.strip().lower() in ("yes", "no") for answer in question.answers)


def gold_passages(question: Question, lookup: PassageLookup | None = None) -> list[Passage]:
    """The gold passages themselves, for reading without retrieval; empty if they are not known.

    They are those that the set carries along, of alternatives the first (the others match by string); if it
    has none, `lookup` finds them by the gold ids.
    """
    quoted = question.gold[:1] if question.gold_are_alternatives else question.gold
    found = [gold.passage for gold in quoted if gold.passage.text]
    if not found and lookup is not None:
        found = [passage for key in question.gold_passage_ids if (passage := lookup(key)) is not None]
    return found
