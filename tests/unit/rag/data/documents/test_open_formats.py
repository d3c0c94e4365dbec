"""OpenDocument, rich text, LaTeX, AsciiDoc, Org and subtitles, beyond what every format has in common."""

import pytest

from rag.core.types import page_at
from rag.data.documents.blocks import Unreadable
from rag.data.documents.convert import convert
from rag.data.documents.limits import Limits
from tests import document_makers as make


def of(data: bytes | str, name: str) -> list[tuple[str, str]]:
    converted = convert(data.encode() if isinstance(data, str) else data, name)
    return [(block.kind, converted.text_of(block)) for block in converted.blocks]


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


def test_rich_text_has_its_letters_and_no_tables_of_fonts() -> None:
    source = (
        r"{\rtf1\ansi\ansicpg1252{\fonttbl{\f0 Arial;}}{\info{\title The {\b bold} plan}}"
        r"\pard\outlinelevel0 Caf\'e9\par\pard \u8220?quoted\u8221?\par"
        r"\pard{\listtext 2.\tab}second\par\trowd\cellx1\intbl a\cell b\cell\trowd\cellx1\row\pard end\par}"
    )
    assert of(source, "a.rtf") == [
        ("heading", "Café"), ("paragraph", "“quoted”"), ("item", "2. second"), ("row", "a; b"),
        ("paragraph", "end"),
    ]  # fmt: skip
    assert convert(source.encode(), "letter.doc").title == "The bold plan"  # its content decides


def rich(body: str) -> str:
    return r"{\rtf1\ansi\ansicpg1252 " + body + r"\par}"


def test_rich_text_keeps_footnotes_and_boxes_within_their_paragraph() -> None:
    note = r"{\footnote\pard\plain {\super\chftn} A note.\par}"
    box = (
        r"{\shp{\*\shpinst\shpleft1{\sp{\sn fFlip}{\sv 0}}{\shptxt\pard In a box.\par}}{\shprslt In a box.}}"
    )
    assert of(rich(rf"One{note} goes on{box}."), "a.rtf") == [
        ("paragraph", "One [A note.] goes on [In a box.] .")
    ]


def test_rich_text_keeps_characters_in_halves_and_a_title_in_its_code_page() -> None:
    source = r"{\rtf1\ansi\ansicpg1251{\info{\title \'cf\'f0\'e8\'e2\'e5\'f2}} \u-10179?\u-8704?\par}"
    assert of(source, "a.rtf") == [("paragraph", "😀")]
    assert convert(source.encode(), "a.rtf").title == "Привет"


@pytest.mark.parametrize("skipped", [0, 1, 2])
def test_marks_of_rich_text_do_not_depend_on_what_other_programs_skip(skipped: int) -> None:
    rows = r"\trowd\cellx1 Name\cell Size\cell\row\intbl a\cell 1\cell\row"
    heading = r"\pard{\listtext 1.\tab}\pard\s1\outlinelevel0 Head\par\pard"
    body = rf"\uc{skipped} {heading} one\line two C:\\row\par{rows}\pard see {{\deleted gone}}"
    assert of(rich(body), "a.rtf") == [
        ("heading", "1. Head"), ("paragraph", "one two C:\\row"), ("row", "Name: a; Size: 1"),
        ("paragraph", "see"),
    ]  # fmt: skip


def test_rich_text_has_neither_pictures_nor_targets_of_links() -> None:
    link = r'{\field{\*\fldinst{HYPERLINK "http://x"}}{\fldrslt{here}}}'
    pictures = r"{\pict{\*\blipuid ab}\pngblip 8950} {\pict\bin3 }}}}{\object{\*\objdata \bin2 {\}}"
    assert of(rich(rf"See {link} C:\\bin {pictures}."), "a.rtf") == [("paragraph", "See here C:\\bin .")]


def test_latex_shows_what_is_printed() -> None:
    source = r"""\documentclass{article}\title[short]{Long \emph{title}}\begin{document}
\section{One}\label{s} See~\cite{key}, \href{http://x}{here}, \texttt{a\_b} and \verb|c_d|:
``5\%'' of $x^2$. % no
% a comment between
It goes on\footnote{A note.}.

\begin{abstract}We show.\end{abstract}
\begin{table}\caption{Sizes}\begin{tabular}{|l|l|}\hline Name & \textbf{Size} \\
\hline a & 1\\ b & \multicolumn{1}{c}{2} \\
\end{tabular}\end{table}
\begin{enumerate}\item first \begin{itemize}\item inner\end{itemize}\item second

more\end{enumerate}
\begin{description}\item[Key] value\end{description}
\begin{lstlisting}[language=Python]
def f():
    return 1
\end{lstlisting}
\begin{tikzpicture}\draw (0,0);\end{tikzpicture}
\end{document} after"""
    assert of(source, "a.tex") == [
        ("heading", "One"),
        ("paragraph", "See , here, a_b and c_d: “5%” of x^2. It goes on[A note.]."),
        ("paragraph", "We show."), ("paragraph", "Sizes"), ("row", "Name: a; Size: 1"),
        ("row", "Name: b; Size: 2"), ("item", "1. first"), ("item", "• inner"),
        ("item", "2. second"), ("item", "more"), ("item", "Key: value"),
        ("code", "def f():\n    return 1"),
    ]  # fmt: skip
    assert convert(source.encode(), "a.tex").title == "Long title"
    assert of(r"Text \textbf{bold without an end", "a.tex") == [("paragraph", "Text bold without an end")]


@pytest.mark.parametrize("name", ["lstlisting", "minted", "Verbatim", "alltt"])
def test_code_in_latex_ends_where_its_environment_ends(name: str) -> None:
    source = f"Before.\n\\begin{{{name}}}\nif ($x) {{ % \\foo\n\\end{{{name}}}\nAfter."
    assert of(source, "a.tex") == [
        ("paragraph", "Before."), ("code", "if ($x) { % \\foo"), ("paragraph", "After."),
    ]  # fmt: skip


def test_latex_without_what_is_dropped_goes_on_below_it() -> None:
    source = "Before.\n\\begin{comment}\nit costs $5 {\n\\end{comment}\nAfter \\verb|\\begin{comment}|."
    assert of(source, "a.tex") == [("paragraph", "Before."), ("paragraph", "After \\begin{comment}.")]


def test_latex_has_code_in_lines_and_addresses_with_percent_signs() -> None:
    source = r"""\lstinline{f(x)}, \lstinline[language=C]|a_b|, \mintinline{python}{x_1}, \verb*+c d+ or
\href{http://x/a%20b}{this page}, \url{http://x/%20y}."""
    assert of(source, "a.tex") == [("paragraph", "f(x), a_b, x_1, c d or this page, http://x/%20y.")]
    assert of(r"Text \verb|", "a.tex") == [("paragraph", "Text |")]


def test_latex_shows_no_sizes_and_labels_of_its_layout() -> None:
    source = r"""\begin{minipage}[t]{5cm}Words\end{minipage}
\begin{figure}\caption[short]{The long one}\end{figure}
\begin{thebibliography}{9}\bibitem[K(90)]{k} Knuth.\end{thebibliography}"""
    assert of(source, "a.tex") == [
        ("paragraph", "Words"), ("paragraph", "The long one"), ("paragraph", "Knuth.")
    ]  # fmt: skip


def test_asciidoc_marks_are_no_text() -> None:
    source = """= The Guide
:toc: left
// a comment

== Use <<x,this>>

It *is* _fine_, see https://x.org[the
page] or link:a.html[here], `<b>` and a < b. +
Next line.

.Rooms
[cols="1,1"]
|===
|Week |Room

|2
a|cellar
|===

* one
** inner
. first
term:: explained
and more

....
    code
    ....
....
////
hidden
////
include::other.adoc[]
"""
    assert of(source, "a.adoc") == [
        ("heading", "The Guide"), ("heading", "Use this"),
        ("paragraph", "It is fine, see the page or here, <b> and a < b. Next line."), ("paragraph", "Rooms"),
        ("row", "Week: 2; Room: cellar"), ("item", "• one"), ("item", "• inner"), ("item", "1. first"),
        ("item", "• term: explained and more"), ("code", "code\n...."),
    ]  # fmt: skip


def test_asciidoc_keeps_every_word_of_cells_and_links() -> None:
    source = """|====
|Name of thing |Other one

|a red fox|first line
second line.
2+|wide
|====

https://x.org[Smith, Jones], link:a[A^] or link:b[B,role=x].
"""
    assert of(source, "a.adoc") == [
        ("row", "Name of thing: a red fox; Other one: first line second line."),
        ("row", "Name of thing: wide"), ("paragraph", "Smith, Jones, A or B."),
    ]  # fmt: skip


def test_asciidoc_with_underlined_headings() -> None:
    source = "tool(1)\n=======\n\nNAME\n----\ntool - a thing\n\nOptions\n~~~~~~~\n----\ncode\n----\n"
    converted = convert(source.encode(), "tool.adoc")
    assert converted.title == "tool(1)"
    assert [(block.kind, block.level, converted.text_of(block)) for block in converted.blocks] == [
        ("heading", 1, "tool(1)"), ("heading", 2, "NAME"), ("paragraph", 0, "tool - a thing"),
        ("heading", 3, "Options"), ("code", 0, "code"),
    ]  # fmt: skip


def test_org_marks_are_no_text() -> None:
    source = """#+TITLE: My notes
* TODO [#A] Linux :work:home:
:PROPERTIES:
:CUSTOM_ID: x
:END:
  Use =pip=, ~apt~ or /this/: [[http://x][a page]] in /etc/hosts.
** Lists
- one
  - [X] inner
- key :: value
# a comment
"""
    assert of(source, "a.org") == [
        ("heading", "Linux"), ("paragraph", "Use pip, apt or this: a page in /etc/hosts."),
        ("heading", "Lists"), ("item", "• one"), ("item", "• inner"), ("item", "• key: value"),
    ]  # fmt: skip
    assert convert(source.encode(), "a.org").title == "My notes"


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
