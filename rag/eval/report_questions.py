"""Questions shown in the report: the worst ones, and those on which two systems differ."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]
Pieces = list[tuple[str, str]]  # text and its class; "" for what is not highlighted


def worst_records(records: Iterable[Record], limit: int) -> list[Record]:
    """The most confident wrong answers; without a reader, the questions whose answer was retrieved at the
    lowest rank or not at all.

    Questions without accepted answers are never shown, as nothing shows that they went wrong.
    """

    def badness(record: Record) -> float | None:
        scores = record["scores"]
        if scores.get("em") is not None:
            return None if scores["em"] == 1.0 else float(record.get("confidence") or 0.0)
        if scores.get("mrr") is not None and record["first_rank"] != 1:
            return float(record["first_rank"] or 10**6)
        return None

    ranked = (
        (value, -order, record)
        for order, record in enumerate(records)
        if (value := badness(record)) is not None
    )
    return [record for _, _, record in heapq.nlargest(limit, ranked, key=lambda item: item[:2])]


def pick_records(records: Iterable[Record], ids: Collection[str]) -> dict[str, Record]:
    """The records of some questions, by id."""
    wanted = set(ids)
    return {record["id"]: record for record in records if record["id"] in wanted}


def marked(text: str, spans: Sequence[tuple[int, int, str]], *, limit: int = 700) -> Pieces:
    """Text with highlighted spans, cut to about `limit` characters around the first one.

    Args:
        spans: (start, end, class) in characters; a span that overlaps an earlier one is left out.

    Example:
        >>> marked("in the Black Forest.", [(7, 19, "read")])
        [('in the ', ''), ('Black Forest', 'read'), ('.', '')]
    """
    kept: list[tuple[int, int, str]] = []
    for start, end, kind in sorted(spans):
        if 0 <= start < end <= len(text) and (not kept or start >= kept[-1][1]):
            kept.append((start, end, kind))
    first, last = 0, len(text)
    if len(text) > limit:
        middle = kept[0][0] if kept else 0
        first = max(0, min(middle - limit // 3, len(text) - limit))
        last = first + limit
        kept = [span for span in kept if span[0] >= first and span[1] <= last]
    pieces: Pieces = [("… ", "")] if first else []
    position = first
    for start, end, kind in kept:
        pieces += [(text[position:start], ""), (text[start:end], kind)]
        position = end
    pieces.append((text[position:last], ""))
    return [*pieces, (" …", "")] if last < len(text) else pieces


def read_pieces(evidence: Mapping[str, Any]) -> Pieces:
    """The evidence passage of an answer, with the answer highlighted where it occurs."""
    start, end = evidence["start"], evidence["end"]
    return marked(evidence["text"], [] if start is None else [(start, end, "read")])


def answer_pieces(text: str, answers: Sequence[str]) -> Pieces:
    """A passage with the first mention of each accepted answer highlighted."""
    lowered = text.lower()
    if len(lowered) != len(
        text
    ):  # lower-casing changes the length of a few characters; then nothing is highlighted
        return marked(text, [])
    found = [(lowered.find(answer.lower()), len(answer)) for answer in answers if answer.strip()]
    return marked(text, [(start, start + size, "gold") for start, size in found if start >= 0])
