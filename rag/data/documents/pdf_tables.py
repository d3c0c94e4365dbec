"""Tables on a page of a PDF: cells between ruled lines, or columns with gaps between them."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from statistics import median
from typing import NamedTuple

from rag.data.documents.grid import Cell, Grid, is_number

_TOLERANCE = 3.0  # points by which ruled lines may miss each other
_MAX_RULES = 1000  # of a page; a drawing has more
_MIN_GAP = 0.9  # between columns, in font sizes
_MIN_COLUMNS = 3  # of a table without ruled lines: text with a gap is often none
_MIN_ROWS = 3
_MIN_FILLED = 0.6  # of its cells
_MAX_WORDS = 3.5  # of a cell without ruled lines, on average: columns of prose have more
_MAX_LINES = 2  # in all cells of a ruled row: more are rows without a line between them
_MAX_CELL_WORDS = 150  # of a cell between ruled lines: a page in boxes has more
_SIZES_DIFFER = 1.5  # points: a heading between two tables has another size
_MAX_STEP = 3.0  # from a row to the next, in font sizes
_SMALL_STEP = 0.85  # of the usual step, within a cell of several lines


class Word(NamedTuple):
    """A word of a page, with its places in points from the left lower corner.

    Attributes:
        line: number of the line that it is in.
    """

    text: str
    left: float
    right: float
    middle: float
    size: float
    line: int


class Rule(NamedTuple):
    """A ruled line: a horizontal one is at a height and goes from left to right."""

    at: float
    begin: float
    end: float

    def covers(self, place: float) -> bool:
        """Whether it passes a place, or nearly does."""
        return self.begin - _TOLERANCE <= place <= self.end + _TOLERANCE


@dataclass(frozen=True, slots=True)
class PageTable:
    """A table and the words that it was made of."""

    words: frozenset[Word]
    grid: Grid


def find_tables(
    words: Sequence[Word], horizontal: Iterable[Rule], vertical: Iterable[Rule]
) -> list[PageTable]:
    """The tables of a page, those between ruled lines first."""
    tables = list(_ruled_tables(words, _joined(horizontal), _joined(vertical)))
    taken = frozenset(word for table in tables for word in table.words)
    tables += _gapped_tables([word for word in words if word not in taken])
    return tables


def _joined(rules: Iterable[Rule]) -> list[Rule]:
    """Ruled lines at about the same place that touch each other, as one."""
    joined = list[Rule]()
    for rule in sorted(rules):
        for number, other in enumerate(joined):
            is_near = abs(other.at - rule.at) <= _TOLERANCE
            if is_near and (rule.covers(other.begin) or other.covers(rule.begin)):
                begin = min(other.begin, rule.begin)
                joined[number] = Rule(other.at, begin, max(other.end, rule.end))
                break
        else:
            joined.append(rule)
    return joined


def _ruled_tables(
    words: Sequence[Word], horizontal: list[Rule], vertical: list[Rule]
) -> Iterator[PageTable]:
    if len(horizontal) + len(vertical) > _MAX_RULES:
        return
    while horizontal and vertical:
        rows, columns = _crossing(horizontal, vertical)
        horizontal = [rule for rule in horizontal if rule not in rows]
        vertical = [rule for rule in vertical if rule not in columns]
        table = _between(words, rows, columns) if rows and columns else None
        if table is not None:
            yield table


def _crossing(horizontal: list[Rule], vertical: list[Rule]) -> tuple[set[Rule], set[Rule]]:
    """The first horizontal line, and all that are connected with it."""
    rows = {horizontal[0]}
    columns = set[Rule]()
    n_before = -1
    while n_before < len(rows) + len(columns):
        n_before = len(rows) + len(columns)
        columns |= {v for v in vertical if any(_cross(h, v) for h in rows)}
        rows |= {h for h in horizontal if any(_cross(h, v) for v in columns)}
    return rows, columns


def _cross(horizontal: Rule, vertical: Rule) -> bool:
    return horizontal.covers(vertical.at) and vertical.covers(horizontal.at)


def _between(words: Sequence[Word], horizontal: set[Rule], vertical: set[Rule]) -> PageTable | None:
    """The table whose cells are between these lines; None if it is a drawing, or if its rows are
    not ruled.
    """
    lefts = _places(vertical, horizontal)
    tops = [-place for place in reversed(_places(horizontal, vertical))]  # from the top down
    if min(len(lefts), len(tops)) < 3:
        return None
    owner: dict[tuple[int, int], Cell] = {}
    for row, column in product(range(len(tops) - 1), range(len(lefts) - 1)):
        if (row, column) in owner:
            continue
        height = -(tops[row] + tops[row + 1]) / 2
        middle = (lefts[column] + lefts[column + 1]) / 2
        right = column + 1
        while right < len(lefts) - 1 and not _is_ruled(vertical, lefts[right], height):
            right += 1
        below = row + 1
        while below < len(tops) - 1 and not _is_ruled(horizontal, -tops[below], middle):
            below += 1
        cell = Cell(row_span=below - row, column_span=right - column)
        owner.update(dict.fromkeys(product(range(row, below), range(column, right)), cell))
    inside = list[Word]()
    heights = defaultdict[Cell, Counter[int]](Counter)
    for word in words:
        center = (word.left + word.right) / 2
        place = bisect_right(tops, -word.middle) - 1, bisect_right(lefts, center) - 1
        if place in owner:
            cell = owner[place]
            cell.text = f"{cell.text} {word.text}".strip()
            heights[cell][round(word.middle)] += 1
            inside.append(word)
    n_words = [of_cell.total() for of_cell in heights.values()]
    is_drawing = len(n_words) < max(4, len(set(owner.values())) / 2)
    if is_drawing or max(n_words) > _MAX_CELL_WORDS:
        return None
    columns = range(len(lefts) - 1)
    grid = [[owner[row, column] for column in columns] for row in range(len(tops) - 1)]
    for row in grid:
        n_lines = [len(heights[cell]) for cell in row if cell.text]
        if len(n_lines) > 1 and min(n_lines) > _MAX_LINES:
            return None
    return PageTable(frozenset(inside), grid)


def _places(rules: Iterable[Rule], crossing: Iterable[Rule]) -> list[float]:
    """The places of ruled lines and of the ends of those that cross them, ascending."""
    ends = [end for rule in crossing for end in (rule.begin, rule.end)]
    places = list[float]()
    for value in sorted([*(rule.at for rule in rules), min(ends), max(ends)]):
        if not places or value - places[-1] > _TOLERANCE:
            places.append(value)
    return places


def _is_ruled(rules: Iterable[Rule], at: float, place: float) -> bool:
    return any(abs(rule.at - at) <= _TOLERANCE and rule.covers(place) for rule in rules)


class _Segment(NamedTuple):
    """Words of a row without a gap between them."""

    words: tuple[Word, ...]
    left: float
    right: float

    @property
    def text(self) -> str:
        return " ".join(word.text for word in self.words)


_Line = list[_Segment]


def _gapped_tables(words: Sequence[Word]) -> Iterator[PageTable]:
    run = list[_Line]()
    for line in [*_lines(words), []]:
        if run and not (line and _goes_on(run[-1], line)):
            table = _of_run(run)
            if table is not None:
                yield table
            run = []
        if line:
            run.append(line)


def _lines(words: Sequence[Word]) -> list[_Line]:
    """The words of a page by their height, parted at gaps."""
    lines = list[list[Word]]()
    for word in sorted(words, key=lambda word: -word.middle):
        if not lines or lines[-1][0].middle - word.middle > 0.5 * word.size:
            lines.append([])
        lines[-1].append(word)
    return [_segments(sorted(line, key=lambda word: word.left)) for line in lines]


def _segments(words: Sequence[Word]) -> _Line:
    groups = [[words[0]]]
    for before, word in pairwise(words):
        if word.left - before.right > _MIN_GAP * word.size:
            groups.append([])
        groups[-1].append(word)
    return [_Segment(tuple(group), group[0].left, group[-1].right) for group in groups]


def _goes_on(upper: _Line, lower: _Line) -> bool:
    """Whether two lines may be of the same table: near, and both of short texts."""
    size = min(upper[0].words[0].size, lower[0].words[0].size)
    is_near = _step(upper, lower) <= _MAX_STEP * size
    is_alike = max(upper[0].words[0].size, lower[0].words[0].size) < size + _SIZES_DIFFER
    return is_near and is_alike and _is_short(upper) and _is_short(lower)


def _is_short(line: _Line) -> bool:
    return sum(len(segment.words) for segment in line) <= _MAX_WORDS * max(len(line), 2)


def _of_run(run: list[_Line]) -> PageTable | None:
    """The table in lines that are near each other; None if their texts do not stand in columns."""
    counts = Counter(len(line) for line in run if len(line) >= _MIN_COLUMNS)
    n_columns = max(counts, key=lambda count: (counts[count], count), default=0)
    full = [line for line in run if len(line) == n_columns]
    columns = [
        (min(segment.left for segment in column), max(segment.right for segment in column))
        for column in zip(*full, strict=True)
    ]
    are_apart = all(left[1] < right[0] for left, right in pairwise(columns))
    label_words = [len(line[0].words) for line in full]
    if len(full) < 2 or not are_apart or sum(label_words) > _MAX_WORDS * len(full):
        return None
    steps = [_step(*pair) for pair in pairwise(run) if min(map(len, pair)) >= _MIN_COLUMNS]
    small = _SMALL_STEP * median(steps or [0.0])
    lines = _within(run, columns, small)
    rows = list[list[Cell]]()
    for number, line in enumerate(lines):
        cells = _cells(line, columns)
        is_near = bool(rows) and _step(lines[number - 1], line) < small
        if is_near and _is_below(rows[-1], cells):
            for above, cell in zip(rows[-1], cells, strict=True):
                above.text = f"{above.text} {cell.text}".strip()
        else:
            rows.append(cells)
    n_filled = sum(bool(cell.text) for row in rows for cell in row)
    if len(rows) < _MIN_ROWS or n_filled < _MIN_FILLED * n_columns * len(rows):
        return None
    words = frozenset(word for line in lines for segment in line for word in segment.words)
    return PageTable(words, _with_labels(rows))


def _step(upper: _Line, lower: _Line) -> float:
    return upper[0].words[0].middle - lower[0].words[0].middle


def _within(run: list[_Line], columns: Sequence[tuple[float, float]], small: float) -> list[_Line]:
    """The lines of the table: from the first wide one, or headings of several columns above it, to
    the last wide one, or what goes on below, by a small step.
    """
    wide = [number for number, line in enumerate(run) if len(line) >= _MIN_COLUMNS]
    first = wide[0]
    last = wide[-1]
    label_end = columns[0][1]
    while first > 0 and all(segment.left > label_end for segment in run[first - 1]):
        first -= 1
    while last + 1 < len(run):
        is_value = all(segment.left > label_end for segment in run[last + 1])
        if not is_value and _step(run[last], run[last + 1]) >= small:
            break
        last += 1
    return run[first : last + 1]


def _cells(line: _Line, columns: Sequence[tuple[float, float]]) -> list[Cell]:
    """A cell for each column, the same for those that a text stands across."""
    cells = [Cell() for _ in columns]
    between = [(left[1] + right[0]) / 2 for left, right in pairwise(columns)]
    for segment in line:
        crossed = [
            number
            for number, (left, right) in enumerate(columns)
            if segment.left < right and segment.right > left
        ]
        nearest = bisect_right(between, (segment.left + segment.right) / 2)
        first, *others = crossed or [nearest]
        cell = cells[first]
        cell.text = f"{cell.text} {segment.text}".strip()
        for column in others:
            cell.column_span += 1
            cells[column] = cell
    return cells


def _is_below(above: Sequence[Cell], cells: Sequence[Cell]) -> bool:
    """Whether every text of a line stands below one that it may go on."""
    return all(
        bool(upper.text) or not lower.text for upper, lower in zip(above, cells, strict=True)
    )


def _with_labels(rows: Sequence[list[Cell]]) -> list[list[Cell]]:
    """The rows, in which a label that names several of them stands in each."""
    for upper, lower in pairwise(rows[1:]):
        names_next = lower[1].text and not is_number(lower[1].text)
        if upper[0].text and not lower[0].text and names_next:
            lower[0] = upper[0]
    return list(rows)
