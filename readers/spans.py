"""Where an answer that a model worded stands in a passage."""

from __future__ import annotations

import re

__all__ = ["find_span"]


def find_span(answer: str, text: str) -> tuple[int, int] | None:
    """Where `answer` first stands in `text` as whole words, start and end; None where it does not.

    Letters as they are come first, then any case; runs of white space count as one space.

    Example:
        >>> find_span("black forest", "It rises in the Black  Forest.")
        (16, 29)
        >>> find_span("art", "The party began.") is None
        True
    """
    words = answer.split()
    if not words:
        return None
    pattern = r"\s+".join(map(re.escape, words))
    before = r"(?<!\w)" if re.match(r"\w", words[0]) else ""
    after = r"(?!\w)" if re.search(r"\w$", words[-1]) else ""
    for flags in (0, re.IGNORECASE):
        if found := re.search(before + pattern + after, text, flags):
            return found.span()
    return None
