"""OpenDocument and subtitles, beyond what every format has in common."""

import pytest

from rag.core.types import page_at
from rag.data.documents.blocks import Unreadable
from rag.data.documents.convert import convert
from rag.data.documents.limits import Limits
from tests import document_makers as make
from tests.document_makers import of


def row(*cells: str) -> str:
    return f"<table:table-row>{''.join(cells)}</table:table-row>"


def cell(text: str, **attributes: str) -> str:
    """A cell; `table_number_rows` is its attribute "table:number-rows"."""
    named = [f'{name.replace("_", ":", 1).replace("_", "-")}="{value}"' for name, value in attributes.items()]
    return f"<table:table-cell {' '.join(named)}><text:p>{text}</text:p></table:table-cell>"


def test_a_text_without_what_is_deleted_or_generated_and_with_its_notes() -> None:
    body = """<text:tracked-changes><text:p>deleted</text:p></text:tracked-changes>
      <text:p text:style-name="Title">Guide</text:p>
      <text:table-of-content><text:p>Guide 1</text:p></text:table-of-content>
      <text:section><text:p>Use<text:s text:c="2"/>a<text:tab/>b
      <office:annotation><text:p>why?</text:p></office:annotation> now<text:note><text:note-citation>1
      </text:note-citation><text:note-body><text:p>A note.</text:p></text:note-body></text:note>,
      <text:span>in <text:a>bold</text:a></text:span>.</text:p></text:section>
      <text:list><text:list-item><text:p>one</text:p><text:p>more</text:p>
        <text:list><text:list-item><text:p>inner</text:p></text:list-item></text:list></text:list-item></text:list>
      <text:p><draw:frame><draw:text-box><text:p>In a box.</text:p></draw:text-box></draw:frame></text:p>"""
    assert of(make.odf("text", body), "a.odt") == [
        ("heading", "Guide"), ("paragraph", "Use a b now, in bold."), ("paragraph", "A note."),
        ("item", "• one"), ("item", "more"), ("item", "• inner"), ("paragraph", "In a box."),
    ]  # fmt: skip
    assert (
        convert(make.odf("text", body, title="From the properties"), "a.odt").title == "From the properties"
    )


def test_merged_cells_count_for_each_column() -> None:
    covered = "<table:covered-table-cell/>"
    header = row(cell("Size", table_number_columns_spanned="2"), covered, cell("Room"))
    rows = (
        f"<table:table-header-rows>{header}</table:table-header-rows>",
        row(cell("5"), cell("6"), cell("cellar", table_number_rows_spanned="2")),
        row(cell("7"), cell("8"), covered),
    )
    assert of(make.odf("text", f"<table:table>{''.join(rows)}</table:table>"), "a.odt") == [
        ("row", "Size: 5; Size: 6; Room: cellar"), ("row", "Size: 7; Size: 8"),
    ]  # fmt: skip


def test_a_spreadsheet_has_a_section_for_each_sheet_that_is_shown() -> None:
    styles = '<style:style style:name="h"><style:table-properties table:display="false"/></style:style>'
    empty = '<table:table-cell table:number-columns-repeated="16000"/>'
    day = cell("1 May", office_value_type="date", office_date_value="2024-05-01")
    amount = cell("1.3", office_value_type="float", office_value="1.25")
    share = cell("5 %", office_value_type="percentage", office_value="0.05")
    rows = (
        row(cell("Day"), empty, cell("Amount"), cell("Share"), empty),
        row(day, empty, amount, share),
        f'<table:table-row table:number-rows-repeated="1000000">{empty}</table:table-row>',
    )
    comment = "<office:annotation><text:p>a comment</text:p></office:annotation>"
    commented = cell("x").replace("<text:p>", f"{comment}<text:p>")
    body = (
        f'<table:table table:name="Costs">{"".join(rows)}</table:table>',
        f'<table:table table:name="Hidden" table:style-name="h">{"".join(rows)}</table:table>',
        f'<table:table table:name="More">{row(commented)}</table:table>',
    )
    assert of(make.odf("spreadsheet", "".join(body), styles), "a.ods") == [
        ("heading", "Costs"), ("row", "Day: 2024-05-01; Amount: 1.25; Share: 5 %"), ("heading", "More"),
        ("paragraph", "x"),
    ]  # fmt: skip


def test_a_sheet_of_a_million_equal_rows_is_too_long() -> None:
    rows = f'<table:table-row table:number-rows-repeated="1000000">{cell("word")}</table:table-row>'
    data = make.odf("spreadsheet", f"<table:table>{rows}</table:table>")
    with pytest.raises(Unreadable, match="too long"):
        convert(data, "a.ods", Limits(max_chars=100_000))


def test_slides_have_their_number_as_page_and_their_notes() -> None:
    def frame(texts: list[str], role: str = "") -> str:
        paragraphs = "".join(f"<text:p>{text}</text:p>" for text in texts)
        box = f"<draw:text-box>{paragraphs}</draw:text-box>"
        return f'<draw:frame presentation:class="{role}">{box}</draw:frame>'

    notes = f"<presentation:notes>{frame(['Say this.', 'And that.'], 'notes')}</presentation:notes>"
    body = (
        f"<draw:page>{frame(['Plan'], 'title')}{frame(['one', 'two'], 'outline')}{notes}"
        f"{frame(['3'], 'page-number')}</draw:page><draw:page>{frame(['Alone.'])}</draw:page>"
    )
    converted = convert(make.odf("presentation", body), "a.odp")
    pages = [page_at(converted.pages, block.start) for block in converted.blocks]
    found = [
        (block.kind, converted.text_of(block), page)
        for block, page in zip(converted.blocks, pages, strict=True)
    ]
    assert found == [
        ("heading", "Plan", "1"), ("item", "• one", "1"), ("item", "• two", "1"),
        ("paragraph", "Say this.", "1"), ("paragraph", "And that.", "1"),
        ("heading", "Slide 2", "2"), ("paragraph", "Alone.", "2"),
    ]  # fmt: skip
    assert converted.title == "Plan"


def test_subtitles_are_sections_under_their_time() -> None:
    source = """WEBVTT

NOTE made by hand

1
00:01.000 --> 00:03.000 align:start
<v Ann Lee>Good <b>morning</b> everyone.

00:02:30.000 --> 00:02:33.000
The budget is
40,000 euros.

01:02:34.000 --> 01:02:35.000
Bye.
"""
    expected = [
        ("heading", "0:00:01"), ("paragraph", "Ann Lee: Good morning everyone."), ("heading", "0:02:30"),
        ("paragraph", "The budget is 40,000 euros."), ("heading", "1:02:34"), ("paragraph", "Bye."),
    ]  # fmt: skip
    assert of(source, "a.vtt") == expected
    srt = source.partition("\n\n")[2].replace(".000", ",000").replace("00:01,000", "00:00:01,000", 1)
    assert of(srt.replace("\n", "\r\n"), "a.srt") == expected


def test_subtitles_with_other_times_and_escaped_characters() -> None:
    source = "1\n0:1:01 --> 0:1:02\nHello\n\n2\n00:01:03,5 --> 00:01:04,00\nAT&amp;T\n"
    assert of(source, "a.srt") == [("heading", "0:01:01"), ("paragraph", "Hello AT&T")]
