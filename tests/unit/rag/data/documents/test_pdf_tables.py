"""Tables on pages of PDFs: between ruled lines, by gaps, and what is none."""

import pytest

from rag.bench.pdf_tables import cells_of, expected_text, made_pdfs
from rag.bench.table_files import MadeTable, PdfPage, pdf, wrapped
from rag.data.documents.convert import convert
from rag.data.documents.pdf_tables import Rule, Word, find_tables
from tests.document_makers import of

TABLE = MadeTable(
    "",
    (("Model",), ("Power", "Idle"), ("Power", "Load"), ("Price in euro",)),
    1,
    [
        ["A1", "5 W", "50 W", "1,900.00"],
        ["A second model", "7 W", "90 W", "8.50"],
        ["A3", "9 W", "80 W", "1"],
        ["A4", "8 W", "20 W", "2"],
    ],
)
ROWS = [
    ("row", "Model: A1; Power Idle: 5 W; Power Load: 50 W; Price in euro: 1,900.00"),
    ("row", "Model: A second model; Power Idle: 7 W; Power Load: 90 W; Price in euro: 8.50"),
    ("row", "Model: A3; Power Idle: 9 W; Power Load: 80 W; Price in euro: 1"),
    ("row", "Model: A4; Power Idle: 8 W; Power Load: 20 W; Price in euro: 2"),
]
PDFS = list(made_pdfs())
PROSE = "Words of a paragraph that is long enough to be broken into lines of a narrow column. " * 6


@pytest.mark.parametrize("is_ruled", [True, False])
@pytest.mark.parametrize("most", [30, 13])  # the second breaks a cell into lines
def test_a_table_between_paragraphs(is_ruled: bool, most: int) -> None:
    page = PdfPage()
    page.prose(50, 800, ["Before the table there are words."])
    y = page.table(50, 760, TABLE, is_ruled=is_ruled, most=most)
    page.prose(50, y - 20, ["After the table there are words, too."])
    assert of(pdf([page]), "a.pdf") == [
        ("paragraph", "Before the table there are words."),
        *ROWS,
        ("paragraph", "After the table there are words, too."),
    ]


def test_rows_know_their_pages() -> None:
    pages = [PdfPage(), PdfPage()]
    for number, page in enumerate(pages):
        page.prose(50, 800, [f"Page {'ab'[number]} has a table."])
        page.table(50, 760, TABLE, is_ruled=True)
    converted = convert(pdf(pages), "a.pdf")
    assert [label for _, label in converted.pages] == ["1", "2"]
    assert [block.kind for block in converted.blocks] == ["paragraph", *["row"] * 4] * 2


@pytest.mark.parametrize("has_headings", [True, False])
def test_a_table_that_goes_on_keeps_its_headings(has_headings: bool) -> None:
    headings = (("Item",), ("Town",), ("Price",))
    rows = [[f"item{n}", f"town{n}", f"{n}.50"] for n in range(12)]
    parts = [MadeTable("", headings, 1, rows[:6]), MadeTable("", headings, 1, rows[6:])]
    if not has_headings:
        parts[1] = MadeTable("", tuple((text,) for text in rows[6]), 1, rows[7:])
    pages = [PdfPage(), PdfPage()]
    for page, part in zip(pages, parts, strict=True):
        page.table(50, 700, part, is_ruled=True)
    converted = convert(pdf(pages), "a.pdf")
    expected = [f"Item: {item}; Town: {town}; Price: {price}" for item, town, price in rows]
    assert converted.text.split("\n") == expected
    assert converted.pages == ((0, "1"), (converted.text.index("Item: item6"), "2"))


@pytest.mark.parametrize("n_columns", [2, 3])
def test_prose_in_columns_is_no_table(n_columns: int) -> None:
    page = PdfPage()
    for column in range(n_columns):
        page.prose(40 + column * 540 / n_columns, 800, wrapped(PROSE, 88 // n_columns))
    assert {kind for kind, _ in of(pdf([page]), "a.pdf")} == {"paragraph"}


def test_boxes_and_drawings_are_no_tables() -> None:
    page = PdfPage()
    page.prose(60, 790, wrapped(PROSE, 80))
    for place in (40, 300, 560):  # a frame of two boxes, and one with a grid without words
        page.rule(place, 600, place, 810)
        page.rule(place, 100, place, 500)
    for height in (810, 600, 500, 300, 200, 100):
        page.rule(40, height, 560, height)
    assert {kind for kind, _ in of(pdf([page]), "a.pdf")} == {"paragraph"}


def test_lists_of_two_columns_stay_lines() -> None:
    words = [
        Word(text, x, x + 20, y, 10, 0)
        for y in (700, 685, 670, 655)
        for x, text in ((50, "name"), (200, "value"))
    ]
    assert find_tables(words, [], []) == []
    assert find_tables([], [Rule(1, 0, 9)], [Rule(1, 0, 9)]) == []


@pytest.mark.parametrize("place", range(len(PDFS)), ids=[made.kind for made in PDFS])
def test_made_files(place: int) -> None:
    made = PDFS[place]
    converted = convert(made.data, "a.pdf")
    found = [converted.text_of(block) for block in converted.blocks if block.kind == "row"]
    if made.kind == "unruled, beside prose":  # not told apart from the prose: no table
        assert found == []
        return
    assert cells_of("\n".join(found)) == cells_of("\n".join(map(expected_text, made.tables)))


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
