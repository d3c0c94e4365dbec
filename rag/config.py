"""Configuration: one frozen, flat model per command, unknown keys refused with the nearest
match.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails

from rag.core.errors import ConfigError, did_you_mean

Setting = str | int | float | bool | Path | None | Sequence["Setting"] | Mapping[str, "Setting"]
"""A value of a configuration, as a file or a command line states it."""

ConfigT = TypeVar("ConfigT", bound=BaseModel)

RECIPE_KEY = "recipe"
# Ends the location of a problem where a setting may be of several kinds.
_KIND_OF_VALUE = re.compile(
    r"int|float|str|bool|(constrained-|literal\[|function-|tuple\[|list\[).*"
)
DEFAULT_SEED = 13


class Config(BaseModel):
    """Base of every configuration: frozen, typed, no unknown keys.

    A class for one recipe names it in the class variable `recipe`; a file may name it in a key
    `recipe`, and then loads into that class alone.

    Attributes:
        free: settings that may differ when a run is resumed, because its steps do not depend on
            them.
        group: heading of the settings that the class itself defines, in the help of a command.

    Example:
        >>> class Training(Config):
        ...     learning_rate: float = 1e-5
        ...     files: tuple[str, ...] = ()
        >>> Training(files="train.json").replaced(learning_rate=2e-5)
        Training(learning_rate=2e-05, files=('train.json',))
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False
    )
    free: ClassVar[frozenset[str]] = frozenset()
    group: ClassVar[str] = ""

    @model_validator(mode="before")
    @classmethod
    def _single_files(cls, settings: Any) -> Any:
        """A single file or name where several may be given."""
        if not isinstance(settings, Mapping):
            return settings
        given = dict(settings)
        for name, field in cls.model_fields.items():
            value = given.get(name)
            if get_origin(field.annotation) is tuple and isinstance(value, str | Path):
                given[name] = (value,)
        return given

    def replaced(self, **settings: object) -> Self:
        """A copy with other values, which are checked (pydantic.ValidationError)."""
        return type(self).model_validate({**dict(self), **settings})


def preset_names(recipe: str = "") -> list[str]:
    """Names of the configurations that ship with the package; with `recipe`, those for it."""
    entries = files("rag.presets").iterdir()
    names = sorted(entry.name[:-5] for entry in entries if entry.name.endswith(".yaml"))
    return [name for name in names if not recipe or _read_source(name).get(RECIPE_KEY) == recipe]


def parse_overrides(assignments: Sequence[str]) -> dict[str, Setting]:
    """Turn `key=value` strings into a dict; values are read as YAML scalars, lists or maps.

    Raises:
        ConfigError: an assignment has no `=` or an empty key, or a key is given twice.

    Example:
        >>> parse_overrides(["lr=2e-5", "steps=100", "name=dpr", "prefix=query: ", "ks=[1, 5]"])
        {'lr': 2e-05, 'steps': 100, 'name': 'dpr', 'prefix': 'query: ', 'ks': [1, 5]}
    """
    settings: dict[str, Setting] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key or key in settings:
            raise ConfigError(
                f"{assignment!r} is no setting, expected key=value, each key once",
                hint="for example learning_rate=2e-5",
            )
        settings[key] = parse_scalar(value)
    return settings


def parse_scalar(text: str) -> Setting:
    """A YAML value; lists and maps need their brackets, and `100:50` is text, not a number to base
    60.
    """
    try:
        value = float(text) if "e" in text.lower() and text[:1].isdigit() else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError):
        return text
    is_block = isinstance(value, dict | list) and text.lstrip()[:1] not in ("{", "[")
    return text if is_block or (isinstance(value, int | float) and ":" in text) else value


def _list_presets(recipe: str) -> str:
    whose = f" for {recipe}" if recipe else ""
    return f"presets{whose}: {', '.join(preset_names(recipe)) or 'none'}"


def _read_source(source: str | Path, recipe: str = "") -> dict[str, Any]:
    path = Path(source)
    if not path.is_file() and str(source) not in preset_names():
        raise ConfigError(
            f"no configuration file and no preset named {str(source)!r}", hint=_list_presets(recipe)
        )
    file = path if path.is_file() else files("rag.presets").joinpath(f"{source}.yaml")
    try:
        text = file.read_text(encoding="utf-8")
        data = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{source}: not readable as YAML or JSON in UTF-8: {error}") from error
    if not isinstance(data, dict | None):
        raise ConfigError(f"{source}: expected a mapping of settings, found {type(data).__name__}")
    return data or {}


def load_config(
    kind: type[ConfigT],
    source: str | Path | None = None,
    *,
    overrides: Mapping[str, object] | None = None,
) -> ConfigT:
    """Read and check a configuration.

    Args:
        source: a YAML or JSON file, the name of a preset, or None for the defaults.
        overrides: values that win over those of `source`.

    Raises:
        ConfigError: lists every wrong key (with the nearest right one) and every wrong value; or
            says that `source` is for another recipe.
    """
    recipe = getattr(kind, RECIPE_KEY, "")
    settings = {} if source is None else _read_source(source, recipe)
    named_recipe = settings.pop(RECIPE_KEY, None) or recipe
    if recipe and named_recipe != recipe:
        raise ConfigError(
            f"{source} is a configuration of {named_recipe!r}, expected one of {recipe!r}",
            hint=f"{_list_presets(recipe)}; `rag train {named_recipe}` takes this one",
        )
    try:
        return kind.model_validate({**settings, **(overrides or {})})
    except ValidationError as error:
        issues = error.errors()
    missing = [str(issue["loc"][0]) for issue in issues if issue["type"] == "missing"]
    # What is wrong, and what each kind of value that is allowed there expects.
    expected = dict[str, str]()
    for issue in issues:
        what, problem = _explain(kind, issue)
        setting = issue["loc"][:1]
        if settings.keys() & setting and not (overrides or {}).keys() & setting:
            what = f"{source}: {what}"
        expected[what] = f"{expected[what]}, or {problem}" if what in expected else problem
    hint = ""
    if recipe and missing:
        hint = f"`rag train {recipe} --help` says what each setting is"
        if preset_names(recipe) and source is None:
            hint = f"{{config}} gives what else is needed; {_list_presets(recipe)}"
    raise ConfigError(
        "; ".join(what + problem for what, problem in expected.items()),
        hint=hint,
        arguments=(*missing, "config"),
    )


def _explain(kind: type[BaseModel], issue: ErrorDetails) -> tuple[str, str]:
    """The setting with its value, and the problem."""
    parts = [str(part) for part in issue["loc"]]
    value = issue.get("input")
    if parts and _KIND_OF_VALUE.fullmatch(parts[-1]):
        parts.pop()
    path = ".".join(parts)
    if issue["type"] == "missing":
        return f"{{{path}}}", " is not given"
    if issue["type"] == "extra_forbidden":
        names = kind.model_fields
        hint = did_you_mean(issue["loc"][-1], names, "there are " + ", ".join(names))
        replaced_by = getattr(kind, "replaced_by", {})
        if path in replaced_by:
            hint = f"set {replaced_by[path]}"
        return f"unknown setting {path!r}", f"; {hint}"
    problem = re.sub(
        "^Input should be (.+?)(, unable to .+|, got .+)?$", r"expected \1", issue["msg"]
    )
    problem = problem.removeprefix("Value error, ")
    # Settings that do not go together.
    if isinstance(value, Mapping | Config):
        return (f"{path}: ", problem) if path else (problem, "")
    return f"{path} = {value!r:.80}: ", problem
