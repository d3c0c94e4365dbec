"""Spreadsheets as people lay them out: titles, notes and empty rows above tables, several tables in
one.
"""

import openpyxl
import openpyxl.styles
import pytest

from rag.data.documents.convert import convert
from rag.data.documents.grid import of_texts, table
from rag.data.documents.tables import sheet
from tests import document_makers as make


def pieces(*lines: str) -> list[str]:
    """What is read of a sheet whose cells are separated by bars; headings begin with their
    level.
    """
    result = sheet(of_texts(line.split("|") for line in lines))
    return [f"{'#' * piece.level} {piece.text}".strip() for piece in result]


def test_a_title_and_notes_may_stand_above_the_header():
    rows = ("Tea | 2.5 | Oslo", "Milk | 1 | Rome")
    read = ["Item: Tea; Price: 2.5; Town: Oslo", "Item: Milk; Price: 1; Town: Rome"]
    header = "Item | Price | Town"
    assert pieces(header, *rows) == read
    assert pieces("", "", header, *rows) == read
    assert pieces("Prices of 2024", header, *rows) == ["## Prices of 2024", *read]
    assert pieces(header, "", *rows) == read
    assert pieces("", "Prices | in euro", "", header, *rows) == ["## Prices: in euro", *read]
    above = pieces("Prices", "Made by | Ann", "Checked", header, *rows)
    wide = (
        "file | a.xls | of May",
        *(" | ".join(map(str, row)) for row in (list("abcdef"), range(6))),
    )
    assert pieces(*wide) == ["file; a.xls; of May", "a: 0; b: 1; c: 2; d: 3; e: 4; f: 5"]
    assert above == ["## Prices", "Made by: Ann", "Checked", *read]


def test_names_of_two_columns_stand_beside_an_empty_corner():
    read = ["Sales: 2024: 10; 2025: 12", "Costs: 2024: 7; 2025: 8"]
    assert pieces("|2024|2025", "Sales|10|12", "Costs|7|8") == read
    assert pieces("Results", "", "|2024|2025", "Sales|10|12", "Costs|7|8") == ["## Results", *read]
    assert pieces("|Draft", "Item|Price|Town", "Tea|2|Oslo") == [
        "## Draft",
        "Item: Tea; Price: 2; Town: Oslo",
    ]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("1,200.00 €", "400.00 €"),
        ("$1,200", "($400)"),
        ("2024-05-01", "01.06.2024"),
        ("12:30", "9:05:10"),
        ("9:00-17:00", "closed"),
        ("2024-05-01 12:30", "tomorrow"),
        ("TRUE", "FALSE"),
        ("A leaf of a plant.", "A grain."),
        ("12 kg", "3.5GHz"),
    ],
)
def test_amounts_dates_and_sentences_name_no_column(first: str, second: str):
    assert pieces(f"Tea|{first}", f"Rye|{second}") == [f"Tea: {first}", f"Rye: {second}"]


def test_several_dates_may_name_columns():
    read = ["Port: Oslo; 01.05.2024: 3; 02.05.2024: 4"]
    assert pieces("Port|01.05.2024|02.05.2024", "Oslo|3|4") == read


def test_bold_labels_of_a_form_are_no_header():
    form = [["Customer", "Tea Ltd"], ["Contact", "Ann"], ["Amount", 12.5]]
    prices = [["Item", "Price"], ["Tea", 2]]
    book = make.opened(make.workbook({"Form": [*form, [], *prices]}))
    for place in ("A1", "A2", "A3", "A5", "B5", "A6"):
        book.active[place].font = openpyxl.styles.Font(bold=True)
    assert make.of(make.saved(book), "a.xlsx") == [
        "heading: Form",
        "row: Customer: Tea Ltd",
        "row: Contact: Ann",
        "row: Amount: 12.5",
        "row: Item: Tea; Price: 2",
    ]


def test_a_table_goes_on_after_an_empty_row_and_ends_with_the_next_header_or_title():
    first = ("Item | Price | Town", "Tea | 2 | Oslo")
    second = ("Who | When | Where", "Ann | now | here")
    read = ["Item: Tea; Price: 2; Town: Oslo"], ["Who: Ann; When: now; Where: here"]
    assert pieces(*first, "", "Milk | 1 | Rome") == [*read[0], "Item: Milk; Price: 1; Town: Rome"]
    assert pieces(*first, "", *second) == [*read[0], *read[1]]
    assert pieces(*first, "", "People", *second) == [*read[0], "## People", *read[1]]
    assert pieces(*first, "", "That is all.") == [*read[0], "That is all."]


def test_blocks_that_begin_with_the_same_label_are_named_by_it():
    result = pieces(
        "Product | tea",
        "Town | Oslo",
        "Parts",
        "name | share | unit",
        "leaves | 1 | kg",
        "",
        "Product | milk",
        "",
        "Parts",
        "",
        "name | share | unit",
        "water | 0.9 | kg",
    )
    assert result == [
        "## Product: tea",
        "Town: Oslo",
        "Parts",
        "name: leaves; share: 1; unit: kg",
        "## Product: milk",
        "### Parts",
        "name: water; share: 0.9; unit: kg",
    ]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            ("Country | 2010 | 2020", "Norway | 4.9 | 5.4"),
            ["Country: Norway; 2010: 4.9; 2020: 5.4"],
        ),
        (("Norway | 4.9 | 5.4", "Sweden | 9.4 | 10.4"), ["Norway; 4.9; 5.4", "Sweden; 9.4; 10.4"]),
        (("Norway | 7 | 7", "Sweden | 9 | 3"), ["Norway; 7; 7", "Sweden; 9; 3"]),
        (
            ("Year | cost | real | cost | real", "2012 | 1 | 2 | 3 | 4"),
            ["Year: 2012; cost: 1; real: 2; cost: 3; real: 4"],
        ),
        (("yes | no | yes | no", "no | no | yes | no"), ["yes; no; yes; no", "no; no; yes; no"]),
        (("Name: | Ann", "Role: | cook"), ["Name: Ann", "Role: cook"]),
        (("Only one line",), ["Only one line"]),
        ((), []),
    ],
)
def test_what_is_a_header(lines: tuple[str, ...], expected: list[str]):
    assert pieces(*lines) == expected


def test_names_of_columns_above_other_names_are_read():
    rows = ["Name|Room|Week", "", "Item|Price|Unit", "Tea|2|kg"]
    assert pieces(*rows) == ["Name; Room; Week", "Item: Tea; Price: 2; Unit: kg"]


QUOTED = "a quote is not closed, or not doubled within its cell"
HEADER = "Id\tText\tSize\n"


@pytest.mark.parametrize(
    ("name", "source", "expected", "notes"),
    [
        # A quote of CSV, within a cell and around it.
        ("a.tsv", '1\t5" pipe\t2\n2\t"5"" pipe"\t3\n', ['5" pipe', '5" pipe'], ()),
        ("a.tsv", '1\t"Way 5\nOslo"\t2\n2\tx\t3\n', ["Way 5 Oslo", "x"], ()),
        # Quotes of the text, which another line seems to close, or none.
        ("a.tsv", '1\t"So it is\t2\n2\the said."\t3\n', ['"So it is', 'he said."'], (QUOTED,)),
        ("a.tsv", '1\t"Heroes" rise\t2\n2\t"x\t3\n', ['"Heroes" rise', '"x'], (QUOTED,)),
        ("a.csv", '1\t"So it is\t2\n2\tx\t3\n', ['"So it is', "x"], (QUOTED,)),
        # Quotes behind a backslash, and behind a space.
        (
            "a.csv",
            '1\t"Say \\"hi\\"\t ok"\t2\n2\t"x\\""\t3\n',
            ['Say "hi", ok', 'x"'],
            (QUOTED,),
        ),
        ("a.csv", '1\t "So\t it is"\t2\n2\t "x"\t3\n', ["So, it is", "x"], ()),
    ],
)
def test_quotes_join_no_lines(
    name: str, source: str, expected: list[str], notes: tuple[str, ...]
) -> None:
    is_csv = name == "a.csv"
    table = f"{HEADER}{source}".replace("\t", "," if is_csv else "\t")
    converted = convert(table.encode(), name)
    numbered = enumerate(expected, start=1)
    assert make.texts(converted, "row") == [
        f"Id: {number}; Text: {text}; Size: {number + 1}" for number, text in numbered
    ]
    assert converted.notes == notes


def test_a_merged_title_of_a_table_in_a_text_is_said_once():
    cells = [["Rooms"] * 3, ["week", "room", "who"], ["2", "37", "Ann"]]
    assert [piece.text for piece in table(of_texts(cells))] == [
        "Rooms",
        "week: 2; room: 37; who: Ann",
    ]
