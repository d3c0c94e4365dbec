"""Positives: a question's gold passages found in a corpus, by id, by text or by overlap; or weak ones."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from indexers.passages import PassageStore
from rag.core.progress import Progress
from rag.core.types import Hit, Passage, Question
from rag.data.text import AnswerMatcher

__all__ = ["CorpusTexts", "Positives", "gold_texts", "find_positives", "overlap_share", "text_key"]

_SHINGLE = 5  # words
_SAME = 0.6  # share of the shorter text's shingles
_QUERY_WORDS = 64
TextSearch = Callable[[Sequence[str], int], list[list[Hit]]]


@dataclass(frozen=True, slots=True)
class Positives:
    """What answers a question.

    Attributes:
        rows: passages of the corpus, the gold one first.
        given: gold passages as the question set gives them, that are not in the corpus.
        how: "id", "text", "overlap", "given", "weak", or "none"; for several passages the first one's.
    """

    rows: tuple[int, ...] = ()
    given: tuple[Passage, ...] = ()
    how: str = "none"


def text_key(text: str) -> str:
    """The text with single spaces: what "the same text" means here."""
    return " ".join(text.split())


def overlap_share(one: str, other: str) -> float:
    """Share of the shorter text's runs of five words that stand in the other, in [0, 1].

    Example:
        >>> overlap_share("a b c d e f", "x a b c d e y z")
        0.5
    """
    sides = [text.lower().split() for text in (one, other)]
    runs = [{tuple(w[i : i + _SHINGLE]) for i in range(max(1, len(w) - _SHINGLE + 1))} for w in sides]
    return len(runs[0] & runs[1]) / min(map(len, runs))


def gold_texts(question: Question) -> list[Passage]:
    """The gold passages that a question set carries along, in its order; ids are "" where it has none."""
    return [gold.passage for gold in question.gold if gold.passage.text]


class CorpusTexts:
    """Rows by text: 16 bytes a passage, made in one pass over the corpus.

    Args:
        passages: the corpus.
    """

    def __init__(self, passages: PassageStore) -> None:
        self._passages = passages
        hashes = np.empty(len(passages), np.uint64)
        with Progress(len(passages), "passages", "read corpus") as progress:
            start = 0
            for batch in passages.batches(1024):
                hashes[start : start + len(batch)] = [_hash(passage.text) for passage in batch]
                start += len(batch)
                progress.update(len(batch))
        self._rows = np.argsort(hashes, kind="stable")
        self._hashes = hashes[self._rows]

    def find(self, passage: Passage) -> int | None:
        """The row with this text; of several the one with this title, else the first."""
        wanted = np.uint64(_hash(passage.text))
        first, stop = (int(np.searchsorted(self._hashes, wanted, side=side)) for side in ("left", "right"))
        key = text_key(passage.text)
        rows = [int(row) for row in self._rows[first:stop]]
        same = [(row, found.title) for row in rows if text_key((found := self._passages[row]).text) == key]
        titled = [row for row, title in same if text_key(title) == text_key(passage.title)]
        return titled[0] if titled else same[0][0] if same else None


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text_key(text).encode(), digest_size=8).digest(), "little")


def find_positives(
    questions: Sequence[Question],
    passages: PassageStore,
    *,
    texts: Callable[[], CorpusTexts],
    search: TextSearch,
    keep_given: bool,
) -> list[Positives]:
    """Gold passages of a block of questions in the corpus.

    A gold id counts only if the passage under it has the gold text, where the set gives one: ids of two
    corpora may clash. Then comes the same text; then a passage that overlaps it (the same paragraph, cut or
    cleaned in another way), found by searching for the text, preferably one that holds an answer.

    Args:
        questions: the block.
        passages: the corpus.
        texts: the lookup by text, made when first needed.
        search: finds passages for texts.
        keep_given: keep gold passages that are not in the corpus, by their text.

    Returns:
        One for each question; "none" where nothing is known of its gold passages, or nothing was found.
    """
    found: list[list[tuple[int | Passage, str]]] = []
    missing: list[tuple[int, int, Passage]] = []  # question, place, gold passage
    for number, question in enumerate(questions):
        wanted = gold_texts(question)
        entries = _by_id(question, wanted, passages)
        if not entries:
            for passage in wanted:
                row = texts().find(passage)
                if row is None:
                    missing.append((number, len(entries), passage))
                entries.append((passage, "given") if row is None else (row, "text"))
        found.append(entries)
    queries = [" ".join(passage.text.split()[:_QUERY_WORDS]) for _, _, passage in missing]
    hits = search(queries, 10) if queries else []
    for (number, place, passage), near in zip(missing, hits, strict=True):
        row = _overlapping(passage, questions[number], near, passages)
        if row is not None:
            found[number][place] = (row, "overlap")
    return [_positives(entries, keep_given) for entries in found]


def _by_id(
    question: Question, wanted: Sequence[Passage], passages: PassageStore
) -> list[tuple[int | Passage, str]]:
    ids = question.gold_passage_ids or tuple(passage.id for passage in wanted if passage.id)
    rows = [row for name in ids if (row := passages.row_of(name)) is not None]
    if wanted:
        rows = [
            row
            for row in rows
            if any(overlap_share(passages[row].text, passage.text) >= _SAME for passage in wanted)
        ]
    return [(row, "id") for row in rows]


def _overlapping(
    gold: Passage, question: Question, hits: Sequence[Hit], passages: PassageStore
) -> int | None:
    matcher = AnswerMatcher(question.answers)
    best: tuple[bool, float, int] | None = None
    for hit in hits:
        text = passages[hit.row].text
        share = overlap_share(text, gold.text)
        if share >= _SAME:
            rank = (matcher.matches(text), share, -hit.row)
            best = rank if best is None else max(best, rank)
    return None if best is None else -best[2]


def _positives(entries: Sequence[tuple[int | Passage, str]], keep_given: bool) -> Positives:
    rows = tuple(dict.fromkeys(entry for entry, _ in entries if isinstance(entry, int)))
    given = tuple(entry for entry, _ in entries if isinstance(entry, Passage)) if keep_given else ()
    if rows:
        return Positives(rows, given, next(how for entry, how in entries if isinstance(entry, int)))
    return Positives(rows, given, "given") if given else Positives()
