"""Gold passages of a question set under the names they have in an index."""

from __future__ import annotations

from dataclasses import replace

from indexers.gold import GoldLookup, StoredPassages
from rag.core.types import Question
from rag.eval.gold import gold_keys

__all__ = ["GoldResolver"]


class GoldResolver:
    """Gives questions gold ids of the index.

    Args:
        passages: of the index.

    Attributes:
        missing: questions seen whose gold passage is known but is not in the index.
        resolved: questions seen whose gold passage was found by its text.
    """

    def __init__(self, passages: StoredPassages) -> None:
        self._passages, self._lookup = passages, GoldLookup(passages)
        self.missing = self.resolved = 0

    def __call__(self, question: Question) -> Question:
        """The question with gold ids of the index; without any if its gold passage is not there."""
        if gold_keys(question)[0] == "title":
            return question
        found = self._lookup.find([question])[0]
        known = bool(question.gold_passage_ids)
        if (found.how == "id" and known) or (found.how == "none" and not known):
            return question
        self.missing += not found.rows
        self.resolved += bool(found.rows)
        return replace(question, gold_passage_ids=tuple(self._passages[row].id for row in found.rows))

    def describe(self) -> str:
        """What has to be said about the figures by gold passage; empty if nothing."""
        if not self.missing:
            return ""
        return (
            f"the gold passages of {self.missing:,} questions are not in this index: "
            "figures by gold passage leave these questions out"
        )
