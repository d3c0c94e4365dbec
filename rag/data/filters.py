"""Filters: which passages a search may return, by file, by document, or by fields of the corpus."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import translate
from typing import Any

from rag.core.errors import ConfigError
from rag.core.types import Value, as_unicode
from rag.data.metadata import FILTER_FIELDS


class FilterError(ConfigError):
    """A filter that is not of the right form, or names a field that the index does not have."""


_RANGES: dict[str, Callable[[Any, Any], bool]] = {
    "gte": operator.ge,
    "gt": operator.gt,
    "lte": operator.le,
    "lt": operator.lt,
}
_OPTION = re.compile(r"(?P<field>[^=<>]+)(?P<sign>>=|<=|=|>|<)(?P<value>.+)", re.DOTALL)
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.ASCII | re.IGNORECASE)
_SIGNS = {">=": "gte", "<=": "lte", ">": "gt", "<": "lt"}
_EXPECTED = 'expected an object such as {"path": "guide/*", "year": {"gte": 2020}}'
_MOST_VALUES = 10_000
_MOST_PATTERN = 4_000  # characters of all patterns of paths: a compiled expression grows with them


@dataclass(frozen=True, slots=True)
class Condition:
    """Condition on one field: its value is one of `values`, or within all `bounds`, such as ("gte",
    2020).

    Text that spells a number is that number, since tables such as CSV have nothing but text. Values
    for "path" are patterns: `*` and `?` stand for any characters, a slash at the end for all in the
    folder.
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
            patterns = (
                translate(f"{it}*" if str(it).endswith("/") else str(it)) for it in self.values
            )
            expression = re.compile("|".join(patterns))
            return lambda path: path is not None and expression.match(path) is not None
        keys = {_key(value) for value in self.values}

        def fits(value: Any) -> bool:
            return (
                all(_is_within(value, *it) for it in self.bounds)
                if self.bounds
                else _key(value) in keys
            )

        return lambda value: any(map(fits, value if isinstance(value, tuple) else (value,)))

    def check_bounds(self, values: Iterable[Any]) -> None:
        """Refuse a bound that no value of the field can be compared with, such as a text among
        numbers.
        """
        listed = [
            it for value in values for it in (value if isinstance(value, tuple) else (value,))
        ]
        for sign, bound in self.bounds:
            if listed and all(_is_within(value, sign, bound) is None for value in listed):
                what = f"the filter compares {self.field!r} with {bound!r}, but a value is {listed[0]!r}"
                raise FilterError(what, hint="give a bound of the same kind: a number, or a text")


def _key(value: Any) -> Any:
    """The number that a value is or spells, else the value as text."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):  # "nan" is a language
        return (
            int(value) if value.lstrip("+-").isdecimal() else float(value)
        )  # exact, however large
    return str(value).lower() if isinstance(value, bool) else value


def _is_within(value: Any, sign: str, bound: Value) -> bool | None:
    """Numbers are compared as numbers, two texts (dates) as texts; None of a number and a text."""
    for pair in ((_key(value), _key(bound)), (value, bound)):
        with suppress(TypeError):
            return _RANGES[sign](*pair)
    return None


Filter = tuple[Condition, ...]
"""Conditions that a passage must meet all; hashable, so that equal filters are evaluated once."""


def parse_filter(fields: Mapping[str, Any] | Filter | None) -> Filter | None:
    """Check a filter as JSON writes it; None, and one without conditions, select everything.

    A field has a value, a list of which one must match, or an object of bounds (gte, gt, lte, lt).
    """
    if fields is None or (
        isinstance(fields, tuple) and all(isinstance(it, Condition) for it in fields)
    ):
        return fields or None
    if not isinstance(fields, Mapping):
        raise FilterError(f"the filter is {fields!r:.60}", hint=_EXPECTED)
    return tuple(_condition(str(name), value) for name, value in fields.items()) or None


def parse_options(options: Iterable[str]) -> Filter | None:
    """The filter of options such as `path=guide/*` and `year>=2020`; a FilterError for others.

    Example:
        >>> parse_options(["path=a/*", "path=b/*"])
        (Condition(field='path', values=('a/*', 'b/*'), bounds=()),)
    """
    fields: dict[str, Any] = {}
    for option in options:
        match = _OPTION.fullmatch(option)
        if match is None:
            raise FilterError(
                f"the filter {option!r} is not of the form FIELD=VALUE",
                hint="for example --filter path=guide/* or --filter 'year>=2020'",
            )
        name, sign, value = (match[part].strip() for part in ("field", "sign", "value"))
        condition = fields.setdefault(name, [] if sign == "=" else {})
        if isinstance(condition, list) != (sign == "=") or _SIGNS.get(sign) in condition:
            raise FilterError(
                f"the filter gives {name!r} two bounds with {sign}, or both values and bounds"
            )
        if isinstance(condition, list):
            condition.append(value)
        else:
            condition[_SIGNS[sign]] = value
    return parse_filter(fields)


def _condition(name: str, stated: Any) -> Condition:
    if isinstance(stated, Mapping):
        if not stated or not {*stated} <= {*_RANGES} or name in FILTER_FIELDS:
            raise FilterError(
                f"the filter gives {name!r} the bounds {', '.join(map(str, stated)) or '(none)'}",
                hint=f"path and document have values, other fields also {', '.join(_RANGES)}",
            )
        return Condition(
            name, bounds=tuple((sign, _checked(name, value)) for sign, value in stated.items())
        )
    listed = stated if isinstance(stated, list | tuple) else [stated]
    values = tuple(_checked(name, value) for value in listed)
    size = sum(len(str(value)) for value in values) if name == "path" else 0
    if not 0 < len(values) <= _MOST_VALUES or size > _MOST_PATTERN:
        raise FilterError(
            f"the filter gives {name!r} {len(values)} values and patterns of {size} characters",
            hint=f"give 1 to {_MOST_VALUES} values and {_MOST_PATTERN} characters of paths, or documents",
        )
    return Condition(name, values)


def _checked(name: str, value: Any) -> Value:
    kinds, expected = (str | int | float), "text, a number, true or false"
    if name in FILTER_FIELDS:
        kinds, expected = str, "text"
    if not isinstance(value, kinds) or value != value or as_unicode(str(value)) != str(value):
        raise FilterError(f"the filter gives {name!r} the value {value!r:.60}, expected {expected}")
    return (
        str(_key(value)) if isinstance(value, bool) else value
    )  # True equals 1, also as the key of a cache
