"""Configuration: one frozen model per command, unknown keys refused with the nearest match."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from rag.core.errors import ConfigError, did_you_mean

ConfigT = TypeVar("ConfigT", bound=BaseModel)

RECIPE_KEY = "recipe"
DEFAULT_SEED = 13  # of every command


class Config(BaseModel):
    """Base of every configuration: frozen, typed, no unknown keys.

    A field that is itself a `Config` is a group. A setting of a group may be given in the group or, where no
    other group has one of that name, beside it: `optim.learning_rate=1e-5` and `learning_rate=1e-5` are one.
    Settings missing in a group get the defaults of the class that has the group, not those of the group's
    class.

    A class for one recipe names it in the class variable `recipe`; a file may name it in a key `recipe`, and
    then loads into that class alone.

    Attributes:
        free: settings that may differ when a run is resumed, because its steps do not depend on them.

    Example:
        >>> class Optim(Config):
        ...     learning_rate: float = 1e-5
        ...     warmup_steps: int = 0
        >>> class Training(Config):
        ...     optim: Optim = Optim(warmup_steps=20)
        >>> Training(learning_rate=2e-5).optim
        Optim(learning_rate=2e-05, warmup_steps=20)
        >>> Training(optim={"learning_rate": 2e-5}).flat()
        {'learning_rate': 2e-05, 'warmup_steps': 20}
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)
    free: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def groups(cls) -> dict[str, type[Config]]:
        """Fields that are configurations themselves."""
        kinds = {name: field.annotation for name, field in cls.model_fields.items()}
        return {
            name: kind for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, Config)
        }

    @classmethod
    def nested(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Settings with those of groups moved into their groups.

        Raises:
            ConfigError: a setting is given in its group and beside it.
        """
        homes, groups = cls._homes(), cls.groups()
        moved: dict[str, Any] = {}
        for key, value in sorted(given.items(), key=lambda item: item[0] in homes):  # whole groups first
            group = homes.get(key)
            if key in groups and isinstance(value, Mapping):
                value = groups[key].nested(value)
            place = moved
            if group and isinstance(moved.get(group, {}), Mapping | Config):
                place = moved[group] = dict(moved.get(group, {}))
            if key in place:
                raise ConfigError(f"{key} is given twice, as {key} of {group} too", hint="give it once")
            place[key] = value
        return moved

    @classmethod
    def _homes(cls) -> dict[str, str]:
        """Maps the name of a setting to its group, for names that only one group has."""
        homes: dict[str, list[str]] = {}
        for group, kind in cls.groups().items():
            for name in kind.model_fields:
                homes.setdefault(name, []).append(group)
        own = cls.model_fields
        return {name: found[0] for name, found in homes.items() if len(found) == 1 and name not in own}

    @model_validator(mode="before")
    @classmethod
    def _fill_groups(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        settings = cls.nested(given)
        for name in cls.model_fields.keys() & settings.keys():  # one file where several may be given
            if get_origin(cls.model_fields[name].annotation) is tuple and isinstance(
                settings[name], str | Path
            ):
                settings[name] = (settings[name],)
        for name in cls.groups().keys() & settings.keys():
            usual = cls.model_fields[name].default
            if isinstance(settings[name], Mapping) and isinstance(usual, Config):
                settings[name] = {**dict(usual), **settings[name]}
        return settings

    def flat(self) -> dict[str, Any]:
        """All settings by their shortest valid name, as validated values."""
        homes = self._homes()
        shown: dict[str, Any] = {}
        for name, value in self:
            if name in self.groups():
                shown |= {k if k in homes else f"{name}.{k}": v for k, v in value.flat().items()}
            else:
                shown[name] = value
        return shown

    def replaced(self, **settings: Any) -> Self:
        """A checked copy with other values, of groups too.

        Raises:
            pydantic.ValidationError: a value is not valid.
        """
        given = type(self).nested(settings)
        for name in self.groups().keys() & given.keys():
            if isinstance(given[name], Mapping):
                given[name] = {**dict(getattr(self, name)), **given[name]}
        return type(self).model_validate({**dict(self), **given})


def preset_names(recipe: str = "") -> list[str]:
    """Names of the configurations that ship with the package; with `recipe`, those for it.

    Example:
        >>> preset_names("static")
        ['static-small']
    """
    entries = files("rag.presets").iterdir()
    names = sorted(entry.name[:-5] for entry in entries if entry.name.endswith(".yaml"))
    return [name for name in names if not recipe or _read_source(name).get(RECIPE_KEY) == recipe]


def parse_overrides(assignments: Sequence[str]) -> dict[str, Any]:
    """Turn `a.b=c` strings into a nested dict; values are read as YAML scalars, lists or maps.

    Raises:
        ConfigError: an assignment has no `=` or an empty key.

    Example:
        >>> parse_overrides(["optim.lr=2e-5", "steps=100", "name=dpr", "prefix=query: ", "ks=[1, 5]"])
        {'optim': {'lr': 2e-05}, 'steps': 100, 'name': 'dpr', 'prefix': 'query: ', 'ks': [1, 5]}
    """
    nested: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not all(key.split(".")):
            raise ConfigError(
                f"--set {assignment!r}: expected key=value", hint="for example --set learning_rate=2e-5"
            )
        target = nested
        *parents, leaf = key.split(".")
        for parent in parents:
            target = target.setdefault(parent, {})
            if not isinstance(target, dict):
                raise ConfigError(f"--set {assignment!r}: {parent!r} was set to a value before")
        target[leaf] = parse_scalar(value)
    return nested


def parse_scalar(text: str) -> Any:
    """A YAML value; lists and maps need their brackets, and `100:50` is text, not a number to base 60."""
    try:
        value = float(text) if "e" in text.lower() and text[:1].isdigit() else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError):
        return text
    is_block = isinstance(value, dict | list) and text.lstrip()[:1] not in ("{", "[")
    return text if is_block or (isinstance(value, int | float) and ":" in text) else value


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings, where those of `over` win."""
    result = dict(base)
    for key, value in over.items():
        is_nested = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value) if is_nested else value
    return result


def _text_of(source: str | Path) -> str:
    path = Path(source)
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path} is not UTF-8 text", hint="convert it to UTF-8 first") from error
    if str(source) in preset_names():
        return files("rag.presets").joinpath(f"{source}.yaml").read_text(encoding="utf-8")
    hint = did_you_mean(source, preset_names(), f"presets: {', '.join(preset_names()) or 'none'}")
    raise ConfigError(f"no configuration file and no preset named {str(source)!r}", hint=hint)


def _read_source(source: str | Path) -> dict[str, Any]:
    text = _text_of(source)
    try:
        data = json.loads(text) if Path(source).suffix == ".json" else yaml.safe_load(text)
    except (json.JSONDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{source}: not readable as YAML or JSON: {error}") from error
    data = {} if data is None else data
    if not isinstance(data, dict):
        raise ConfigError(f"{source}: expected a mapping of settings, found {type(data).__name__}")
    return data


def load_config(
    kind: type[ConfigT],
    source: str | Path | None = None,
    *,
    overrides: Mapping[str, Any] | None = None,
    flags: Mapping[str, str] | None = None,
) -> ConfigT:
    """Read and check a configuration.

    Args:
        source: a YAML or JSON file, the name of a preset, or None for the defaults.
        overrides: nested values that win over `source`.
        flags: the command line's options for settings, for messages.

    Raises:
        ConfigError: lists every wrong key (with the nearest right one) and every wrong value; or says that
            `source` is for another recipe.
    """
    given = _read_source(source) if source is not None else {}
    _check_recipe(kind, source, given.pop(RECIPE_KEY, None))
    if issubclass(kind, Config):
        given, overrides = kind.nested(given), kind.nested(overrides or {})
    data = merged(given, overrides or {})
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        lines = [_explain(kind, issue, flags or {}) for issue in error.errors()]
        where = f"{source}: " if source is not None else ""
        is_missing = source is None and any(issue["type"] == "missing" for issue in error.errors())
        presets = preset_names(recipe) if is_missing and (recipe := getattr(kind, RECIPE_KEY, "")) else ()
        hint = f"--config gives what else is needed; presets: {', '.join(presets)}" if presets else ""
        raise ConfigError(where + "; ".join(lines), hint=hint) from error


def _check_recipe(kind: type[BaseModel], source: str | Path | None, found: Any) -> None:
    wanted = getattr(kind, RECIPE_KEY, "")
    if found is None or not wanted or found == wanted:
        return
    names = preset_names(wanted)
    raise ConfigError(
        f"{source} is a configuration of {found!r}, expected one of {wanted!r}",
        hint=f"presets for {wanted}: {', '.join(names) or 'none'}; `rag train {found}` takes this one",
    )


def _explain(kind: type[BaseModel], issue: Any, flags: Mapping[str, str]) -> str:
    path = ".".join(str(part) for part in issue["loc"])
    if issue["type"] == "missing":
        if issubclass(kind, Config) and (group := kind.groups().get(path)):
            missing = [name for name, field in group.model_fields.items() if field.is_required()]
        else:
            missing = [path]
        options = (flags.get(name.rpartition(".")[2], f"{name} (--set {name}=…)") for name in missing)
        return ", ".join(options) + " is not given"
    if issue["type"] != "extra_forbidden":
        problem = str(issue["msg"]).removeprefix("Value error, ")
        if isinstance(issue.get("input"), Mapping | Config):  # settings that do not go together
            return f"{path}: {problem}" if path else problem
        return f"{path} = {issue.get('input')!r:.80}: {problem}"
    model: Any = kind
    for part in issue["loc"][:-1]:
        field = getattr(model, "model_fields", {}).get(part)
        model = field.annotation if field is not None else model
    known = list(getattr(model, "model_fields", {}))
    if model is kind and issubclass(kind, Config):
        known += kind._homes()
    suggestion = did_you_mean(issue["loc"][-1], known, f"known: {', '.join(known)}")
    if isinstance(group := issue.get("input"), Mapping) and group:
        suggestion = f"it is no group: write its settings beside the others, as {next(iter(group))}"
    return f"unknown setting {path!r}; {suggestion}"
