"""Which passage an answer in the model's own words rests on, and where it stands there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rag.core.types import Passage
from readers.spans import find_span

__all__ = ["Support", "find_support"]


@dataclass(frozen=True, slots=True)
class Support:
    """A passage, and the characters of its text that are the answer; None where it is not there literally."""

    passage_index: int
    start: int | None = None
    end: int | None = None


def find_support(answer: str, passages: Sequence[Passage], attention: Sequence[float]) -> Support:
    """The most attended of the passages that hold the answer literally, else the most attended of all.

    Args:
        answer: as it was generated.
        passages: that were read, at least one.
        attention: of each; larger is more.

    Example:
        >>> oslo, bergen = Passage("1", "", "It rains in Bergen."), Passage("2", "", "Oslo is the capital.")
        >>> find_support("oslo", [oslo, bergen], [0.7, 0.3])
        Support(passage_index=1, start=0, end=4)
        >>> find_support("yes", [oslo, bergen], [0.7, 0.3])
        Support(passage_index=0, start=None, end=None)
    """
    order = sorted(range(len(passages)), key=lambda number: -attention[number])
    for number in order:
        span = find_span(answer, passages[number].text)
        if span is not None:
            return Support(number, *span)
    return Support(order[0])
