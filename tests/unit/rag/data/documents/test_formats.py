"""What each format gives: blocks, titles, pages; and what of a file is no text for people."""

from email.message import EmailMessage

import docx
import pptx
import pytest

from rag.data.documents.convert import convert
from tests import document_makers as make
from tests.document_makers import CONTENT, LONG, MAKERS, blocks


@pytest.mark.parametrize(
    "name", [name for name in MAKERS if name not in ("a.pptx", "a.pdf", "a.eml")]
)
def test_structure_survives(name: str) -> None:
    converted = convert(MAKERS[name](CONTENT), name)
    assert converted.title == ("Book" if name == "a.epub" else "Guide")
    assert blocks(converted) == [
        "heading: Guide",
        f"paragraph: {LONG}",
        "heading: Linux",
        "item: • first entry",
        "item: • second entry",
        "code: apt install x\n  y",
        "row: Week: two; Room: cellar",
        "row: Week: three; Room: attic",
    ]
    assert make.levels(converted) == [1, 2]


HTML = """<!doctype html><html><head><title>Install — Foo</title><style>p {}</style></head><body>
      <nav><a href="/">Home</a></nav><div class="sidebar"><a href="a">A</a> <a href="b">B</a></div>
      <header><a href="/">Logo of the company and its slogan</a></header>
      <article>An introduction to the company, its people and its products.</article>
      <main><h1>Install<a class="headerlink" href="#i">¶</a></h1><p hidden>no</p>
      <p>Use <code>pip</code>&nbsp;<b>n</b>ow<sup><a href="#fn">1</a></sup>, <img alt="pic" src="x"> see <a href="http://x">docs</a>.</p>
      <dl><dt>-a</dt><dd>does a</dd><dt>-b</dt><dt>--bold</dt><dd><p>does b</p></dd><dt>alone</dt></dl>
      <ol start="3"><li>three<ul><li>inner</li></ul></li><li><p>four</p><p>more</p></li></ol>
      <ul><li><a href="1">a</a></li><li><a href="2">b</a></li><li><a href="3">c</a></li>
      <li><a href="4">d</a></li>
      <li><a href="5">e</a></li></ul>
      <table><tr><td><table><tr><td>layout</td></tr></table></td></tr></table>
      <table><caption>Sizes</caption><tr><th colspan="2">Name</th><th>Size</th></tr>
      <tr><td>a</td><td>b</td><td>1</td></tr></table>
      <script>evil()</script></main><footer>© us</footer></body></html>"""
MARKDOWN = (
    "---\ntitle: Team Handbook\ntags: [a]\n---\n\n[![build](https://ci/b.svg)](https://ci)\n\n"
    "## Days {#days}\n\n"
    "You get **30** days of [holiday](http://x 'y'), `see`  \n<br>this[^1] ~~not~~.\n\n"
    "> [!WARNING]\n> Mind it.\n\n"
    "3. three\n   - inner\n4. four\n\n<details><summary>More</summary>\n\n"
    "<table><tr><td>a</td><td>b</td></tr></table>\n"
    "</details>\n<!-- no -->\n\n    indented\n\nHours {#hours}\n---\n\n"
    "```\n# Marks {#marks}\n> [!NOTE]\n```\n"
)
RST = """
:orphan:

Guide
=====

.. toctree::

   other

See :class:`~pkg.mod.Thing`, :ref:`the part <label>`, ``code`` and |sub|_.

.. versionadded:: 3.2
   The ``option``.

.. option:: --bold

   Makes it bold.

.. note:: Mind *it*.

.. code-block:: python
   :emphasize-lines: 1

   x = 1

.. unknown-thing:: words
   :odd: 3

   Its content.

.. figure:: x.png
   :odd option: 3

   Its caption.

Term
   Its meaning.

.. raw:: html

   <b>no</b>

.. _label:

1. one
2. two
"""
OPEN_DOCUMENT = """<text:tracked-changes><text:p>deleted</text:p></text:tracked-changes>
      <text:p text:style-name="Title">Guide</text:p>
      <text:table-of-content><text:p>Guide 1</text:p></text:table-of-content>
      <text:section><text:p>Use<text:s text:c="2"/>a<text:tab/>b
      <office:annotation><text:p>why?</text:p></office:annotation> now<text:note><text:note-citation>1
      </text:note-citation><text:note-body><text:p>A note.</text:p></text:note-body></text:note>,
      <text:span>in <text:a>bold</text:a></text:span>.</text:p></text:section>
      <text:list><text:list-item><text:p>one</text:p><text:p>more</text:p>
        <text:list><text:list-item><text:p>inner</text:p></text:list-item></text:list></text:list-item></text:list>
      <text:p><draw:frame><draw:text-box><text:p>In a box.</text:p></draw:text-box></draw:frame></text:p>
      <table:table><table:table-header-rows><table:table-row>
      <table:table-cell table:number-columns-spanned="2"><text:p>Size</text:p></table:table-cell>
      <table:covered-table-cell/><table:table-cell><text:p>Room</text:p></table:table-cell></table:table-row>
      </table:table-header-rows>""" + make.cells([["5", "6", "attic"]]).removeprefix(
    "<table:table>"
)
PROSE = [
    "It is a paragraph that was broken by hand at about",
    "sixty characters, so these lines belong together",
]
PLAIN = (
    "Title\n=====\n\n" + "\n".join(PROSE) + "\n\n- one\n  more\n- two\n\na   1\nb   2\n\n-----\n"
)
LOG = (
    3 * "2024-05-14 02:17:43 WARN  payments-db-2.internal:5432 is slow, trying again in a second\n"
)
CLAUSES = ["§ 1 The rent is due monthly.", "§ 2 Dogs stay out.", "§ 12a Cats may stay."]
WRAPPED = "The law says so in the long sentence that goes on here, see\n§ 3 of it, which is far."
# A table in a table, and what is invisible.
NESTED = """<table><tr><th>Route</th><th>Fares</th></tr><tr><td>Storholm</td><td><table>
    <tr><th>Adult</th><th>Child</th></tr><tr><td>22.90</td><td>11.45</td></tr></table></td></tr></table>
    <p style="color: red; Display: none">Free on Sundays.</p>
    <p style="visibility:hidden">Never.</p><p style="display:nonesuch">Seen.</p>"""
MAIL_HEAD = "From: ann@example.org\nSubject: The plan\nContent-Type: text/markdown\n"
MAILBOX = """From ann Mon Jan  5 10:00:00 2009\nFrom: ann@example.org\nSubject: One

From here on, é.

From bo Tue Jan  6 10:00:00 2009\nSubject: Two\nTo: ann@example.org\nContent-Type: text/html

<p>Second.</p><h1>Part</h1><p>Last.</p>
""".encode("latin-1")
MESSAGES = [
    "heading: One",
    "paragraph: From: ann@example.org",
    "paragraph: From here on, é.",
    "heading: Two",
    "paragraph: To: ann@example.org",
    "paragraph: Second.",
    "heading: Part",
    "paragraph: Last.",
]


@pytest.mark.parametrize(
    ("name", "data", "title", "expected"),
    [
        (
            "a.html",
            HTML,
            "Install — Foo",
            [
                "heading: Install",
                "paragraph: Use pip now, see docs.",
                "item: -a: does a",
                "item: -b, --bold: does b",
                "item: alone",
                "item: 3. three",
                "item: • inner",
                "item: 4. four",
                "item: more",
                "paragraph: layout",
                "paragraph: Sizes",
                "row: Name: a; Name: b; Size: 1",
            ],
        ),
        (
            "a.md",
            MARKDOWN,
            "Team Handbook",
            [
                "row: tags: a",
                "heading: Days",
                "paragraph: You get 30 days of holiday, see this[^1] not.",
                "paragraph: Warning: Mind it.",
                "item: 3. three",
                "item: • inner",
                "item: 4. four",
                "paragraph: More",
                "row: a; b",
                "code: indented",
                "heading: Hours",
                "code: # Marks {#marks}\n> [!NOTE]",
            ],
        ),
        (
            "a.rst",
            RST,
            "Guide",
            [
                "heading: Guide",
                "paragraph: See Thing, the part, code and |sub|_.",
                "paragraph: Added in version 3.2: The option.",
                "paragraph: --bold: Makes it bold.",
                "paragraph: Note: Mind it.",
                "code: x = 1",
                "paragraph: words: Its content.",
                "code: Its caption.",
                "item: Term: Its meaning.",
                "item: 1. one",
                "item: 2. two",
            ],
        ),
        (
            "a.odt",
            make.odf(OPEN_DOCUMENT),
            "Guide",
            [
                "heading: Guide",
                "paragraph: Use a b now, in bold.",
                "paragraph: A note.",
                "item: • one",
                "item: more",
                "item: • inner",
                "paragraph: In a box.",
                "row: Size: 5; Size: 6; Room: attic",
            ],
        ),
        (
            "a.txt",
            PLAIN.replace("\n", "\r\n"),
            "Title",
            [
                "heading: Title",
                f"paragraph: {' '.join(PROSE)}",
                "item: • one more",
                "item: • two",
                "code: a   1\nb   2",
            ],
        ),
        ("a.c", "int a;\n\n  b;\n\nint c;\n", "", ["code: int a;\n\n  b;", "code: int c;"]),
        (
            "a.eml",
            f'{MAIL_HEAD}Content-Disposition: attachment; filename="plan.md"\n\n# Plan\n\nDo it.\n',
            "The plan",
            [
                "paragraph: From: ann@example.org",
                "heading: plan.md",
                "heading: Plan",
                "paragraph: Do it.",
            ],
        ),
        ("old.mbox", MAILBOX, "", MESSAGES),
        ("old", MAILBOX, "", MESSAGES),
        *(
            (
                "a.csv",
                f'week{mark}room\r\n2{mark}"a, ""b"""\r\n',
                "",
                ['row: week: 2; room: a, "b"'],
            )
            for mark in ",;\t"
        ),
        ("a.csv", "1,2\n3,4\n", "", ["row: 1; 2", "row: 3; 4"]),
        ("server.log", LOG, "", [f"code: {LOG.strip()}"]),
        ("server.txt", LOG, "", [f"code: {LOG.strip()}"]),
        ("a.txt", "\n".join(CLAUSES), "", [f"item: {clause}" for clause in CLAUSES]),
        ("a.txt", WRAPPED, "", [f"paragraph: {WRAPPED.replace(chr(10), ' ')}"]),
        (
            "a.html",
            NESTED,
            "",
            [
                "paragraph: Route",
                "paragraph: Fares",
                "paragraph: Storholm",
                "row: Adult: 22.90; Child: 11.45",
                "paragraph: Seen.",
            ],
        ),
        # The content decides before the name.
        ("a.docx", make.pdf_of([("p", "Text of it.")]), "", ["paragraph: Text of it."]),
        ("a.pdf", make.word([("p", "Text.")]), "", ["paragraph: Text."]),
        ("a.pdf", make.page([("p", "Text.")]), "", ["paragraph: Text."]),
    ],
)
def test_what_is_read(name: str, data: bytes | str, title: str, expected: list[str]) -> None:
    converted = convert(data.encode() if isinstance(data, str) else data, name)
    assert (converted.title, blocks(converted)) == (title, expected)


def test_headings_of_messages_stand_below_them() -> None:
    assert make.levels(convert(MAILBOX, "old.mbox")) == [1, 1, 2]


def test_word_with_content_controls_and_merged_cells() -> None:
    document = docx.Document()
    document.core_properties.title = "Contract"
    document.add_paragraph("The rent is 900.")
    word = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    parse = docx.oxml.parse_xml
    inner = "<w:p><w:r><w:t>In a field.</w:t></w:r></w:p>"
    control = f'<w:sdt xmlns:w="{word}"><w:sdtContent>{inner}</w:sdtContent></w:sdt>'
    clause = inner.replace("a field", "a clause")
    custom = f'<w:customXml xmlns:w="{word}" w:element="c">{clause}</w:customXml>'
    contents = '<w:sdtPr><w:docPartObj><w:docPartGallery w:val="Table of Contents"/></w:docPartObj></w:sdtPr>'
    listed = control.replace("<w:sdtContent>", f"{contents}<w:sdtContent>")
    for number, element in enumerate((control, custom, listed), start=1):
        document.element.body.insert(number, parse(element))
    table = document.add_table(2, 3)
    make.fill(table, [["Who", "When", "Where"], ["Ann", "now", ""]])
    table.cell(1, 1).merge(table.cell(1, 2))
    converted = convert(make.saved(document), "a.docx")
    assert converted.title == "Contract"
    assert blocks(converted) == [
        "paragraph: The rent is 900.",
        "paragraph: In a field.",
        "paragraph: In a clause.",
        "row: Who: Ann; When: now; Where: now",
    ]


def test_slides_have_numbers_titles_lists_and_notes() -> None:
    show = pptx.Presentation()
    show.slides.add_slide(show.slide_layouts[6])
    slide = show.slides.add_slide(show.slide_layouts[1])
    slide.shapes.title.text = "Plan"
    slide.placeholders[1].text = "one\ntwo"
    slide.notes_slide.notes_text_frame.text = "Say this."
    converted = convert(make.saved(show), "a.pptx")
    assert [(page, converted.text[at:].split("\n")[0]) for at, page in converted.pages] == [
        ("2", "Plan")
    ]
    assert [(block.level, converted.text_of(block)) for block in converted.blocks] == [
        (1, "Plan"),
        (0, "• one"),
        (0, "• two"),
        (0, "Say this."),
    ]


def test_mail_with_attachments() -> None:
    attached = {"plan.md": b"# Plan\n\nDo it.", "p.pdf": b"junk", "x.bin": b"\x00"}
    data = make.mail([("p", "Hello.")], "Re: plan", attached)
    converted = convert(data, "a.eml")
    assert converted.title == "Re: plan"
    assert blocks(converted) == [
        "paragraph: From: ann@example.org; To: bo@example.org",
        "paragraph: Hello.",
        "heading: plan.md",
        "heading: Plan",
        "paragraph: Do it.",
        "heading: p.pdf",
        "heading: x.bin",
    ]
    assert converted.notes == (
        "attachment p.pdf: not read (broken file)",
        "attachment x.bin: not read (no document)",
    )
    assert make.levels(converted) == [1, 2, 1, 1]


def test_an_attached_message_that_is_not_read_does_not_cost_the_others() -> None:
    inner = EmailMessage()
    outer = EmailMessage()
    inner["Subject"] = "Deep"
    inner.set_content("<div>" * 20_000 + "x", subtype="html")
    outer.set_content("Hello.")
    outer.add_attachment(inner)
    converted = convert(outer.as_bytes(), "a.eml")
    assert blocks(converted)[-2:] == ["paragraph: Hello.", "heading: Deep"]
    assert converted.notes == ("message 'Deep': not read (nested too deeply)",)


def test_an_attachment_keeps_its_own_notes() -> None:
    inner = make.mail([("p", "Hello.")], "Re: plan", {"p.pdf": b"junk"})
    outer = make.mail([("p", "See below.")], "Fwd: plan", {"plan.eml": inner})
    assert convert(outer, "a.eml").notes == (
        "attachment plan.eml: attachment p.pdf: not read (broken file)",
    )
