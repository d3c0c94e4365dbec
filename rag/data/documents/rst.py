"""reStructuredText, Sphinx's roles and directives included, by docutils; nothing in a file is
executed.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from rag.core.optional import require
from rag.data.documents import html
from rag.data.documents.blocks import Piece, clean, first_heading

_DIRECTIVES = re.compile(
    r"^[ \t]*\.\.[ \t]+(?:\|[^|\n]+\|[ \t]+)?([A-Za-z][\w:+.-]*)::", re.MULTILINE
)
_ROLES = re.compile(r":([A-Za-z][\w:+.-]*):`")
_TARGET = re.compile(r"\A(.*?)\s*<[^<>]*>\Z", re.DOTALL)
_CODE = (
    "code",
    "code-block",
    "sourcecode",
    "doctest",
    "testcode",
    "productionlist",
    "prompt",
    "console",
)
_DROPPED = (
    "toctree",
    "index",
    "automodule",
    "autoclass",
    "autofunction",
    "autosummary",
    "currentmodule",
    "py:currentmodule",
    "module",
    "py:module",
    "highlight",
    "highlightlang",
    "default-domain",
    "literalinclude",
    "sectionauthor",
    "codeauthor",
    "tabularcolumns",
    "include",
    "raw",
    "meta",
    "image",
    "contents",
    "sectnum",
)
_SINCE = {
    "versionadded": "Added in version",
    "versionchanged": "Changed in version",
    "deprecated": "Deprecated since",
}
_ADMONITIONS = [
    "note",
    "warning",
    "tip",
    "hint",
    "important",
    "attention",
    "caution",
    "danger",
    "error",
]
_HIDDEN = (
    "comment",
    "substitution_definition",
    "raw",
    "image",
    "pending",
    "topic",
    "header",
    "footer",
    "decoration",
    "docinfo",
    "meta",
    "footnote_reference",
)
_SETTINGS = {
    "report_level": 5,
    "halt_level": 5,
    "warning_stream": "",
    "file_insertion_enabled": False,
    "raw_enabled": False,
    "_disable_config": True,
    "doctitle_xform": False,
    "smart_quotes": False,
    "line_length_limit": 10_000_000,
    "output_encoding": "unicode",
    "embed_stylesheet": False,
    "stylesheet_path": "",
    "stylesheet": "",
    "math_output": "LaTeX",
    "syntax_highlight": "none",
}


def rst(text: str) -> tuple[str, list[Piece]]:
    """Title and pieces; the title is the first heading."""
    _register(text)
    core = require("docutils.core", "docs")
    tree = core.publish_doctree(text, settings_overrides=_SETTINGS)
    _simplify(tree)
    pieces = html.pieces_of(
        core.publish_from_doctree(tree, writer="html4", settings_overrides=_SETTINGS)
    )
    return first_heading(pieces), pieces


def _register(text: str) -> None:
    """Make docutils keep the text of roles and directives that it does not know: Sphinx's, or
    anybody's.
    """
    parsers = require("docutils.parsers.rst", "docs")
    directives, roles, english = parsers.directives, parsers.roles, parsers.languages.en
    options = defaultdict(
        lambda: str, {"class": str}
    )  # any option, as text; docutils wants it not empty
    fields = {
        "run": _run_directive,
        "has_content": True,
        "optional_arguments": 1,
        "option_spec": options,
    }
    directive = type(
        "AnyDirective", (parsers.Directive,), {**fields, "final_argument_whitespace": True}
    )
    for name in set(_DIRECTIVES.findall(text)):
        if name not in english.directives or name in (*_DROPPED, *_CODE):  # Sphinx has more options
            directives.register_directive(name, directive)
    for name in set(_ROLES.findall(text)) - english.roles.keys():
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


def _run_directive(self: Any) -> list[Any]:
    """What a directive that docutils does not know holds, after its argument."""
    nodes = require("docutils.nodes", "docs")
    if self.name in _DROPPED:
        return []
    if self.name in _CODE:
        source = "\n".join(self.content)
        return [nodes.literal_block(source, source)]
    inline, _ = self.state.inline_text(" ".join(" ".join(self.arguments).split()), self.lineno)
    words = "".join(node.astext() for node in inline)
    body = nodes.container()
    self.state.nested_parse(self.content, self.content_offset, body)
    if self.name in _SINCE:
        version, _, why = words.partition(" ")
        words = f"{_SINCE[self.name]} {version}" + (f": {why}" if why else "")
    return _led(f"{words}: " if words else "", body.children)


def _led(lead: str, blocks: Iterable[Any]) -> list[Any]:
    """Blocks of which the first begins with `lead`, in a paragraph of its own if it is none."""
    nodes = require("docutils.nodes", "docs")
    blocks = list(blocks)
    if lead and blocks and isinstance(blocks[0], nodes.paragraph):
        blocks[0].insert(0, nodes.Text(lead))
    elif lead:
        blocks.insert(0, nodes.paragraph("", lead.removesuffix(": ")))
    return blocks


def _simplify(tree: Any) -> None:
    """Make of a document's tree what the renderer writes as headings, paragraphs, lists, code and
    tables.
    """
    nodes = require("docutils.nodes", "docs")
    for node in list(tree.findall()):
        name, parent = node.tagname, node.parent
        if parent is None or node not in parent.children:
            continue
        if name in _HIDDEN:
            parent.remove(node)
        elif name in _ADMONITIONS:
            parent.replace(node, _led(f"{name.capitalize()}: ", node.children))
        elif name in ("footnote", "citation"):
            label, *body = node.children or [nodes.label()]
            parent.replace(node, _led(f"[{label.astext()}] ", body))
        elif (
            name == "system_message"
        ):  # a directive that docutils refuses: what stands below its options
            refused = "\n".join(part.astext() for part in node.findall(nodes.literal_block))
            parent.replace(node, nodes.literal_block("", refused.partition("\n\n")[2]))
        elif name in ("field_list", "option_list"):
            items = []
            for *heads, body in (item.children for item in node.children):
                term = nodes.term("", clean(", ".join(head.astext() for head in heads)))
                items.append(
                    nodes.definition_list_item("", term, nodes.definition("", *body.children))
                )
            parent.replace(node, nodes.definition_list("", *items))
        elif hasattr(node, "attributes"):  # a section called "footer" is none
            node.attributes.update(ids=[], names=[], classes=[], backrefs=[])
