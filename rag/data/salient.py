"""Names and dates in a sentence, by rules: what a question is likely to ask for.

Source:
    Guu et al. 2020, "REALM: Retrieval-Augmented Language Model Pre-Training", section 3.4 (salient
    spans).
"""

from collections.abc import Iterable
from itertools import groupby

import numpy as np
import regex
from numpy.typing import NDArray

from rag.core.files import hash64
from rag.core.types import Passage
from rag.data.sentences import STARTERS

CharSpans = list[
    tuple[int, int]
]  # first character and one past the last, ascending, without overlap
TitleHashes = NDArray[np.uint64]
NO_TITLES: TitleHashes = np.zeros(0, np.uint64)

WORDS = regex.compile(r"[\p{L}\p{M}\p{N}]+(?:['’\-.][\p{L}\p{M}\p{N}]+)*")
MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
_MONTH = f"(?:{MONTHS})"
_DAY = r"\d{1,2}(?:st|nd|rd|th)?"
_YEAR = r"(?:1\d{3}|20\d{2})"
_DATES = regex.compile(
    rf"\b(?:{_DAY}\s+(?:of\s+)?{_MONTH}(?:,?\s+{_YEAR})?|{_MONTH}\s+{_DAY}\b(?:,?\s+{_YEAR})?|{_MONTH},?\s+{_YEAR}"
    rf"|{_YEAR}s?)\b(?![,.]\d)"
)
_INITIAL = r"\p{Lu}\."
_NAME = r"\p{Lu}[\p{L}\p{M}\p{N}'’\-]+"
_LINK = r"(?:(?:of|the|de|la|le|du|des|da|di|del|von|van|der|den|al|bin|ibn)\s+){1,2}"
_NAMES = regex.compile(rf"(?:{_INITIAL}|{_NAME})(?:\s+(?:{_LINK})?(?:{_INITIAL}|{_NAME}))*")
_PAREN = regex.compile(r"\s*\([^)]*\)$")


def find_dates(sentence: str) -> CharSpans:
    """Years, decades, and days or months with a day or a year: "4 May 1979", "May 1983",
    "1990s".
    """
    return [match.span() for match in _DATES.finditer(sentence)]


def title_hashes(passages: Iterable[Passage]) -> TitleHashes:
    """Sorted 8-byte hashes of a corpus's different titles."""
    titles = groupby(passage.title for passage in passages)
    hashes = (_title_hash(_PAREN.sub("", title)) for title, _ in titles if title)
    return np.unique(np.fromiter(hashes, np.uint64))


def find_names(sentence: str, titles: TitleHashes = NO_TITLES) -> CharSpans:
    """Names by their capital letters: runs of capitalised words inside a sentence.

    At the start of a sentence, where any word is capitalised, a run counts only if it has two words
    or is one of the corpus's titles.

    Example:
        >>> text = "In Vienna, the Bank of Austria met J. Smith."
        >>> [text[slice(*span)] for span in find_names(text)]
        ['Vienna', 'Bank of Austria', 'J. Smith']
    """
    spans = []
    begin = next((n for n, character in enumerate(sentence) if character.isalnum()), 0)
    for match in _NAMES.finditer(sentence):
        start, end = match.span()
        is_first = start == begin
        word = WORDS.match(sentence, start, end)
        while word and word[0] in STARTERS:
            word = WORDS.search(sentence, word.end(), end)
            start = word.start() if word else end
        name = sentence[start:end]
        is_sure = not is_first or start > begin or " " in name
        if len(name) > 2 and (is_sure or _is_title(name, titles)):
            spans.append((start, end))
    return spans


def _is_title(name: str, titles: TitleHashes) -> bool:
    hashed = _title_hash(name)
    position = np.searchsorted(titles, hashed)
    return hashed in titles[position : position + 1]


def _title_hash(title: str) -> np.uint64:
    return np.uint64(hash64(title.lower().encode("utf-8", "surrogatepass")))
