"""Find the headings of a PDF: the lines that its outline names, or its larger and bolder lines."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

_MAX_HEADING_CHARS = 160
_MAX_HEADING_LINES = 3
_MAX_LEVELS = 4
_NUMBERED = re.compile(r"(?:chapter|appendix|part|section)?\s*[\dA-Z]+(?:\.\d+)*\.?\s+", re.IGNORECASE)


@dataclass(slots=True)
class Line:
    """A line of a page.

    Attributes:
        top: distance of its upper edge from the page's lower edge, in points; `bottom` and `left` likewise.
        size: font size in points.
        height: height of the page.
        level: level of a heading; 0 for other lines.
    """

    text: str
    page: int
    left: float
    top: float
    bottom: float
    size: float
    is_code: bool
    is_bold: bool
    height: float
    level: int = 0


def mark_headings(lines: Sequence[Line], outline: Sequence[tuple[str, int, int]]) -> None:
    """Set `level` of each line of a heading.

    Args:
        outline: title, level (1 for the outermost) and page of each entry, in order.
    """
    if len(outline) < 2 or _from_outline(lines, outline) < 0.3 * len(outline):
        _from_sizes(lines)


def _from_outline(lines: Sequence[Line], outline: Sequence[tuple[str, int, int]]) -> int:
    """Mark the first lines of each entry's page that read like it; returns how many entries were found."""
    first: dict[int, int] = {}
    for place, line in enumerate(lines):
        first.setdefault(line.page, place)
    found, at = 0, 0
    for title, level, page in outline:
        wanted = _letters(title)
        start = first.get(page)
        if not wanted or start is None:
            continue
        at = max(at, start) if lines[min(at, len(lines) - 1)].page <= page else start
        for place in range(at, len(lines)):
            if lines[place].page > page:
                break
            if n_lines := _match(lines, place, wanted):
                for line in lines[place : place + n_lines]:
                    line.level = level
                found, at = found + 1, place + n_lines
                break
    return found


def _match(lines: Sequence[Line], place: int, wanted: str) -> int:
    """Number of lines from `place` on that are the heading, 0 if none; `wanted` may lack their numbering."""
    letters = ""
    for n_lines, line in enumerate(lines[place : place + _MAX_HEADING_LINES], start=1):
        letters += _letters(line.text)
        number = _letters(match[0]) if (match := _NUMBERED.match(lines[place].text)) else ""
        if wanted in (letters, letters.removeprefix(number)):
            return n_lines
        if not wanted.startswith((letters, letters.removeprefix(number) or letters)):
            break
    return 0


def _letters(text: str) -> str:
    return re.sub(r"[\W_]+", "", text.casefold())


def _from_sizes(lines: Sequence[Line]) -> None:
    """Larger sizes than the body's are levels, the largest first; bold lines alone are the level below."""
    sizes: Counter[float] = Counter()
    for line in lines:
        line.level = 0
        sizes[line.size] += len(line.text)
    if not sizes:
        return
    body = sizes.most_common(1)[0][0]
    candidates = [line for line in lines if line.size >= 1.12 * body and _may_be(line)]
    larger = sorted({line.size for line in candidates}, reverse=True)
    n_bold = sum(len(line.text) for line in lines if line.is_bold)
    levels = {size: min(place, _MAX_LEVELS) for place, size in enumerate(larger, start=1)}
    for line in candidates:
        line.level = levels[line.size]
    if n_bold < 0.2 * sum(sizes.values()):
        below = min(len(larger), _MAX_LEVELS) + 1
        for before, line in zip([None, *lines], lines):
            starts = before is None or before.page != line.page or before.text.rstrip()[-1:] in (*".:!?", "")
            if line.is_bold and not line.level and line.size >= body and _may_be(line, most=80) and starts:
                line.level = below


def _may_be(line: Line, most: int = _MAX_HEADING_CHARS) -> bool:
    text = line.text.strip()
    letters = sum(character.isalpha() for character in text)
    return (
        not line.is_code
        and letters >= 2
        and len(text) <= most
        and text[-1] not in ".,;:"
        and letters > len(text) / 3
    )
