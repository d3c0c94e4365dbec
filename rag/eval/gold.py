"""What a question set itself knows about its evidence: gold titles, gold passages, gold facts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rag.core.types import Passage, Question
from rag.data.files.fields import join_sentences

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
    facts = question.meta.get("supporting_facts") or ()
    if isinstance(facts, dict):  # columns, as the data-set hub stores them
        facts = zip(facts.get("title", ()), facts.get("sent_id", ()), strict=False)
    return tuple((str(title), int(sentence)) for title, sentence in facts)


def gold_keys(question: Question) -> tuple[str, tuple[str, ...]]:
    """How gold passages of this question are named.

    Returns:
        ("id", passage ids), ("title", article titles) or ("", ()) if the set names none.

    Example:
        >>> gold_keys(Question("1", "q", meta={"supporting_facts": [["A", 0], ["A", 2], ["B", 0]]}))
        ('title', ('A', 'B'))
    """
    if question.gold_passage_ids:
        return "id", tuple(dict.fromkeys(question.gold_passage_ids))
    titles: Iterable[Any] = question.meta.get("gold_titles") or [title for title, _ in gold_facts(question)]
    distinct = tuple(dict.fromkeys(str(title) for title in titles))
    return ("title", distinct) if distinct else ("", ())


def needs_all(question: Question) -> bool:
    """Whether the gold passages are steps that are all needed, not alternatives (as DPR's `positive_ctxs`
    are)."""
    return len(gold_keys(question)[1]) > 1 and "positive_ctxs" not in question.meta


def passage_key(passage: Passage, kind: str) -> str:
    """The name of a passage in the terms of `gold_keys`."""
    return passage.title if kind == "title" else passage.id


def is_yes_no(question: Question) -> bool:
    """Whether the answer is yes or no, which no passage "contains"."""
    return any(answer.strip().lower() in ("yes", "no") for answer in question.answers)


def gold_passages(question: Question, lookup: PassageLookup | None = None) -> list[Passage]:
    """The gold passages themselves, for reading without retrieval; empty if they are not known.

    They come from the set's own paragraphs (`context` of SQuAD and HotpotQA, `positive_ctxs` of DPR), or
    through
    `lookup` from the gold ids.
    """
    found = _from_context(question) or _from_positives(question.meta.get("positive_ctxs"))
    if not found and lookup is not None:
        found = [passage for key in question.gold_passage_ids if (passage := lookup(key)) is not None]
    return found


def _from_context(question: Question) -> list[Passage]:
    context = question.meta.get("context")
    if isinstance(context, str) and context:
        return [Passage("gold-0", str(question.meta.get("title") or ""), context)]
    if isinstance(context, dict):
        context = list(zip(context.get("title", ()), context.get("sentences", ()), strict=False))
    if not isinstance(context, Sequence):
        return []
    titles = set(gold_keys(question)[1])
    return [
        Passage(
            f"gold-{number}",
            str(title),
            sentences if isinstance(sentences, str) else join_sentences(sentences),
        )
        for number, (title, sentences) in enumerate(context)
        if str(title) in titles
    ]


def _from_positives(positives: Any) -> list[Passage]:
    if not isinstance(positives, Sequence) or isinstance(positives, str):
        return []
    return [
        Passage(f"gold-{number}", str(context.get("title") or ""), str(context["text"]))
        for number, context in enumerate(
            positives[:1]
        )  # the first is the gold one, the others match by string
        if isinstance(context, dict) and context.get("text")
    ]
