"""Gold passages of a question: their names in the question set and in an index, and their texts."""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from operator import attrgetter

from indexers.gold import CorpusTexts, GoldLookup
from indexers.passages import PassageStore
from rag.core.types import GoldPassage, Passage, Question
from rag.data.split import document_of
from rag.metrics.multihop import Fact

PassageLookup = Callable[[str], Passage | None]


def gold_facts(question: Question) -> tuple[Fact, ...]:
    """Supporting (title, sentence index) pairs, if the set has them."""
    return tuple((gold.passage.title, sentence) for gold in question.gold for sentence in gold.supporting)


def gold_keys(question: Question) -> tuple[str, tuple[str, ...]]:
    """The kind of names of the question's gold passages, and the names.

    Returns:
        ("id", passage ids), ("document", ids of the documents that passages were cut from), ("title", article
        titles; multi-hop sets, whose passages have no ids) or ("", ()) if the set names none.

    Example:
        >>> steps = tuple(GoldPassage(Passage("", title, "")) for title in ("A", "B"))
        >>> gold_keys(Question("1", "q", gold=steps))
        ('title', ('A', 'B'))
    """
    if question.gold_passage_ids:
        kind = "document" if question.gold_are_documents else "id"
        return kind, tuple(dict.fromkeys(question.gold_passage_ids))
    lone = question.gold[0] if len(question.gold) == 1 else None
    if question.gold_are_alternatives or not question.gold or (lone and _is_running_text(lone)):
        return "", ()
    return "title", tuple(dict.fromkeys(gold.passage.title for gold in question.gold))


def _is_running_text(gold: GoldPassage) -> bool:
    """Whether it is one of several paragraphs with this title, as in SQuAD, and not a whole document."""
    return bool(gold.passage.text) and not gold.sentences


def needs_all(question: Question) -> bool:
    """Whether all gold passages are needed (hops), not any one of them (alternatives)."""
    return len(gold_keys(question)[1]) > 1 and not question.gold_are_alternatives


def passage_key(passage: Passage, kind: str) -> str:
    """The name of a passage in the terms of `gold_keys`."""
    if kind == "document":
        return document_of(passage.id)
    return passage.title if kind == "title" else passage.id


def is_yes_no(question: Question) -> bool:
    """Whether the answer is yes or no, which no passage "contains"."""
    return any(answer.strip().lower() in ("yes", "no") for answer in question.answers)


def gold_passages(question: Question, lookup: PassageLookup | None = None) -> list[Passage]:
    """The gold passages themselves, for reading without retrieval; empty if they are unknown.

    They are the passages that the set quotes, only the first where any one of them is enough; if the set
    quotes none, `lookup` gets them by the gold ids.
    """
    quoted = question.gold[:1] if question.gold_are_alternatives else question.gold
    found = [gold.passage for gold in quoted if gold.passage.text]
    if not found and lookup is not None:
        named = question.gold_passage_ids[: 1 if question.gold_are_alternatives else None]
        found = [passage for key in named if (passage := lookup(key)) is not None]
    return found


class GoldResolver:
    """Replaces the gold ids of questions by ids of the index, and counts those that could not be replaced.

    Attributes:
        missing: number of questions whose gold passage is known but not in the index.
        incomplete: number of questions that need several passages, of which the index lacks one.
        repeated: number of questions of which two hops have the same title or id.
        by_document: number of questions whose gold ids name documents that the index holds in passages.
    """

    def __init__(self, passages: PassageStore) -> None:
        self._passages, self._lookup = passages, GoldLookup(passages)
        self.missing = self.incomplete = self.repeated = self.by_document = 0

    @cached_property
    def _titles(self) -> CorpusTexts:
        return CorpusTexts(self._passages, of=attrgetter("title"))

    def __call__(self, question: Question) -> Question:
        """The question with gold ids of the index; without gold ids if the index lacks its gold passage."""
        kind, keys = gold_keys(question)
        if not question.gold_are_alternatives:
            self.repeated += max(len(question.gold), len(question.gold_passage_ids)) > len(keys) > 0
        if kind == "title":
            self.incomplete += not all(key in self._titles for key in keys)
            return question
        found = self._lookup.find([question])[0]
        if found.how == "document":
            self.by_document += 1
            return replace(question, gold_are_documents=True)
        known = bool(question.gold_passage_ids)
        if (found.how == "id" and known) or (found.how == "none" and not known):
            self.incomplete += needs_all(question) and len(found.rows) < len(keys)
            return question
        self.missing += not found.rows
        return replace(question, gold_passage_ids=tuple(self._passages[row].id for row in found.rows))

    def notes(self) -> list[str]:
        """Warnings about the figures by gold passage."""
        counts = (
            (self.missing, "known, but not in this index: figures by gold passage leave them out"),
            (
                self.incomplete,
                "not all in this index: figures by gold passage count the others as not retrieved",
            ),
            (self.repeated, "not all different by title or id: figures over hops count equal ones once"),
        )
        lines = [f"the gold passages of {count:,} questions are {what}" for count, what in counts if count]
        if self.by_document:
            lines.append(
                f"the gold ids of {self.by_document:,} questions name documents: passages are judged by the "
                "document that they were cut from"
            )
        return lines
