"""Texts that spell their token ids, for tests that make batches of ids."""

from collections.abc import Iterable, Sequence

from rag.core.types import Passage, Query


def spell(ids: Iterable[int]) -> str:
    """The text of token ids."""
    return " ".join(map(str, ids))


def ids_of(text: str) -> list[int]:
    """The token ids that a text spells."""
    return [int(word) for word in text.split()]


class SpelledIds:
    """A `RetrieverTokenizer` of such texts."""

    def queries(self, queries: Sequence[Query]) -> list[list[int]]:
        """Token ids of questions."""
        return [ids_of(query.question) for query in queries]

    def passages(self, passages: Sequence[Passage]) -> list[list[int]]:
        """Token ids of passages."""
        return [ids_of(passage.text) for passage in passages]
