"""Whether texts say something in other words: the same number, date or name may be written in many
ways.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import NamedTuple

import regex

from rag.data.salient import MONTHS
from readers.borders import folded
from readers.words import FUNCTION_WORDS

_PIECE = regex.compile(
    r"""(?<![\w-])(?P<date>\d{4}-(?:0[1-9]|1[0-2])-\d{2})(?![\w-])
    |(?<![\w.])(?P<digits>\d{1,3}(?:[,\u00a0\u2009\u202f]\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?)(?:(?:st|nd|rd|th)\b)?
    |(?<!\w)(?P<initials>\p{Lu}\.(?:\s?\p{Lu}\.)+)
    |(?P<word>(?:\p{L}|\p{M}|\d|_)+)(?:['’]s\b)?
    |(?P<percent>%)""",
    regex.VERBOSE,
)
_MONTHS = {name[:3].lower(): name.lower() for name in MONTHS.split("|")} | {"sept": "september"}
_BELOW_TWENTY = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
)
_SMALL = {word: number for number, word in enumerate(_BELOW_TWENTY.split())}
_TENS_WORDS = "twenty thirty forty fifty sixty seventy eighty ninety"
_TENS = {word: 10 * number for number, word in enumerate(_TENS_WORDS.split(), start=2)}
_ORDINALS = {
    **{f"{word}th": number for word, number in _SMALL.items()},
    **{f"{word[:-1]}ieth": number for word, number in _TENS.items()},
    "first": 1,
    "second": 2,
    "third": 3,
    "fifth": 5,
    "eighth": 8,
    "ninth": 9,
    "twelfth": 12,
}
_CARDINALS = _SMALL | _TENS
SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_LEAST_SHARE = 0.5


class _Wording(NamedTuple):
    """Words that carry content; and each number or code as the set of forms that may stand for it."""

    words: frozenset[str]
    numbers: tuple[frozenset[str], ...]


def says(texts: Iterable[str], statement: str) -> bool:
    """Whether the texts together have all numbers and codes of a statement, and half of its other
    words.

    A code is a word with a digit, such as V3. A number counts in digits, in words, as a percentage
    or a share, with a scale or without. Function words do not count; a statement of nothing else is
    said by any text.

    Example:
        >>> says(["The share was 0.17 in 2010."], "Seventeen percent in 2010"), says(["17"], "18 %")
        (True, False)
        >>> says(["Release the pressure at valve V3."], "release the pressure at valve V9")
        False
        >>> says(["J. K. Smith was born on 1990-05-03."], "JK Smith's birth: May 3rd, 1990")
        True
    """
    of_statement, of_texts = _compared(texts, statement)
    has_numbers = all(forms & of_texts for forms in of_statement.numbers)
    return has_numbers and len(of_statement.words & of_texts) >= _LEAST_SHARE * len(
        of_statement.words
    )


def overlap(texts: Iterable[str], statement: str) -> float:
    """Share of a statement's numbers and words that the texts have; 1 for one without any.

    Example:
        >>> overlap(["It rises in Germany."], "It rises in Germany and Austria at 678 metres")
        0.4
    """
    of_statement, of_texts = _compared(texts, statement)
    found = len(of_statement.words & of_texts) + sum(
        bool(forms & of_texts) for forms in of_statement.numbers
    )
    whole = len(of_statement.words) + len(of_statement.numbers)
    return found / whole if whole else 1.0


def _compared(texts: Iterable[str], statement: str) -> tuple[_Wording, set[str]]:
    """What a statement says; and all words of texts, with all forms of their numbers."""
    of_texts = set[str]()
    for text in texts:
        wording = _wording(text)
        of_texts |= wording.words.union(*wording.numbers)
    return _wording(statement), of_texts


def _wording(text: str) -> _Wording:
    pieces = list(_pieces(text))
    words = set[str]()
    numbers = list[frozenset[str]]()
    start = 0
    while start < len(pieces):
        value, end = _number(pieces, start)
        if end == start:
            piece = pieces[start]
            is_code = any(map(str.isdigit, piece))
            if is_code:
                numbers.append(frozenset([piece]))
            else:
                words.add(piece)
            start += 1
            continue
        forms = {_plain(value)}
        if _is_digits(pieces[start]):
            forms.add(pieces[start])
        if pieces[end : end + 1] == ["percent"]:
            forms.add(_plain(value / 100))
            end += 1
        # "One" is mostly no number, and "second" may be a time.
        is_doubtful = value == 1 or pieces[end - 1] in _ORDINALS
        if is_doubtful and not _is_digits(pieces[start]):
            words |= forms
        else:
            numbers.append(frozenset(forms))
        start = end
    return _Wording(frozenset(words - FUNCTION_WORDS), tuple(numbers))


def _pieces(text: str) -> Iterator[str]:
    """Words in lower case without accents, and numbers as digits alone."""
    for match in _PIECE.finditer(text.replace("per cent", "percent")):
        if match["date"]:
            year, month, day = map(int, match["date"].split("-"))
            yield from (str(year), MONTHS.split("|")[month - 1].lower(), str(day))
        elif match["digits"]:
            yield _plain(Decimal(regex.sub(r"[^\d.]", "", match["digits"])))
        elif match["initials"]:
            yield regex.sub(r"\W", "", match["initials"]).lower()
        elif match["word"]:
            word = folded(match["word"])
            yield _MONTHS.get(word, word)
        else:
            yield "percent"


def _number(pieces: Sequence[str], start: int) -> tuple[Decimal, int]:
    """The number that begins at a piece, and where it ends; that is `start` if there is none."""
    total = Decimal(0)
    group = Decimal(0)
    # What comes next has to be less: "twenty" takes a unit, "hundred" takes tens.
    below = 1000
    end = start
    for number in range(start, len(pieces)):
        piece = pieces[number]
        small = _CARDINALS.get(piece, _ORDINALS.get(piece))
        if _is_digits(piece) and number == start:
            group = Decimal(piece)
            below = 0
        elif small is not None and small < below:
            group += small
            below = 10 if piece in _TENS else 0
        elif piece == "hundred":
            group = 100 * max(group, Decimal(1))
            below = 100
        elif piece in SCALES:
            total += SCALES[piece] * max(group, Decimal(1))
            group = Decimal(0)
            below = 1000
        elif piece == "and" and number == end > start and below >= 100:
            continue
        else:
            break
        end = number + 1
        if piece in _ORDINALS:
            break
    return total + group, end


def _is_digits(piece: str) -> bool:
    return piece.replace(".", "", 1).isdecimal()


def _plain(value: Decimal) -> str:
    return format(value.normalize(), "f")
