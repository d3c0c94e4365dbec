"""reStructuredText, Sphinx's roles and directives included, by docutils; nothing in a file is
executed.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, ClassVar

from rag.core.optional import require
from rag.data.documents import html
from rag.data.documents.blocks import Content, clean, first_heading

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
_HIDDEN = (
    "comment",
    "substitution_definition",
    "raw",
    "image",
    "pending",
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
    "line_length_limit": 10_000_000,
    "output_encoding": "unicode",
    "embed_stylesheet": False,
    "math_output": "LaTeX",
    "syntax_highlight": "none",
}


def rst(source: str) -> Content:
    """A document of reStructuredText; its title is the first heading."""
    _register_unknown(source)
    core = require("docutils.core", "docs")
    tree = core.publish_doctree(source, settings_overrides=_SETTINGS)
    _simplify(tree)
    page = core.publish_from_doctree(tree, writer="html4", settings_overrides=_SETTINGS)
    pieces = html.pieces_of(page)
    return Content(first_heading(pieces), pieces)


def _register_unknown(source: str) -> None:
    """Make docutils keep the text of roles and directives that it does not know: Sphinx's, or
    anybody's.
    """
    parsers = require("docutils.parsers.rst", "docs")
    english = parsers.languages.en

    class AnyDirective(parsers.Directive):  # type: ignore[name-defined]
        has_content = True
        optional_arguments = 1
        final_argument_whitespace = True
        # Any option, as text; docutils wants a mapping that is not empty.
        option_spec: ClassVar[Any] = defaultdict(lambda: str, {"class": str})

        def run(self) -> list[object]:
            return _run_directive(self)

    # Sphinx has more options for some directives that docutils knows.
    known = english.directives.keys() - {*_DROPPED, *_CODE}
    for name in {*_DIRECTIVES.findall(source)} - known:
        parsers.directives.register_directive(name, AnyDirective)
    for name in {*_ROLES.findall(source)} - english.roles.keys():
        parsers.roles.register_local_role(name, _role)


def _role(name: str, raw: str, text: str, *_: Any, **__: Any) -> tuple[list[Any], list[Any]]:
    """The visible text of a reference: its words, or the last part of a dotted name after "~"."""
    nodes = require("docutils.nodes", "docs")
    text = nodes.unescape(text)
    target = _TARGET.match(text)
    if target:
        text = target[1]
    elif text.startswith("~"):
        text = text.rpartition(".")[2].removeprefix("~")
    return [nodes.inline(raw, text.removeprefix("!"))], []


def _run_directive(directive: Any) -> list[Any]:
    """What a directive that docutils does not know holds, after its argument."""
    nodes = require("docutils.nodes", "docs")
    if directive.name in _DROPPED:
        return []
    if directive.name in _CODE:
        source = "\n".join(directive.content)
        return [nodes.literal_block(source, source)]
    argument = " ".join(" ".join(directive.arguments).split())
    inline, _ = directive.state.inline_text(argument, directive.lineno)
    words = "".join(node.astext() for node in inline)
    body = nodes.container()
    directive.state.nested_parse(directive.content, directive.content_offset, body)
    if directive.name in _SINCE:
        version, _, reason = words.partition(" ")
        words = f"{_SINCE[directive.name]} {version}: {reason}".removesuffix(": ")
    return _led(f"{words}: " if words else "", body.children)


def _led(lead: str, blocks: Iterable[Any]) -> list[Any]:
    """The blocks, the first of which begins with `lead`; if that is no paragraph, `lead` is a
    paragraph before it.
    """
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
    for node in list(tree.findall()):
        parent = node.parent
        # A node that was replaced has its old parent.
        if parent is None or node not in parent.children:
            continue
        replacement = _replacement(node)
        if replacement is not None:
            parent.replace(node, replacement)
        elif hasattr(node, "attributes"):
            # A section called "footer" is none.
            node.attributes.update(ids=[], names=[], classes=[], backrefs=[])


def _replacement(node: Any) -> list[Any] | None:
    """What stands in place of a node; None if it stays."""
    nodes = require("docutils.nodes", "docs")
    name = node.tagname
    if name in _HIDDEN:
        return []
    if isinstance(node, nodes.Admonition) and name != "admonition":
        return _led(f"{name.capitalize()}: ", node.children)
    if name in ("footnote", "citation"):
        label, *body = node.children or [nodes.label()]
        return _led(f"[{label.astext()}] ", body)
    if name in ("topic", "sidebar"):
        title, *body = node.children
        return _led(f"{title.astext()}: ", body)
    if name == "system_message":
        # A directive that docutils refuses: what stands below its options.
        refused = "\n".join(part.astext() for part in node.findall(nodes.literal_block))
        return [nodes.literal_block("", refused.partition("\n\n")[2])]
    if name in ("field_list", "option_list"):
        items = []
        for *heads, body in (item.children for item in node.children):
            term = nodes.term("", clean(", ".join(head.astext() for head in heads)))
            definition = nodes.definition("", *body.children)
            items.append(nodes.definition_list_item("", term, definition))
        return [nodes.definition_list("", *items)]
    return None
