"""Where an answer begins and ends: a reader of spans may cut tokens, or mark more than one unit of a text."""

import regex

_CURRENCIES, _AFTER = tuple("$€£¥"), " \n\t.,;:!?)\"'"
_LONGEST = 200  # characters before and after a span that are looked at
_WHOLE = regex.compile(  # signs that mean nothing in part: the first kind that fits at a place counts
    r"""[\w.+-]+@[\w-]+(?:\.[\w-]+)+                                    # e-mail address
    |[a-z][a-z+.-]*://[^\s<>"']*[\w/]                                  # web address
    |(?<![\w-])--?[A-Za-z][\w-]*(?:=[^\s,;)"']*[^\s,;.)"'])?            # option of a command
    |(?<![\w/])(?:~|\.{1,2})?(?:/[\w.+@%~-]*[\w%-]){1,}/?              # path
    |[$€£¥]\s?\d+(?:[.,]\d+)*                                         # price
    |(?:(?<![^\s(|:])-|\bv)?\b\d+(?:[.,:]\d+)+(?:[-+~]?[a-z]+\.?\d+)?              # version, number, time
    |(?<![^\s(|:])-\d+\b|(?<![^\s(\[`"'])\.[a-z][\w-]*            # negative number, hidden file
    |\b\w+_\w+|\b[A-Za-z]\w*(?:(?:\.(?=[a-z_])|::|->)\w+)+(?:\(\))?     # name in code or of a file
    """,
    regex.VERBOSE,
)

_BLANK_LINE = regex.compile(r"\n\s*\n")
_ROW = regex.compile(r" \| |^\s*\||\|\s*$|^[^;:\n]{1,60}: [^;\n]*; [^;:\n]{1,60}: ")  # a row of a table
_NEXT_CELL = regex.compile(r"; [^;:\n]{1,60}: ")
_PART = regex.compile(r"(?=[^\n|]*\w)[^\s|](?:[^\n|]*[^\s|])?")


def answer_bounds(text: str, start: int, end: int) -> tuple[int, int]:
    """The borders of an answer that a span model marked: whole tokens of one paragraph or of one cell.

    Of a span that crosses a blank line or the border of a table's cell, the first part with a word is kept.

    Example:
        >>> text = "| MAX_SIZE | 4711 |\\n\\nThe end."
        >>> text[slice(*answer_bounds(text, 6, 9))], text[slice(*answer_bounds(text, 13, 25))]
        ('MAX_SIZE', '4711')
    """
    return one_unit(text, *whole_tokens(text, start, end))


def whole_tokens(text: str, start: int, end: int) -> tuple[int, int]:
    """Extend a span so that it cuts no option, version, price, path, address or name in code.

    Example:
        >>> text = "Give --no-cache-dir, or write to help@example.org."
        >>> [text[slice(*whole_tokens(text, at, at + 5))] for at in map(text.index, ("cache", "example"))]
        ['--no-cache-dir', 'help@example.org']
    """
    before, after = text[max(0, start - 2) : start], text[end : end + 2]
    if not (before[-1:].strip(" \n\t(\"'") or before[:1] in _CURRENCIES or after.strip(_AFTER)):
        return start, end  # the usual case, without a search
    first = max((text.rfind(blank, 0, start) for blank in " \n\t"), default=-1) + 1
    last = min((place for blank in " \n\t" if (place := text.find(blank, end)) >= 0), default=len(text))
    first, last = max(first - 2, start - _LONGEST, 0), min(last, end + _LONGEST)
    for token in _WHOLE.finditer(text, first, last):  # a price may have a blank after its sign
        if token.start() < start < token.end():
            start = token.start()
        if token.start() < end < token.end():
            end = token.end()
    return start, end


def one_unit(text: str, start: int, end: int) -> tuple[int, int]:
    """The first part of a span that has a word and crosses no blank line and no border of a table's cell.

    Example:
        >>> text = "| r | read |\\n| l | lookup |"
        >>> text[slice(*one_unit(text, 2, 20))]
        'r'
    """
    answer, of_table = text[start:end], False
    if "\n" in answer or "|" in answer or "; " in answer:
        first, last = text.rfind("\n", 0, start) + 1, text.find("\n", end - 1)
        lines = text[first : last if last >= 0 else len(text)].split("\n")
        of_table = any(_ROW.search(line) for line in lines)
    if of_table:
        part = _PART.search(answer)
        if part is None:
            return start, end
        cell = _NEXT_CELL.search(part[0])
        return start + part.start(), start + (part.start() + cell.start() if cell else part.end())
    blank = _BLANK_LINE.search(answer.rstrip()) if "\n" in answer else None
    if blank is None:
        return start, end
    has_word = regex.search(r"\w", answer[: blank.start()])
    return (start, start + blank.start()) if has_word else (start + blank.end(), end)
