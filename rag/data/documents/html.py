"""Convert HTML and XHTML by block elements, without navigation, scripts and link targets."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from rag.core.optional import require
from rag.data.documents import grid
from rag.data.documents.blocks import (
    BULLET,
    Content,
    Kind,
    Piece,
    clean,
    first_heading,
    stated_title,
)
from rag.data.documents.numerals import exponent_mark, numeral

_HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
_SKIPPED = {
    "del",
    "script",
    "style",
    "noscript",
    "template",
    "svg",
    "iframe",
    "object",
    "canvas",
    "audio",
    "video",
    "button",
    "select",
    "textarea",
    "option",
    "title",
    "map",
    "dialog",
    "rp",
    "rt",
}
_NAVIGATION_TAGS = ("nav", "footer", "menu")
_NAVIGATION_ROLES = (
    "navigation",
    "banner",
    "contentinfo",
    "search",
    "complementary",
    "menu",
    "doc-toc",
)
_NAVIGATION_NAMES = re.compile(
    r"(^|[\s_-])(nav(bar|igation|header|footer|panel)?|breadcrumbs?|side-?bar|sphinxsidebar\w*|related|toc|"
    r"footer|header|cookies?|pagination|skip\w*|table-?of-?contents|edit-?(link|page)|share|social|adverts?|"
    r"screen-reader-text|sr-only|visually-hidden|noprint|mw-(editsection|jump-link)|catlinks)($|[\s_-])"
)
_ANCHORS = re.compile(
    r"(^|\s)(header-?link|anchor(-?link)?|permalink|self-?link|copiable-(?:link|anchor)|footnote-?(?:ref|back(?:ref)?)|link-target|(?:doc-)?noteref)(\s|$)"
)
# Of source code: by Pygments, Rouge and Hugo.
_LINE_NUMBERS = ".linenos, pre.lineno, pre .lineno, pre .ln, pre .lnt"
_BLOCKS = {
    "p",
    "div",
    "section",
    "article",
    "main",
    "blockquote",
    "figure",
    "figcaption",
    "details",
    "summary",
    "address",
    "center",
    "fieldset",
    "form",
    "hr",
    "header",
    "hgroup",
    "caption",
    "legend",
    "td",
    "th",
    "pre",
    "table",
    "ul",
    "ol",
    "dl",
    "dd",
    "li",
    *_HEADINGS,
}
_INVISIBLE = re.compile(r"(^|;)\s*(display\s*:\s*none|visibility\s*:\s*hidden)\b", re.IGNORECASE)
# What does not begin with the term that it defines.
_TAKE_NO_TERM = ("pre", "table", "ul", "ol", "dl")
# What is found in a table that only lays out a page.
_LAYOUT = "td h1, td h2, td h3, td pre, td ul li ul"
# Of tables in each other.
_MAX_DEPTH = 50
# The first is HTML's limit, the second less than its limit of 1000.
_MAX_ROW_SPAN = 65_534
_MAX_COLUMN_SPAN = 100
# The main part of a page has more of its letters.
_MAIN_SHARE = 0.3
# A menu or a table of contents has at least so many links, and this share of its letters in them.
_MIN_LINKS = 5
_LINKED_SHARE = 0.85
# A part that is named as navigation has more text than this, or headings, to be read.
_MIN_LETTERS = 40
_MAX_LINKED_SHARE = 0.4
MAY_BE_LAYOUT = "data-layout"
"""Marks a table of another format that may be layout."""

MARK = "data-mark"
"""What an entry of a list of another format begins with, in place of a bullet or a number."""

# Stands for <br> among texts; this white space is in no page.
_LINE_END = "\v"
_VOID = "area|base|br|col|embed|hr|img|input|link|meta|source|track|wbr"
# A whole element of XHTML, which would never end in HTML.
_CLOSED = re.compile(rf"<(?!(?:{_VOID})\b)([a-z][\w.:-]*)((?:\s[^<>]*)?)/>", re.IGNORECASE)


def page(text: str) -> Content:
    """A whole page, or its main part if that is marked and has text."""
    tree = _parsed(_CLOSED.sub(r"<\1\2></\1>", text))
    # The second is that of Google's documents, whose pages have no other.
    title_node = tree.css_first("title, .doc-content > .title")
    title = "" if title_node is None else stated_title(title_node.text())
    for numbers in tree.css(_LINE_NUMBERS):
        numbers.decompose()
    pieces = _main_part(tree)
    return Content(title or first_heading(pieces), pieces)


def _parsed(text: str) -> Any:
    return require("selectolax.lexbor", "docs").LexborHTMLParser(text)


def _main_part(tree: Any) -> list[Piece]:
    whole_page = _pieces(tree.body, is_page=True)
    least = _MAIN_SHARE * n_letters(whole_page)
    articles = tree.css("article")
    # A list of several has no main one, but there may be comments within it.
    is_alone = bool(articles) and len(articles[0].css("article")) == len(articles)
    for root in (*tree.css("main, [role=main]"), *articles[:is_alone]):
        pieces = _pieces(root, is_page=True)
        if n_letters(pieces) > least:
            return pieces
    return whole_page


def n_letters(pieces: Iterable[Piece]) -> int:
    """How long the texts of some pieces are."""
    return sum(len(piece.text) for piece in pieces)


def pieces_of(text: str) -> list[Piece]:
    """Pieces of HTML that a renderer wrote: its tables hold data, and its lists of links are
    text.
    """
    return _pieces(_parsed(text).body, is_page=False)


def pandoc_page(text: str, *, has_title: bool) -> Content:
    """A page that pandoc wrote; with `has_title` its title is the first heading, too."""
    tree = _parsed(text)
    title_node = tree.css_first("#title-block-header .title")
    title = "" if title_node is None else _inline_text(title_node)
    for part in tree.css("#title-block-header > :not(.abstract)"):
        part.decompose()
    # What is struck through, not deleted; and what the abstract stands in.
    tree.unwrap_tags(["del", "header"])
    pieces = _pieces(tree.body, is_page=False)
    if title and has_title:
        pieces.insert(0, Piece("heading", title, 1))
    return Content(title or first_heading(pieces), pieces)


def close_elements(text: str) -> str:
    """HTML that stands in another format, with every element closed; its tables may be layout."""
    body = _parsed(text).body
    if body is None:
        return ""
    for table in body.css("table"):
        table.attrs[MAY_BE_LAYOUT] = ""
    return "".join(child.html or "" for child in body.iter(include_text=True))


def _pieces(root: Any, *, is_page: bool) -> list[Piece]:
    walk = _Walk(is_page)
    # A page of frames has no body.
    if root is not None:
        walk.visit_children(root)
    walk.flush()
    return walk.pieces


class _Walk:
    """Collects inline text until a block begins or ends, and makes a piece of it then."""

    def __init__(self, is_page: bool) -> None:
        self.pieces: list[Piece] = []
        self._is_page = is_page
        self._inline: list[str] = []
        # What the next entry of a list begins with.
        self._mark = ""
        self._list_depth = 0
        self._layout_depth = 0

    def flush(self, kind: Kind | None = None, level: int = 0) -> None:
        """End the block that is open."""
        text = clean("".join(self._inline))
        self._inline.clear()
        if not text:
            return
        if kind is None:
            kind = "item" if self._list_depth else "paragraph"
        self.pieces.append(Piece(kind, self._mark + text, level))
        self._mark = ""

    def visit_children(self, node: Any) -> None:
        for child in node.iter(include_text=True):
            self.visit(child)

    def visit(self, node: Any) -> None:
        tag = node.tag
        if tag == "-text":
            self._inline.append(node.text_content or "")
        # Comments begin with a hyphen, too.
        if tag in _SKIPPED or tag.startswith("-") or _is_hidden(node):
            return
        is_block = tag in _BLOCKS
        if is_block:
            self.flush()
        self._visit_element(node, tag)
        if is_block:
            self.flush()

    def _visit_element(self, node: Any, tag: str) -> None:
        if tag in _TAKE_NO_TERM and self._mark.endswith(": "):
            self._end_term()
        if tag in _HEADINGS:
            # Some sites put the whole heading into a link to itself.
            self._inline.append(_inline_text(node) or node.text(deep=True))
            # Java's documentation puts the parts of a page into lists.
            self._mark = self._mark.removesuffix(BULLET)
            self.flush("heading", int(tag[1]))
        elif tag == "pre":
            for line_end in node.css("br"):
                line_end.replace_with("\n")
            code = node.text(deep=True)
            if code.strip():
                self.pieces.append(Piece("code", code))
        elif tag == "table":
            self._table(node)
        elif tag in ("ul", "ol"):
            self._list(node)
        elif tag == "dl":
            self._definitions(node)
        elif tag == "br":
            if self._begins_line():
                self.flush()
            self._inline.append(_LINE_END)
        elif tag == "math":
            # Nobody sees the source that some pages state; a formula without any cannot be read.
            source = node.css_first("annotation[encoding$=tex]")
            stated = node.attributes.get("alttext") if source is None else source.text()
            self._inline.append(stated or "")
        elif tag == "sup":
            before = "".join(self._inline[-1:])
            self._inline.append(exponent_mark(before, node.text(deep=True)))
            self.visit_children(node)
        else:
            self.visit_children(node)

    def _begins_line(self) -> bool:
        """Whether nothing was said since a line ended: the next end is that of a paragraph."""
        for text in reversed(self._inline):
            if text == _LINE_END or text.strip():
                return text == _LINE_END
        return False

    def _list(self, node: Any) -> None:
        if self._is_page and _is_contents(node):
            return
        self._list_depth += 1
        is_ordered = node.tag == "ol"
        kind = node.attributes.get("type") or ""
        number = _whole_number(node, "start", 1)
        for child in node.iter():
            if child.tag != "li":
                self.visit(child)
            elif not _is_hidden(child):
                number = _whole_number(child, "value", number)
                mark = f"{numeral(number, kind)}. " if is_ordered else BULLET
                self._mark = child.attributes.get(MARK) or mark
                number += 1
                self.visit_children(child)
                self.flush()
                self._mark = ""
        self.flush()
        self._list_depth -= 1

    def _definitions(self, node: Any) -> None:
        """A term and the first block of its definition make a single entry."""
        self._list_depth += 1
        for child in node.iter():
            if child.tag == "dt":
                earlier_terms = re.sub(": $", ", ", self._mark)
                self._mark = f"{earlier_terms}{_inline_text(child).rstrip(':')}: "
            elif child.tag == "dd":
                self.visit_children(child)
                self.flush()
                self._end_term()
            elif child.css_first("dt"):
                # HTML allows groups.
                self._definitions(child)
            else:
                self.visit(child)
        self._end_term()
        self._list_depth -= 1

    def _end_term(self) -> None:
        """A term without a definition is an entry."""
        term = self._mark.removesuffix(": ")
        if term:
            self.pieces.append(Piece("item", term))
        self._mark = ""

    def _table(self, node: Any) -> None:
        rows = _table_rows(node)
        width = max(map(len, rows), default=0)
        may_be_layout = self._is_page or MAY_BE_LAYOUT in node.attributes
        # A table is among the tables that are found in it.
        holds_table = len(node.css("table")) > 1
        lays_out = width < 2 or holds_table or node.css_first(_LAYOUT) is not None
        if not width or (may_be_layout and lays_out):
            self._layout_depth += 1
            # Each table is searched again for each around it.
            if self._layout_depth > _MAX_DEPTH:
                raise RecursionError
            self.visit_children(node)
            self._layout_depth -= 1
            return
        caption = node.css_first("caption")
        if caption is not None:
            self._inline.append(_inline_text(caption))
            self.flush()
        self.pieces += grid.table(_filled(rows))


def rows_of(table: str) -> list[list[grid.Cell]]:
    """The rows of a table that another format wrote as HTML, those of a hidden row left out."""
    node = _parsed(table).css_first("table")
    return [] if node is None else _filled(_table_rows(node))


def _filled(rows: list[list[Any]]) -> list[list[grid.Cell]]:
    """The cells of rows that are seen, at all places that they cover."""
    cells = grid.filled([list(map(_cell, row)) for row in rows])
    return [
        row
        for nodes, row in zip(rows, cells, strict=True)
        if not (nodes and _is_invisible(nodes[0].parent.attributes))
    ]


def _table_rows(table: Any) -> list[list[Any]]:
    """The cells of each row of the head, the body and the foot of a table."""
    rows = []
    for part in table.iter():
        for row in part.iter():
            if row.tag == "tr":
                rows.append([cell for cell in row.iter() if cell.tag in ("td", "th")])
    return rows


def _cell(node: Any) -> grid.Cell:
    return grid.Cell(
        _inline_text(node),
        row_span=min(max(_whole_number(node, "rowspan", 1), 1), _MAX_ROW_SPAN),
        column_span=min(max(_whole_number(node, "colspan", 1), 1), _MAX_COLUMN_SPAN),
        is_heading=node.tag == "th" or node.parent.parent.tag == "thead",
    )


def _whole_number(node: Any, attribute: str, default: int) -> int:
    value = node.attributes.get(attribute) or ""
    return int(value) if value.isdecimal() else default


def _inline_text(node: Any) -> str:
    pieces = _pieces(node, is_page=True)
    return " ".join(clean(piece.text.removeprefix(BULLET)) for piece in pieces)


def _is_hidden(node: Any) -> bool:
    """Whether people do not see it, or see it on every page."""
    tag = node.tag
    attributes = node.attributes
    if not attributes and tag not in (*_NAVIGATION_TAGS, "header", "aside", "sup"):
        return False
    # Captions that pandoc hides from the blind alone, who hear them as the picture's text.
    is_decoration = attributes.get("aria-hidden") == "true" and tag != "figcaption"
    if is_decoration or _is_invisible(attributes):
        return True
    names = attributes.get("class") or ""
    # A heading's id is often its own words: <h2 id="pagination">.
    if tag not in _HEADINGS:
        names = f"{names} {attributes.get('id') or ''}"
    if tag == "a":
        # References to notes are raised, or marked in books.
        raised = node.css_first("sup")
        if raised is not None and _n_visible(raised) == _n_visible(node):
            return True
        names = f"{names} {attributes.get('epub:type')} {attributes.get('role')}"
    names = names.strip().lower()
    if tag in ("a", "span") and _ANCHORS.search(names):
        return True
    if tag == "sup":
        return node.css_first("a[href*='#']") is not None
    if tag in _NAVIGATION_TAGS or attributes.get("role") in _NAVIGATION_ROLES:
        return True
    is_named = _NAVIGATION_NAMES.search(names) is not None
    may_be_navigation = is_named or tag in ("header", "aside")
    if not may_be_navigation or tag in ("body", "html", "main", "article"):
        return False
    may_be_section = tag in ("header", "section") or "header" in names
    is_section = may_be_section and node.css_first(", ".join(_HEADINGS)) is not None
    # A warning or a footnote, not what opens a menu.
    is_aside = tag == "aside" and not is_named and node.css_first("p") is not None
    return _is_links(node, least=0 if is_section or is_aside else _MIN_LETTERS)


def _is_invisible(attributes: Mapping[str, str | None]) -> bool:
    # One of several panels is shown at a time.
    if attributes.get("role") == "tabpanel":
        return False
    return "hidden" in attributes or bool(_INVISIBLE.search(attributes.get("style") or ""))


def _is_contents(node: Any) -> bool:
    """Whether a list holds links within the site: a menu, or a table of contents."""
    links = node.css("a[href]:not([href^=http])")
    n_linked = sum(map(_n_visible, links))
    return len(links) >= _MIN_LINKS and n_linked > _LINKED_SHARE * _n_visible(node)


def _n_visible(node: Any) -> int:
    return len("".join(node.text(deep=True).split()))


def _is_links(node: Any, least: int) -> bool:
    """Whether most of its text is links, or it has less than `least` letters, and no heading of a
    page.
    """
    if node.css_first("h1") is not None:
        return False
    n_letters = _n_visible(node)
    n_linked = sum(map(_n_visible, node.css("a")))
    return n_letters < least or n_linked > _MAX_LINKED_SHARE * n_letters
