"""Configuration: one frozen model per command, unknown keys refused with the nearest match."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from rag.core.errors import ConfigError

__all__ = ["Config", "load_config", "parse_numbers", "parse_overrides", "preset_names"]

ConfigT = TypeVar("ConfigT", bound=BaseModel)


RECIPE_KEY = "recipe"


class Config(BaseModel):
    """Base of every configuration: frozen, typed, no unknown keys.

    A class for one recipe names it in the class variable `recipe`; a file may name it in a key of the same
    name, and then loads into that class alone.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


def preset_names(recipe: str = "") -> list[str]:
    """Names of the configurations that ship with the package; with `recipe`, those for it.

    Example:
        >>> preset_names("reader")
        ['reader-squad']
    """
    entries = files("rag.presets").iterdir()
    names = sorted(entry.name[:-5] for entry in entries if entry.name.endswith(".yaml"))
    return [name for name in names if not recipe or _read_source(name).get(RECIPE_KEY) == recipe]


def parse_overrides(assignments: Sequence[str]) -> dict[str, Any]:
    """Turn `a.b=c` strings into a nested dict; values are read as YAML scalars, lists or maps.

    Raises:
        ConfigError: an assignment has no `=` or an empty key.

    Example:
        >>> parse_overrides(["optim.lr=2e-5", "steps=100", "name=dpr"])
        {'optim': {'lr': 2e-05}, 'steps': 100, 'name': 'dpr'}
    """
    nested: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not all(key.split(".")):
            raise ConfigError(
                f"--set {assignment!r}: expected key=value", hint="for example --set optim.lr=2e-5"
            )
        target = nested
        *parents, leaf = key.split(".")
        for parent in parents:
            target = target.setdefault(parent, {})
            if not isinstance(target, dict):
                raise ConfigError(f"--set {assignment!r}: {parent!r} was set to a value before")
        target[leaf] = _scalar(value)
    return nested


def parse_numbers(text: str, option: str) -> tuple[int, ...]:
    """Positive numbers separated by commas, ascending and distinct.

    Raises:
        ConfigError: something else was given.

    Example:
        >>> parse_numbers("20,1,5", "--top-k")
        (1, 5, 20)
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdigit() and int(part) > 0 for part in parts):
        raise ConfigError(
            f"{option} {text!r}: expected positive numbers separated by commas", hint="for example 1,5,20"
        )
    return tuple(sorted({int(part) for part in parts}))


def _scalar(text: str) -> Any:
    try:
        return float(text) if "e" in text.lower() and text[:1].isdigit() else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError):
        return text


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        nested = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merge(merged[key], value) if nested else value
    return merged


def _read_source(source: str | Path) -> dict[str, Any]:
    path = Path(source)
    if path.is_file():
        text = path.read_text(encoding="utf-8")
    elif str(source) in preset_names():
        text = files("rag.presets").joinpath(f"{source}.yaml").read_text(encoding="utf-8")
    else:
        near = difflib.get_close_matches(str(source), preset_names(), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"presets: {', '.join(preset_names()) or 'none'}"
        raise ConfigError(f"no configuration file and no preset named {str(source)!r}", hint=hint)
    try:
        data = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (json.JSONDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{source}: not readable as YAML or JSON: {error}") from error
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise ConfigError(f"{source}: expected a mapping of settings, found {type(data).__name__}")
    return data


def load_config(
    kind: type[ConfigT],
    source: str | Path | None = None,
    *,
    overrides: Mapping[str, Any] | None = None,
) -> ConfigT:
    """Read and check a configuration.

    Args:
        kind: the model to fill.
        source: a YAML or JSON file, the name of a preset, or None for the defaults.
        overrides: nested values that win over `source`.

    Raises:
        ConfigError: lists every wrong key (with the nearest right one) and every wrong value; or says that
            `source` is for another recipe.
    """
    given = _read_source(source) if source is not None else {}
    _check_recipe(kind, source, given.pop(RECIPE_KEY, None))
    data = _merge(given, overrides or {})
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        lines = [_explain(kind, issue) for issue in error.errors()]
        where = f"{source}: " if source is not None else ""
        raise ConfigError(where + "; ".join(lines)) from error


def _check_recipe(kind: type[BaseModel], source: str | Path | None, found: Any) -> None:
    wanted = getattr(kind, RECIPE_KEY, "")
    if found is None or not wanted or found == wanted:
        return
    names = preset_names(wanted)
    raise ConfigError(
        f"{source} is a configuration of {found!r}, expected one of {wanted!r}",
        hint=f"presets for {wanted}: {', '.join(names) or 'none'}; `rag train {found}` takes this one",
    )


def _explain(kind: type[BaseModel], issue: Any) -> str:
    path = ".".join(str(part) for part in issue["loc"])
    if issue["type"] == "missing":
        return f"{path} is not given, and has no default"
    if issue["type"] != "extra_forbidden":
        given = repr(issue.get("input"))
        return f"{path or 'configuration'} = {given[:80]}: {issue['msg']}"
    model: Any = kind
    for part in issue["loc"][:-1]:
        field = getattr(model, "model_fields", {}).get(part)
        model = field.annotation if field is not None else model
    known = list(getattr(model, "model_fields", {}))
    near = difflib.get_close_matches(str(issue["loc"][-1]), known, n=1)
    suggestion = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
    return f"unknown setting {path!r}; {suggestion}"
