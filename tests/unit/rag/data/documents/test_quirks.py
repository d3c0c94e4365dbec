"""What programs write that is unusual, and valid enough that people expect it to be read."""

import io
import zipfile
from pathlib import Path

import docx
import pptx
import pytest

from rag.data.documents.convert import convert
from rag.data.documents.read import convert_files
from rag.data.records import Document
from tests import document_makers as make


def test_titles_that_programs_make_up_are_none() -> None:
    document, show = docx.Document(), pptx.Presentation()
    document.add_paragraph("Some text.")
    document.core_properties.title = "Word Document"
    assert convert(make.saved(document), "a.docx").title == ""
    show.slides.add_slide(show.slide_layouts[5]).shapes.title.text = "Plan"
    show.core_properties.title = "PowerPoint Presentation"
    assert convert(make.saved(show), "a.pptx").title == "Plan"
    show.core_properties.title = "Strategy"
    assert convert(make.saved(show), "a.pptx").title == "Strategy"


def test_a_shape_without_geometry_is_read() -> None:
    show = pptx.Presentation()
    slide = show.slides.add_slide(show.slide_layouts[5])
    slide.shapes.title.text = "Plan"
    shape = slide.shapes.add_textbox(0, 0, 9, 9)
    shape.text_frame.text = "Its text."
    shape._element.spPr.remove(shape._element.spPr.prstGeom)
    del shape._element.nvSpPr.cNvSpPr.attrib["txBox"]
    group = slide.shapes.add_group_shape()
    group.shapes.add_textbox(0, 0, 9, 9).text_frame.text = "Of a group."
    assert convert(make.saved(show), "a.pptx").text == "Plan\n\nIts text.\n\nOf a group."


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("line", ["tags: [a]", "date: 2024-02-30"])
def test_front_matter_of_windows_and_with_a_date_that_is_none(end: str, line: str) -> None:
    source = f"---\ntitle: Guide\n{line}\n---\n\n# One\n\nText.\n".replace("\n", end)
    converted = convert(source.encode(), "a.md")
    assert (converted.title, converted.text) == ("Guide", "One\n\nText.")


@pytest.mark.parametrize(
    "closed", ["<title/>", '<script src="a/b.js" />', '<style type="text/css"/>']
)
def test_empty_elements_of_xhtml_hide_nothing(closed: str) -> None:
    body = '<p>A line<br/>and <a id="x"/>more.</p><div/><p>An <img src="a.png"/> end.</p>'
    page = f'<?xml version="1.0" encoding="utf-8"?>\n<html><head>{closed}</head><body>{body}</body></html>'
    assert convert(page.encode(), "a.xhtml").text == "A line and more.\n\nAn end."


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


def test_footnotes_of_word_stand_below_their_paragraph() -> None:
    names = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    kind = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/footnotes"
    note = '<w:footnote w:id="2"><w:p><w:r><w:t>The note.</w:t></w:r></w:p></w:footnote>'
    related = f'<Relationship Id="rn" Type="{kind}" Target="footnotes.xml"/>'
    with zipfile.ZipFile(io.BytesIO(make.word([("p", "Text."), ("p", "More.")]))) as source:
        files = {name: source.read(name) for name in source.namelist()}
    for name, end, more in (
        ("word/document.xml", b"</w:p>", '<w:r><w:footnoteReference w:id="2"/></w:r>'),
        ("word/_rels/document.xml.rels", b"</Relationships>", related),
    ):
        files[name] = files[name].replace(end, more.encode() + end, 1)
    files["word/footnotes.xml"] = f"<w:footnotes {names}>{note}</w:footnotes>".encode()
    assert convert(make.archive(files), "a.docx").text == "Text.\n\nThe note.\n\nMore."
