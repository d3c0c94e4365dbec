"""Numbers of lists as letters, Roman numerals or digits, and exponents."""

import re
import string
from collections.abc import Iterable

_MAX_ROMAN = 3999
_ROMAN_SIGNS = {
    "m": 1000,
    "cm": 900,
    "d": 500,
    "cd": 400,
    "c": 100,
    "xc": 90,
    "l": 50,
    "xl": 40,
    "x": 10,
    "ix": 9,
    "v": 5,
    "iv": 4,
    "i": 1,
}


def numeral(number: int, kind: str) -> str:
    """A number of a list as people read it.

    Args:
        kind: "a" or "A" for letters, "i" or "I" for Roman numerals; others are digits.

    Example:
        >>> numeral(3, "a"), numeral(28, "A"), numeral(14, "i"), numeral(7, "1")
        ('c', 'BB', 'xiv', '7')
    """
    text = str(number)
    if kind in ("a", "A") and number > 0:
        n_repeats, letter = divmod(number - 1, len(string.ascii_lowercase))
        text = string.ascii_lowercase[letter] * (n_repeats + 1)
    elif kind in ("i", "I") and 0 < number <= _MAX_ROMAN:
        text = ""
        for sign, value in _ROMAN_SIGNS.items():
            text += sign * (number // value)
            number %= value
    return text.upper() if kind in ("A", "I") else text


def with_exponents(runs: Iterable[tuple[str, bool]]) -> str:
    """The text of a line with a sign before its exponents.

    Args:
        runs: texts, and whether they are superscripts.

    Example:
        >>> with_exponents([("10", False), ("1", True), ("2", True), (" cells", False)])
        '10^12 cells'
    """
    parts: list[str] = []
    was_raised = False
    for text, is_raised in runs:
        if is_raised and not was_raised:
            parts.append(exponent_mark("".join(parts[-1:]), text))
        was_raised = is_raised
        parts.append(text)
    return "".join(parts)


def exponent_mark(before: str, raised: str) -> str:
    """What stands between a text and its superscript: a sign where both are digits, as in 10^6.

    Example:
        >>> exponent_mark("10", "6"), exponent_mark("1", "st"), exponent_mark("m", "2")
        ('^', '', '')
    """
    is_exponent = before[-1:].isdigit() and re.match(r"[-+\u2212\d]", raised) is not None
    return "^" if is_exponent else ""
