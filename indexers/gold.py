"""Locate the gold passages of questions in an index, by id, text or overlap; for evaluation and
mining.

A question set names its paragraphs by its own ids, or only quotes them; an index has other ids.
Without this step every figure by gold passage would be zero, and would look like a measurement.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from operator import attrgetter

import numpy as np

from indexers.documents import Documents
from indexers.passages import PassageStore
from rag.core.files import hash64
from rag.core.log import Progress
from rag.core.types import Hit, Passage, Question
from rag.data.text import AnswerMatcher

_SHINGLE = 5  # words
_SAME = 0.6  # share of the shorter text's shingles
_QUERY_WORDS = 64
_REPORT_EVERY = 1024  # passages
TextSearch = Callable[[Sequence[str], int], list[list[Hit]]]


@dataclass(frozen=True, slots=True)
class GoldPassages:
    """The gold passages of a question in an index.

    Attributes:
        rows: rows of the gold passages, in the order of the question; of several copies of a text
            the one with the same title, else the first.
        missing: gold passages that the question set quotes and the index does not hold.
        how: how the first passage was located: "id", "text" or "overlap"; "document" if the
            question names documents, of which these are all passages; "given" if the question
            quotes passages and the index lacks all of them; "none" if the question names none.
    """

    rows: tuple[int, ...] = ()
    missing: tuple[Passage, ...] = ()
    how: str = "none"


def text_key(text: str) -> str:
    """The text with runs of white space as single spaces: equal keys count as equal texts."""
    return " ".join(text.split())


@dataclass(slots=True)
class _Quote:
    """A passage that a question quotes, its rows in the index, and how they were located."""

    question: Question
    passage: Passage
    rows: list[int]
    how: str


def overlap_share(text: str, other: str) -> float:
    """Share of the shorter text's runs of five words that occur in the other, in [0, 1].

    Example:
        >>> overlap_share("a b c d e f", "x a b c d e y z")
        0.5
    """
    runs = _runs(text)
    others = _runs(other)
    return len(runs & others) / min(len(runs), len(others))


def _runs(text: str) -> set[tuple[str, ...]]:
    words = text.lower().split()
    count = max(1, len(words) - _SHINGLE + 1)
    return {tuple(words[start : start + _SHINGLE]) for start in range(count)}


class CorpusTexts:
    """Rows by text: 16 bytes per passage, made in one pass over the corpus.

    Args:
        of: function that returns the key of a passage; for `find` it must be the text.
    """

    def __init__(
        self, passages: PassageStore, of: Callable[[Passage], str] = attrgetter("text")
    ) -> None:
        self._passages = passages
        hashes = array("Q")
        with Progress(len(passages), "passages", "read corpus") as progress:
            for batch in passages.batches(_REPORT_EVERY):
                hashes.extend(_hash(of(passage)) for passage in batch)
                progress.update(len(batch))
        unordered = np.frombuffer(hashes, np.uint64)
        self._rows = np.argsort(unordered, kind="stable")
        self._hashes = unordered[self._rows]

    def __contains__(self, text: str) -> bool:
        """Whether a passage has this text, up to white space."""
        return bool(self.rows(text))

    def find(self, passage: Passage) -> list[int]:
        """Rows with this text, those with this title first, else in order."""
        key = text_key(passage.text)
        title = text_key(passage.title)
        same = []
        for row in self.rows(passage.text):
            stored = self._passages[row]
            if text_key(stored.text) == key:
                same.append((text_key(stored.title) != title, row))
        return [row for _, row in sorted(same)]

    def rows(self, text: str) -> list[int]:
        """Rows whose key is this text, by its hash."""
        key = np.uint64(_hash(text))
        first = self._hashes.searchsorted(key)
        stop = self._hashes.searchsorted(key, side="right")
        found: list[int] = self._rows[first:stop].tolist()
        return found


def _hash(text: str) -> int:
    return hash64(text_key(text).encode("utf-8", "surrogatepass"))


@dataclass
class GoldLookup:
    """Finds the gold passages of questions.

    A gold id counts only for a quoted text that the passage under it has, where the set quotes some:
    ids of two corpora may clash. An id of a document stands for all its passages. Next, a passage with
    the same text is taken; next, one that overlaps it (the paragraph cut or cleaned in another
    way), found by searching for the text, preferably one that holds an answer. All alternatives
    (DPR's positives) are looked up, not only the first.

    Attributes:
        documents: the documents that the passages were cut from.
        near: searches passages for texts; without it no overlaps are found.
    """

    passages: PassageStore
    documents: Documents
    near: TextSearch | None = None

    @cached_property
    def _texts(self) -> CorpusTexts:
        return CorpusTexts(self.passages)

    def _rows_of(self, ids: Iterable[str]) -> list[int]:
        rows = dict.fromkeys(map(self.passages.row_of, ids))
        return [row for row in rows if row is not None]

    def _named(self, ids: Sequence[str]) -> GoldPassages:
        """The passages of gold ids: those that the index has, or all of the documents."""
        rows = self._rows_of(ids)
        if rows:
            return GoldPassages(tuple(rows), how="id")
        of_documents = dict.fromkeys(chain.from_iterable(map(self.documents.rows, ids)))
        if of_documents:
            return GoldPassages(tuple(of_documents), how="document")
        return GoldPassages()

    def _quotes(self, question: Question) -> list[_Quote]:
        """What a question quotes, located by its gold ids, else by the texts."""
        quoted = [gold.passage for gold in question.gold if gold.passage.text]
        named_rows = self._rows_of(question.gold_passage_ids or [gold.id for gold in quoted])
        quotes = []
        for gold in quoted:
            rows = [row for row in named_rows if self._overlap(row, gold) >= _SAME]
            if rows:
                quotes.append(_Quote(question, gold, rows, "id"))
            else:
                quotes.append(_Quote(question, gold, self._texts.find(gold)[:1], "text"))
        return quotes

    def _overlap(self, row: int, gold: Passage) -> float:
        return overlap_share(self.passages[row].text, gold.text)

    def find(self, questions: Sequence[Question]) -> list[GoldPassages]:
        """The gold passages of a block of questions, one result each."""
        quotes_of = list(map(self._quotes, questions))
        missing = [quote for quote in chain.from_iterable(quotes_of) if not quote.rows]
        if missing and self.near is not None:
            queries = [" ".join(quote.passage.text.split()[:_QUERY_WORDS]) for quote in missing]
            for quote, hits in zip(missing, self.near(queries, 10), strict=True):
                matcher = AnswerMatcher(quote.question.answers)
                ranked: list[tuple[bool, float, int]] = []
                for hit in hits:
                    share = self._overlap(hit.row, quote.passage)
                    if share >= _SAME:
                        has_answer = matcher.matches(self.passages[hit.row].text)
                        ranked.append((has_answer, share, -hit.row))
                quote.rows = [-row for _, _, row in sorted(ranked)[-1:]]
                quote.how = "overlap"
        return [
            _gold_passages(quotes) if quotes else self._named(question.gold_passage_ids)
            for question, quotes in zip(questions, quotes_of, strict=True)
        ]


def _gold_passages(quotes: Sequence[_Quote]) -> GoldPassages:
    located = [quote for quote in quotes if quote.rows]
    missing = tuple(quote.passage for quote in quotes if not quote.rows)
    if not located:
        return GoldPassages((), missing, "given")
    rows = dict.fromkeys(chain.from_iterable(quote.rows for quote in located))
    return GoldPassages(tuple(rows), missing, located[0].how)
