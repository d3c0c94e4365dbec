"""Filters: which passages a search may return, by file, by document, or by fields of the corpus."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import translate
from typing import TYPE_CHECKING, Any

from rag.core.errors import ConfigError
from rag.core.types import Value, as_unicode
from rag.data.metadata import FILTER_FIELDS, columns_of, digits_of, number_of, text_of

_COMPARISONS = {"gte": "greater_equal", "gt": "greater", "lte": "less_equal", "lt": "less"}
if TYPE_CHECKING:
    import pyarrow as pa

# Columns in which equal values are looked up: the first that a value has.
_EQUAL_BY = ("digits", "number", "text")
_SIGNS = {">=": "gte", "<=": "lte", ">": "gt", "<": "lt"}
# Not year=>2020, year==2020 or year!=2020, which would look for a value with the sign.
_OPTION = re.compile(
    r"(?P<field>[^=<>]*[^=<>!])(?P<sign>>=|<=|=|>|<)(?P<value>[^=<>].*)", re.DOTALL
)
_EXPECTED = 'expected an object such as {"path": "guide/*", "year": {"gte": 2020}}'
_MAX_VALUES = 10_000
# Characters of all patterns of paths: a compiled expression grows with them.
_MAX_PATTERN = 4_000


class FilterError(ConfigError):
    """A filter that is not of the right form, or names a field that the index does not have."""


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

    def match_paths(self, paths: Iterable[str]) -> list[str]:
        """The paths that one of the patterns matches.

        >>> Condition("path", ("guide/",)).match_paths(["guide/setup/linux.md", "notes.md"])
        ['guide/setup/linux.md']
        """
        # Brackets are part of a name.
        patterns = [str(value).replace("[", "[[]") for value in self.values]
        patterns = [f"{text}*" if text.endswith("/") else text for text in patterns]
        expression = re.compile("|".join(map(translate, patterns)))
        return [path for path in paths if expression.match(path)]

    def matches(self, values: pa.Table) -> pa.ChunkedArray:
        """Which values of metadata meet the condition, given their `columns_of`.

        Numbers are compared as numbers, two texts (dates) as texts; a number and a text do not
        match.

        Raises:
            FilterError: a bound cannot be compared with any of the values.

        >>> import pyarrow as pa
        >>> from rag.data.metadata import columns_of
        >>> values = pa.Table.from_pylist([columns_of(year) for year in ("2021", 2019, "new")])
        >>> Condition("year", bounds=(("gte", 2020),)).matches(values).to_pylist()
        [True, False, False]
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        if not self.bounds:
            return self._equals(values)
        matches = pa.scalar(True)
        for sign, bound in self.bounds:
            is_within = _compare(sign, values, bound)
            if is_within.null_count == len(is_within) > 0:
                first = values.slice(0, 1).to_pylist()[0]
                value = first["number"] if first["text"] is None else first["text"]
                raise FilterError(
                    f"the filter compares {self.field!r} with {bound!r}, but a value is {value!r}",
                    hint="give a bound of the same kind: a number, or a text",
                )
            matches = pc.and_(matches, pc.fill_null(is_within, False))
        return matches

    def _equals(self, values: pa.Table) -> pa.ChunkedArray:
        import pyarrow as pa
        import pyarrow.compute as pc

        # By what they are compared with: digits, a number or a text.
        wanted: defaultdict[str, list[object]] = defaultdict(list)
        for value in self.values:
            columns = columns_of(value)
            name = next(name for name in _EQUAL_BY if columns[name] is not None)
            wanted[name].append(columns[name])
        matches = pa.scalar(False)
        for name, column_values in wanted.items():
            matches = pc.or_(matches, pc.is_in(values[name], pa.array(column_values)))
        return matches


def _compare(sign: str, values: pa.Table, bound: Value) -> pa.ChunkedArray:
    """Whether each value is within a bound; null for those that cannot be compared with it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    comparison = getattr(pc, _COMPARISONS[sign])
    number = number_of(bound)
    if number is None:
        return comparison(values["text"], text_of(bound))
    is_within = comparison(values["number"], number)
    digits = digits_of(bound)
    if digits is not None:
        # A large number may be rounded to that of the bound.
        is_rounded = pc.equal(values["number"], number).combine_chunks()
        exact = map(int, values["digits"].filter(is_rounded).to_pylist())
        differences = [(value > int(digits)) - (value < int(digits)) for value in exact]
        decided = comparison(pa.array(differences, pa.int8()), 0)
        is_within = pc.replace_with_mask(is_within, is_rounded, decided)
    if isinstance(bound, str):
        is_number = pc.is_valid(values["number"])
        return pc.if_else(is_number, is_within, comparison(values["text"], bound))
    return is_within


Filter = tuple[Condition, ...]
"""Conditions that a passage must meet all; hashable, so that equal filters are evaluated once."""


def parse_filter(fields: Mapping[str, object] | Filter | None) -> Filter | None:
    """Check a filter as JSON writes it; None, and a filter without conditions, select everything.

    A field has a value, a list of values of which any may match, or an object of bounds (gte, gt,
    lte, lt).
    """
    if fields is None:
        return None
    if isinstance(fields, tuple) and all(isinstance(item, Condition) for item in fields):
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
                hint="for example path=guide/* or year>=2020",
            )
        name, sign, value = (part.strip() for part in match.group("field", "sign", "value"))
        is_value = sign == "="
        condition = fields.setdefault(name, [] if is_value else {})
        if isinstance(condition, list) != is_value or _SIGNS.get(sign) in condition:
            raise FilterError(
                f"the filter gives {name!r} two bounds with {sign}, or both values and bounds"
            )
        if is_value:
            condition.append(value)
        else:
            condition[_SIGNS[sign]] = value
    return parse_filter(fields)


def _condition(name: str, condition: object) -> Condition:
    if isinstance(condition, Mapping):
        is_known = bool(condition) and condition.keys() <= _COMPARISONS.keys()
        if not is_known or name in FILTER_FIELDS:
            raise FilterError(
                f"the filter gives {name!r} the bounds {', '.join(map(str, condition)) or '(none)'}",
                hint=f"path and document have values, other fields also {', '.join(_COMPARISONS)}",
            )
        bounds = [(sign, _checked(name, value)) for sign, value in condition.items()]
        return Condition(name, bounds=tuple(bounds))
    values = condition if isinstance(condition, list | tuple) else [condition]
    checked = tuple(_checked(name, value) for value in values)
    size = sum(len(str(value)) for value in checked) if name == "path" else 0
    if not 0 < len(checked) <= _MAX_VALUES or size > _MAX_PATTERN:
        raise FilterError(
            f"the filter gives {name!r} {len(checked)} values and patterns of {size} characters",
            hint=f"give 1 to {_MAX_VALUES} values and {_MAX_PATTERN} characters of paths, or documents",
        )
    return Condition(name, checked)


def _checked(name: str, value: Any) -> Value:
    kinds = str if name in FILTER_FIELDS else str | int | float
    if not isinstance(value, kinds) or value != value or as_unicode(str(value)) != str(value):
        expected = "text" if kinds is str else "text, a number, true or false"
        raise FilterError(f"the filter gives {name!r} the value {value!r:.60}, expected {expected}")
    if isinstance(value, bool):
        # True equals 1, also as the key of a cache.
        return str(value).lower()
    checked: Value = value
    return checked
