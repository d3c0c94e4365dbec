"""Locate a generated answer in a passage."""

import unicodedata
from collections.abc import Iterable

import regex

_TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}_]+|[^\s\p{L}\p{N}\p{M}_]")
_FUNCTION_WORDS = frozenset(
    _TOKEN.findall(
        """a an and are as at by did do does for from had has have he her his in is it its of on or she that
        the their they this to was were which who with"""
    )
)


def find_span(answer: str, text: str) -> tuple[int, int] | None:
    """Start and end of the first occurrence of `answer` in `text` as whole words; None without one.

    Words and punctuation must be equal; white space between them, case and accents are ignored, because
    models' tokenizers change them ("1,000" comes back as "1 , 000"). An exact occurrence is preferred.

    Example:
        >>> find_span("black forest", "It rises in the Black  Forest.")
        (16, 29)
        >>> find_span("1 , 000 sao", "1,000 São Paulo"), find_span("art", "The party began.")
        ((0, 9), None)
    """
    sought = [_folded(token[0]) for token in _TOKEN.finditer(answer)]
    if not sought or not _folded(text).count(sought[0]):
        return None
    tokens = list(_TOKEN.finditer(text))
    words = [_folded(token[0]) for token in tokens]
    spans = [
        (tokens[at].start(), tokens[at + len(sought) - 1].end())
        for at in range(len(words) - len(sought) + 1)
        if words[at : at + len(sought)] == sought
    ]
    exact = (span for span in spans if text[slice(*span)] == answer)
    return next(exact, spans[0] if spans else None)


def share_of_words(answer: str, texts: Iterable[str]) -> float:
    """Share of the answer's words, without function words, that occur in any of the texts; 1 without words.

    Example:
        >>> share_of_words("It rises in Germany and Austria", ["It rises in Germany."])
        0.6666666666666666
    """
    words = _words(answer) - _FUNCTION_WORDS
    present = {word for text in texts for word in _words(text)}
    return len(words & present) / len(words) if words else 1.0


def _words(text: str) -> set[str]:
    return {word for token in _TOKEN.finditer(text) if (word := _folded(token[0])).isalnum()}


def _folded(text: str) -> str:
    if text.isascii():
        return text.lower()
    parts = unicodedata.normalize("NFD", text.casefold())
    return "".join(part for part in parts if not unicodedata.combining(part))
