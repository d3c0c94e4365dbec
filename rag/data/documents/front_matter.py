"""Metadata that a text file states above its text: front matter in YAML or TOML, and the groups that
a header of reStructuredText, AsciiDoc or Org names.
"""

import json
import math
import re
import tomllib
from contextlib import suppress
from dataclasses import replace
from typing import Any

import yaml

from rag.data.documents.blocks import Content, Piece, Unreadable, clean, stated_title
from rag.data.documents.plain import with_line_feeds
from rag.data.metadata import GROUPS_FIELD, is_groups
from rag.data.table_text import quoted

UNREADABLE_RIGHTS = ("unreadable rights", "name who may read it as groups: [staff, board]")

WITH_FRONT_MATTER = ("markdown", "text", "html", "latex", "rst", "asciidoc", "org")
"""Kinds of documents that may begin with front matter."""

_WITH_HEADER = ("rst", "asciidoc", "org")

_FRONT_MATTER = re.compile(
    r"\A\n*(---|\+\+\+)[ \t]*\n(.{0,50000}?)\n(?:\1|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL
)
# Without an end, up to the line that names groups.
_WITHOUT_END = re.compile(
    rf"""\A\n*---[ \t]*\n(?:.+\n)*?["']?{GROUPS_FIELD}["']?\s*:""", re.IGNORECASE
)
_FIELD = re.compile(r"[\w.-]+:(\s|\Z)|\s|[#-]|\Z")
_TITLE = re.compile(r"""^title:[ \t]+(["']?)([^\s*&|>{[!].*?)\1[ \t]*$""", re.MULTILINE)
_GROUPS = re.compile(rf"""^["']?{GROUPS_FIELD}["']?\s*[:=]""", re.MULTILINE | re.IGNORECASE)
# Comments, settings, fields and what goes on with them; titles, those of AsciiDoc with the lines below.
_HEADER = re.compile(
    r"\A(?:\n|(?:[ \t#:]|//|\.\.).*\n?|=[ \t].*\n(?:.+\n)*|"
    r"(?:([^\w\s])\1{2,}[ \t]*\n)?\S.*\n([^\w\s])\2{2,}[ \t]*\n)*"
)
_GROUPS_OF_HEADER = re.compile(
    rf"^(?::|#\+){GROUPS_FIELD}:(.*(?:\n[ \t]+\S.*)*)(?:\n|\Z)", re.MULTILINE | re.IGNORECASE
)


def divide(source: str, kind: str) -> tuple[str, str]:
    r"""The metadata that a text file states, as lines of YAML, and its text without them.

    Returns:
        "" and the source, if nothing is stated.

    Raises:
        Unreadable: it names groups in front matter without an end, or in TOML that is none.

    Example:
        >>> divide("= Plan\n:groups: hr, board\n\nText.\n", "asciidoc")
        ('groups: hr, board', '= Plan\n\nText.\n')
    """
    if kind not in WITH_FRONT_MATTER:
        return "", source
    text = with_line_feeds(source)
    match = _FRONT_MATTER.match(text)
    if _WITHOUT_END.match(text) and match is None:
        raise Unreadable(*UNREADABLE_RIGHTS, "its front matter has no end")
    if match is None:
        return _header_groups(text) if kind in _WITH_HEADER else ("", source)
    mark, lines = match.groups()
    rest = text[match.end() :]
    states_groups = _GROUPS.search(lines) is not None
    if mark == "+++":
        try:
            fields = tomllib.loads(lines)
        except tomllib.TOMLDecodeError as error:
            if states_groups:
                raise Unreadable(*UNREADABLE_RIGHTS, "its front matter is no TOML") from error
            return "", source
        return yaml.safe_dump(fields, allow_unicode=True, width=math.inf, sort_keys=False), rest
    # Who states groups means front matter, whatever else is in it.
    if states_groups or all(map(_FIELD.match, lines.split("\n"))):
        return lines, rest
    return "", source


def _header_groups(text: str) -> tuple[str, str]:
    """The groups that the header of a file names, and the file without them."""
    match = _HEADER.match(text)
    header = "" if match is None else match[0]
    lines = [f"{GROUPS_FIELD}:{value}" for value in _GROUPS_OF_HEADER.findall(header)]
    return "\n".join(lines), _GROUPS_OF_HEADER.sub("", header) + text[len(header) :]


def add_fields(content: Content, front_matter: str) -> Content:
    """A document with the metadata that `divide` found: the title, and the other fields, which are
    its first row, too, so that they are searched and read as a table's.

    Raises:
        Unreadable: it names groups in YAML that is none, or as `stated_fields`.
    """
    try:
        fields = stated_fields(front_matter)
    except yaml.YAMLError as error:
        if _GROUPS.search(front_matter):
            raise Unreadable(*UNREADABLE_RIGHTS, "its front matter is no YAML") from error
        note = "the front matter is no YAML: its fields are not read"
        title = _title(front_matter) or content.title
        return replace(content, title=title, notes=[*content.notes, note])
    title = stated_title(_text_of(fields.pop("title", ""))) or content.title
    pieces = list(content.pieces)
    names = [name for name in fields if name != GROUPS_FIELD]
    if names:
        row = "; ".join(f"{quoted(name)}: {quoted(_text_of(fields[name]))}" for name in names)
        pieces.insert(0, Piece("row", row))
    return replace(content, title=title, pieces=pieces, fields=fields)


def _title(front_matter: str) -> str:
    """The title that lines of metadata state that are no YAML; "" if none."""
    titles = [match[2].strip() for match in _TITLE.finditer(front_matter)]
    if not titles or titles[-1] in ("null", "~"):
        return ""
    return clean(titles[-1])


def stated_fields(front_matter: str) -> dict[str, object]:
    r"""The fields of a document's front matter: text, numbers, truth values, and lists of these.

    Dates stay as they are written. What is nested deeper is left out, so that nothing of YAML's
    (aliases, tags) is built.

    Raises:
        yaml.YAMLError: the front matter is no YAML.
        Unreadable: its groups are nested, stated twice or empty.

    Example:
        >>> stated_fields("title: Guide\nyear: 2024\non: 2024-05-01\ntags: [a, b]")
        {'title': 'Guide', 'year': 2024, 'on': '2024-05-01', 'tags': ['a', 'b']}
    """
    root = yaml.compose(front_matter, Loader=yaml.SafeLoader)
    fields: dict[str, Any] = {}
    for name, node in root.value if isinstance(root, yaml.MappingNode) else ():
        is_list = isinstance(node, yaml.SequenceNode)
        scalars = node.value if is_list else [node]
        is_nested = not all(isinstance(scalar, yaml.ScalarNode) for scalar in scalars)
        label = clean(name.value)
        if is_groups(label):
            label = GROUPS_FIELD
        typed = map(_typed, () if is_nested else scalars)
        values = [value for value in typed if value not in (None, "")]
        # Empty groups may mean nobody or everybody.
        if label == GROUPS_FIELD and (label in fields or not values):
            raise Unreadable(*UNREADABLE_RIGHTS, "groups are not stated once, as names")
        if values:
            fields[label] = values if is_list else values[0]
    return fields


def _typed(node: yaml.ScalarNode) -> Any:
    """The value of a scalar: what YAML and JSON both call a number or a truth value, else text."""
    if node.tag.endswith(":null"):
        return None
    if node.tag.endswith((":int", ":float", ":bool")):
        with suppress(ValueError):
            return json.loads(node.value.lower())
    return clean(node.value)


def _text_of(value: Any) -> str:
    values = value if isinstance(value, list) else [value]
    return ", ".join(item if isinstance(item, str) else json.dumps(item) for item in values)
