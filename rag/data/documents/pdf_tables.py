"""Tables on a page of a PDF: cells between ruled lines, or columns with gaps between them."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, product
from statistics import median, median_low
from typing import NamedTuple

from rag.data.documents.grid import Cell, Grid, is_number, size

_TOLERANCE = 3.0  # points by which ruled lines may miss each other
_MAX_RULES = 1000  # of a page; a drawing has more
_MIN_GAP = 0.9  # between columns, in font sizes
_MIN_COLUMNS = 3  # of a table without ruled lines: text with a gap is often none
_MIN_ROWS = 3
_MIN_ALIGNED = 0.6  # of the texts of a column
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
    tables = list(_ruled_tables(words, {*_joined(horizontal)}, {*_joined(vertical)}))
    taken = words_of(tables)
    tables += _gapped_tables([word for word in words if word not in taken])
    taken = words_of(tables)
    cut = {word.line for word in words if word not in taken}
    # a line that goes on outside of a table shows that it is a drawing
    return [table for table in tables if cut.isdisjoint(word.line for word in table.words)]


def words_of(tables: Iterable[PageTable]) -> frozenset[Word]:
    """The words that stand in tables."""
    return frozenset[Word]().union(*(table.words for table in tables))


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
    words: Sequence[Word], horizontal: set[Rule], vertical: set[Rule]
) -> Iterator[PageTable]:
    if len(horizontal) + len(vertical) > _MAX_RULES:
        return
    while horizontal:
        rows, columns = _crossing(max(horizontal), horizontal, vertical)
        horizontal -= rows
        table = _between(words, rows, columns) if columns else None
        if table is not None:
            yield table


def _crossing(
    first: Rule, horizontal: set[Rule], vertical: set[Rule]
) -> tuple[set[Rule], set[Rule]]:
    """All lines that are connected with a horizontal one, which is among them."""
    rows = {first}
    columns = set[Rule]()
    waiting = [(first, vertical, columns)]
    while waiting:
        rule, others, found = waiting.pop()
        for other in others - found:
            if rule.covers(other.at) and other.covers(rule.at):
                found.add(other)
                is_column = found is columns
                waiting.append(
                    (other, horizontal, rows) if is_column else (other, vertical, columns)
                )
    return rows, columns


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
    is_drawing = len(heights) < max(4, len({*owner.values()}) / 2)
    if is_drawing or max(map(Counter.total, heights.values())) > _MAX_CELL_WORDS:
        return None
    grid = list[list[Cell]]()
    for row in range(len(tops) - 1):
        grid.append([owner[row, column] for column in range(len(lefts) - 1)])
        n_lines = [len(heights[cell]) for cell in grid[-1] if cell.text]
        if len(n_lines) > 1 and min(n_lines) > _MAX_LINES:
            return None
    return PageTable(frozenset(inside), grid)


def _places(rules: set[Rule], crossing: set[Rule]) -> list[float]:
    """The places of ruled lines and of the ends of those that cross them, ascending."""
    values = [rule.at for rule in rules]
    values += [min(rule.begin for rule in crossing), max(rule.end for rule in crossing)]
    places = list[float]()
    for value in sorted(values):
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
    counts = Counter(map(len, run))
    n_columns = max(counts, key=lambda count: (count >= _MIN_COLUMNS, counts[count], count))
    full = [line for line in run if len(line) == n_columns]
    if n_columns < _MIN_COLUMNS or len(full) < _MIN_ROWS:
        return None
    if not all(map(_is_aligned, zip(*full, strict=True))):
        return None
    columns = [_extent(column) for column in zip(*full, strict=True)]
    are_apart = all(left[1] < right[0] for left, right in pairwise(columns))
    n_label_words = sum(len(line[0].words) for line in full)
    if not are_apart or n_label_words > _MAX_WORDS * len(full):
        return None
    steps = [_step(*pair) for pair in pairwise(run) if min(map(len, pair)) >= _MIN_COLUMNS]
    small = _SMALL_STEP * median(steps or [0.0])
    lines = _within(run, columns, small)
    rows = list[list[Cell]]()
    for number, line in enumerate(lines):
        cells = _cells(line, columns)
        is_near = bool(rows) and _step(lines[number - 1], line) < small
        if is_near and len(line) < n_columns and _is_below(rows[-1], cells):
            for above, cell in dict.fromkeys(zip(rows[-1], cells, strict=True)):
                above.text = f"{above.text} {cell.text}".strip()
        else:
            rows.append(cells)
    n_filled = sum(map(size, rows))
    if len(rows) < _MIN_ROWS or n_filled < _MIN_FILLED * n_columns * len(rows):
        return None
    words = chain.from_iterable(segment.words for segment in chain.from_iterable(lines))
    _repeat_labels(rows)
    return PageTable(frozenset(words), rows)


def _is_aligned(segments: Sequence[_Segment]) -> bool:
    """Whether most of them begin, end or have their middle at about the same place."""
    _, lefts, rights = zip(*segments, strict=True)
    middles = [(left + right) / 2 for left, right in zip(lefts, rights, strict=True)]
    for places in (lefts, rights, middles):
        usual = median_low(places)
        n_near = sum(abs(place - usual) <= _TOLERANCE for place in places)
        if n_near > _MIN_ALIGNED * len(places):
            return True
    return False


def _extent(segments: Iterable[_Segment]) -> tuple[float, float]:
    """From where to where they reach."""
    _, lefts, rights = zip(*segments, strict=True)
    return min(lefts), max(rights)


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
        crossed = list[int]()
        for number, (left, right) in enumerate(columns):
            if segment.left < right and segment.right > left:
                crossed.append(number)
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
    return not any(
        lower.text and (not upper.text or is_number(lower.text))
        for upper, lower in zip(above, cells, strict=True)
    )


def _repeat_labels(rows: Sequence[list[Cell]]) -> None:
    """Put a label that names several rows into each of them."""
    for upper, lower in pairwise(rows[1:]):
        names_next = lower[1].text and not is_number(lower[1].text)
        if upper[0].text and not lower[0].text and names_next:
            lower[0] = upper[0]
