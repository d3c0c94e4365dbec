"""Writes `settings.md`, the page of all settings, from the models that check them.

Run `python -m rag.docs.reference` after a change of a setting.
"""

import inspect
from collections.abc import Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from rag.config import Config, explained, preset_names
from rag.recipes import RECIPES
from retrievers.negatives.settings import MiningSettings
from serve.settings import ServeSettings

PAGE = Path(__file__).with_name("settings.md")
_HEAD = """# Settings

Every setting of every recipe, and every variable of the server. This page is generated from the models that
check the values (`python -m rag.docs.reference`), so it is always what the program takes.

A setting is given as `--set key=value`, in a YAML file for `--config`, or as an argument of `rag.train`.
Settings that belong together form a group. A group's setting may be written with or without the group,
`optim.learning_rate` or `learning_rate`; the group is needed only where two groups have a setting of the
same name. "–" marks a setting without a default, which has to be given. What explanations call None is
`null` in YAML.
"""
_BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def settings_page() -> str:
    """The whole page as Markdown."""
    kinds = _recipe_models()
    parts = [_HEAD, "## Recipes\n"]
    parts += [_recipe(name, kinds[name]) for name in sorted(kinds)]
    parts.append("## Groups\n")
    groups = {part for kind in kinds.values() for part in _parts(kind)}
    shared = sorted(groups, key=attrgetter("__name__"))
    parts += [f"### {kind.__name__}\n\n{_summary(kind)}{_table(kind)}" for kind in shared]
    parts.append(f"## rag mine\n\n{_table(MiningSettings)}")
    parts.append(f"## Server\n\n{_summary(ServeSettings)}{_table(ServeSettings, prefix='RAG_SERVE_')}")
    return "\n".join(parts)


def models() -> set[type[BaseModel]]:
    """Every model that the page shows."""
    kinds = _recipe_models().values()
    return {*kinds, *(part for kind in kinds for part in _parts(kind)), MiningSettings, ServeSettings}


def _recipe_models() -> dict[str, Any]:
    return {name: resolve_name(recipe.config) for name, recipe in RECIPES.items()}


def _recipe(name: str, kind: type[Config]) -> str:
    presets = ", ".join(f"`{preset}`" for preset in preset_names(name)) or "none"
    groups = [
        f"- `{group}`: [{part.__name__}](#{part.__name__.lower()}){_changed(kind.model_fields[group], part)}"
        for group, part in kind.groups().items()
    ]
    return "\n".join([f"### rag train {name}\n\nPresets: {presets}.\n", *groups, "", _table(kind)])


def _changed(field: FieldInfo, part: type[BaseModel]) -> str:
    """Defaults of a group that this recipe sets otherwise than the group itself."""
    usual = field.default
    if not isinstance(usual, BaseModel):
        return ""
    changed = [
        f"`{name}` {_code(getattr(usual, name))}"
        for name, one in part.model_fields.items()
        if not one.is_required() and getattr(usual, name) != one.get_default(call_default_factory=True)
    ]
    return f", here with {', '.join(changed)}" if changed else ""


def _parts(kind: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """Models that the fields of a model hold, at any depth."""
    for field in kind.model_fields.values():
        for part in _models_in(field.annotation):
            yield part
            yield from _parts(part)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)


def _summary(kind: type[BaseModel]) -> str:
    text = (inspect.getdoc(kind) or "").partition("\n\nAttributes:")[0].partition("\n\nExample:")[0]
    return f"{text}\n\n"


def _table(kind: type[BaseModel], *, prefix: str = "") -> str:
    groups = kind.groups() if issubclass(kind, Config) else {}
    helps = explained(kind)
    rows = ["| setting | default | values | meaning |", "|---|---|---|---|"]
    for name, field in kind.model_fields.items():
        if name not in groups:
            shown = f"`{prefix}{name.upper()}`" if prefix else f"`{name}`"
            cells = (shown, _default(field), _values(field), helps[name])
            rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    return "–" if value is PydanticUndefined else _code(value)


def _code(value: Any) -> str:
    """A value as one would write it in YAML."""
    if value is None:
        return "`null`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, BaseModel):
        return "see there"
    return (
        f"`{list(value) if isinstance(value, tuple) else value}`".replace("\n", "\\n")
        if value != ""
        else "empty"
    )


def _values(field: FieldInfo) -> str:
    bounds = [
        f"{sign} {getattr(rule, key)}"
        for rule in field.metadata
        for key, sign in _BOUNDS.items()
        if getattr(rule, key, None) is not None
    ]
    return " ".join([_type(field.annotation), *bounds])


def _type(annotation: Any) -> str:
    """A type in words: choices in code, models as links."""
    if annotation is type(None):
        return "`null`"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"[{annotation.__name__}](#{annotation.__name__.lower()})"
    origin, inner = get_origin(annotation), [one for one in get_args(annotation) if one is not Ellipsis]
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in inner)
    if origin in (tuple, list, frozenset, set):
        return f"list of {' or '.join(dict.fromkeys(map(_type, inner)))}"
    if inner and origin in (dict, Mapping):
        return f"map of {_type(inner[0])} to {_type(inner[1])}"
    if hasattr(annotation, "__metadata__"):
        return _type(inner[0])
    if inner:
        return " or ".join(dict.fromkeys(map(_type, inner)))
    words = {"str": "text", "int": "whole number", "float": "number", "bool": "true or false", "Path": "path"}
    name = getattr(annotation, "__name__", str(annotation))
    return words.get(name, name)


if __name__ == "__main__":
    PAGE.write_text(settings_page(), encoding="utf-8")
