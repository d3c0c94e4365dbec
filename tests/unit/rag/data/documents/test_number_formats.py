"""Values of spreadsheets as a sheet shows them."""

import datetime

import pytest

from rag.data.documents.number_formats import format_value
from tests import document_makers as make
from tests.document_makers import of

MOMENT = datetime.datetime(2024, 5, 3, 14, 5, 9)
ACCOUNTING = '_-* #,##0.00\\ "€"_-;\\-* #,##0.00\\ "€"_-;_-* "-"??\\ "€"_-;_-@_-'


@pytest.mark.parametrize(
    ("value", "number_format", "expected"),
    [
        (True, "General", "TRUE"),
        (2.5, "General", "2.5"),
        (0.1 + 0.2, "General", "0.3"),
        (3, 'General "kg"', "3 kg"),
        (0.256, "0.0 %", "25.6 %"),
        (0.5, "0%", "50%"),
        (1234.5, '#,##0.00 "€"', "1,234.50 €"),
        (1234.5, "#,##0.00\\ [$€-407]", "1,234.50 €"),
        (12, "$#,##0", "$12"),
        (-1234.5, "#,##0.00_);(#,##0.00)", "(1,234.50)"),
        (1234.5, "#,##0.00_);(#,##0.00)", "1,234.50"),
        (-12.3, ACCOUNTING, "-12.30 €"),
        (0, '$* "-"??', "$-"),
        (0, "#,###", ""),
        (0.5, "#.##", "0.5"),
        (-3, "0.00", "-3.00"),
        (-0.001, "0.00", "0.00"),
        (-5, "[Red]0;[Blue]-0", "-5"),
        (-5, "0.00;[Red]0.00", "-5.00"),  # red alone says that it is negative
        (-5, "0;[Red](0)", "(5)"),
        (1_000_000, '#,##0,,"M"', "1M"),
        (42, "00000", "00042"),
        (1.25, "0.0", "1.3"),  # halves are rounded away from zero
        (2.50, "0.##", "2.5"),
        (7, '0 "a;b"', "7 a;b"),
        (0, "0;-0;;@", ""),
        (12, "@", "12"),
        (1.5e300, "#,##0.00", "1.5e+300"),  # with more digits than anybody reads
        (-(10**20), f"0.{'0' * 30}", f"-1{'0' * 20}.{'0' * 30}"),
        (2.5, "# ?/?", "2.5"),  # what is not followed
        (1234567, "0.00E+00", "1234567"),
        (75, '[>=50]"pass";"fail"', "75"),
        (1.5, "000-0000", "1.5"),
        (5, "[>3]0.0;0", "5.0"),
        (-5, "[>3]0.0;0", "-5"),
        (1, "[>3]0.0;[>2]0", "1"),
        (5551234, "[<=9999999]###-####;(###) ###-####", "555-1234"),
        (1234567, "000-00-0000", "001-23-4567"),
        (MOMENT, "dd.mm.yyyy", "03.05.2024"),
        (datetime.datetime(2024, 5, 3), "hh:mm", "00:00"),
        (MOMENT, "yyyy-mm-dd h:mm:ss", "2024-05-03 14:05:09"),
        (MOMENT, "mm-dd-yy", "2024-05-03 14:05"),
        (MOMENT, "d mmm yyyy h:mm AM/PM", "3 May 2024 2:05 PM"),
        (MOMENT, "[$-409]mmmm d, yyyy;@", "May 3, 2024"),
        (datetime.datetime(2024, 5, 1), "yyyy-mm-dd h:mm:ss", "2024-05-01"),
        (datetime.date(2024, 5, 1), "mmm yyyy", "May 2024"),
        (datetime.date(2024, 5, 1), "mmmmm yy", "M 24"),
        (datetime.time(9, 30), "h:mm", "9:30"),
        (datetime.time(18, 5), "h:mm AM/PM", "6:05 PM"),
        (datetime.time(0, 15), "mm:ss", "15:00"),
        (datetime.time(0, 0), "hh:mm", "00:00"),
        (datetime.time(9, 30), "General", "09:30"),
        (datetime.time(0, 3, 45, 250_000), "mmss.0", "03:45.2"),
        (MOMENT.replace(microsecond=31_000), "h:mm:ss.000", "14:05:09.031"),
        (datetime.timedelta(hours=26, minutes=30), "[h]:mm", "26:30"),
        (datetime.timedelta(minutes=90), '[mm]:ss "min"', "90:00 min"),
        (datetime.timedelta(hours=-2), "[hh]:mm:ss", "-02:00:00"),
        ("n/a", "0.00", "n/a"),
    ],
)
def test_values_are_what_the_sheet_shows(value: object, number_format: str, expected: str) -> None:
    assert format_value(value, number_format) == expected


@pytest.mark.parametrize("has_prefix", [False, True])
def test_a_workbook_keeps_its_formats_and_fills_merged_cells(has_prefix: bool) -> None:
    rows = [
        ["Report of the sales", None, None, None],
        ["Team", "Sales", None, "Share"],
        [None, 2024, 2025, None],
        ["Red", 1234.5, 2000, 0.256],
        [None, 7, 8, 0.1],
    ]
    book = make.opened(make.workbook({"Sales": rows, "Empty": []}))
    sheet = book["Sales"]
    for area in ("A1:D1", "A2:A3", "B2:C2", "D2:D3", "A4:A5", "F1:F9"):
        sheet.merge_cells(area)
    for number in (4, 5):
        sheet.cell(number, 2).number_format = '#,##0.00 "€"'
        sheet.cell(number, 4).number_format = "0.0 %"
    data = make.with_prefix(make.saved(book)) if has_prefix else make.saved(book)
    assert of(data, "a.xlsx") == [
        "heading: Sales",
        "heading: Report of the sales",
        "row: Team: Red; Sales 2024: 1,234.50 €; Sales 2025: 2000; Share: 25.6 %",
        "row: Team: Red; Sales 2024: 7.00 €; Sales 2025: 8; Share: 10.0 %",
    ]
