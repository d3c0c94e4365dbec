"""Tables on a page of a PDF: cells between ruled lines, or columns with gaps between them."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, pairwise
from operator import attrgetter
from statistics import median, median_low
from typing import NamedTuple

from rag.data.documents.grid import Cell, Grid, is_number, size

# Points by which ruled lines may miss each other, and texts of a column differ in their place.
_TOLERANCE = 3.0
# Of a page; a drawing has more.
_MAX_RULES = 1000
# Between columns, in font sizes.
_MIN_GAP = 0.9
# In each column of a page of prose.
_MIN_PROSE_LINES = 8
# Of a table without ruled lines: text with a gap is often none.
_MIN_COLUMNS = 3
_MIN_ROWS = 3
# Shares of the texts of a column, and of all cells.
_MIN_ALIGNED = 0.6
_MIN_FILLED = 0.6
# Of a cell without ruled lines, on average: columns of prose have more.
_MAX_WORDS = 3.5
# In all cells of a ruled row: more are rows without a line between them.
_MAX_LINES = 2
# Of a cell between ruled lines: a page in boxes has more.
_MAX_CELL_WORDS = 150
# Points: a heading between two tables has another size.
_SIZES_DIFFER = 1.5
# From a row to the next, in font sizes.
_MAX_STEP = 3.0
# Part of the usual step, within a cell of several lines.
_SMALL_STEP = 0.85


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
    """A ruled line; a horizontal line is at a height and goes from left to right."""

    at: float
    begin: float
    end: float

    def covers(self, position: float) -> bool:
        """Whether it passes a place, or nearly does."""
        return self.begin - _TOLERANCE <= position <= self.end + _TOLERANCE


@dataclass(frozen=True, slots=True)
class PageTable:
    """A table and the words that it was made of."""

    words: frozenset[Word]
    grid: Grid


def find_tables(
    words: Sequence[Word], horizontal: Iterable[Rule], vertical: Iterable[Rule]
) -> list[PageTable]:
    """The tables of a page, those between ruled lines first."""
    tables = list(_ruled_tables(words, {*_joined(horizontal)}, {*_joined(vertical)}))
    taken = words_of(tables)
    for column in _by_columns([word for word in words if word not in taken]):
        tables += _gapped_tables(column)
    taken = words_of(tables)
    lines_outside = {word.line for word in words if word not in taken}
    # A line that goes on outside of a table shows that it is a drawing.
    return [table for table in tables if lines_outside.isdisjoint(_lines_of(table))]


def words_of(tables: Iterable[PageTable]) -> frozenset[Word]:
    """The words that stand in tables."""
    return frozenset(chain.from_iterable(table.words for table in tables))


def _lines_of(table: PageTable) -> set[int]:
    return {word.line for word in table.words}


def _joined(rules: Iterable[Rule]) -> list[Rule]:
    """Ruled lines at about the same height or column that touch each other, joined to a single
    line.
    """
    joined: list[Rule] = []
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
    words: Sequence[Word], horizontal: set[Rule], vertical: set[Rule]
) -> Iterator[PageTable]:
    if len(horizontal) + len(vertical) > _MAX_RULES:
        return
    for rows, columns in _connected(horizontal, vertical):
        table = _between(words, rows, columns)
        if table is not None:
            yield table


def _connected(horizontal: set[Rule], vertical: set[Rule]) -> list[tuple[set[Rule], set[Rule]]]:
    """The horizontal and the vertical lines of each group that crossings connect."""
    groups: list[tuple[set[Rule], set[Rule]]] = []
    for column in vertical:
        columns = {column}
        rows = {row for row in horizontal if column.covers(row.at) and row.covers(column.at)}
        apart = []
        for group in groups:
            if rows.isdisjoint(group[0]):
                apart.append(group)
            else:
                rows |= group[0]
                columns |= group[1]
        if rows:
            groups = [*apart, (rows, columns)]
    return groups


def _between(words: Sequence[Word], horizontal: set[Rule], vertical: set[Rule]) -> PageTable | None:
    """The table whose cells are between these lines; None if it is a drawing, or if its rows are
    not ruled.
    """
    lefts = _places(vertical, horizontal)
    # From the top down.
    tops = [-position for position in reversed(_places(horizontal, vertical))]
    if min(len(lefts), len(tops)) < 3:
        return None
    grid = _cells_between(lefts, tops, horizontal, vertical)
    # The foot of a slide may be a single row of boxes.
    if sum(len({*cells}) > 1 for cells in grid) < 2:
        return None
    inside: list[Word] = []
    heights: defaultdict[Cell, Counter[int]] = defaultdict(Counter)
    for word in words:
        row = bisect_right(tops, -word.middle) - 1
        column = bisect_right(lefts, (word.left + word.right) / 2) - 1
        if 0 <= row < len(grid) and 0 <= column < len(grid[row]):
            cell = grid[row][column]
            _append(cell, word.text)
            heights[cell][round(word.middle)] += 1
            inside.append(word)
    n_cells = len(set(chain.from_iterable(grid)))
    is_drawing = len(heights) < max(4, n_cells / 2)
    if is_drawing or max(map(Counter.total, heights.values())) > _MAX_CELL_WORDS:
        return None
    for cells in grid:
        n_lines = [len(heights[cell]) for cell in cells if cell.text]
        if len(n_lines) > 1 and min(n_lines) > _MAX_LINES:
            return None
    return PageTable(frozenset(inside), grid)


def _cells_between(
    lefts: Sequence[float], tops: Sequence[float], horizontal: set[Rule], vertical: set[Rule]
) -> list[list[Cell]]:
    """A cell for each place between ruled lines, the same where no line parts them."""
    grid: list[list[Cell]] = []
    for top, bottom in pairwise(tops):
        cells: list[Cell] = []
        for left, right in pairwise(lefts):
            if grid and not _is_ruled(horizontal, -top, (left + right) / 2):
                cells.append(grid[-1][len(cells)])
            elif cells and not _is_ruled(vertical, left, -(top + bottom) / 2):
                cells.append(cells[-1])
            else:
                cells.append(Cell())
        for cell, n_columns in Counter(cells).items():
            cell.column_span = n_columns
        grid.append(cells)
    return grid


def _append(cell: Cell, text: str) -> None:
    cell.text = f"{cell.text} {text}".strip()


def _places(rules: set[Rule], crossing: set[Rule]) -> list[float]:
    """The places of ruled lines and of the ends of those that cross them, ascending."""
    begin = min(rule.begin for rule in crossing)
    end = max(rule.end for rule in crossing)
    positions: list[float] = []
    for position in sorted([begin, end, *(rule.at for rule in rules)]):
        if not positions or position - positions[-1] > _TOLERANCE:
            positions.append(position)
    return positions


def _is_ruled(rules: Iterable[Rule], at: float, position: float) -> bool:
    return any(abs(rule.at - at) <= _TOLERANCE and rule.covers(position) for rule in rules)


# Words of a row without a gap between them.
_Segment = list[Word]
_Row = list[_Segment]
_Extent = tuple[float, float]


def _by_columns(words: Sequence[Word]) -> Iterable[Sequence[Word]]:
    """The words of a page; if it has two columns of prose, those of each and of lines across
    both.
    """
    if not words:
        return []
    begin, end = _extent([words])
    middle = (begin + end) / 2
    columns: defaultdict[int, list[Word]] = defaultdict(list)
    n_lines = Counter[int]()
    for _, line in groupby(words, attrgetter("line")):
        segments = _segments(line)
        column = (segments[0][0].left > middle) - (segments[-1][-1].right < middle)
        columns[column] += chain.from_iterable(segments)
        n_lines[column] += len(segments) == 1 and len(segments[0]) > _MAX_WORDS + 1
    return columns.values() if min(n_lines[-1], n_lines[1]) >= _MIN_PROSE_LINES else [words]


def _gapped_tables(words: Sequence[Word]) -> Iterator[PageTable]:
    run: list[_Row] = []
    for row in [*_rows(words), []]:
        if run and not (row and _goes_on(run[-1], row)):
            table = _of_run(run)
            if table is not None:
                yield table
            run = []
        if row:
            run.append(row)


def _rows(words: Sequence[Word]) -> list[_Row]:
    """The words of a page by their height, parted at gaps."""
    rows: list[list[Word]] = []
    for word in sorted(words, key=lambda word: -word.middle):
        if not rows or rows[-1][0].middle - word.middle > 0.5 * word.size:
            rows.append([])
        rows[-1].append(word)
    return list(map(_segments, rows))


def _segments(row: Iterable[Word]) -> _Row:
    segments: _Row = []
    for word in sorted(row, key=lambda word: word.left):
        if not segments or word.left - segments[-1][-1].right > _MIN_GAP * word.size:
            segments.append([])
        segments[-1].append(word)
    return segments


def _goes_on(upper: _Row, lower: _Row) -> bool:
    """Whether two rows may be of the same table: near, and both of short texts."""
    smaller, larger = sorted([upper[0][0].size, lower[0][0].size])
    is_near = _step(upper, lower) <= _MAX_STEP * smaller
    is_alike = larger < smaller + _SIZES_DIFFER
    return is_near and is_alike and _is_short(upper) and _is_short(lower)


def _is_short(row: _Row) -> bool:
    is_of_numbers = len(row) >= _MIN_COLUMNS and _are_numbers(row[1:])
    return is_of_numbers or sum(map(len, row)) <= _MAX_WORDS * max(len(row), 2)


def _of_run(run: list[_Row]) -> PageTable | None:
    """The table in rows that are near each other; None if their texts do not stand in columns."""
    counts = Counter(map(len, run))
    n_columns = max(counts, key=lambda count: (count >= _MIN_COLUMNS, counts[count], count))
    full = [row for row in run if len(row) == n_columns]
    if n_columns < _MIN_COLUMNS or len(full) < _MIN_ROWS:
        return None
    columns = list(zip(*full, strict=True))
    if not all(map(_is_aligned, columns)):
        return None
    # A label beside numbers may be as long as a sentence.
    may_be_prose = sum(map(len, columns[0])) > _MAX_WORDS * len(full)
    if may_be_prose and not _are_numbers(chain.from_iterable(columns[1:])):
        return None
    extents = list(map(_extent, columns))
    if any(left[1] >= right[0] for left, right in pairwise(extents)):
        return None
    steps = [_step(*pair) for pair in pairwise(run) if min(map(len, pair)) >= _MIN_COLUMNS]
    small_step = _SMALL_STEP * median(steps or [0.0])
    rows = _within(run, extents[0][1], small_step)
    grid: list[list[Cell]] = []
    for number, row in enumerate(rows):
        cells = _cells(row, extents)
        is_near = number > 0 and _step(rows[number - 1], row) < small_step
        if is_near and len(row) < n_columns and _is_below(grid[-1], cells):
            for above, cell in dict.fromkeys(zip(grid[-1], cells, strict=True)):
                _append(above, cell.text)
        else:
            grid.append(cells)
    if len(grid) < _MIN_ROWS or sum(map(size, grid)) < _MIN_FILLED * n_columns * len(grid):
        return None
    _repeat_labels(grid)
    words = chain.from_iterable(chain.from_iterable(rows))
    return PageTable(frozenset(words), grid)


def _is_aligned(segments: Iterable[_Segment]) -> bool:
    """Whether most of them begin, end or have their middle at about the same place."""
    edges = [(segment[0].left, segment[-1].right) for segment in segments]
    middles = [sum(pair) / 2 for pair in edges]
    for group in (*zip(*edges, strict=True), middles):
        usual = median_low(group)
        n_near = sum(abs(edge - usual) <= _TOLERANCE for edge in group)
        if n_near > _MIN_ALIGNED * len(group):
            return True
    return False


def _are_numbers(segments: Iterable[_Segment]) -> bool:
    """Whether most of them are a number."""
    are_numbers = [len(segment) == 1 and is_number(segment[0].text) for segment in segments]
    return sum(are_numbers) > _MIN_FILLED * len(are_numbers)


def _extent(segments: Iterable[Sequence[Word]]) -> _Extent:
    """From where to where they reach."""
    words = list(chain.from_iterable(segments))
    return min(word.left for word in words), max(word.right for word in words)


def _step(upper: _Row, lower: _Row) -> float:
    return upper[0][0].middle - lower[0][0].middle


def _within(run: list[_Row], label_end: float, small_step: float) -> list[_Row]:
    """The rows of the table: from the first wide one, or headings of several columns above it, to
    the last wide one, or what goes on below, by a small step.
    """
    wide = [number for number, row in enumerate(run) if len(row) >= _MIN_COLUMNS]
    first = wide[0]
    last = wide[-1]
    while first > 0 and _is_beside(run[first - 1], label_end):
        first -= 1
    while last + 1 < len(run):
        is_near = _step(run[last], run[last + 1]) < small_step
        if not is_near and not _is_beside(run[last + 1], label_end):
            break
        last += 1
    return run[first : last + 1]


def _is_beside(row: _Row, label_end: float) -> bool:
    """Whether a row has nothing in the column of labels."""
    return row[0][0].left > label_end


def _cells(row: _Row, extents: Sequence[_Extent]) -> list[Cell]:
    """A cell for each column, the same for those that a text stands across."""
    cells = [Cell() for _ in extents]
    between = [(left[1] + right[0]) / 2 for left, right in pairwise(extents)]
    for segment in row:
        begin = segment[0].left
        end = segment[-1].right
        crossed: list[int] = []
        for number, (left, right) in enumerate(extents):
            if begin < right and end > left:
                crossed.append(number)
        first, *others = crossed or [bisect_right(between, (begin + end) / 2)]
        cell = cells[first]
        _append(cell, " ".join(word.text for word in segment))
        for column in others:
            cell.column_span += 1
            cells[column] = cell
    return cells


def _is_below(above: Sequence[Cell], cells: Sequence[Cell]) -> bool:
    """Whether every text of a row stands below a text that it may continue."""
    for upper, lower in zip(above, cells, strict=True):
        if lower.text and (not upper.text or is_number(lower.text)):
            return False
    return True


def _repeat_labels(rows: Sequence[list[Cell]]) -> None:
    """Put a label that names several rows into each of them."""
    for upper, lower in pairwise(rows[1:]):
        names_next = lower[1].text and not is_number(lower[1].text)
        if upper[0].text and not lower[0].text and names_next:
            lower[0] = upper[0]
