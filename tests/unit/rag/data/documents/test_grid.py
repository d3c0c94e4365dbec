"""Tables whose cells cover several places, and what their rows become as text."""

import docx
import pptx
import pytest

from rag.data.documents.blocks import Unreadable
from rag.data.documents.convert import convert
from rag.data.documents.grid import Cell, filled
from rag.data.table_text import table_rows
from tests import document_makers as make
from tests.document_makers import of
from tests.support.messages import refusal

TWO_LEVELS = """<tr><th rowspan=2>Model<th colspan=2>Power<th rowspan=2>Price
    <tr><th>Idle<th>Load <tr><td>A1<td>5 W<td>50 W<td>900 €"""
TEAMS = """<tr><th>Team<th>Member<th>Role <tr><td rowspan=2>Red<td>Ann<td>Lead
    <tr><td>Bob<td>Dev <tr><td>Blue<td>Cy<td>Lead"""


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (TWO_LEVELS, ["Model: A1; Power Idle: 5 W; Power Load: 50 W; Price: 900 €"]),
        (
            TWO_LEVELS.replace("th", "td"),
            ["Model: A1; Power Idle: 5 W; Power Load: 50 W; Price: 900 €"],
        ),
        (
            TEAMS,
            [
                "Team: Red; Member: Ann; Role: Lead",
                "Team: Red; Member: Bob; Role: Dev",
                "Team: Blue; Member: Cy; Role: Lead",
            ],
        ),
        (  # an empty corner above the names of rows
            "<tr><td></td><th>2024</th><th>2025</th><tr><td>Sales<td>10<td>12<tr><td>Costs<td>7<td>8",
            ["Sales: 2024: 10; 2025: 12", "Costs: 2024: 7; 2025: 8"],
        ),
        (
            "<tr><td></td><td>2024</td><td>2025</td><tr><td>Sales<td>10<td>12",
            ["Sales: 2024: 10; 2025: 12"],
        ),
        (
            "<tr><td rowspan=2 colspan=2><th colspan=2>Rate<tr><th>Day<th>Night"
            "<tr><th rowspan=2>North<th>Oslo<td>3<td>4<tr><th>Bergen<td>5<td>6",
            [
                "North, Oslo: Rate Day: 3; Rate Night: 4",
                "North, Bergen: Rate Day: 5; Rate Night: 6",
            ],
        ),
        ("<thead><tr><td>2024<td>1.5</thead><tr><td>x<td>y", ["2024: x; 1.5: y"]),
        (  # cells that name themselves
            "<tr><td>allow; deny<td>Use: file<td>Type: boolean",
            ["“allow; deny”; Use: file; Type: boolean"],
        ),
        (  # a marked title above rows without headings
            "<tr><th colspan=3>History<tr><td>One<td>May<td>Ann<tr><td>Two<td>June<td>Bob",
            ["History", "One; May; Ann", "Two; June; Bob"],
        ),
        (  # no header, but names of rows
            "<tr><th>Founded<td>1999<tr><th>Seat<td>Oslo: centre<tr><td>As of: today",
            ["Founded: 1999", "Seat: “Oslo: centre”", "As of: today"],
        ),
        (  # a text across all columns names the rows below it
            "<tr><th>Part<th>Size<th>Price<tr><td colspan=3>Pipes<tr><td>P1<td>2<td>3"
            "<tr><td colspan=3>Valves<tr><td>V1<td>4<td>5<tr><td colspan=3>Prices in euro.",
            [
                "Pipes: Part: P1; Size: 2; Price: 3",
                "Valves: Part: V1; Size: 4; Price: 5",
                "Prices in euro.",
            ],
        ),
        (  # a cell across two columns with different names and across two with one
            "<tr><th colspan=2>Who<th>Mon<th>Tue<tr><td colspan=2>Ann<td colspan=2>off",
            ["Who: Ann; Mon: off; Tue: off"],
        ),
        ("<tr><th>A<th>B<tr><td rowspan=9>1<td colspan=0>2<tr><td>3", ["A: 1; B: 2", "A: 1; B: 3"]),
        # headings above nothing but a remark
        ("<tr><th>Name<th>Price<tr><td colspan=2>No entries", ["Name; Price", "No entries"]),
        (
            "<tr><td rowspan=2>Tea<td>2<tr><td>3<tr><td colspan=2>Prices in euro",
            ["Tea; 2", "Tea; 3", "Prices in euro"],
        ),
        (  # labels of several rows
            "<tr><td rowspan=2>Mon<td>Walk at 9<tr><td>Tea<tr><td rowspan=2>Tue<td>Talk<tr><td>Tea",
            ["Mon; Walk at 9", "Mon; Tea", "Tue; Talk", "Tue; Tea"],
        ),
        (
            "<tr><td rowspan=3>Tea<td>green<tr><td>red<tr><td>black",
            ["Tea; green", "Tea; red", "Tea; black"],
        ),
    ],
)
def test_html_tables(rows: str, expected: list[str]) -> None:
    text = convert(f"<table>{rows}</table>".encode(), "a.html").text
    assert text.replace("\n\n", "\n").split("\n") == expected


def test_merged_headings_of_word_and_slides() -> None:
    texts = [
        ["Model", "Power", "", "Price"],
        ["", "Idle", "Load", ""],
        ["A1", "5 W", "50 W", "900"],
    ]
    document = docx.Document()
    show = pptx.Presentation()
    slide = show.slides.add_slide(show.slide_layouts[6])
    tables = [document.add_table(3, 4), slide.shapes.add_table(3, 4, 0, 0, 10, 10).table]
    for table in tables:
        make.fill(table, texts)
        for first, last in (((0, 0), (1, 0)), ((0, 1), (0, 2)), ((0, 3), (1, 3))):
            table.cell(*first).merge(table.cell(*last))
    expected = "row: Model: A1; Power Idle: 5 W; Power Load: 50 W; Price: 900"
    assert of(make.saved(document), "a.docx") == [expected]
    assert of(make.saved(show), "a.pptx")[-1] == expected


def test_merged_cells_of_the_body_of_word() -> None:
    document = docx.Document()
    table = document.add_table(3, 3)
    rows = [["Team", "Member", "Role"], ["Red", "Ann", "Lead"], ["", "Bob", "Dev"]]
    make.fill(table, rows)
    table.cell(1, 0).merge(table.cell(2, 0))
    assert of(make.saved(document), "a.docx")[1] == "row: Team: Red; Member: Bob; Role: Dev"


def test_a_table_of_too_many_cells_is_refused() -> None:
    rows = [[Cell("x", row_span=60_000, column_span=100)]] * 3000
    with refusal(Unreadable):
        filled(rows)


def test_separators_within_cells_cannot_be_confused_with_those_between() -> None:
    source = 'id|text|size: mm\n1|"a: b; c"|2\n2|"“x”; y | z"|3\n'
    converted = convert(source.encode(), "a.csv")
    assert converted.text.split("\n") == [
        "id: 1; text: “a: b; c”; “size: mm”: 2",
        'id: 2; text: “"x"; y | z”; “size: mm”: 3',
    ]
    cells = [
        [(cell.column, cell.value) for cell in row.cells] for row in table_rows(converted.text)
    ]
    assert cells == [
        [("id", "1"), ("text", "a: b; c"), ("size: mm", "2")],
        [("id", "2"), ("text", '"x"; y | z'), ("size: mm", "3")],
    ]
    for row in table_rows(converted.text):
        for cell in row.cells:
            assert converted.text[cell.start : cell.end] == cell.value
