"""What a training method costs: the lines that it alone reaches, its configuration and command included.

    python -m tests.method_lines [ROOT]

A function, class or constant belongs to a method if the method's configuration, recipe or command refers to
it, through however many others, and nothing else does: no other method, no command without it, no package's
public names. A module of which all belongs to the method counts as a whole, with its imports; templates of
model cards count too.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

PACKAGES = ("rag", "indexers", "retrievers", "readers", "serve")
_PLACE = re.compile(r"([\w.]+):(\w+)")  # a recipe's "module:name"
_SERVED = ("serve.", "rag.pipeline", "rag.eval.", "rag.bench.", "rag.integrations")

Name = tuple[str, str]
"""Module, and what it defines at its top level."""


@dataclass
class Module:
    """A file: what it defines, and where what it imports is from."""

    path: Path
    tree: ast.Module
    defined: dict[str, list[ast.stmt]] = field(default_factory=dict)
    imported: dict[str, tuple[str, str]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Module:
        """Parse a file."""
        module = cls(path, ast.parse(path.read_text(encoding="utf-8")))
        for statement in module.tree.body:
            for name in _names(statement):
                module.defined.setdefault(name, []).append(statement)
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    module.imported[alias.asname or alias.name] = (node.module, alias.name)
        return module


class House:
    """All modules under `root`, and who refers to whom."""

    def __init__(self, root: Path) -> None:
        self._known: dict[Name, list[Name]] = {}
        files = (path for package in PACKAGES for path in (root / package).rglob("*.py"))
        self.modules = {
            ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): Module.read(
                path
            )
            for path in files
        }

    @cached_property
    def methods(self) -> dict[str, set[Name]]:
        """Of each recipe: its configuration, its function and its command."""
        [table] = self.modules["rag.recipes"].defined["RECIPES"]
        found: dict[str, set[Name]] = {}
        for key, value in zip(table.value.keys, table.value.values, strict=True):  # type: ignore[attr-defined]
            texts = [node.value for node in ast.walk(value) if isinstance(node, ast.Constant)]
            found[key.value] = {(m[1], m[2]) for text in texts if (m := _PLACE.fullmatch(str(text)))}
            found[key.value] |= {name for name in self._commands() if name[1] == key.value}
        return found

    def _commands(self) -> set[Name]:
        return {
            (module, name)
            for module, content in self.modules.items()
            for name, statements in content.defined.items()
            if module.startswith("rag.cli.train") and isinstance(statements[0], ast.FunctionDef)
        }

    def _public(self) -> set[Name]:
        """What is reached without any recipe: other commands, what is served and evaluated."""
        return {
            (module, name)
            for module, content in self.modules.items()
            for name in content.defined
            if name[0] != "_"
            and (module.startswith(_SERVED) or (module.startswith("rag.cli.") and "train" not in module))
        }

    def reached(self, roots: Iterable[Name]) -> set[Name]:
        """All that these refer to, and they."""
        seen: set[Name] = set()
        open_ = list(roots)
        while open_:
            name = open_.pop()
            if name not in seen:
                seen.add(name)
                open_ += self._references(name)
        return seen

    def _references(self, name: Name) -> list[Name]:
        if name not in self._known:
            self._known[name] = self._look_up(name)
        return self._known[name]

    def _look_up(self, name: Name) -> list[Name]:
        module = self.modules[name[0]]
        found: list[Name | None] = []
        for statement in module.defined[name[1]]:
            for node in ast.walk(statement):
                if isinstance(node, ast.Name):
                    found.append(self._find(name[0], node.id))
                elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                    place = ".".join(module.imported.get(node.value.id, ("", "")))
                    found.append(self._find(place, node.attr))
        return [one for one in found if one is not None and one != ("rag.recipes", "RECIPES")]

    def _find(self, place: str, name: str) -> Name | None:
        module = self.modules.get(place)
        if module is None:
            return None
        if name in module.defined:
            return place, name
        source, other = module.imported.get(name, ("", ""))
        return self._find(source, other) if source and (source, other) != (place, name) else None

    def alone(self, method: str) -> dict[str, int]:
        """Lines by file that only this method reaches."""
        [function] = [name for name in self.methods[method] if name[1].startswith("train_")]
        roots = [{name} for name in self._public()] + [r for m, r in self.methods.items() if m != method]
        others: set[Name] = set()
        for root in roots:
            reached = self.reached(root)
            others |= reached if function not in reached else set()
        own = self.reached(self.methods[method]) - others
        return {
            str(module.path): lines
            for name, module in self.modules.items()
            if (lines := _lines(module, {one for place, one in own if place == name}))
        }


def _names(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _lines(module: Module, own: set[str]) -> int:
    if not own:
        return 0
    spans = {
        line
        for name in own
        for statement in module.defined[name]
        for line in range(_first_line(statement), (statement.end_lineno or 0) + 1)
    }
    total = len(module.path.read_text(encoding="utf-8").splitlines())
    lines = total if own >= set(module.defined) - {"log", "__all__"} else len(spans)
    texts = {
        node.value
        for name in own
        for statement in module.defined[name]
        for node in ast.walk(statement)
        if isinstance(node, ast.Constant) and str(node.value).endswith(".md")
    }
    templates = (module.path.parent / "templates" / str(text) for text in texts)
    return lines + sum(len(path.read_text().splitlines()) for path in templates if path.is_file())


def _first_line(statement: ast.stmt) -> int:
    decorators = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(decorator.lineno for decorator in decorators)])


if __name__ == "__main__":
    house = House(Path(sys.argv[1] if sys.argv[1:] else ".").resolve())
    for method in house.methods:
        files = house.alone(method)
        print(f"{method:10} {sum(files.values()):5}")
        for path, lines in sorted(files.items(), key=lambda item: -item[1]):
            print(f"{'':16}{lines:5}  {path}")
