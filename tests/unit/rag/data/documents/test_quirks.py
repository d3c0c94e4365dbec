"""What programs write that is unusual, and valid enough that people expect it to be read."""

import io
import re
from email.message import EmailMessage
from email.mime.base import MIMEBase
from email.mime.image import MIMEImage
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from pathlib import Path
from typing import Any

import docx
import docx.oxml
import openpyxl
import openpyxl.chart
import pptx
import pytest
from PIL import Image
from pptx.chart.data import CategoryChartData
from pptx.enum.chart import XL_CHART_TYPE

from rag.data.documents.blocks import Unreadable
from rag.data.documents.convert import convert
from rag.data.documents.read import convert_files
from rag.data.records import Document
from tests import document_makers as make

A = 'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"'


@pytest.mark.parametrize(
    ("stated", "title"),
    [
        ("Word Document", ""),
        ("PowerPoint Presentation", ""),
        ("(anonymous)", ""),
        ("untitled", ""),
        ("Untitled Document", ""),
        ("Document1", ""),
        ("Microsoft Word - plan.docx", ""),
        ("Document", ""),
        ("New page", ""),
        ("plan_final.docx", ""),
        ("Strategy", "Strategy"),
        ("Document control", "Document control"),
        ("Documents 2024", "Documents 2024"),
        ("The Anonymous Review", "The Anonymous Review"),
    ],
)
def test_titles_that_programs_make_up_are_none(stated: str, title: str) -> None:
    document = docx.Document()
    show = pptx.Presentation()
    book = openpyxl.Workbook()
    document.add_paragraph("Some text.")
    document.core_properties.title = stated
    make.add_slide(show, "Plan")
    show.core_properties.title = stated
    book.active.append(["Text"])
    book.properties.title = stated
    files = {
        "a.docx": make.saved(document),
        "a.pptx": make.saved(show),
        "a.xlsx": make.saved(book),
        "a.pdf": make.pdf([make.LINE], title=stated),
        "a.html": make.page([("p", "Text.")], title=stated),
        "a.odt": make.odf("<text:p>Text.</text:p>", title=stated),
        "a.epub": make.epub([("p", "Text.")], title=stated),
    }
    titles = {name: convert(data, name).title for name, data in files.items()}
    assert titles == {**dict.fromkeys(files, title), "a.pptx": title or "Plan"}


def test_a_shape_without_geometry_is_read() -> None:
    show = pptx.Presentation()
    slide = make.add_slide(show, "Plan")
    shape = slide.shapes.add_textbox(0, 0, 9, 9)
    shape.text_frame.text = "Its text."
    shape._element.spPr.remove(shape._element.spPr.prstGeom)
    del shape._element.nvSpPr.cNvSpPr.attrib["txBox"]
    group = slide.shapes.add_group_shape()
    group.shapes.add_textbox(0, 0, 9, 9).text_frame.text = "Of a group."
    assert convert(make.saved(show), "a.pptx").text == "Plan\n\nIts text.\n\nOf a group."


def test_numbered_lists_of_slides_stay_numbered() -> None:
    show = pptx.Presentation()
    frame = make.add_slide(show, "Plan").shapes.add_textbox(0, 0, 9, 9).text_frame
    for level, kind, start in (
        (0, "arabicPeriod", "1"),
        (1, "alphaLcParenR", "3"),
        (1, "alphaLcParenR", "3"),
        (0, "arabicPeriod", "1"),
        (0, "", ""),
        (0, "romanUcPeriod", "4"),
        (1, "alphaLcParenR", "1"),
    ):
        paragraph = frame.add_paragraph()
        paragraph.text = "Step."
        paragraph.level = level
        if kind:
            numbering = f'<a:buAutoNum {A} type="{kind}" startAt="{start}"/>'
            paragraph._p.get_or_add_pPr().append(docx.oxml.parse_xml(numbering))
    marks = make.texts(convert(make.saved(show), "a.pptx"), "item")
    expected = ["1.", "c)", "d)", "2.", "•", "IV.", "a)"]
    assert marks == [f"{mark} Step." for mark in expected]


def test_the_title_of_a_slide_is_what_says_so() -> None:
    # LibreOffice gives the text the number of a title, and may write it first.
    show = pptx.Presentation()
    for name in ("Plan", ""):
        slide = show.slides.add_slide(show.slide_layouts[1])
        title = slide.shapes.title
        title.text = name
        slide.placeholders[1].text = "Its text."
        del slide.placeholders[1]._element.ph.attrib["idx"]
        title._element.getparent().append(title._element)
    title._element.getparent().remove(title._element)
    text = convert(make.saved(show), "a.pptx").text
    assert text == "Plan\n\nIts text.\n\nSlide 2\n\nIts text."


@pytest.mark.parametrize(
    ("suffix", "kind"),
    [
        ("docm", "vnd.ms-word.document.macroEnabled"),
        ("dotx", "vnd.openxmlformats-officedocument.wordprocessingml.template"),
        ("ppsx", "vnd.openxmlformats-officedocument.presentationml.slideshow"),
        ("potm", "vnd.ms-powerpoint.template.macroEnabled"),
        ("xltx", "vnd.openxmlformats-officedocument.spreadsheetml.template"),
    ],
)
def test_templates_shows_and_files_with_macros_are_read(suffix: str, kind: str) -> None:
    makers = {"d": make.word, "p": make.slides, "x": lambda _: make.workbook({"Tea": [["Tea"]]})}
    files = make.members(makers[suffix[0]]([("h1", "Tea")]))
    types = files["[Content_Types].xml"]
    main_type = re.compile(rb"(?<=application/)vnd[^\"]*(?=\.main\+xml)")
    files["[Content_Types].xml"] = main_type.sub(kind.encode(), types)
    assert convert(make.archive(files), f"a.{suffix}").text.startswith("Tea")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("line", "row", "metadata"),
    [
        ("tags: [a, 'b: c']", "tags: “a, b: c”", (("tags", ("a", "b: c")),)),
        ("date: 2024-02-30", "date: 2024-02-30", (("date", "2024-02-30"),)),
        (
            "year: 2024\nshare: 0.5\ndraft: true\nat: 12:30\nno: '007'",
            "year: 2024; share: 0.5; draft: true; at: 12:30; no: 007",
            (("year", 2024), ("share", 0.5), ("draft", True), ("at", "12:30"), ("no", "007")),
        ),
        ("empty:\nnested:\n  a: 1\nlist: []", "", ()),
        ("a: &x [1]\nb: *x", "a: 1; b: 1", (("a", (1,)), ("b", (1,)))),
    ],
)
def test_front_matter_is_the_first_row_and_metadata(
    end: str, line: str, row: str, metadata: tuple[object, ...]
) -> None:
    source = f"---\ntitle: Guide\n{line}\n---\n\n# One\n\nText.\n".replace("\n", end)
    converted = convert(source.encode(), "a.md")
    text = f"{row}\n\nOne\n\nText." if row else "One\n\nText."
    assert (converted.title, converted.text) == ("Guide", text)
    assert (converted.metadata, converted.notes) == (metadata, ())


@pytest.mark.parametrize(
    ("line", "row", "note"),
    [
        ("path: a/b", "path: a/b\n\n", "front matter: a metadata field cannot be called 'path'"),
        ("tags: [a", "", "the front matter is no YAML: its fields are not read"),
    ],
)
def test_front_matter_that_filters_cannot_name_is_noted(line: str, row: str, note: str) -> None:
    converted = convert(f"---\n{line}\n---\nText.\n".encode(), "a.md")
    assert converted.text == f"{row}Text."
    assert converted.metadata == ()
    assert converted.notes[0].startswith(note)


@pytest.fixture
def lists() -> docx.document.Document:
    """A document whose style "List Number" has levels of letters and Roman numerals below 1."""
    document = docx.Document()
    definitions = """
    <w:numbering xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main">
      <w:abstractNum w:abstractNumId="7">
        <w:lvl w:ilvl="0"><w:start w:val="1"/><w:numFmt w:val="decimal"/><w:lvlText w:val="%1."/></w:lvl>
        <w:lvl w:ilvl="1"><w:start w:val="1"/><w:numFmt w:val="lowerLetter"/><w:lvlText w:val="%1%2)"/></w:lvl>
        <w:lvl w:ilvl="2"><w:start w:val="4"/><w:numFmt w:val="upperRoman"/><w:lvlText w:val="%3."/></w:lvl>
        <w:lvl w:ilvl="3"><w:numFmt w:val="bullet"/><w:lvlText w:val="-"/></w:lvl>
      </w:abstractNum>
      <w:num w:numId="70"><w:abstractNumId w:val="7"/></w:num>
      <w:num w:numId="71"><w:abstractNumId w:val="7"/>
        <w:lvlOverride w:ilvl="0"><w:startOverride w:val="5"/></w:lvlOverride></w:num>
    </w:numbering>"""
    part = document.part.numbering_part
    part._element = docx.oxml.parse_xml(definitions.strip())
    return document


def test_numbered_lists_of_word_stay_numbered(lists: docx.document.Document) -> None:
    levels = [(70, 0), (70, 1), (70, 1), (70, 2), (70, 2), (70, 3), (70, 0), (70, 1), (71, 0)]
    for number, level in [*levels, (71, 0), (99, 0), (0, 0)]:
        properties = lists.add_paragraph("Step.")._p.get_or_add_pPr().get_or_add_numPr()
        properties.get_or_add_ilvl().val = level
        properties.get_or_add_numId().val = number
    marks = [
        line.removesuffix(" Step.")
        for line in convert(make.saved(lists), "a.docx").text.split("\n")
    ]
    assert marks == ["1.", "1a)", "1b)", "IV.", "V.", "•", "2.", "2a)", "5.", "6.", "•", "•"]


def test_headings_and_clauses_of_word_keep_their_numbers(lists: docx.document.Document) -> None:
    for style, level in (("Heading 1", 0), ("Heading 2", 1), ("Body Text", 2)):
        numbering = lists.styles[style].element.get_or_add_pPr().get_or_add_numPr()
        numbering.get_or_add_ilvl().val = level
        numbering.get_or_add_numId().val = 70
    for style in ("Heading 1", "Heading 2", "Body Text", "Heading 2"):
        lists.add_paragraph("Duration", style=style)
    text = convert(make.saved(lists), "a.docx").text
    numbers = text.replace("Duration", "").split()
    assert numbers == ["1.", "1a)", "IV.", "1b)"]


def test_letters_of_the_font_symbol_are_read_and_others_counted() -> None:
    document = docx.Document()
    paragraph = document.add_paragraph("At 5 ")
    for font, code in (("Symbol", "F0B0"), ("Symbol", "00B3"), ("Wingdings", "F0FC")):
        symbol = docx.oxml.OxmlElement("w:sym")
        symbol.set(docx.oxml.ns.qn("w:font"), font)
        symbol.set(docx.oxml.ns.qn("w:char"), code)
        paragraph.add_run()._r.append(symbol)
    converted = convert(make.saved(document), "a.docx")
    assert (converted.text, converted.notes) == ("At 5 °≥", ("not read: symbols: 1",))


def test_a_style_of_word_can_hold_the_numbering() -> None:
    document = docx.Document()
    for style in ("List Number", "List Number", "List Bullet", "List Number"):
        document.add_paragraph("Step.", style=style)
    text = convert(make.saved(document), "a.docx").text
    assert text == "1. Step.\n2. Step.\n• Step.\n3. Step."


@pytest.mark.parametrize(
    ("level_styles", "attributes", "marks"),
    [
        (('style:num-format="1"', ""), "", ["1.", "•", "2."]),
        (
            ('style:num-format="A" style:num-prefix="(" style:num-suffix=")" text:start-value="3"',)
            * 2,
            "",
            ["(C)", "(C)", "(D)"],
        ),
        (
            (
                'style:num-format="I" style:num-suffix=":"',
                'style:num-format="a" text:display-levels="2"',
            ),
            'text:start-value="4"',
            ["IV:", "IV.a.", "V:"],
        ),
    ],
)
def test_numbered_lists_of_opendocument_stay_numbered(
    level_styles: tuple[str, str], attributes: str, marks: list[str]
) -> None:
    levels = "".join(
        f'<text:list-level-style-number text:level="{level}" {style}/>'
        for level, style in enumerate(level_styles, start=1)
    )
    styles = f'<text:list-style style:name="L1">{levels}</text:list-style>'
    item = "<text:list-item {}><text:p>Step.</text:p>{}</text:list-item>"
    inner = f"<text:list>{item.format('', '')}</text:list>"
    body = f"{item.format(attributes, inner)}{item.format('', '')}"
    text = convert(
        make.odf(f'<text:list text:style-name="L1">{body}</text:list>', styles), "a.odt"
    ).text
    assert text.split("\n") == [f"{mark} Step." for mark in marks]


@pytest.mark.parametrize(
    "attribute_of_second", ['text:continue-numbering="true"', 'text:continue-list="list1"']
)
def test_a_list_of_opendocument_goes_on_where_it_says_so(attribute_of_second: str) -> None:
    styles = (
        '<text:list-style style:name="L1"><text:list-level-style-number text:level="1"'
        ' style:num-format="1"/></text:list-style>'
    )
    entry = "<text:list-item><text:p>Step.</text:p></text:list-item>"
    lists = [
        f'<text:list text:style-name="L1" {attribute}>{entry}</text:list><text:p>Text.</text:p>'
        for attribute in ("", attribute_of_second, "")
    ]
    text = convert(make.odf("".join(lists), styles), "a.odt").text
    assert text.replace("\n\nText.", "").split("\n\n") == ["1. Step.", "2. Step.", "1. Step."]


def test_what_stands_beside_the_text_is_named() -> None:
    document = docx.Document()
    show = pptx.Presentation()
    book = openpyxl.Workbook()
    run = document.add_paragraph("Text.").runs[0]
    document.sections[0].header.paragraphs[0].text = "Firm"
    document.add_comment(run, "Really?")
    png = io.BytesIO()
    Image.new("RGB", (1, 1)).save(png, "PNG")
    document.add_picture(png)
    (drawing,) = document.element.body.iter("{*}docPr")
    drawing.set("descr", "The gate")
    noted = convert(make.saved(document), "a.docx").notes
    assert noted == ("not read: headers and footers: 1, comments: 1, alt texts: 1",)
    slide = make.add_slide(show, "Plan")
    slide.shapes.add_picture(png, 0, 0)._element.nvPicPr.cNvPr.set("descr", "The gate")
    assert convert(make.saved(show), "a.pptx").notes == ("not read: alt texts: 1",)
    book.active.append(["Text"])
    book.active["A1"].comment = openpyxl.comments.Comment("Really?", "Ann")
    book.create_sheet("Costs").sheet_state = "hidden"
    noted = convert(make.saved(book), "a.xlsx").notes
    assert noted == ("not read: cell comments: 1, hidden sheets: 1",)
    headers = "<style:header><text:p>Firm</text:p></style:header><style:footer>7</style:footer>"
    body = """<text:p>Text.<office:annotation><text:p>Really?</text:p></office:annotation>
      <draw:frame><desc>The gate</desc></draw:frame></text:p>"""
    names = "".join(f' xmlns:{prefix}="{make.ODF}:{prefix}:1.0"' for prefix in ("style", "text"))
    master = f"<x{names}><style:master-page>{headers}</style:master-page></x>"
    noted = convert(make.odf(body, **{"styles.xml": master.encode()}), "a.odt").notes
    assert noted == ("not read: headers and footers: 1, comments: 1, alt texts: 1",)


@pytest.mark.parametrize(
    "heading",
    [
        '<h2 id="pagination">Part</h2>',
        '<h2 id="authorization-header">Part</h2>',
        "<header><h2>Part</h2></header>",
        '<div class="section-header"><h2>Part</h2></div>',
        '<section id="cookies"><h2>Part</h2></section>',
        '<h2 id="p"><a class="header-anchor" href="#p"><span>Part</span></a></h2>',
    ],
)
def test_headings_that_look_like_navigation_stay(heading: str) -> None:
    body = f"<h1>Guide</h1>{heading}<p>Its text, as long as a text is.</p>"
    menu = '<h2 class="sr-only">Menu</h2><div class="sidebar"><h3>More</h3><a href="a">A</a></div>'
    logo = (
        '<header class="site-header"><h2><a href="/">The logo</a></h2><a href="a">Page</a></header>'
    )
    converted = convert(f"<html><body>{logo}{body}{menu}</body></html>".encode(), "a.html")
    assert converted.text == "Guide\n\nPart\n\nIts text, as long as a text is."


@pytest.mark.parametrize(
    ("charset", "encoding"), [("us-ascii", "cp1252"), ("utf-8", "cp1252"), ("koi8-r", "koi8-r")]
)
def test_text_of_a_message_is_read_in_its_encoding_whatever_it_declares(
    charset: str, encoding: str
) -> None:
    text = "Насос стоит пять." if encoding == "koi8-r" else "Die Prüfung kostet 80 €."
    head = f"Subject: Price\nContent-Type: text/plain; charset={charset}\n\n"
    data = head.encode() + text.encode(encoding)
    assert make.texts(convert(data, "a.eml"), "paragraph") == [text]


@pytest.mark.parametrize(
    ("declared", "encoding", "text"),
    [
        ("iso-8859-1", "cp1252", "It’s “5 €”."),
        ("latin5", "cp1254", "“Işık” 5 €."),
        ("gb2312", "gb18030", "朱镕基说。"),
        ("shift_jis", "cp932", "①髙い。"),
        ("ks_c_5601-1987", "cp949", "똠방각하."),
    ],
)
def test_text_is_read_in_the_encoding_that_browsers_take_a_declared_one_for(
    declared: str, encoding: str, text: str
) -> None:
    page = f"<html><head><meta charset={declared}></head><body>{text}</body></html>"
    mail = f"Subject: A\nContent-Type: text/plain; charset={declared}\n\n{text}"
    assert convert(page.encode(encoding), "a.html").text == text
    assert convert(mail.encode(encoding), "a.eml").text == text


def test_a_message_in_an_encoding_that_is_not_read_is_named_and_costs_no_other() -> None:
    data = "From a Mon Jan  5 10:00:00 2009\nSubject: {}\n\n{}\n\n"
    polish = data.format("Cena", "Zażółć gęślą jaźń.").encode("cp1250")
    converted = convert(polish + data.format("Gate", "It opens.").encode(), "a.mbox")
    assert converted.text == "Cena\n\nGate\n\nIt opens."
    assert converted.notes == ("message 'Cena': not read (unknown encoding)",)
    with pytest.raises(Unreadable, match="unknown encoding"):
        convert(polish.partition(b"\n")[2], "a.eml")


@pytest.mark.parametrize("header", ["From: <@", 'From: ""@', "To: " + "(" * 300])
def test_an_odd_header_does_not_cost_its_message(header: str) -> None:
    message = f"Subject: Gate\n{header}\n\nIt opens at nine.\n"
    texts = convert(message.encode(), "a.eml").text.split("\n\n")
    assert (texts[0][:4], texts[-1]) == (header[:4], "It opens at nine.")


def test_a_page_nested_a_thousand_times_is_read_in_its_process(tmp_path: Path) -> None:
    page = tmp_path / "a.html"
    page.write_text("<html><body>" + "<ul><li>a" * 1_000)
    (result,) = convert_files([(str(page), "a.html")])
    assert isinstance(result, Document), result
    assert result.text.count("a") == 1_000


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ([("p", "Text."), ("p", "More.")], "Text.\n\nThe note.\n\nMore."),
        ([("table", [["Tea", "2"]]), ("p", "More.")], "Tea; 2\n\nThe note.\n\nMore."),
    ],
)
def test_footnotes_of_word_stand_below_their_paragraph_or_table(
    content: make.Content, expected: str
) -> None:
    names = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    kind = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/footnotes"
    note = '<w:footnote w:id="2"><w:p><w:r><w:t>The note.</w:t></w:r></w:p></w:footnote>'
    related = f'<Relationship Id="rn" Type="{kind}" Target="footnotes.xml"/>'
    files = make.members(make.word(content))
    for name, end, more in (
        ("word/document.xml", b"</w:p>", '<w:r><w:footnoteReference w:id="2"/></w:r>'),
        ("word/_rels/document.xml.rels", b"</Relationships>", related),
    ):
        files[name] = files[name].replace(end, more.encode() + end, 1)
    files["word/footnotes.xml"] = f"<w:footnotes {names}>{note}</w:footnotes>".encode()
    assert convert(make.archive(files), "a.docx").text == expected


YAML = "---\n{}\n---\n\nSalaries rise.\n"


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("a.rst", ":groups: hr, board\n\nTitle\n=====\n\nSalaries rise.\n"),
        ("a.rst", ".. note to all\n\n#####\nTitle\n#####\n\n:Groups: hr,\n   board\n\nText.\n"),
        ("a.rst", "Title\n=====\n\n:Date: 2024\n:groups:\n   - hr\n   - board\n\nText.\n"),
        ("a.adoc", "// note\n= Title\nAnn <a@example.org>\n:toc:\n:groups: hr, board\n\nText.\n"),
        ("a.adoc", ":groups: [hr, board]\n\nText.\n"),
        ("a.org", "#+TITLE: Pay\n\n#+GROUPS: hr, board\n* One\nText.\n"),
        ("a.org", ":PROPERTIES:\n:groups: hr, board\n:END:\nText.\n"),
        ("a.md", YAML.format("Groups: [hr, board]")),
        ("a.md", "\n" + YAML.format("groups: [hr, board]")),
        ("a.md", "+++\ngroups = ['hr', 'board']\n+++\nText.\n"),
        ("a.txt", YAML.format("groups: [hr, board]")),
        *((f"a.{suffix}", YAML.format("groups: [hr, board]")) for suffix in ("rst", "adoc", "org")),
        *((f"a.{suffix}", YAML.format("groups: [hr, board]")) for suffix in ("html", "tex")),
    ],
)
def test_groups_are_read_in_every_text_format(name: str, source: str) -> None:
    converted = convert(source.encode(), name)
    assert converted.metadata == (("groups", ("board", "hr")),)
    assert "hr" not in converted.text


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("a.rst", ":groups: [hr\n\nText.\n"),
        ("a.adoc", ":groups: {staff}\n\nText.\n"),
        ("a.org", "#+groups: *\n\nText.\n"),
        ("a.md", "---\nyear: 2024\ngroups: [hr]\n\nText.\n"),
        ("a.md", YAML.format("groups: [hr]\nGroups: [all]")),
        ("a.md", YAML.format("groups:\nyear: 2024")),
        ("a.md", YAML.format("groups: []")),
        ("a.md", YAML.format("groups: {hr: read}")),
        ("a.md", "+++\ngroups = []\n+++\nText.\n"),
        ("a.adoc", ":groups:\n\nText.\n"),
        ("a.md", "+++\ngroups = [hr]\n+++\nText.\n"),
    ],
)
def test_groups_that_cannot_be_read_are_refused(name: str, source: str) -> None:
    with pytest.raises(Unreadable, match="unreadable rights"):
        convert(source.encode(), name)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("a.rst", "Options\n=======\n\nThese are known.\n\n:groups: who may read it\n"),
        ("a.adoc", "= Options\n\nAn example.\n\n----\n:groups: hr\n----\n"),
        ("a.md", "---\n\nOptions\n\n    groups: who may read it\n"),
        ("a.yaml", "---\ngroups: [hr]\n---\nname: x\n"),
    ],
)
def test_what_is_written_about_groups_protects_nothing(name: str, source: str) -> None:
    converted = convert(source.encode(), name)
    assert converted.metadata == ()
    assert "groups" in converted.text


def test_front_matter_of_toml_is_read_as_that_of_yaml() -> None:
    source = (
        "+++\ntitle = 'Pay: 2024'\non = 2024-05-01\ntags = ['a', 'b']\n[menu]\nx = 1\n+++\nText.\n"
    )
    converted = convert(source.encode(), "a.md")
    assert converted.title == "Pay: 2024"
    assert converted.metadata == (("on", "2024-05-01"), ("tags", ("a", "b")))


def test_an_attachment_that_names_groups_is_left_out_of_its_message() -> None:
    attachments = {
        "pay.md": YAML.format("groups: [hr]").encode(),
        "odd.md": YAML.format('groups: "*"').encode(),
        "plan.rst": b":groups: hr\n\nSalaries rise.\n",
        "open.md": YAML.format("year: 2024").replace("Salaries", "Stairs").encode(),
    }
    converted = convert(make.mail([("p", "See below.")], attachments=attachments), "a.eml")
    assert converted.notes == (
        "attachment pay.md: not read (it names groups)",
        "attachment odd.md: not read (it names groups)",
        "attachment plan.rst: not read (it names groups)",
    )
    assert "Salaries" not in converted.text
    assert "Stairs rise." in converted.text


def test_charts_diagrams_and_equations_are_named() -> None:
    data = CategoryChartData()
    data.categories = ["a", "b"]
    data.add_series("Sales", (1, 2))
    show = pptx.Presentation()
    shapes = make.add_slide(show, "Plan").shapes
    shapes.add_chart(XL_CHART_TYPE.PIE, 0, 0, 9, 9, data)
    assert convert(make.saved(show), "a.pptx").notes == ("not read: charts: 1",)
    book = openpyxl.Workbook()
    book.active.append(["Text"])
    chart = openpyxl.chart.BarChart()
    chart.add_data(openpyxl.chart.Reference(book.active, range_string="Sheet!$A$1:$A$2"))
    book.active.add_chart(chart)
    assert convert(make.saved(book), "a.xlsx").notes == ("not read: charts: 1",)
    document = docx.Document()
    names = 'xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math"'
    law = docx.oxml.parse_xml(f"<m:oMath {names}><m:r><m:t>E=mc</m:t></m:r></m:oMath>")
    document.add_paragraph("The law is")._p.append(law)
    files = make.members(make.saved(document))
    files["word/diagrams/data1.xml"] = b"<x/>"
    noted = convert(make.archive(files), "a.docx").notes
    assert noted == ("not read: equations: 1, diagrams: 1",)


def test_text_boxes_of_a_sheet_are_named() -> None:
    shapes = "".join(
        f"<xdr:sp><xdr:spPr/><xdr:txBody><a:p>{text}</a:p></xdr:txBody></xdr:sp>"
        for text in (
            "<a:r><a:t>Read me.</a:t></a:r>",
            "",
            "<a:r><a:t>Then</a:t><a:t>go.</a:t></a:r>",
        )
    )
    files = make.members(make.workbook({"Plan": [["Text"]]}))
    files["xl/drawings/drawing1.xml"] = f"<xdr:wsDr>{shapes}</xdr:wsDr>".encode()
    assert convert(make.archive(files), "a.xlsx").notes == ("not read: text boxes: 2",)


def test_shapes_that_only_newer_programs_show_are_read() -> None:
    show = pptx.Presentation()
    tree = make.add_slide(show, "Plan").shapes._spTree
    box = show.slides[0].shapes.add_textbox(0, 0, 9, 9)
    box.text_frame.text = "The law of the box."
    names = 'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"'
    wrapped = '<mc:Choice Requires="a14"/><mc:Fallback><x/></mc:Fallback>'
    alternatives = docx.oxml.parse_xml(
        f"<mc:AlternateContent {names}>{wrapped}</mc:AlternateContent>"
    )
    alternatives[0].append(box._element)
    tree.append(alternatives)
    assert make.texts(convert(make.saved(show), "a.pptx"), "paragraph") == ["The law of the box."]


def test_repeated_cells_within_each_other_do_not_explode() -> None:
    inside = "<text:p>Salaries rise.</text:p>"
    for _ in range(6):
        repeated = 'table:number-columns-repeated="99"'
        row = f"<table:table-cell {repeated}>{inside}</table:table-cell>"
        inside = f"<table:table><table:table-row>{row}</table:table-row></table:table>"
    assert convert(make.odf(inside), "a.odt").text.count("Salaries") == 99


def test_an_exponent_of_word_is_no_part_of_its_number() -> None:
    document = docx.Document()
    paragraph = document.add_paragraph("10")
    paragraph.add_run("1").font.superscript = True
    position = docx.oxml.OxmlElement("w:position")
    position.set(docx.oxml.ns.qn("w:val"), "7")
    paragraph.add_run("2").element.get_or_add_rPr().append(position)
    paragraph.add_run(" cells of the 1")
    paragraph.add_run("st").font.superscript = True
    assert convert(make.saved(document), "a.docx").text == "10^12 cells of the 1st"


def test_an_exponent_of_a_sheet_is_no_part_of_its_number() -> None:
    book = openpyxl.Workbook()
    book.active.append(["Cells", 0])
    members = make.members(make.saved(book))
    types = members["[Content_Types].xml"]
    kind = "application/vnd.openxmlformats-officedocument.spreadsheetml.sharedStrings+xml"
    part = f'<Override PartName="/xl/sharedStrings.xml" ContentType="{kind}"/></Types>'
    members["[Content_Types].xml"] = types.replace(b"</Types>", part.encode())
    members["xl/sharedStrings.xml"] = (
        b'<sst xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><si><r><t>10</t></r>'
        b'<r><rPr><vertAlign val="superscript"/></rPr><t>6</t></r>'
        b'<r><t xml:space="preserve"> per ml</t></r></si></sst>'
    )
    name = "xl/worksheets/sheet1.xml"
    members[name] = re.sub(rb'r="B1"[^>]*', b'r="B1" t="s"', members[name])
    assert convert(make.archive(members), "a.xlsx").text == "Sheet\n\nCells: 10^6 per ml"


def test_an_exponent_of_a_slide_is_no_part_of_its_number() -> None:
    def write(paragraph: Any) -> None:
        for text, baseline in (("10", "0"), ("1", "30000"), ("2", "30000"), (" H", "0")):
            run = paragraph.add_run()
            run.text = text
            run.font._element.set("baseline", baseline)
        run = paragraph.add_run()
        run.text = "2"
        run.font._element.set("baseline", "-25000")

    show = pptx.Presentation()
    slide = make.add_slide(show, "")
    write(slide.shapes.title.text_frame.paragraphs[0])
    write(slide.shapes.add_textbox(0, 0, 9, 9).text_frame.paragraphs[0])
    table = slide.shapes.add_table(1, 2, 0, 0, 9, 9).table
    write(table.cell(0, 0).text_frame.paragraphs[0])
    write(slide.notes_slide.notes_text_frame.paragraphs[0])
    assert convert(make.saved(show), "a.pptx").text.split("\n\n") == ["10^12 H2"] * 4


@pytest.mark.parametrize(
    ("position", "expected"),
    [("super 58%", "10^6"), ("33% 58%", "10^6"), ("sub 58%", "106"), ("-33% 58%", "106")],
)
def test_an_exponent_of_opendocument_is_no_part_of_its_number(position: str, expected: str) -> None:
    properties = f'<style:text-properties style:text-position="{position}"/>'
    style = f'<style:style style:name="T1">{properties}</style:style>'
    line = '<text:p>10<text:span text:style-name="T1">6</text:span> cells</text:p>'
    assert convert(make.odf(line, style), "a.odt").text == f"{expected} cells"


def test_deleted_text_of_word_is_no_text() -> None:
    document = docx.Document()
    paragraph = document.add_paragraph("Price: ")
    names = f'xmlns:w="{docx.oxml.ns.nsmap["w"]}"'
    for change, text in (("del", "5"), ("ins", "6"), ("moveFrom", "7"), ("moveTo", "8")):
        source = f'<w:{change} {names} w:id="1"><w:r><w:t>{text}</w:t></w:r></w:{change}>'
        paragraph._p.append(docx.oxml.parse_xml(source))
    table = document.add_table(3, 2)
    make.fill(table, [["Item", "Price"], ["Tea", "2"], ["Rye", "3"]])
    deleted = docx.oxml.parse_xml(f'<w:trPr {names}><w:del w:id="2"/></w:trPr>')
    table.rows[1]._tr.insert(0, deleted)
    assert convert(make.saved(document), "a.docx").text == "Price: 68\n\nItem: Rye; Price: 3"


def test_shapes_and_spoken_words_of_opendocument_join_no_words() -> None:
    ruby = "<text:ruby-base>漢字</text:ruby-base><text:ruby-text>かんじ</text:ruby-text>"
    shape = "<draw:rect><text:p>In a box.</text:p></draw:rect>"
    body = f"<text:p>Say{shape} it: <text:ruby>{ruby}</text:ruby>.</text:p>"
    assert convert(make.odf(body), "a.odt").text == "Say it: 漢字.\n\nIn a box."


def test_hidden_parts_of_a_sheet_are_counted_and_not_read() -> None:
    rows = [["Item", "Cost", "Price"], ["Tea", "1", "2"], ["Rum", "3", "9"], ["Rye", "2", "3"]]
    book = make.opened(make.workbook({"Plan": rows}))
    book.active.row_dimensions[3].hidden = True
    # Empty columns lose nothing.
    for column in ("B", "E"):
        book.active.column_dimensions[column].hidden = True
    converted = convert(make.saved(book), "a.xlsx")
    assert make.texts(converted, "row") == ["Item: Tea; Price: 2", "Item: Rye; Price: 3"]
    assert converted.notes == ("not read: hidden rows: 1, hidden columns: 1",)


def test_hidden_slides_and_shapes_are_counted_and_not_read() -> None:
    show = pptx.Presentation()
    make.add_slide(show, "Draft")._element.set("show", "0")
    group = make.add_slide(show, "Plan").shapes.add_group_shape()
    for text, hidden in (("Seen.", "0"), ("Old.", "1")):
        shape = group.shapes.add_textbox(0, 0, 9, 9)
        shape.text_frame.text = text
        shape._element.nvSpPr.cNvPr.set("hidden", hidden)
    converted = convert(make.saved(show), "a.pptx")
    assert (converted.text, converted.pages) == ("Plan\n\nSeen.", ((0, "2"),))
    assert converted.notes == ("not read: hidden slides: 1, hidden shapes: 1",)


def test_hidden_and_inserted_parts_of_word_are_counted_and_not_read() -> None:
    document = docx.Document()
    paragraph = document.add_paragraph("Seen.")
    paragraph.add_run(" Old.").font.hidden = True
    paragraph.add_run(" New.").font.hidden = False
    names = f'xmlns:w="{docx.oxml.ns.nsmap["w"]}"'
    paragraph._p.addnext(docx.oxml.parse_xml(f"<w:altChunk {names}/>"))
    converted = convert(make.saved(document), "a.docx")
    assert converted.text == "Seen. New."
    assert converted.notes == ("not read: inserted files: 1, hidden texts: 1",)


def test_what_a_style_or_a_row_of_word_hides_is_counted_and_not_read() -> None:
    document = docx.Document()
    for name, kind in (("Secret", "PARAGRAPH"), ("Aside", "CHARACTER")):
        style = document.styles.add_style(name, docx.enum.style.WD_STYLE_TYPE[kind])
        style.font.hidden = True
    for name, is_hidden in (("Open", False), ("Deeper", None)):
        style = document.styles.add_style(name, docx.enum.style.WD_STYLE_TYPE.PARAGRAPH)
        style.base_style = document.styles["Secret"]
        style.font.hidden = is_hidden
    document.add_paragraph("Deep.", style="Deeper")
    document.add_paragraph("Draft.", style="Secret").add_run(" Shown.").font.hidden = False
    document.add_paragraph("Seen.", style="Open").add_run(" Old.", style="Aside")
    table = document.add_table(3, 2)
    make.fill(table, [["Item", "Price"], ["Tea", "2"], ["Rye", "3"]])
    table.rows[1]._tr.get_or_add_trPr().append(docx.oxml.OxmlElement("w:hidden"))
    converted = convert(make.saved(document), "a.docx")
    assert converted.text == "Shown.\n\nSeen.\n\nItem: Rye; Price: 3"
    assert converted.notes == ("not read: hidden texts: 5",)


def test_hidden_parts_of_opendocument_are_counted_and_not_read() -> None:
    properties = '<style:text-properties text:display="none"/>'
    style = f'<style:style style:name="T1">{properties}</style:style>'
    body = (
        '<text:p>Seen.<text:span text:style-name="T1"> Old.</text:span> New.</text:p>'
        '<text:section text:display="none"><text:p>Draft.</text:p></text:section>'
    )
    converted = convert(make.odf(body, style), "a.odt")
    assert (converted.text, converted.notes) == ("Seen. New.", ("not read: hidden texts: 2",))


@pytest.mark.parametrize(
    ("plain", "expected"),
    [
        ("Please see the HTML part.", "It opens at nine, and closes at five in the evening."),
        ("It opens at nine. Bye.", "It opens at nine. Bye."),
    ],
)
def test_a_plain_text_that_stands_for_a_page_is_not_the_message(plain: str, expected: str) -> None:
    message = EmailMessage()
    message["Subject"] = "Gate"
    message.set_content(plain)
    page = "<p>It opens at nine, and closes at five in the evening.</p>"
    long = expected != plain
    message.add_alternative(page if long else "<p>It opens at nine.</p><p>Bye.</p>", subtype="html")
    message.add_attachment(b"PK", maintype="application", subtype="zip", filename="plan.zip")
    message.add_attachment(b"PNG", maintype="image", subtype="png", filename="logo.png")
    converted = convert(message.as_bytes(), "a.eml")
    assert make.texts(converted, "paragraph") == [expected]
    assert converted.notes == ("attachment plan.zip: not read (no document)",)


def test_a_page_in_another_alphabet_is_not_read_as_western_european() -> None:
    page = f"<html><body>{'<p class=text>Привет, мир.</p>' * 9}</body></html>"
    with pytest.raises(Unreadable, match="unknown encoding"):
        convert(page.encode("cp1251"), "a.html")


def test_characters_that_a_workbook_escapes_are_read() -> None:
    rows = [["Name", "Note"], ["Tea", "green_x000D_\nor red"], ["Rum_x0041_", "max_x00_"]]
    assert make.texts(convert(make.workbook({"Plan": rows}), "a.xlsx"), "row") == [
        "Name: Tea; Note: green or red",
        "Name: RumA; Note: max_x00_",
    ]


def test_bytes_that_windows_1252_lacks_cost_no_page_that_declares_latin_1() -> None:
    page = b"<html><head><meta charset=latin1></head><body>It\x92s 5 \x80.\x81</body></html>"
    assert convert(page, "a.html").text == "It’s 5 €.\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("chapter", "notes"),
    [
        ("missing.xhtml", ("not read: chapters that are missing: 1",)),
        ("one a.xhtml#part", ()),
    ],
)
def test_chapters_of_a_book_are_read_once_and_those_that_it_lacks_are_named(
    chapter: str, notes: tuple[str, ...]
) -> None:
    files = make.members(make.epub([("p", "Text.")]))
    item = f'<item id="b" href="{chapter}"/></manifest>'
    package = files["O/p.opf"].replace(b"</manifest>", item.encode())
    files["O/p.opf"] = package.replace(b"</spine>", b'<itemref idref="b"/></spine>')
    converted = convert(make.archive(files), "a.epub")
    assert (converted.text, converted.notes) == ("Text.", notes)


def test_a_protected_book_is_refused_as_encrypted_and_one_with_encrypted_fonts_is_read() -> None:
    refers = '<encryption><CipherReference URI="{}"/></encryption>'
    files = make.members(make.epub([("p", "Text.")]))
    files["META-INF/encryption.xml"] = refers.format("O/font.otf").encode()
    assert convert(make.archive(files), "a.epub").text == "Text."
    files["META-INF/encryption.xml"] = refers.format("O/one a.xhtml").encode()
    with pytest.raises(Unreadable, match="encrypted"):
        convert(make.archive(files), "a.epub")


@pytest.mark.parametrize(
    ("name", "source", "title"),
    [
        # The first of several sections names no document.
        ("a.md", "# Overview\n\nA.\n\n# Use\n\nB.\n", ""),
        ("a.md", "# Overview\n\nA.\n\n## Use\n\nB.\n", "Overview"),
        ("a.md", "# Tea\n\nA.\n\n# Use\n\nB.\n", "Tea"),
        ("a.html", "<h2>1. Basics</h2><p>A.</p><h2>2. Use</h2><p>B.</p>", ""),
        # Google's documents state it in a paragraph.
        ("a.html", "<body class='c1 doc-content'><p class='c2 title'>Tea</p><h1>Use</h1>", "Tea"),
        ("a.txt", "0. INTRODUCTION\n===============\n\nA.\n\n1. USE\n======\n\nB.\n", ""),
        # A heading or title that a program made up is none.
        ("a.md", "# Untitled\n\nText.\n", ""),
        ("a.md", "---\ntitle: Untitled\n---\nText.\n", ""),
        # That of front matter is read as YAML where it is.
        ("a.md", "---\ntitle: >\n  The long\n  plan\n---\n# Top\n", "The long plan"),
        ("a.md", "---\ntitle: 'Ann''s plan' # of May\n---\n# Top\n", "Ann's plan"),
        ("a.md", "---\ntitle: 2024\n---\n# Top\n", "2024"),
        ("a.md", "---\ntitle: ~\n---\n# Top\n", "Top"),
        ("a.md", "---\ntitle: Plan: the second\n---\n# Top\n", "Plan: the second"),
    ],
)
def test_titles_of_documents(name: str, source: str, title: str) -> None:
    assert convert(source.encode(), name).title == title


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (b"The first page ends\fThe next begins.", "The first page ends The next begins."),
        (b"\x1b[1;31mERROR\x1b[0m: disk full", "ERROR: disk full"),
        (b"See the \x1b]8;;https://example.org\x1b\\guide\x1b]8;;\x07.", "See the guide."),
        (b"N\bNA\bAM\bME\bE _\bl_\bs - list", "NAME ls - list"),
    ],
)
def test_what_terminals_and_printers_take_is_no_text(source: bytes, text: str) -> None:
    for name in ("a.txt", "a.log"):
        assert " ".join(convert(source, name).text.split()) == text


def test_a_line_break_on_a_slide_parts_words() -> None:
    show = pptx.Presentation()
    slide = make.add_slide(show, "Annual\vreport")
    slide.shapes.add_textbox(0, 0, 9, 9).text_frame.text = "Sales\vrose."
    assert convert(make.saved(show), "a.pptx").text == "Annual report\n\nSales rose."


def _text_box() -> docx.oxml.xmlchemy.BaseOxmlElement:
    names = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    paragraphs = "".join(f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>" for text in ("Box.", "More."))
    return docx.oxml.parse_xml(
        f"<w:r {names}><w:pict><w:txbxContent>{paragraphs}</w:txbxContent></w:pict></w:r>"
    )


def test_a_text_box_of_word_is_read_once_and_its_words_are_parted() -> None:
    document = docx.Document()
    document.add_paragraph("Text.")._p.append(_text_box())
    table = document.add_table(1, 2)
    table.cell(0, 0).text = "Left"
    table.cell(0, 1).paragraphs[0]._p.append(_text_box())
    text = convert(make.saved(document), "a.docx").text
    assert text == "Text. Box. More.\n\nLeft; Box. More."


def test_a_table_of_word_in_a_table_that_is_layout_is_read_once() -> None:
    document = docx.Document()
    outer = document.add_table(1, 1).cell(0, 0)
    outer.text = "Prices."
    make.fill(outer.add_table(2, 2), [["Item", "Price"], ["Tea", "2"]])
    text = convert(make.saved(document), "a.docx").text
    assert text == "Prices.\n\nItem: Tea; Price: 2"


def _part(kind: str, *parts: MIMEBase) -> MIMEMultipart:
    return MIMEMultipart(kind, _subparts=parts)


def _file(text: str, disposition: str = "attachment") -> MIMEText:
    part = MIMEText(text)
    part.add_header("Content-Disposition", disposition, filename="plan.txt")
    return part


@pytest.mark.parametrize(
    "parts",
    [
        # Apple's Mail puts files beside one of the two forms of the text.
        _part(
            "alternative",
            MIMEText("Hello."),
            _part("mixed", MIMEText("Hello.", "html"), _file("Do it.", "inline")),
        ),
        _part("signed", _part("mixed", MIMEText("Hello."), _file("Do it."))),
        _part(
            "mixed",
            _part("alternative", MIMEText("Hello."), MIMEText("Hello.", "html")),
            _file("Do it.", "inline"),
        ),
    ],
)
def test_files_in_any_part_of_a_message_are_read(parts: MIMEMultipart) -> None:
    parts["From"] = "ann@example.org"
    text = convert(parts.as_bytes(), "a.eml").text
    assert text == "From: ann@example.org\n\nHello.\n\nplan.txt\n\nDo it."


def test_text_of_a_message_in_two_forms_is_read_whole() -> None:
    picture = MIMEImage(b"PNG", "png", name="logo.png")
    last = MIMEText("Насос.", "plain", "koi8-r")
    message = _part("mixed", MIMEText("Hello."), picture, MIMEText("<p>More.</p>", "html"), last)
    message["From"] = "ann@example.org"
    text = convert(message.as_bytes(), "a.eml").text
    assert text == "From: ann@example.org\n\nHello.\n\nMore.\n\nНасос.\n\nlogo.png"


def test_messages_that_thunderbird_shows_no_more_are_counted_and_not_read() -> None:
    message = "From - Fri Mar  7 14:05:09 2031\nX-Mozilla-Status: {}\nSubject: {}\n\nText.\n\n"
    old = message.format("0009", "Old")
    converted = convert(f"{old}{message.format('0001', 'New')}".encode(), "a.mbox")
    assert converted.text == "New\n\nText."
    assert converted.notes == ("not read: deleted messages: 1",)
    with pytest.raises(Unreadable, match="empty"):
        convert(old.encode(), "a.mbox")


TEX = '<annotation encoding="application/x-tex">c^2</annotation>'
MATH = f"so <math><semantics><mi>c</mi>{TEX}</semantics></math>"


@pytest.mark.parametrize(
    ("inside", "expected"),
    [
        (
            "<dl><div><dt>Tea</dt><dd>A drink.</dd></div><div><dt>Rye</dt><dd>A grain.</dd></div></dl>",
            "Tea: A drink.\nRye: A grain.",
        ),
        ("<pre>a = 1<br>b = 2</pre>", "a = 1\nb = 2"),
        ("<div role='tabpanel' hidden>Use apt.</div>", "Use apt."),
        ("<p>Tea<br>is hot.<br> &nbsp;<br/>Rye grows.</p>", "Tea is hot.\n\nRye grows."),
        ("<table><tr><td>Tea<br><br>hot</td><td>2</td></tr></table>", "Tea hot; 2"),
        ("<div><li>Tea</li><li>Rye</li></div>", "Tea\n\nRye"),
        ("<ol><li>Tea</li><li value='5'>Rye</li><li>Oat</li></ol>", "1. Tea\n5. Rye\n6. Oat"),
        ("<ol type='a'><li>Tea</li><li>Rye</li></ol>", "a. Tea\nb. Rye"),
        # An exponent is no part of its number.
        ("10<sup>6 </sup>cells", "10^6 cells"),
        ("<b>10</b><sup>−6</sup>", "10^−6"),
        ("the 1<sup>st</sup> m<sup>2</sup>", "the 1st m2"),
        ('in 2019<sup><a href="#n1">3</a></sup>', "in 2019"),
        # References to notes are no part of the number before them.
        ('in 2019<a href="#n1"><sup>3</sup></a>', "in 2019"),
        ('in 2019<sup><a href="notes.xhtml#n1">3</a></sup>', "in 2019"),
        ('in 2019<a epub:type="noteref" href="#n1">3</a>', "in 2019"),
        ('in 2019<a role="doc-noteref" href="#n1">3</a>', "in 2019"),
        ('<a href="#n1">10<sup>6</sup> cells</a>', "10^6 cells"),
        ('<p>Text. <a class="footnote-backref" href="#r1">↩</a></p>', "Text."),
        # The source of a formula is text, and a caption that only the blind do not hear.
        (MATH, "so c^2"),
        ('so <math alttext="c^2"><mi>c</mi></math>', "so c^2"),
        ('<figcaption aria-hidden="true">The gate</figcaption>', "The gate"),
        ('<p>Text <span aria-hidden="true">#</span></p>', "Text"),
        # A term stays before a list or a table that defines it.
        ("<dl><dt>Tea:</dt><dd>Green</dd></dl>", "Tea: Green"),
        ("<dl><dt>Tea</dt><dd><ul><li>Green</li></ul></dd></dl>", "Tea\n• Green"),
        ("<dl><dt>Tea</dt><dd><pre>boil()</pre></dd></dl>", "Tea\n\nboil()"),
        # Numbers of lines are no code, and a heading in a list has no bullet.
        ('<pre><span class="linenos">1</span>boil()</pre>', "boil()"),
        ('<table><tr><td class="linenos"><pre>1</pre></td><td>boil()</td></tr></table>', "boil()"),
        ("<ul><li><h2>Tea</h2><p>Green</p></li></ul>", "Tea\n\nGreen"),
        # What is deleted is left out, what is struck through is read.
        ("<p>It costs <del>5</del><ins>6</ins> euros, <s>7</s> 8.</p>", "It costs 6 euros, 7 8."),
        # All articles are read, and those within an article.
        (
            "<p>Site</p><article><p>News.</p></article><article><p>More.</p></article>",
            "Site\n\nNews.\n\nMore.",
        ),
        (
            "<p>Site</p><article><p>News.</p><article>A comment.</article></article>",
            "News.\n\nA comment.",
        ),
        # Call-outs of the text are read, those of the site are not.
        (
            '<main><p>Text.</p><aside class="note"><p>Keep it.</p></aside></main>',
            "Text.\n\nKeep it.",
        ),
        ("<main><p>Text.</p><aside><p>Keep it.</p></aside></main>", "Text.\n\nKeep it."),
        ('<main><p>Text.</p><aside><p>See</p> <a href="/a">A page</a></aside></main>', "Text."),
        ('<main><p>Text.</p><aside class="sidebar"><p>Site</p></aside></main>', "Text."),
        ("<main><p>Text.</p><aside><label>Contents</label></aside></main>", "Text."),
        # Hidden rows move no other.
        *(
            (
                "<table><tr><th>Kind</th><th>Item</th></tr><tr><td rowspan=2>Tea</td><td>Red</td></tr>"
                f"<tr {hidden}><td>Green</td></tr><tr><td>Rye</td><td>Bread</td></tr></table>",
                "Kind: Tea; Item: Red\nKind: Rye; Item: Bread",
            )
            for hidden in ("hidden", 'style="display: none"')
        ),
    ],
)
def test_text_of_html_is_what_people_see(inside: str, expected: str) -> None:
    assert convert(f"<html><body>{inside}</body></html>".encode(), "a.html").text == expected


XHTML = """<?xml version="1.0" encoding="utf-8"?>\n<html><head>{}</head><body><p>A line<br/>and
    <a id="x"/>more.</p><div/><p>An <img src="a.png"/> end.</p></body></html>"""


@pytest.mark.parametrize(
    ("name", "source", "expected"),
    [
        # Empty elements of XHTML hide nothing.
        ("a.xhtml", XHTML.format("<title/>"), "A line and more.\n\nAn end."),
        ("a.xhtml", XHTML.format('<script src="a/b.js" />'), "A line and more.\n\nAn end."),
        ("a.xhtml", XHTML.format('<style type="text/css"/>'), "A line and more.\n\nAn end."),
        ("a.md", "10<sup>6</sup> cells\n", "10^6 cells"),
        ("a.md", "It costs <del>5</del>6 euros, ~~7~~ 8.\n", "It costs 6 euros, 7 8."),
        ("a.md", "<del>\n\nIt costs 5.\n\n</del>\n\nIt costs 6 euros.\n", "It costs 6 euros."),
        ("a.org", "It costs 6 euros, +7+ 8.\n", "It costs 6 euros, 7 8."),
        ("a.rst", "Guide\n=====\n\n.. topic:: Tea\n\n   A drink.\n", "Guide\n\nTea: A drink."),
        ("a.rst", "Guide\n=====\n\n.. sidebar:: Tea\n\n   A drink.\n", "Guide\n\nTea: A drink."),
    ],
)
def test_text_of_other_formats_is_what_people_see(name: str, source: str, expected: str) -> None:
    assert convert(source.encode(), name).text == expected
