"""Small files of every format, made from one list of (kind, content): what a test puts in must come
out.

Kinds: "h1", "h2", "p", "li", "code" with a text, and "table" with a list of rows, the header first.
"""

import html
import io
import re
import textwrap
import zipfile
from collections.abc import Callable, Sequence
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import docx
import openpyxl
import pptx

from rag.data.documents.convert import convert
from rag.data.records import Document
from tests.support.files import write_files

Content = Sequence[tuple[str, Any]]


def markdown(content: Content) -> bytes:
    def shown(kind: str, value: Any) -> str:
        if kind == "table":
            rows = [f"| {' | '.join(row)} |" for row in value]
            return "\n".join([rows[0], "|---" * len(value[0]) + "|", *rows[1:]])
        if kind == "code":
            return f"```\n{value}\n```"
        return {"h1": "# ", "h2": "## ", "li": "* ", "p": ""}[kind] + value

    return "\n\n".join(shown(*block) for block in content).encode()


def rst(content: Content) -> bytes:
    parts = []
    for kind, value in content:
        if kind in ("h1", "h2"):
            parts.append(f"{value}\n{('=' if kind == 'h1' else '-') * max(len(value), 4)}")
        elif kind == "table":
            rows = "\n".join("   * - " + "\n     - ".join(row) for row in value)
            parts.append(f".. list-table::\n   :header-rows: 1\n\n{rows}")
        elif kind == "code":
            parts.append("::\n\n" + "\n".join(f"   {line}" for line in value.split("\n")))
        else:
            parts.append(("* " if kind == "li" else "") + value)
    return "\n\n".join(parts).encode()


def page(content: Content, title: str = "") -> bytes:
    def shown(kind: str, value: Any) -> str:
        if kind == "table":
            cells = [
                "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row)
                for tag, row in zip(["th"] + ["td"] * len(value), value, strict=False)
            ]
            return "<table>" + "".join(f"<tr>{row}</tr>" for row in cells) + "</table>"
        tag = {"code": "pre"}.get(kind, kind)
        text = f"<{tag}>{html.escape(value)}</{tag}>"
        return f"<ul>{text}</ul>" if kind == "li" else text

    body = "".join(shown(*block) for block in content)
    return f"<!doctype html><html><head><title>{title}</title></head><body>{body}</body></html>".encode()


def word(content: Content) -> bytes:
    document = docx.Document()
    document.styles.add_style("Code", docx.enum.style.WD_STYLE_TYPE.PARAGRAPH)
    styles = {
        "h1": "Heading 1",
        "h2": "Heading 2",
        "li": "List Bullet",
        "code": "Code",
        "p": "Normal",
    }
    for kind, value in content:
        if kind == "table":
            fill(document.add_table(len(value), len(value[0])), value)
        else:
            document.add_paragraph(value, style=styles[kind])
    return saved(document)


def fill(table: Any, rows: Sequence[Sequence[str]]) -> None:
    """Write texts into the cells of a table of Word or PowerPoint."""
    for number, row in enumerate(rows):
        for column, text in enumerate(row):
            table.cell(number, column).text = text


def add_slide(show: Any, title: str) -> Any:
    """A slide with this title at the end of a show."""
    slide = show.slides.add_slide(show.slide_layouts[5])
    slide.shapes.title.text = title
    return slide


def slides(content: Content) -> bytes:
    """Each heading begins a slide; lists and code are paragraphs of it."""
    show = pptx.Presentation()
    slide = None
    for kind, value in content:
        if kind in ("h1", "h2") or slide is None:
            slide = add_slide(show, value if kind in ("h1", "h2") else "")
            if kind in ("h1", "h2"):
                continue
        if kind == "table":
            shape = slide.shapes.add_table(len(value), len(value[0]), 0, 0, 5_000_000, 900_000)
            fill(shape.table, value)
        else:
            slide.shapes.add_textbox(0, 0, 5_000_000, 900_000).text_frame.text = value
    return saved(show)


def workbook(sheets: dict[str, Sequence[Sequence[Any]]]) -> bytes:
    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(list(row))
    return saved(book)


def members(data: bytes) -> dict[str, bytes]:
    """The files of an archive by name."""
    with zipfile.ZipFile(io.BytesIO(data)) as source:
        return {name: source.read(name) for name in source.namelist()}


def with_prefix(data: bytes) -> bytes:
    """A workbook whose sheets have a prefix before the names of their elements."""
    files = members(data)
    for name in files:
        if name.startswith("xl/worksheets/sheet"):
            named = re.sub(rb"(</?)(?=\w)", rb"\1x:", files[name])
            files[name] = named.replace(b" xmlns=", b" xmlns:x=")
    return archive(files)


def opened(data: bytes) -> Any:
    """A workbook to change."""
    return openpyxl.load_workbook(io.BytesIO(data))


def saved(document: Any) -> bytes:
    buffer = io.BytesIO()
    document.save(buffer)
    return buffer.getvalue()


def epub(content: Content, title: str = "Book", **members: bytes) -> bytes:
    container = '<container><rootfiles><rootfile full-path="O/p.opf"/></rootfiles></container>'
    package = (
        f'<package xmlns:dc="http://purl.org/dc/elements/1.1/"><metadata><dc:title>{title}</dc:title>'
        '</metadata><manifest><item id="a" href="one%20a.xhtml"/></manifest>'
        '<spine><itemref idref="a"/></spine></package>'
    )
    files = {
        "mimetype": b"application/epub+zip",
        "META-INF/container.xml": container.encode(),
        "O/p.opf": package.encode(),
        "O/one a.xhtml": page(content),
        **members,
    }
    return archive(files)


def archive(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as target:
        for name, data in files.items():
            target.writestr(name, data)
    return buffer.getvalue()


def mail(
    content: Content, subject: str = "Subject", attachments: dict[str, bytes] | None = None
) -> bytes:
    message = EmailMessage()
    message["Subject"] = subject
    message["From"] = "ann@example.org"
    message["To"] = "bo@example.org"
    message.set_content(page(content).decode(), subtype="html")
    for name, data in (attachments or {}).items():
        message.add_attachment(data, maintype="application", subtype="octet-stream", filename=name)
    return message.as_bytes()


Line = tuple[
    float, float, float, str, str
]  # x, y, size, font (F regular, B bold, C fixed pitch), text
Stroke = tuple[float, float, float, float]  # from x, y to x, y


def pdf(
    pages: Sequence[Sequence[Line]],
    outline: Sequence[tuple[str, int]] = (),
    *,
    strokes: Sequence[Sequence[Stroke]] = (),
    labels: str = "",
    title: str = "",
    encrypted: bool = False,
    unicode: str = "",
) -> bytes:
    """A PDF of lines at their places; the outline has title and page of each entry, labels a number
    tree, strokes the drawn lines of each page, `unicode` pairs of codes and what they mean.
    """
    objects: dict[int, bytes] = {}
    cmap = f"1 beginbfchar {unicode} endbfchar".encode()
    objects[13] = b"<</Length %d>>stream\n%s\nendstream" % (len(cmap), cmap)
    meaning = "/ToUnicode 13 0 R" * bool(unicode)
    for number, name in enumerate(("Helvetica-Bold", "Courier", "Helvetica"), start=10):
        font = f"<</Type/Font/Subtype/Type1/BaseFont/{name}/Encoding/WinAnsiEncoding{meaning}>>"
        objects[number] = font.encode()
    named = "/B 10 0 R /C 11 0 R /F 12 0 R"
    first = 20
    for place, lines in enumerate(pages):
        stream = "".join(
            f"BT /{font} {size} Tf {x} {y} Td ({_escaped(text)}) Tj ET\n"
            for x, y, size, font, text in lines
        ).encode("cp1252")
        for from_x, from_y, to_x, to_y in strokes[place] if strokes else ():
            stream += f"0.5 w {from_x} {from_y} m {to_x} {to_y} l S\n".encode()
        objects[first + 2 * place] = (
            f"<</Type/Page/Parent 2 0 R/MediaBox[0 0 595 842]/Resources<</Font<<{named}>>>>"
            f"/Contents {first + 2 * place + 1} 0 R>>".encode()
        )
        objects[first + 2 * place + 1] = b"<</Length %d>>stream\n%s\nendstream" % (
            len(stream),
            stream,
        )
    kids = " ".join(f"{first + 2 * place} 0 R" for place in range(len(pages)))
    objects[2] = f"<</Type/Pages/Kids[{kids}]/Count {len(pages)}>>".encode()
    begin = first + 2 * len(pages) + 1
    for place, (text, at) in enumerate(outline):
        following = f"/Next {begin + place + 1} 0 R" if place + 1 < len(outline) else ""
        entry = (
            f"<</Title({_escaped(text)})/Parent 3 0 R/Dest[{first + 2 * at} 0 R /Fit]{following}>>"
        )
        objects[begin + place] = entry.encode("cp1252")
    last = begin + len(outline) - 1
    objects[3] = f"<</First {begin} 0 R/Last {last} 0 R/Count {len(outline)}>>".encode()
    more = "/Outlines 3 0 R" * bool(outline) + f"/PageLabels<</Nums[{labels}]>>" * bool(labels)
    objects[1] = f"<</Type/Catalog/Pages 2 0 R{more}>>".encode()
    objects[4] = f"<</Title({_escaped(title)})>>".encode("cp1252")
    trailer = "/Info 4 0 R"
    if encrypted:  # with a password that nobody knows
        objects[5] = f"<</Filter/Standard/V 1/R 2/O<{'ab' * 32}>/U<{'cd' * 32}>/P -4>>".encode()
        trailer += f"/Encrypt 5 0 R/ID[<{'00' * 16}><{'00' * 16}>]"
    return _pdf_file(objects, trailer)


def filled_form(label: str, value: str, remark: str) -> bytes:
    """A PDF of one page with a field that is filled in but has no look, and a remark over the page."""
    font = b"/Resources<</Font<</F 12 0 R>>>>"

    def stream(text: str, entries: bytes = b"") -> bytes:
        source = f"BT /F 10 Tf 2 4 Td ({_escaped(text)}) Tj ET".encode("cp1252")
        return b"<<%s/Length %d>>stream\n%s\nendstream" % (entries, len(source), source)

    def note(kind: str, bottom: int, entries: str) -> bytes:
        place = f"/Rect[60 {bottom} 300 {bottom + 17}]/DA(/F 10 Tf)/F 4/P 20 0 R"
        return f"<</Type/Annot/Subtype/{kind}{place}{entries}>>".encode("cp1252")

    look = b"/Type/XObject/Subtype/Form/BBox[0 0 240 17]" + font
    objects = {
        1: b"<</Type/Catalog/Pages 2 0 R/AcroForm<</Fields[30 0 R]/DR<</Font<</F 12 0 R>>>>>>>>",
        2: b"<</Type/Pages/Kids[20 0 R]/Count 1>>",
        12: b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>",
        20: b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 595 842]/Contents 21 0 R/Annots[30 0 R 31 0 R]"
        + font
        + b">>",
        21: stream(label),
        30: note("Widget", 500, f"/FT/Tx/T(name)/V({_escaped(value)})"),
        31: note("FreeText", 300, f"/Contents({_escaped(remark)})/AP<</N 32 0 R>>"),
        32: stream(remark, look),
    }
    return _pdf_file(objects, "")


def _pdf_file(objects: dict[int, bytes], trailer: str) -> bytes:
    out = bytearray(b"%PDF-1.4\n")
    table = {}
    for number, content in sorted(objects.items()):
        table[number] = len(out)
        out += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    start = len(out)
    out += b"xref\n0 1\n0000000000 65535 f \n"
    for number, offset in table.items():
        out += b"%d 1\n%010d 00000 n \n" % (number, offset)
    return bytes(
        out + f"trailer<</Size 9999/Root 1 0 R{trailer}>>\nstartxref\n{start}\n%%EOF".encode()
    )


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")


def pdf_of(content: Content) -> bytes:
    """Headings are larger, code has a fixed pitch, tables are lines; prose is broken at 80
    characters.
    """
    lines: list[Line] = []
    y = 800.0
    sizes = {"h1": 20.0, "h2": 15.0}
    for kind, value in content:
        texts = [" ".join(row) for row in value] if kind == "table" else value.split("\n")
        y -= 12
        for text in texts:
            for part in (
                [text] if kind == "code" else textwrap.wrap("- " * (kind == "li") + text, 80)
            ):
                y -= 1.25 * sizes.get(kind, 10.0)
                lines.append((50, y, sizes.get(kind, 10.0), "C" if kind == "code" else "F", part))
    return pdf([lines])


ODF = "urn:oasis:names:tc:opendocument:xmlns"
_PREFIXES = {
    "text": "text",
    "table": "table",
    "office": "office",
    "style": "style",
    "draw": "drawing",
}


_NAMES = " ".join(f'xmlns:{prefix}="{ODF}:{name}:1.0"' for prefix, name in _PREFIXES.items())


def _styles_and_body(body: str, styles: str, kind: str) -> str:
    return (
        f"<office:automatic-styles>{styles}</office:automatic-styles>"
        f"<office:body><office:{kind}>{body}</office:{kind}></office:body>"
    )


def odf(
    body: str, styles: str = "", title: str = "", kind: str = "text", **members: bytes
) -> bytes:
    """An OpenDocument text or spreadsheet."""
    inside = _styles_and_body(body, styles, kind)
    content = f"<office:document-content {_NAMES}>{inside}</office:document-content>"
    meta = f'<m xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>{title}</dc:title></m>'
    files = {
        "mimetype": f"application/vnd.oasis.opendocument.{kind}",
        "meta.xml": meta,
        "content.xml": content,
    }
    return archive({**{name: text.encode() for name, text in files.items()}, **members})


def flat_odf(body: str, styles: str = "", title: str = "", kind: str = "text") -> bytes:
    """An OpenDocument text or spreadsheet that is one file of XML."""
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<office:document {_NAMES} office:version="1.3" '
        f'office:mimetype="application/vnd.oasis.opendocument.{kind}"><office:meta>'
        f'<dc:title xmlns:dc="http://purl.org/dc/elements/1.1/">{title}</dc:title></office:meta>'
        f"{_styles_and_body(body, styles, kind)}</office:document>"
    ).encode()


def cells(rows: Sequence[Sequence[str]]) -> str:
    """A table of OpenDocument."""
    source = ""
    for row in rows:
        source += "<table:table-row>"
        for text in row:
            cell = f"<text:p>{html.escape(text)}</text:p>"
            source += f"<table:table-cell>{cell}</table:table-cell>"
        source += "</table:table-row>"
    return f"<table:table>{source}</table:table>"


def odt(content: Content) -> bytes:
    styles = '<style:style style:name="P1" style:parent-style-name="Preformatted_20_Text"/>'

    def shown(kind: str, value: Any) -> str:
        if kind == "table":
            return cells(value)
        if kind == "code":
            lines = (
                html.escape(line).replace("  ", '<text:s text:c="2"/>')
                for line in value.split("\n")
            )
            return "".join(f'<text:p text:style-name="P1">{line}</text:p>' for line in lines)
        if kind in ("h1", "h2"):
            return f'<text:h text:outline-level="{kind[1]}">{html.escape(value)}</text:h>'
        paragraph = f"<text:p>{html.escape(value)}</text:p>"
        is_item = kind == "li"
        return (
            f"<text:list><text:list-item>{paragraph}</text:list-item></text:list>"
            if is_item
            else paragraph
        )

    return odf("".join(shown(*block) for block in content), styles)


MAKERS: dict[str, Callable[[Content], bytes]] = {
    "a.md": markdown,
    "a.rst": rst,
    "a.html": page,
    "a.docx": word,
    "a.pptx": slides,
    "a.epub": epub,
    "a.eml": mail,
    "a.pdf": pdf_of,
    "a.odt": odt,
}
LINE = [(50.0, 700.0, 10.0, "F", "Some text.")]


def mixed_folder(folder: Path) -> None:
    """Make a folder of files that can be read, that cannot be read, and that are no documents."""
    files = {
        "my notes.md": "# Notes\n\nTwo words.\n",
        "sub/100% plan.pdf": pdf([LINE], title="The Plan"),
        "rooms.csv": "week,room\n2,37\n",
        "README": "How to use this.",
        "empty.txt": "",
        "locked.pdf": pdf([LINE], encrypted=True),
        "old.doc": b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
        "photo.jpg": b"\xff\xd8\xff\0",
        "data.jsonl": '{"id": "1", "text": "x"}\n',
    }
    write_files(folder, files)


LONG = "An opening paragraph that is long enough to be broken over two lines where the format has lines of text."
CONTENT = [
    ("h1", "Guide"),
    ("p", LONG),
    ("h2", "Linux"),
    ("li", "first entry"),
    ("li", "second entry"),
    ("code", "apt install x\n  y"),
    ("table", [["Week", "Room"], ["two", "cellar"], ["three", "attic"]]),
]


def blocks(converted: Document) -> list[str]:
    """Each block as "kind: text"."""
    return [f"{block.kind}: {converted.text_of(block)}" for block in converted.blocks]


def texts(converted: Document, kind: str) -> list[str]:
    """The texts of the blocks of a kind."""
    return [converted.text_of(block) for block in converted.blocks if block.kind == kind]


def levels(converted: Document) -> list[int]:
    """The levels of the headings."""
    return [block.level for block in converted.blocks if block.kind == "heading"]


def of(data: bytes | str, name: str) -> list[str]:
    """Each block of a file as "kind: text"."""
    return blocks(convert(data.encode() if isinstance(data, str) else data, name))
