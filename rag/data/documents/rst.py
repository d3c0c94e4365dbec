"""reStructuredText, Sphinx's roles and directives included, by docutils; nothing in a file is executed."""

import re
from collections.abc import Iterator
from typing import Any

from rag.core.optional import require
from rag.data.documents import tables
from rag.data.documents.blocks import BULLET, Piece, clean, first_heading

_DIRECTIVES = re.compile(r"^[ \t]*\.\.[ \t]+(?:\|[^|\n]+\|[ \t]+)?([A-Za-z][\w:+.-]*)::", re.MULTILINE)
_ROLES = re.compile(r":([A-Za-z][\w:+.-]*):`")
_TARGET = re.compile(r"\A(.*?)\s*<[^<>]*>\Z", re.DOTALL)
_CODE = ("code", "code-block", "sourcecode", "doctest", "testcode", "productionlist", "prompt", "console")
_DROPPED = (
    "toctree", "index", "automodule", "autoclass", "autofunction", "autosummary", "currentmodule",
    "py:currentmodule", "module", "py:module", "highlight", "highlightlang", "default-domain",
    "literalinclude", "sectionauthor", "codeauthor", "tabularcolumns", "include", "raw", "meta",
    "image", "contents", "sectnum",
)  # fmt: skip
_SINCE = {
    "versionadded": "Added in version",
    "versionchanged": "Changed in version",
    "deprecated": "Deprecated since",
}
_SILENT = {
    "report_level": 5, "halt_level": 5, "warning_stream": "", "file_insertion_enabled": False,
    "raw_enabled": False, "_disable_config": True, "doctitle_xform": False, "smart_quotes": False,
    "line_length_limit": 10_000_000,
}  # fmt: skip


def rst(text: str) -> tuple[str, list[Piece]]:
    """Title and pieces; the title is the first heading."""
    _register(text)
    core = require("docutils.core", "docs")
    pieces = list(_Walk().walk(core.publish_doctree(text, settings_overrides=_SILENT), 0))
    return first_heading(pieces), pieces


def _register(text: str) -> None:
    """Make docutils keep the text of roles and directives that it does not know: Sphinx's, or anybody's."""
    directives = require("docutils.parsers.rst.directives", "docs")
    roles = require("docutils.parsers.rst.roles", "docs")
    english = require("docutils.parsers.rst.languages.en", "docs")
    for name in set(_DIRECTIVES.findall(text)):
        if name not in english.directives or name in (*_DROPPED, *_CODE):  # Sphinx has more options
            directives.register_directive(name, _directive(name))
    for name in set(_ROLES.findall(text)):
        if name not in english.roles:
            roles.register_local_role(name, _role)


def _role(name: str, raw: str, text: str, *_: Any, **__: Any) -> tuple[list[Any], list[Any]]:
    """The visible text of a reference: its words, or the last part of a dotted name after "~"."""
    nodes = require("docutils.nodes", "docs")
    text = nodes.unescape(text)
    if target := _TARGET.match(text):
        text = target[1]
    elif text.startswith("~"):
        text = text.rpartition(".")[2].removeprefix("~")
    return [nodes.inline(raw, text.removeprefix("!"))], []


def _directive(name: str) -> Any:
    base = require("docutils.parsers.rst", "docs").Directive
    nodes = require("docutils.nodes", "docs")

    def run(self: Any) -> list[Any]:
        inline, _ = self.state.inline_text(" ".join(" ".join(self.arguments).split()), self.lineno)
        words = "".join(node.astext() for node in inline)
        if name in _DROPPED:
            return []
        if name in _CODE:
            source = "\n".join(self.content)
            return [nodes.literal_block(source, source)]
        body = nodes.container()
        self.state.nested_parse(self.content, self.content_offset, body)
        lead, blocks = words, list(body.children)
        if name in _SINCE:
            version, _, why = words.partition(" ")
            lead = f"{_SINCE[name]} {version}" + (f": {why}" if why else "")
        if lead and blocks and isinstance(blocks[0], nodes.paragraph):
            lead = f"{lead}: {blocks.pop(0).astext()}"
        return [*([nodes.paragraph(lead, lead)] if lead else []), *blocks]

    fields = {"run": run, "has_content": True, "optional_arguments": 1, "final_argument_whitespace": True}
    return type("Known", (base,), {**fields, "option_spec": _AnyOption()})


class _AnyOption(dict[str, Any]):
    """Takes every option of a directive, and keeps it as it stands."""

    def __missing__(self, name: str) -> Any:
        return lambda value: value

    def __bool__(self) -> bool:
        return True


class _Walk:
    """Turns a tree of docutils into pieces."""

    def walk(self, node: Any, level: int, mark: str = "", *, in_list: bool = False) -> Iterator[Piece]:
        """Pieces of the children of `node`; the first block begins with `mark`."""
        for child in node.children:
            kind = type(child).__name__
            found: Iterator[Piece] | None = None
            if kind == "section":
                found = self.walk(child, level + 1)
            elif kind == "title":
                found = iter([Piece("heading", child.astext(), max(level, 1))])
            elif kind in ("bullet_list", "enumerated_list"):
                found = self._list(child, level)
            elif kind in ("definition_list_item", "option_list_item", "field"):
                head = ", ".join(part.astext() for part in child.children[:-1])
                found = self.walk(child.children[-1], level, f"{clean(head)}: ", in_list=True)
            elif kind in ("literal_block", "doctest_block", "math_block", "line_block"):
                found = iter([Piece("code", child.astext())])
            elif kind == "table":
                found = self._table(child)
            elif kind in ("paragraph", "rubric", "caption", "attribution", "term", "subtitle"):
                text = mark + clean(_visible(child))
                mark = ""
                found = iter([Piece("item" if in_list else "paragraph", text)])
            elif kind == "system_message":  # a directive that docutils refuses: what stands below its options
                refused = "\n".join(
                    part.astext() for part in child.findall() if part.tagname == "literal_block"
                )
                found = iter([Piece("code", refused.partition("\n\n")[2])])
            elif kind in _ADMONITIONS:
                found = self.walk(child, level, f"{kind.capitalize()}: ")
            elif kind in ("footnote", "citation"):
                label = child.children[0].astext() if child.children else ""
                found = self.walk(child, level, f"[{label}] ")
            elif kind not in _HIDDEN and hasattr(child, "children"):
                found = self.walk(child, level, mark, in_list=in_list)
                mark = ""
            yield from found or ()

    def _list(self, node: Any, level: int) -> Iterator[Piece]:
        number = int(node.get("start", 1)) if type(node).__name__ == "enumerated_list" else 0
        for place, child in enumerate(node.children):
            yield from self.walk(child, level, f"{number + place}. " if number else BULLET, in_list=True)

    def _table(self, node: Any) -> Iterator[Piece]:
        lines: dict[str, list[list[str]]] = {"thead": [], "tbody": []}
        for part in node.findall():
            name = type(part).__name__
            if name == "title":
                yield Piece("paragraph", part.astext())
            elif name in lines:
                for row in part.children:
                    cells = [[entry.astext()] * (1 + int(entry.get("morecols", 0))) for entry in row.children]
                    lines[name].append([text for repeated in cells for text in repeated])
        head = lines["thead"]
        header = [" ".join(dict.fromkeys(filter(None, names))) for names in zip(*head)] if head else []
        yield from tables.rows(lines["tbody"], header) if header else tables.rows(lines["tbody"])


_ADMONITIONS = (
    *("note", "warning", "tip", "hint", "important", "attention", "caution", "danger", "error"),
    *("versionadded", "versionchanged", "deprecated"),
)
_HIDDEN = (
    *("comment", "substitution_definition", "target", "raw", "image", "pending", "label"),
    *("Text", "topic", "header", "footer", "decoration", "docinfo", "meta", "colspec", "field_name"),
)


def _visible(node: Any) -> str:
    """Text without pictures and without messages about mistakes."""
    parts = []
    for part in node.findall():
        if type(part).__name__ == "Text" and type(part.parent).__name__ not in ("footnote_reference", "raw"):
            parts.append(part.astext())
    return "".join(parts)
