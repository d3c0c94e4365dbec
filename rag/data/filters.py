"""Filters: which passages a search may return, by file, by document, or by fields of the corpus."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import translate
from typing import Any

from rag.core.errors import ConfigError
from rag.core.types import Value
from rag.core.unicode import is_unicode
from rag.data.choices import FILTER_FIELDS


class FilterError(ConfigError):
    """A filter that is not of the right form, or names a field that the index does not have."""


_RANGES: dict[str, Callable[[Any, Any], bool]] = {
    "gte": operator.ge, "gt": operator.gt, "lte": operator.le, "lt": operator.lt,
}  # fmt: skip
_OPTION = re.compile(r"(?P<field>[^=<>]+)(?P<sign>>=|<=|=|>|<)(?P<value>.+)", re.DOTALL)
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.ASCII | re.IGNORECASE)
_SIGNS = {">=": "gte", "<=": "lte", ">": "gt", "<": "lt"}
_EXPECTED = 'expected an object such as {"path": "guide/*", "year": {"gte": 2020}}'
_MOST_VALUES = 10_000
_MOST_PATTERN = 4_000  # characters of all patterns of paths: a compiled expression grows with them


@dataclass(frozen=True, slots=True)
class Condition:
    """Condition on one field: its value is one of `values`, or within all `bounds`.

    Text that spells a number is that number, since tables such as CSV have nothing but text.

    Attributes:
        values: for the field "path" they are patterns, in which `*` and `?` stand for any characters and a
            slash at the end for everything in the folder.
        bounds: pairs such as ("gte", 2020).
    """

    field: str
    values: tuple[Value, ...] = ()
    bounds: tuple[tuple[str, Value], ...] = ()

    def test(self) -> Callable[[Any], bool]:
        """The condition as a function of a value that a passage has; None does not match.

        Example:
            >>> is_new = Condition("year", bounds=(("gte", 2020),)).test()
            >>> is_new(2021), is_new(2019), is_new("2021"), is_new("new"), is_new(None)
            (True, False, True, False, False)
            >>> Condition("path", ("guide/*",)).test()("guide/setup/linux.md")
            True
        """
        if self.field == "path":
            return _path_test([str(value) for value in self.values])
        keys = {_key(value) for value in self.values}

        def fits(value: Any) -> bool:
            return (
                all(_is_within(value, *bound) for bound in self.bounds)
                if self.bounds
                else _key(value) in keys
            )

        return lambda value: any(map(fits, value if isinstance(value, tuple) else (value,)))


def _key(value: Any) -> Any:
    """The number that a value is or spells, else the value as text."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):  # "nan" is a language
        try:
            return int(value)  # exact, however large
        except ValueError:
            return float(value)
    return str(value).lower() if isinstance(value, bool) else value


def _is_within(value: Any, sign: str, bound: Value) -> bool:
    """Numbers are compared as numbers, two texts (dates) as texts."""
    for pair in ((_key(value), _key(bound)), (value, bound)):
        if all(isinstance(it, str) for it in pair) or not any(isinstance(it, str | None) for it in pair):
            return _RANGES[sign](*pair)
    return False


@dataclass(frozen=True, slots=True)
class Filter:
    """Conditions that a passage must meet all; hashable, so that equal filters are evaluated once."""

    conditions: tuple[Condition, ...]

    @classmethod
    def parse(cls, given: Mapping[str, Any] | Filter | None) -> Filter | None:
        """Check a filter as JSON writes it; None, and one without conditions, select everything.

        A field has a value, a list of which one must match, or an object of bounds (gte, gt, lte, lt).

        Raises:
            FilterError: it is not of this form; the message names the field.

        Example:
            >>> Filter.parse({"path": "guide/*", "year": {"gte": 2020}}).conditions[1]
            Condition(field='year', values=(), bounds=(('gte', 2020),))
        """
        if given is None or isinstance(given, Filter):
            return given
        if not isinstance(given, Mapping):
            raise FilterError(f"the filter is {given!r:.60}", hint=_EXPECTED)
        return cls(tuple(_condition(str(name), value) for name, value in given.items())) if given else None

    @classmethod
    def parse_options(cls, given: Iterable[str]) -> Filter | None:
        """The filter of options such as `path=guide/*` and `year>=2020`; one field may have several values.

        Raises:
            FilterError: an option is not of this form.

        Example:
            >>> Filter.parse_options(["path=a/*", "path=b/*"]).conditions
            (Condition(field='path', values=('a/*', 'b/*'), bounds=()),)
        """
        fields: dict[str, Any] = {}
        for option in given:
            match = _OPTION.fullmatch(option)
            if match is None:
                raise FilterError(
                    f"the filter {option!r} is not of the form FIELD=VALUE",
                    hint="for example --filter path=guide/* or --filter 'year>=2020'",
                )
            name, sign, value = (match[part].strip() for part in ("field", "sign", "value"))
            condition = fields.setdefault(name, [] if sign == "=" else {})
            if isinstance(condition, list) != (sign == "="):
                raise FilterError(
                    f"the filter gives {name!r} both values and bounds", hint="give one of them"
                )
            if isinstance(condition, list):
                condition.append(value)
            elif condition.setdefault(_SIGNS[sign], value) != value:
                raise FilterError(
                    f"the filter gives {name!r} two bounds with {sign}", hint="give one of them"
                )
        return cls.parse(fields)


def _condition(name: str, given: Any) -> Condition:
    if isinstance(given, Mapping):
        if not given or not {*given} <= {*_RANGES} or name in FILTER_FIELDS:
            raise FilterError(
                f"the filter gives {name!r} the bounds {', '.join(map(str, given)) or '(none)'}",
                hint=f"path and document have values, other fields also {', '.join(_RANGES)}",
            )
        return Condition(name, bounds=tuple((sign, _checked(name, value)) for sign, value in given.items()))
    values = given if isinstance(given, list | tuple) else [given]
    if not values or len(values) > _MOST_VALUES:
        raise FilterError(f"the filter gives {name!r} {len(values)} values, expected 1 to {_MOST_VALUES}")
    checked = tuple(_checked(name, value) for value in values)
    size = sum(len(pattern) for pattern in map(str, checked) if not _is_plain(pattern))
    if name == "path" and size > _MOST_PATTERN:
        raise FilterError(
            f"the filter gives 'path' patterns of {size} characters, at most {_MOST_PATTERN} are accepted",
            hint="name files, or folders with a slash at the end: these have no limit",
        )
    return Condition(name, checked)


def _checked(name: str, value: Any) -> Value:
    is_text = name in FILTER_FIELDS
    if not isinstance(value, str if is_text else str | int | float) or value != value:
        expected = "text" if is_text else "text, a number, true or false"
        raise FilterError(f"the filter gives {name!r} the value {value!r:.60}, expected {expected}")
    if isinstance(value, str) and not is_unicode(value):
        raise FilterError(f"the filter gives {name!r} half of a surrogate pair, expected valid Unicode")
    return value


def _is_plain(pattern: str) -> bool:
    """Whether a pattern is a path or everything in a folder, which needs no expression."""
    return not any(sign in pattern for sign in "*?[")


def _path_test(patterns: list[str]) -> Callable[[Any], bool]:
    plain = [pattern for pattern in patterns if _is_plain(pattern)]
    files = {path for path in plain if not path.endswith("/")}
    folders = tuple(path for path in plain if path.endswith("/"))
    others = [re.sub(r"\*+", "*", it + "*" * it.endswith("/")) for it in patterns if not _is_plain(it)]
    expression = re.compile("|".join(map(translate, others))) if others else None

    def test(value: Any) -> bool:
        if value is None or value in files or value.startswith(folders):
            return value is not None
        return expression is not None and expression.match(value) is not None

    return test
