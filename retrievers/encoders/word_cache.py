"""Tokenise many texts with a table of the words seen before, since most words of a text are common ones.

A look-up takes a tenth of the tokenizer's time for a word. The table is used for tokenizers that split texts
at white space and punctuation (BERT's); other tokenizers read whole texts.
"""

import json
import re
import threading
from collections.abc import Callable, Sequence
from itertools import chain, repeat
from typing import Any

import numpy as np

from rag.core.arrays import Int32, Int64, ranges

_MOST_WORDS = 1 << 19  # in the cache at a time, some 80 MB


class WordCache:
    """Texts to token ids without special tokens, equal to those of the tokenizer. Safe to use from threads.

    Args:
        tokenizer: without padding and truncation.
        max_length: tokens after which texts are cut.
        most_words: number of words above which the table is emptied.

    Example:
        >>> from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
        >>> made = Tokenizer(models.WordPiece({"[UNK]": 0, "dan": 1, "##ube": 2, ".": 3}, unk_token="[UNK]"))
        >>> made.normalizer = normalizers.BertNormalizer()
        >>> made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        >>> values, bounds = WordCache(made, 4)(["Danube.", "", "the Danube Danube"])
        >>> values.tolist(), bounds.tolist()
        ([1, 2, 3, 0, 1, 2, 1], [0, 3, 3, 7])
    """

    def __init__(self, tokenizer: Any, max_length: int, *, most_words: int = _MOST_WORDS) -> None:
        self._tokenizer, self._limit, self._most = tokenizer, max_length, most_words
        self._words_of = _splitter(tokenizer)
        self._lock = threading.Lock()
        self._begin()

    def __call__(self, texts: Sequence[str]) -> tuple[Int32, Int64]:
        """Token ids (T,) of n texts end to end, and where each text begins and ends (n + 1,)."""
        if self._words_of is None:
            return self._cut(*self._tokenized(texts))
        words = list(map(self._words_of, texts))
        flat = list(chain.from_iterable(words))
        with self._lock:
            rows = self._rows_of(flat)
            known_values, bounds = self._values, self._bounds
        counts = bounds[rows + 1] - bounds[rows]  # tokens of each word
        values = known_values[ranges(bounds[rows], counts)]
        ends = np.append(0, np.cumsum(counts))
        per_text = np.append(0, np.cumsum(np.fromiter(map(len, words), np.int64, len(words))))
        return self._cut(values, np.diff(ends[per_text]))

    def _begin(self) -> None:
        self._known: dict[str, int] = {}
        self._values, self._bounds = np.zeros(0, np.int32), np.zeros(1, np.int64)

    def _rows_of(self, words: list[str]) -> Int64:
        """Row of each word in the table, which learns those that it lacks."""
        rows = np.fromiter(map(self._known.get, words, repeat(-1)), np.int64, len(words))
        if (rows >= 0).all():
            return rows
        new = list(dict.fromkeys(words[place] for place in np.flatnonzero(rows < 0).tolist()))
        if len(self._known) + len(new) > self._most:
            self._begin()
            new = list(dict.fromkeys(words))
        values, lengths = self._tokenized(new)
        self._known.update(zip(new, range(len(self._known), len(self._known) + len(new)), strict=True))
        self._bounds = np.concatenate([self._bounds, self._bounds[-1] + np.cumsum(lengths)])
        self._values = np.concatenate([self._values, values])
        return np.fromiter(map(self._known.__getitem__, words), np.int64, len(words))

    def _tokenized(self, texts: Sequence[str]) -> tuple[Int32, Int64]:
        ids = [each.ids for each in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        return np.fromiter(chain.from_iterable(ids), np.int32, int(lengths.sum())), lengths

    def _cut(self, values: Int32, lengths: Int64) -> tuple[Int32, Int64]:
        """At most `max_length` tokens of each text."""
        if len(lengths) and lengths.max() > self._limit:
            values, lengths = values[ranges(0, lengths) < self._limit], np.minimum(lengths, self._limit)
        return values, np.append(0, np.cumsum(lengths))


def _splitter(tokenizer: Any) -> Callable[[str], list[str]] | None:
    """Cuts a text into words whose token ids, one after the other, are those of the text; None where no rule
    is known for this tokenizer.

    BERT's splits at white space and at every ASCII punctuation character. Other characters stay with the word
    that they stand in, so that the tokenizer itself decides about them.
    """
    stated = json.loads(tokenizer.to_str())
    kinds = [(stated.get(part) or {}).get("type") for part in ("normalizer", "pre_tokenizer", "model")]
    if kinds != ["BertNormalizer", "BertPreTokenizer", "WordPiece"]:
        return None
    lowers = bool(stated["normalizer"]["lowercase"])
    added = [re.escape(token["content"]) for token in stated.get("added_tokens") or ()]
    has_added = re.compile("|".join(added) or r"(?!)").search
    find_words = re.compile(r"[^ \t\n\r!-/:-@\[-`{-~]+|[!-/:-@\[-`{-~]").findall

    def words(text: str) -> list[str]:
        if has_added(text):
            return [text]
        return find_words(text.lower() if lowers and text.isascii() else text)

    return words
