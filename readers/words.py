"""Words of texts, and the words that carry no content of their own."""

import re

from rag.data.sentences import word_set


def words(text: str) -> list[str]:
    """The words of a text, in lower case."""
    return re.findall(r"\w+", text.lower())


# Alone, such a word is no answer.
FUNCTION_WORDS = word_set(
    """
    a an and are as at by did do does for from had has have he her his in is it its of on or she that
    the their they this to was were which who with
    """
)
# Such a word of a question tells nothing about the cell of a table that is asked for.
CELL_STOP_WORDS = word_set(
    """
    a an the of in on at to for from by with and or is are was were be been do does did has have had
    can could will would should may might must what which who whom whose when where why how it its this
    that these those i you we they he she my your our their his her me us them there not if as about
    into than then so many much
    """
)
# Such a word of a question tells nothing about the passages that answer it together.
FACT_STOP_WORDS = word_set(
    """
    a after also an and are as at be been before between both by can could did do does during else first
    for from had has have he her his how if in into is it its many more most much of on or other same she
    some such than that the their them then there these they this to those was were what when where which
    while who whom whose why will with would
    """
)
_ENDINGS = ("ing", "ed", "es", "s")


def content_words(text: str) -> frozenset[str]:
    """The words of a text without function words, in lower case and without common endings.

    Example:
        >>> sorted(content_words("When was the bridge opened?"))
        ['bridge', 'open']
    """
    return frozenset(_stem(word) for word in words(text) if word not in CELL_STOP_WORDS)


def _stem(word: str) -> str:
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) >= len(ending) + 3:
            return word.removesuffix(ending)
    return word


def has_phrase(text_words: list[str], phrase: list[str]) -> bool:
    """Whether the words of a phrase stand one after another among those of a text."""
    return bool(phrase) and f" {' '.join(phrase)} " in f" {' '.join(text_words)} "
