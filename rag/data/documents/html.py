"""Convert HTML and XHTML by block elements, without navigation, scripts and link targets."""

import re
from collections.abc import Iterable
from typing import Any

from rag.core.optional import require
from rag.data.documents import grid
from rag.data.documents.blocks import BULLET, Kind, Piece, clean, first_heading, stated_title

_HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
_SKIPPED = frozenset(
    (
        "script",
        "style",
        "noscript",
        "template",
        "svg",
        "math",
        "iframe",
        "object",
        "canvas",
        "audio",
        "video",
        "button",
        "input",
        "select",
        "textarea",
        "option",
        "head",
        "title",
        "img",
        "map",
        "dialog",
        "rp",
        "rt",
        "-comment",
        "!doctype",
    )
)
_NAVIGATION_TAGS = ("nav", "footer", "aside", "menu")
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
    r"(^|\s)(header-?link|anchor(-?link)?|permalink|self-?link|copiable-link|footnote-?ref|link-target)(\s|$)"
)
_BLOCKS = frozenset(
    (
        "p",
        "div",
        "section",
        "article",
        "main",
        "body",
        "html",
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
        "menu",
        "dl",
        *_HEADINGS,
    )
)
_LAYOUT = "table table, td h1, td h2, td h3, td pre, td ul li ul"  # parts of a table that is none
_MAX_TABLES = 50  # in each other
_MAX_ROW_SPAN, _MAX_COLUMN_SPAN = 65_534, 100  # HTML's limit, and less than its limit of 1000
_MAIN_SHARE = 0.3  # of a page's letters: the main part has more
_MIN_CONTENTS = 5  # links that make a list a table of contents
MAY_BE_LAYOUT = "data-layout"  # marks a table of another format that may be layout
_VOID = "area|base|br|col|embed|hr|img|input|link|meta|source|track|wbr"
_CLOSED = re.compile(rf"<(?!(?:{_VOID})\b)([a-z][\w.:-]*)((?:\s[^<>]*)?)/>", re.IGNORECASE)


def page(text: str) -> tuple[str, list[Piece]]:
    """Title and pieces of a whole page, or of its main part if that is marked and has text."""
    text = _CLOSED.sub(r"<\1\2></\1>", text)  # a whole element of XHTML; to HTML it would never end
    tree = require("selectolax.lexbor", "docs").LexborHTMLParser(text)
    title_node = tree.css_first("title")
    title = "" if title_node is None else stated_title(title_node.text())
    whole = _walk(tree.body)
    least = _MAIN_SHARE * _n_letters(whole)
    parts = map(_walk, [*tree.css("main, [role=main]"), *tree.css("article")[:1]])
    pieces = next((part for part in parts if _n_letters(part) > least), whole)
    return title or first_heading(pieces), pieces


def _n_letters(pieces: Iterable[Piece]) -> int:
    return sum(len(piece.text) for piece in pieces)


def pieces_of(text: str) -> list[Piece]:
    """Pieces of HTML that a renderer wrote: its tables hold data, and its lists of links are
    text.
    """
    return _walk(require("selectolax.lexbor", "docs").LexborHTMLParser(text).body, is_page=False)


def pandoc_page(text: str, *, has_title: bool) -> tuple[str, list[Piece]]:
    """Title and pieces of a page that pandoc wrote; with `has_title` its title is the first
    heading, too.
    """
    tree = require("selectolax.lexbor", "docs").LexborHTMLParser(text)
    title = tree.css_first("#title-block-header .title")
    name = clean(title.text()) if title is not None else ""
    for part in tree.css("#title-block-header"):
        part.decompose()
    pieces = [Piece("heading", name, 1)] if name and has_title else []
    pieces += _walk(tree.body, is_page=False)
    return name or first_heading(pieces), pieces


def close_elements(text: str) -> str:
    """HTML that stands in another format, with every element closed; its tables may be layout."""
    body = require("selectolax.lexbor", "docs").LexborHTMLParser(text).body
    for table in body.css("table") if body is not None else ():
        table.attrs[MAY_BE_LAYOUT] = ""
    return (
        "" if body is None else "".join(child.html or "" for child in body.iter(include_text=True))
    )


def _walk(root: Any, is_page: bool = True) -> list[Piece]:
    walk = _Walk(is_page)
    if root is not None:  # the body of a frameset
        walk.visit_children(root)
    walk.flush()
    return walk.pieces


class _Walk:
    """Collects inline text until a block begins or ends, and makes a piece of it then."""

    def __init__(self, is_page: bool = True) -> None:
        self.pieces: list[Piece] = []
        self._is_page, self._tables = is_page, 0
        self._inline: list[str] = []
        self._mark = ""  # what the next entry of a list begins with
        self._depth = 0  # of lists

    def flush(self, kind: Kind | None = None, level: int = 0) -> None:
        """End the block that is open."""
        text = clean("".join(self._inline))
        self._inline.clear()
        if not text:
            return
        mark, self._mark = self._mark, ""
        self.pieces.append(
            Piece(kind or ("item" if self._depth else "paragraph"), mark + text, level)
        )

    def visit_children(self, node: Any) -> None:
        for child in node.iter(include_text=True):
            self.visit(child)

    def visit(self, node: Any) -> None:
        tag = node.tag
        if tag == "-text":
            self._inline.append(node.text_content or "")
        if tag in _SKIPPED or tag.startswith("-") or _is_hidden(node):
            return
        if tag in _BLOCKS:
            self.flush()
        if tag in _HEADINGS:
            # some sites put the whole heading into a link to itself
            self._inline.append(_inline_text(node) or node.text(deep=True))
            self.flush("heading", int(tag[1]))
        elif tag == "pre":
            code = node.text(deep=True)
            if code.strip():
                self.pieces.append(Piece("code", code))
        elif tag == "table":
            self._table(node)
        elif tag in ("ul", "ol", "menu"):
            self._list(node, ordered=tag == "ol")
        elif tag == "dl":
            self._definitions(node)
        elif tag == "br":
            self._inline.append(" ")
        else:
            self.visit_children(node)
        if tag in _BLOCKS:
            self.flush()

    def _list(self, node: Any, *, ordered: bool) -> None:
        if self._is_page and _is_contents(node):
            return
        self._depth += 1
        number = (
            int(start)
            if ordered and (start := node.attributes.get("start") or "").isdecimal()
            else 1
        )
        for child in node.iter():
            if child.tag == "li" and not _is_hidden(child):
                self._mark = f"{number}. " if ordered else BULLET
                number += 1
                self.visit_children(child)
                self.flush()
                self._mark = ""
            elif child.tag != "li":
                self.visit(child)
        self.flush()
        self._depth -= 1

    def _definitions(self, node: Any) -> None:
        """A term and the first block of its definition are one entry."""
        self._depth += 1
        for child in node.iter():
            if child.tag == "dt":
                self._mark = f"{self._mark.removesuffix(': ')}, " if self._mark else ""
                self._mark += f"{_inline_text(child)}: "
            elif child.tag == "dd":
                self.visit_children(child)
                self.flush()
                self._term_alone()
            else:  # HTML allows groups
                self.visit(child)
        self._term_alone()
        self._depth -= 1

    def _term_alone(self) -> None:
        if term := self._mark.removesuffix(": "):
            self.pieces.append(Piece("item", term))
        self._mark = ""

    def _table(self, node: Any) -> None:
        rows = [
            row for part in node.iter() for row in part.iter() if row.tag == "tr"
        ]  # of head, body, foot
        cells = [[cell for cell in row.iter() if cell.tag in ("td", "th")] for row in rows]
        width = max(map(len, cells), default=0)
        may_be_layout = self._is_page or MAY_BE_LAYOUT in node.attributes
        if not width or (may_be_layout and (width < 2 or node.css_first(_LAYOUT) is not None)):
            self._tables += 1
            if self._tables > _MAX_TABLES:  # each would be searched again for each around it
                raise RecursionError
            self.visit_children(node)
            self._tables -= 1
            return
        if (caption := node.css_first("caption")) is not None:
            self._inline.append(_inline_text(caption))
            self.flush()
        self.pieces += grid.table(grid.filled([list(map(_cell, row)) for row in cells]))


def _cell(node: Any) -> grid.Cell:
    rows = _span(node, "rowspan", _MAX_ROW_SPAN)
    columns = _span(node, "colspan", _MAX_COLUMN_SPAN)
    is_heading = node.tag == "th" or node.parent.parent.tag == "thead"
    return grid.Cell(_inline_text(node), rows, columns, is_heading)


def _span(node: Any, name: str, most: int) -> int:
    value = node.attributes.get(name) or ""
    return min(max(int(value), 1), most) if value.isdecimal() else 1


def _inline_text(node: Any) -> str:
    walk = _Walk()
    walk.visit_children(node)
    walk.flush()
    return " ".join(clean(piece.text.removeprefix(BULLET)) for piece in walk.pieces)


def _is_hidden(node: Any) -> bool:
    """Whether people do not see it, or see it on every page."""
    attributes = node.attributes
    if not attributes and node.tag not in (*_NAVIGATION_TAGS, "header", "sup"):
        return False
    if "hidden" in attributes or attributes.get("aria-hidden") == "true":
        return True
    classes, mark = attributes.get("class") or "", attributes.get("id") or ""
    # a heading's id is often its own words: <h2 id="pagination">
    names = (classes if node.tag in _HEADINGS else f"{classes} {mark}").strip().lower()
    if node.tag in ("a", "span") and _ANCHORS.search(names):
        return True
    if node.tag == "sup":
        return node.css_first("a[href^='#']") is not None
    if attributes.get("role") in _NAVIGATION_ROLES or node.tag in _NAVIGATION_TAGS:
        return True
    named = node.tag == "header" or (bool(names) and _NAVIGATION_NAMES.search(names) is not None)
    if not named or node.tag in ("body", "html", "main", "article"):
        return False
    may_be_section = node.tag in ("header", "section") or "header" in names
    is_section = may_be_section and node.css_first(", ".join(_HEADINGS)) is not None
    return _is_links(node, least=0 if is_section else 40)


def _is_contents(node: Any) -> bool:
    """Whether a list is one of links within the site: a menu, or a table of contents."""
    links = [
        link
        for link in node.css("a[href]")
        if not (link.attributes["href"] or "").startswith("http")
    ]
    linked = sum(len("".join(link.text(deep=True).split())) for link in links)
    return len(links) >= _MIN_CONTENTS and linked > 0.85 * len(
        "".join(node.text(deep=True).split())
    )


def _is_links(node: Any, least: int) -> bool:
    """Whether most of its text is links, or it has less than `least` letters, and no heading of a
    page.
    """
    if node.css_first("h1") is not None:
        return False
    letters = len(clean(node.text(deep=True)))
    linked = sum(len(clean(link.text(deep=True))) for link in node.css("a"))
    return letters < least or linked > 0.4 * letters
