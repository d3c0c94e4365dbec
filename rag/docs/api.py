"""Writes the API reference, one page per package, from signatures and docstrings; nothing is imported."""

import ast
import inspect
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rag.core.optional import require

PACKAGES = ("rag", "indexers", "retrievers", "readers", "serve")
_ROOT = Path(__file__).parents[2]
_TABLES = {"parameters", "attributes", "raises", "returns", "yields"}
_HEAD = "# {name}\n\nPublic names of `{name}` with their signatures, from the docstrings.\n"


def api_pages() -> dict[str, str]:
    """Markdown pages by name, such as `rag.eval`: one per package, with its modules' public names.

    Raises:
        MissingDependencyError: the package `griffe` is not installed.
    """
    griffe: Any = require("griffe", extra="site")
    pages: dict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        loaded = griffe.load(package, search_paths=[str(_ROOT)], docstring_parser="google")
        for module in _modules(loaded):
            if part := _module(module):
                parts = module.path.split(".")
                pages[".".join(parts[:2]) if len(parts) > 2 else parts[0]].append(part)
    return {name: "\n".join([_HEAD.format(name=name), *parts]) for name, parts in sorted(pages.items())}


def _modules(module: Any) -> Iterator[Any]:
    yield module
    for name in sorted(module.modules):
        if not name.startswith("_"):
            yield from _modules(module.modules[name])


def _module(module: Any) -> str:
    members = [
        member
        for name, member in module.members.items()
        if not name.startswith("_") and not member.is_alias and (member.is_class or member.is_function)
    ]
    if not members:
        return ""
    parts = [f"## {module.path}\n", _text(module)]
    for member in members:
        parts.append(f"### {member.name}\n\n```python\n{_signature(member)}\n```\n")
        parts.append(_text(member))
        for name, inner in (member.members if member.is_class else {}).items():
            if inner.is_function and not name.startswith("_"):
                parts.append(f"#### {member.name}.{name}\n\n```python\n{_signature(inner)}\n```\n")
                parts.append(_text(inner))
    return "\n".join(parts)


def _signature(member: Any) -> str:
    """The source up to its body, without decorators."""
    node = ast.parse(textwrap.dedent(member.source)).body[0]
    assert isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    node.decorator_list, node.body = [], [ast.Expr(ast.Constant(...))]
    return ast.unparse(node).removesuffix("...").rstrip().removesuffix(":")


def _text(member: Any) -> str:
    """A docstring in Markdown."""
    if member.docstring is None:
        return ""
    return "\n".join(_section(section) for section in member.docstring.parse("google", warnings=False))


def _section(section: Any) -> str:
    kind, value = section.kind.value, section.value
    if kind == "text":
        return f"{_code_of_doctests(value)}\n"
    if kind in _TABLES:
        rows = []
        for item in value:
            name = getattr(item, "name", "") or str(getattr(item, "annotation", "") or "")
            text = " ".join(item.description.split())
            rows.append(f"- {f'`{name}`: ' if name else ''}{text}")
        return f"**{kind.capitalize()}**\n\n" + "\n".join(rows) + "\n"
    if kind == "examples":
        blocks = [f"```pycon\n{text}\n```" if one.value == "examples" else text for one, text in value]
        return "**Example**\n\n" + "\n\n".join(blocks) + "\n"
    if kind == "admonition":
        return f"**{section.title}**\n\n{_code_of_doctests(value.description)}\n"
    return ""


def _code_of_doctests(text: str) -> str:
    """The text with its doctests as blocks of code."""
    parts = []
    for part in text.split("\n\n"):
        is_code = part.lstrip().startswith(">>>")
        parts.append(f"```pycon\n{inspect.cleandoc(part)}\n```" if is_code else part)
    return "\n\n".join(parts)
