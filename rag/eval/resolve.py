"""Gold passages of a question set under the names they have in an index.

A question set names its paragraphs in its own way, or only quotes them; an index has ids of its own. Without
this step every figure by gold passage would be zero, and would look like a measurement.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from rag.core.types import Passage, Question
from rag.eval.gold import gold_keys, gold_passages

__all__ = ["GoldResolver", "text_key"]


class _Passages(Protocol):
    def row_of(self, passage_id: str) -> int | None: ...
    def __iter__(self) -> Iterator[Passage]: ...


def text_key(text: str) -> bytes:
    """A short hash of a text that ignores differences in white space.

    Example:
        >>> text_key("The  Danube\\nrises.") == text_key("The Danube rises.")
        True
    """
    return hashlib.blake2b(" ".join(text.split()).encode("utf-8", "surrogatepass"), digest_size=12).digest()


@dataclass(slots=True)
class GoldResolver:
    """Gives questions gold ids of the index; made by `of`.

    Attributes:
        passages: of the index.
        ids: key of a gold text → id of the passage with this text; the first id if there are several.
        missing: questions seen whose gold passage is known but is not in the index.
        resolved: questions seen whose gold passage was found by its text.
    """

    passages: _Passages
    ids: dict[bytes, str]
    missing: int = 0
    resolved: int = 0

    @classmethod
    def of(cls, questions: Iterable[Question], passages: _Passages) -> GoldResolver:
        """Look at all questions once and, if some need it, at all passages once."""
        resolver = cls(passages, {})
        needed = {key for question in questions for key in resolver._texts(question)}
        if needed:
            for passage in passages:
                key = text_key(passage.text)
                if key in needed and passage.id < resolver.ids.get(key, passage.id + "\0"):
                    resolver.ids[key] = passage.id
        return resolver

    def __call__(self, question: Question) -> Question:
        """The question with gold ids of the index; without any if its gold passage is not there."""
        keys = self._texts(question)
        found = tuple(dict.fromkeys(self.ids[key] for key in keys if key in self.ids))
        if found:
            self.resolved += 1
            return replace(question, gold_passage_ids=found)
        if keys or (question.gold_passage_ids and not self._is_known(question)):
            self.missing += 1
            return replace(question, gold_passage_ids=())
        return question

    def describe(self) -> str:
        """What has to be said about the figures by gold passage; empty if nothing."""
        if not self.missing:
            return ""
        return (
            f"the gold passages of {self.missing:,} questions are not in this index: "
            "figures by gold passage leave these questions out"
        )

    def _is_known(self, question: Question) -> bool:
        return any(self.passages.row_of(name) is not None for name in question.gold_passage_ids)

    def _texts(self, question: Question) -> list[bytes]:
        """Keys of the texts to look for; none if the index knows the gold ids, or the set names titles."""
        if gold_keys(question)[0] == "title" or self._is_known(question):
            return []
        return [text_key(passage.text) for passage in gold_passages(question)]
