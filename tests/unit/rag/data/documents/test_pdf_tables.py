"""Tables on pages of PDFs: between ruled lines, by gaps, and what is none."""

from collections.abc import Sequence
from itertools import accumulate, takewhile
from operator import sub
from textwrap import wrap

import pytest

from rag.data.documents.convert import convert
from rag.data.documents.pdf_tables import Rule, Word, find_tables
from tests.document_makers import Line, Stroke, of, pdf

Rows = Sequence[Sequence[str]]
# "<" belongs to the cell at its left, "^" to the one above it.
TABLE: Rows = (
    ("Model", "Power", "<", "Price in euro"),
    ("^", "Idle", "Load", "^"),
    ("A1", "5 W", "50 W", "1,900.00"),
    ("A second model", "7 W", "90 W", "8.50"),
    ("A3", "9 W", "80 W", "1"),
    ("A4", "8 W", "20 W", "2"),
)
ROWS = [
    "row: Model: A1; Power Idle: 5 W; Power Load: 50 W; Price in euro: 1,900.00",
    "row: Model: A second model; Power Idle: 7 W; Power Load: 90 W; Price in euro: 8.50",
    "row: Model: A3; Power Idle: 9 W; Power Load: 80 W; Price in euro: 1",
    "row: Model: A4; Power Idle: 8 W; Power Load: 20 W; Price in euro: 2",
]
PROSE = "Words of a paragraph that is long enough to be broken into lines of a narrow column. " * 6
PADDING = 4.0


def width_of(text: str) -> float:
    """About the width of a line of Helvetica of 9 points."""
    narrow = sum(text.count(letter) for letter in "ijltfI.,;:!' ()/-")
    return 9 * (0.56 * (len(text) - narrow) + 0.3 * narrow)


class Page:
    """The drawing of one page; heights fall, lengths are in points."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.strokes: list[Stroke] = []

    def prose(self, x: float, y: float, lines: Sequence[str]) -> float:
        for line in lines:
            y -= 12.5
            self.lines.append((x, y, 10.0, "F", line))
        return y

    def table(self, x: float, y: float, rows: Rows, *, is_ruled: bool, most: int = 24) -> float:
        """Numbers stand at the right; texts are broken after `most` characters."""
        columns = list(zip(*rows, strict=True))
        gap = 2 * PADDING + 10 * (not is_ruled)
        widths = []
        for number, column in enumerate(columns):
            is_merged = [row[number + 1 : number + 2] == ("<",) for row in map(tuple, rows)]
            texts = [text for text, merged in zip(column, is_merged, strict=True) if not merged]
            widths.append(gap + max(width_of(line) for text in texts for line in wrap(text, most)))
        heights = [12 * max(len(wrap(text, most)) for text in row) + PADDING for row in rows]
        lefts = list(accumulate(widths, initial=x))
        tops = list(accumulate(heights, sub, initial=y))
        for r, row in enumerate(rows):
            for c, text in enumerate(row):
                if text in ("<", "^"):
                    continue
                below = [other[c] for other in rows[r + 1 :]]
                bottom = tops[r + 1 + len(list(takewhile("^".__eq__, below)))]
                right = lefts[c + 1 + len(list(takewhile("<".__eq__, row[c + 1 :])))]
                for number, line in enumerate(wrap(text, most), start=1):
                    begin = lefts[c] + PADDING
                    if text[0].isdigit():
                        begin = right - PADDING - width_of(line)
                    self.lines.append((begin, tops[r] - 12 * number + 1, 9.0, "F", line))
                if is_ruled:
                    for height in (bottom, tops[r]):
                        self.strokes.append((lefts[c], height, right, height))
                    for place in (lefts[c], right):
                        self.strokes.append((place, bottom, place, tops[r]))
        return tops[-1]


def drawn(*pages: Page) -> bytes:
    return pdf([page.lines for page in pages], strokes=[page.strokes for page in pages])


def _kinds(page: Page) -> set[str]:
    return {block.kind for block in convert(drawn(page), "a.pdf").blocks}


@pytest.mark.parametrize("is_ruled", [True, False])
@pytest.mark.parametrize("most", [30, 13])  # the second breaks a cell into lines
@pytest.mark.parametrize("n_tables", [1, 2])
def test_tables_between_paragraphs(is_ruled: bool, most: int, n_tables: int) -> None:
    page = Page()
    before = "Before the table there are words."
    y = 800.0
    for _ in range(n_tables):
        y = page.prose(50, y, [before])
        y = page.table(50, y - 12, TABLE, is_ruled=is_ruled, most=most) - 20
    page.prose(50, y, ["After the table there are words, too."])
    after = "paragraph: After the table there are words, too."
    assert of(drawn(page), "a.pdf") == [*[f"paragraph: {before}", *ROWS] * n_tables, after]


def test_rows_know_their_pages() -> None:
    pages = [Page(), Page()]
    for number, page in enumerate(pages):
        page.prose(50, 800, [f"Page {'ab'[number]} has a table."])
        page.table(50, 760, TABLE, is_ruled=True)
    converted = convert(drawn(*pages), "a.pdf")
    assert [label for _, label in converted.pages] == ["1", "2"]
    assert [block.kind for block in converted.blocks] == ["paragraph", *["row"] * 4] * 2


@pytest.mark.parametrize("has_headings", [True, False])
def test_a_table_that_goes_on_keeps_its_headings(has_headings: bool) -> None:
    headings = ("Item", "Town", "Price")
    rows = [(f"item{n}", f"town{n}", f"{n}.50") for n in range(12)]
    pages = [Page(), Page()]
    pages[0].table(50, 700, [headings, *rows[:6]], is_ruled=True)
    pages[1].table(50, 700, [headings] * has_headings + rows[6:], is_ruled=True)
    converted = convert(drawn(*pages), "a.pdf")
    expected = [f"Item: {item}; Town: {town}; Price: {price}" for item, town, price in rows]
    assert converted.text.split("\n") == expected
    assert converted.pages == ((0, "1"), (converted.text.index("Item: item6"), "2"))


@pytest.mark.parametrize("n_columns", [2, 3])
def test_prose_in_columns_is_no_table(n_columns: int) -> None:
    page = Page()
    for column in range(n_columns):
        page.prose(40 + column * 540 / n_columns, 800, wrap(PROSE, 88 // n_columns))
    assert _kinds(page) == {"paragraph"}


def test_a_table_without_rules_beside_prose_is_not_told_apart() -> None:
    page = Page()
    page.prose(50, 800, wrap(PROSE, 46))
    page.table(310, 750, TABLE, is_ruled=False)
    assert "row" not in _kinds(page)


def test_a_table_without_rules_in_a_column_of_prose_is_found() -> None:
    page = Page()
    for x in (50, 320):
        page.prose(x, 800, wrap(PROSE, 42))
    page.prose(50, 570, wrap(PROSE, 42))
    page.table(320, 550, TABLE, is_ruled=False)
    assert [row for row in of(drawn(page), "a.pdf") if row.startswith("row")] == ROWS


def test_words_with_hyphens_in_cells_are_joined() -> None:
    page = Page()
    for x, texts in ((50, ("Deliv-", "erable")), (150, ("Town",)), (250, ("Price",))):
        page.prose(x, 712, texts)
    for row in range(3):
        for column, text in enumerate((f"item{row}", f"town{row}", str(row))):
            page.prose(50 + 100 * column, 680 - 15 * row, [text])
    assert of(drawn(page), "a.pdf")[0] == "row: Deliverable: item0; Town: town0; Price: 0"


def test_long_labels_beside_numbers_are_a_table() -> None:
    labels = ["Revenue from contracts with customers", "Income of the owners of the whole group"]
    labels += ["Total income of the year that belongs to the owners of all its shares", "Taxes"]
    page = Page()
    rows = [(label, f"{n}.5", str(n)) for n, label in enumerate(labels, 7)]
    page.table(40, 700, [("Position", "2025", "2024"), *rows], is_ruled=False, most=99)
    expected = [
        f"row: Position: {label}; 2025: {now}; 2024: {before}" for label, now, before in rows
    ]
    assert of(drawn(page), "a.pdf") == expected


def test_boxes_and_drawings_are_no_tables() -> None:
    page = Page()
    page.prose(60, 790, wrap(PROSE, 80))
    for place in (40, 300, 560):  # a frame of two boxes, and one with a grid without words
        page.strokes += [(place, 600, place, 810), (place, 100, place, 500)]
    for height in (810, 600, 500, 300, 200, 100):
        page.strokes.append((40, height, 560, height))
    assert _kinds(page) == {"paragraph"}


def test_boxes_at_the_foot_of_a_slide_are_no_table() -> None:
    page = Page()
    for x, y, text in ((60, 780, "A title"), (60, 600, "It is said that"), (60, 580, "it is so.")):
        page.prose(x, y, [text])
    for x, text in ((60, "Ada"), (240, "Offices"), (420, "2026")):
        page.prose(x, 45, [text])
    for height in (20, 50, 740, 800):
        page.strokes.append((40, height, 560, height))
    for place in (40, 220, 400, 560):
        page.strokes.append((place, 20, place, 50 if place in (220, 400) else 800))
    assert "row" not in _kinds(page)


def test_lists_of_two_columns_stay_lines() -> None:
    words = [
        Word(text, x, x + 20, y, 10, 0)
        for y in (700, 685, 670, 655)
        for x, text in ((50, "name"), (200, "value"))
    ]
    assert find_tables(words, [], []) == []
    assert find_tables([], [Rule(1, 0, 9)], [Rule(1, 0, 9)]) == []


def test_rows_without_a_line_between_them_are_parted_by_their_places() -> None:
    texts = [["Item", "Town", "Price"], *([f"item{n}", f"town{n}", str(n)] for n in range(4))]
    words = [
        Word(text, 50 + 100 * column, 80 + 100 * column, 700 - 15 * row, 10, row)
        for row, line in enumerate(texts)
        for column, text in enumerate(line)
    ]
    horizontal = [Rule(height, 45, 345) for height in (710, 692, 630)]
    vertical = [Rule(place, 630, 710) for place in (45, 145, 245, 345)]
    [found] = find_tables(words, horizontal, vertical)
    assert [[cell.text for cell in row] for row in found.grid] == texts
