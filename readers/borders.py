"""Places of answers in a text: where a generated one stands, and where one that was marked begins
and ends.

A reader of spans may cut tokens, or mark more than one unit of a text: `whole_tokens`, then
`one_unit`.
"""

import unicodedata

import regex

from readers.words import FUNCTION_WORDS

_TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}_]+|[^\s\p{L}\p{N}\p{M}_]")


def find_span(answer: str, text: str) -> tuple[int, int] | None:
    """Start and end of the first occurrence of `answer` in `text` as whole words; None without one.

    Words and punctuation must be equal; white space between them, case and accents are ignored,
    because models' tokenizers change them ("1,000" comes back as "1 , 000"). An exact occurrence is
    preferred.

    Example:
        >>> find_span("black forest", "It rises in the Black  Forest.")
        (16, 29)
        >>> find_span("1 , 000 sao", "1,000 São Paulo"), find_span("art", "The party began.")
        ((0, 9), None)
    """
    answer_words = list(map(folded, _TOKEN.findall(answer)))
    if not answer_words or answer_words[0] not in folded(text):
        return None
    tokens = list(_TOKEN.finditer(text))
    words = [folded(token[0]) for token in tokens]
    found = None
    for first in range(len(words) - len(answer_words) + 1):
        if words[first : first + len(answer_words)] != answer_words:
            continue
        span = tokens[first].start(), tokens[first + len(answer_words) - 1].end()
        if text[slice(*span)] == answer:
            return span
        found = found or span
    return found


def is_function_word(text: str) -> bool:
    """Whether a text is such a word alone ("The"); in capitals it is none: "IT", "WHO", "OR" are
    names.
    """
    return text.lower() in FUNCTION_WORDS and (len(text) == 1 or not text.isupper())


def folded(text: str) -> str:
    """The text without case and accents."""
    if text.isascii():
        return text.lower()
    parts = unicodedata.normalize("NFD", text.casefold())
    return "".join(part for part in parts if not unicodedata.combining(part))


_CURRENCIES = ("$", "€", "£", "¥")
_BLANKS = " \n\t"
_SIGNS_BEFORE = "(\"'"
_SIGNS_AFTER = ".,;:!?)\"'"
_LONGEST = 200  # characters before and after a span that are looked at
_WHOLE = (
    regex.compile(  # signs that mean nothing in part: the first kind that fits at a place counts
        r"""[\w.+-]+@[\w-]+(?:\.[\w-]+)+                                    # e-mail address
    |[a-z][a-z+.-]*://[^\s<>"']*[\w/]                                  # web address
    |(?<![\w-])--?[A-Za-z][\w-]*(?:=[^\s,;)"']*[^\s,;.)"'])?            # option of a command
    |(?<![\w/])(?:~|\.{1,2})?(?:/[\w.+@%~-]*[\w%-]){1,}/?              # path
    |[$€£¥]\s?\d+(?:[.,]\d+)*                                         # price
    |(?:(?<![^\s(|:])-|\bv)?\b\d+(?:[.,:]\d+)+(?:[-+~]?[a-z]+\.?\d+)?              # version, number, time
    |(?<![^\s(|:])-\d+\b|(?<![^\s(\[`"'])\.[a-z][\w-]*            # negative number, hidden file
    |\b\w+_\w+|\b[A-Za-z]\w*(?:(?:\.(?=[a-z_])|::|->)\w+)+(?:\(\))?     # name in code or of a file
    |[\p{Latin}\p{Greek}\p{Cyrillic}\p{N}\p{M}]+                        # word, where blanks part words
    """,
        regex.VERBOSE,
    )
)

_BLANK_LINE = regex.compile(r"\n\s*\n")
_ROW = regex.compile(
    r" \| |^\s*\||\|\s*$|^[^;:\n]{1,60}: [^;\n]*; [^;:\n]{1,60}: "
)  # a row of a table
_NEXT_CELL = regex.compile(r"; [^;:\n]{1,60}: ")
_PART = regex.compile(r"(?=[^\n|]*\w)[^\s|](?:[^\n|]*[^\s|])?")


def whole_tokens(text: str, start: int, end: int) -> tuple[int, int]:
    """Extend a span so that it cuts no word, option, version, price, path, address or name in code.

    The word pieces of RoBERTa and other models do not say where a word begins.

    Example:
        >>> text = "Give --no-cache-dir, or write to help@example.org."
        >>> [text[slice(*whole_tokens(text, at, at + 5))] for at in map(text.index, ("cache", "example"))]
        ['--no-cache-dir', 'help@example.org']
    """
    before = text[max(0, start - 2) : start]
    after = text[end : end + 2]
    is_cut_before = before[-1:].strip(_BLANKS + _SIGNS_BEFORE) or before[:1] in _CURRENCIES
    if not is_cut_before and not after.strip(_BLANKS + _SIGNS_AFTER):
        return start, end  # the usual case, without a search
    # From two characters before the last blank, as a price may have a blank after its sign.
    first = max(text.rfind(blank, 0, start) for blank in _BLANKS) - 1
    ends = [text.find(blank, end) for blank in _BLANKS]
    last = min((position for position in ends if position >= 0), default=len(text))
    first = max(first, start - _LONGEST, 0)
    last = min(last, end + _LONGEST)
    for token in _WHOLE.finditer(text, first, last):
        if token.start() < start < token.end():
            start = token.start()
        if token.start() < end < token.end():
            end = token.end()
    return start, end


def one_unit(text: str, start: int, end: int) -> tuple[int, int]:
    """The first part of a span that has a word and crosses no blank line and no border of a table's
    cell.

    Example:
        >>> text = "| r | read |\\n| l | lookup |"
        >>> text[slice(*one_unit(text, 2, 20))]
        'r'
    """
    answer = text[start:end]
    if _is_in_table(text, start, end):
        part = _PART.search(answer)
        if part is None:
            return start, end
        cell = _NEXT_CELL.search(part[0])
        stop = part.end() if cell is None else part.start() + cell.start()
        return start + part.start(), start + stop
    blank = _BLANK_LINE.search(answer.rstrip()) if "\n" in answer else None
    if blank is None:
        return start, end
    if regex.search(r"\w", answer[: blank.start()]):
        return start, start + blank.start()
    return start + blank.end(), end


def _is_in_table(text: str, start: int, end: int) -> bool:
    """Whether a span that may cross the border of a cell stands in lines of a table."""
    answer = text[start:end]
    if not any(border in answer for border in ("\n", "|", "; ")):
        return False
    first = text.rfind("\n", 0, start) + 1
    last = text.find("\n", end - 1)
    if last < 0:
        last = len(text)
    return any(map(_ROW.search, text[first:last].split("\n")))
