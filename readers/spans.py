"""Where an answer that a model worded stands in a passage."""

from __future__ import annotations

import unicodedata

import regex

_TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}_]+|[^\s\p{L}\p{N}\p{M}_]")


def find_span(answer: str, text: str) -> tuple[int, int] | None:
    """Where `answer` first stands in `text` as whole words, start and end; None where it does not.

    The words and signs must be the same; white space between them does not count, nor do case and accents,
    which models' tokenizers change ("1,000" comes back as "1 , 000"). A place spelled exactly so wins.

    Example:
        >>> find_span("black forest", "It rises in the Black  Forest.")
        (16, 29)
        >>> find_span("1 , 000 sao", "1,000 São Paulo"), find_span("art", "The party began.")
        ((0, 9), None)
    """
    wanted = [_folded(found[0]) for found in _TOKEN.finditer(answer)]
    if not wanted or not _folded(text).count(wanted[0]):
        return None
    tokens = list(_TOKEN.finditer(text))
    words = [_folded(token[0]) for token in tokens]
    spans = [
        (tokens[at].start(), tokens[at + len(wanted) - 1].end())
        for at in range(len(words) - len(wanted) + 1)
        if words[at : at + len(wanted)] == wanted
    ]
    exact = (span for span in spans if text[slice(*span)] == answer)
    return next(exact, spans[0] if spans else None)


def _folded(text: str) -> str:
    if text.isascii():
        return text.lower()
    parts = unicodedata.normalize("NFD", text.casefold())
    return "".join(part for part in parts if not unicodedata.combining(part))
