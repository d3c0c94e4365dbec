"""Spreadsheets of OpenDocument, and OpenDocument files that are no archives."""

import pytest

from rag.data.documents.convert import convert
from tests import document_makers as make


def sheets(body: str, styles: str = "") -> bytes:
    return make.odf(body, styles, kind="spreadsheet")


def cell(text: str, attributes: str = "") -> str:
    paragraph = f"<text:p>{text}</text:p>" if text else ""
    return f"<table:table-cell {attributes}>{paragraph}</table:table-cell>"


def row(*cells: str, attributes: str = "") -> str:
    return f"<table:table-row {attributes}>{''.join(cells)}</table:table-row>"


def sheet(*rows: str, attributes: str = 'table:name="Plan"') -> str:
    return f"<table:table {attributes}>{''.join(rows)}</table:table>"


def texts(*values: str) -> str:
    return row(*map(cell, values))


COVERED = "<table:covered-table-cell><text:p>Old.</text:p></table:covered-table-cell>"
HEADER = texts("Item", "Cost", "Price")
# What programs write below the last row and beside the last column.
REST = row(
    cell("", 'table:number-columns-repeated="16384"'),
    attributes='table:number-rows-repeated="1048576"',
)


def test_values_are_read_as_the_sheet_shows_them() -> None:
    values = row(
        cell("12,5 %", 'office:value-type="percentage" office:value="0.125"'),
        cell("1.234,50 €", 'office:value-type="currency" office:value="1234.5"'),
        cell("31. Mai 2024", 'office:value-type="date" office:date-value="2024-05-31"'),
        cell("TRUE", 'office:value-type="boolean" office:boolean-value="true"'),
        cell('10<text:span text:style-name="T1">6</text:span> a<text:s text:c="3"/>b'),
    )
    raised = '<style:text-properties style:text-position="super 58%"/>'
    styles = f'<style:style style:name="T1">{raised}</style:style>'
    body = sheet(texts("Share", "Price", "Day", "Paid", "Size"), values, REST)
    assert make.of(sheets(body, styles), "a.ods") == [
        "heading: Plan",
        "row: Share: 12,5 %; Price: 1.234,50 €; Day: 31. Mai 2024; Paid: TRUE; Size: 10^6 a b",
    ]


def test_every_sheet_is_a_section_and_its_tables_are_found_as_those_of_excel() -> None:
    titled = sheet(texts("Prices of 2024"), row(cell("")), HEADER, texts("Tea", "1", "2"), REST)
    other = sheet(texts("Who"), texts("Ann"), attributes='table:name="People"')
    assert make.of(sheets(titled + other), "a.ods") == [
        "heading: Plan",
        "heading: Prices of 2024",
        "row: Item: Tea; Cost: 1; Price: 2",
        "heading: People",
        "row: Who: Ann",
    ]


def test_repeated_cells_and_rows_stand_at_all_their_places() -> None:
    names = texts(*(f"c{number}" for number in range(150)))
    wide = row(cell("5", 'table:number-columns-repeated="149"'), cell("9"))
    first, second = make.texts(convert(sheets(sheet(names, wide, wide)), "a.ods"), "row")
    assert first == second
    assert first.startswith("c0: 5; c1: 5; ")
    assert first.endswith("; c148: 5; c149: 9")
    same = row(*map(cell, ("Rye", "2", "3")), attributes='table:number-rows-repeated="300"')
    long = sheet(HEADER, same, texts("Oat", "4", "5"))
    rows = make.texts(convert(sheets(long), "a.ods"), "row")
    assert rows == [*["Item: Rye; Cost: 2; Price: 3"] * 300, "Item: Oat; Cost: 4; Price: 5"]


def test_repeated_cells_and_rows_of_a_text_stand_where_they_are_repeated() -> None:
    rest = cell("", 'table:number-columns-repeated="16384"')
    twice = cell("5", 'table:number-columns-repeated="2"')
    empty = cell("", 'table:number-columns-repeated="2"')
    body = sheet(
        row(*map(cell, ("Tea", "Milk", "Rum")), rest),
        row(twice, cell("7"), rest),
        row(empty, cell("8"), rest, attributes='table:number-rows-repeated="2"'),
        REST,
    )
    expected = ["row: Tea: 5; Milk: 5; Rum: 7", "row: Rum: 8", "row: Rum: 8"]
    assert make.of(make.odf(body), "a.odt") == expected


def test_merged_cells_stand_at_all_their_places_and_hide_what_they_cover() -> None:
    across = cell("Euro", 'table:number-columns-spanned="2"')
    down = cell("Tea", 'table:number-rows-spanned="2"')
    body = sheet(
        row(cell("Item"), across, COVERED),
        texts("", "Cost", "Price"),
        row(down, cell("1"), cell("2")),
        row(COVERED, cell("3"), cell("4")),
        texts("Rye", "5", "6"),
    )
    assert make.texts(convert(sheets(body), "a.ods"), "row") == [
        "Item: Tea; Euro Cost: 1; Euro Price: 2",
        "Item: Tea; Euro Cost: 3; Euro Price: 4",
        "Item: Rye; Euro Cost: 5; Euro Price: 6",
    ]


def test_what_is_hidden_deleted_or_beside_the_cells_is_counted_and_not_read() -> None:
    style = '<style:style style:name="ta2"><style:table-properties table:display="false"/></style:style>'
    deleted = f"<table:tracked-changes>{sheet(texts('Gone.'))}</table:tracked-changes>"
    columns = (
        '<table:table-column/><table:table-column table:visibility="collapse"/>'
        "<table:table-column/>"
    )
    comment = "<office:annotation><text:p>Really?</text:p></office:annotation>"
    shapes = (
        "<table:shapes><draw:frame><draw:object/></draw:frame><draw:frame><draw:text-box><text:p>"
        "Read me.</text:p></draw:text-box></draw:frame><draw:custom-shape/></table:shapes>"
    )
    hidden = 'table:visibility="{}" table:number-rows-repeated="2"'
    seen = sheet(
        shapes,
        f"<table:table-columns>{columns}</table:table-columns>",
        f"<table:table-header-rows>{HEADER}</table:table-header-rows>",
        "<table:table-row-group>",
        row(*map(cell, ("Rum", "3", "9")), attributes=hidden.format("filter")),
        row(cell(""), attributes=hidden.format("collapse")),
        row(cell("Tea").replace("</text:p>", f"</text:p>{comment}"), cell("1"), cell("2")),
        "</table:table-row-group>",
        texts("Rye"),
    )
    drafts = sheet(texts("Draft."), attributes='table:name="Drafts" table:style-name="ta2"')
    converted = convert(sheets(deleted + seen + drafts, style), "a.ods")
    assert make.texts(converted, "row") == ["Item: Tea; Price: 2", "Item: Rye"]
    assert converted.notes == (
        "not read: cell comments: 1, charts: 1, text boxes: 1, shapes: 1, hidden columns: 1, hidden texts: 3",
    )


@pytest.mark.parametrize("name", ["a.fods", "a.xml", "a.ods"])
def test_sheets_without_an_archive_are_read(name: str) -> None:
    chart = f"<draw:frame><draw:object>{sheet(texts('Sum', '5'))}</draw:object></draw:frame>"
    body = sheet(f"<table:shapes>{chart}</table:shapes>", HEADER, texts("Tea", "1", "2"))
    data = make.flat_odf(body, title="Prices", kind="spreadsheet")
    converted = convert(data, name)
    assert (converted.title, converted.notes) == ("Prices", ("not read: charts: 1",))
    assert make.blocks(converted) == ["heading: Plan", "row: Item: Tea; Cost: 1; Price: 2"]


@pytest.mark.parametrize("name", ["a.fodt", "a.xml", "a.odt"])
def test_texts_without_an_archive_are_read(name: str) -> None:
    figure = "<draw:frame><svg:title xmlns:svg='s'>A gate</svg:title></draw:frame>"
    body = f'<text:h text:outline-level="1">Guide</text:h><text:p>Use it.{figure}</text:p>'
    converted = convert(make.flat_odf(body), name)
    assert (converted.title, converted.text) == ("Guide", "Guide\n\nUse it.")
