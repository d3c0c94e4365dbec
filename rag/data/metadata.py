"""Metadata of documents and passages: fields that filters compare, and the types of their values."""

import datetime
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from rag.core.errors import ConfigError
from rag.core.types import Groups, Metadata, Value, as_unicode

FILTER_FIELDS = ("path", "document")
"""What filters name without metadata: a file's path, a document's id."""

GROUPS_FIELD = "groups"
"""The field that names who may read a document: no metadata of its passages."""

_MOST_GROUPS = 10_000
_MOST_GROUP_CHARS = 500

EXACT_LIMIT = 2**53
"""Below it every whole number is a float64, and no other is rounded to it."""

WHOLE_NUMBER = re.compile(r"[-+]?\d+", re.ASCII)
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.ASCII | re.IGNORECASE)

METADATA_HINT = 'an example is {"year": 2020, "tags": ["guide", "linux"]}'


def metadata_of_fields(fields: Mapping[str, object]) -> Metadata:
    """The metadata of a document; fields without a value are left out, dates become text.

    Raises:
        ValueError: filters cannot compare a value, or give its field another meaning; the message
            names it.

    >>> metadata_of_fields({"year": 2020, "tags": ["a", "b"], "by": "", "on": datetime.date(2020, 5, 1)})
    (('year', 2020), ('tags', ('a', 'b')), ('on', '2020-05-01'))
    """
    if not isinstance(fields, Mapping):
        raise ValueError(f"{fields!r:.40}, expected a mapping")
    metadata: list[tuple[str, Value | tuple[Value, ...]]] = []
    for name, value in fields.items():
        is_name = isinstance(name, str) and name != "" and as_unicode(name) == name
        if not is_name or name in FILTER_FIELDS:
            raise ValueError(
                f"a metadata field cannot be called {name!r}: the name must be text, and other than "
                f"{' and '.join(FILTER_FIELDS)}"
            )
        if not has_value(value):
            continue
        plain: Value | tuple[Value, ...]
        if is_groups(name):
            if GROUPS_FIELD in dict(metadata):
                raise ValueError(f"groups are stated twice, the second time as {name!r}")
            name = GROUPS_FIELD
            plain = tuple(sorted(groups_of(value)))
        elif is_list(value):
            plain = tuple(_plain(name, item) for item in value)
        else:
            plain = _plain(name, value)
        metadata.append((name, plain))
    return tuple(metadata)


def is_groups(name: object) -> bool:
    """Whether a field of this name says who may read a document, in letters of any case."""
    return str(name).casefold() == GROUPS_FIELD


def groups_of(value: object) -> Groups:
    """The groups that a value names: a list of names, or a text with commas between them.

    Raises:
        ValueError: it names none, or one that cannot be a group's.

    >>> sorted(groups_of("legal, hr")), sorted(groups_of(["CN=hr,OU=groups"]))
    (['hr', 'legal'], ['CN=hr,OU=groups'])
    """
    names = value.split(",") if isinstance(value, str) else value
    if not is_list(names) or not 0 < len(names) <= _MOST_GROUPS:
        raise ValueError(f"groups: {value!r:.40}, expected 1 to {_MOST_GROUPS:,} names")
    groups = set()
    for name in names:
        group = name.strip() if isinstance(name, str) else ""
        is_name = 0 < len(group) <= _MOST_GROUP_CHARS and group.isprintable()
        if group == "*" or not is_name:
            raise ValueError(
                f"groups: a group cannot be called {name!r:.40}: a document that everybody may read "
                f"has no groups, and a name is text of at most {_MOST_GROUP_CHARS} characters"
            )
        groups.add(group)
    return frozenset(groups)


def groups_of_person(value: object) -> Groups:
    """The groups that a person belongs to, as `groups_of` reads them; a person may be in none.

    Raises:
        ConfigError: a name cannot be a group's.
    """
    if not has_value(value):
        return frozenset()
    try:
        return groups_of(value)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def has_value(value: object) -> bool:
    """Whether a field says something: it is neither None, "" nor []."""
    return value not in (None, "", [])


def is_list(value: object) -> TypeGuard[Sequence[object]]:
    """Whether a value is a sequence of several, not text."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _plain(name: str, value: Any) -> Value:
    # A datetime is a date.
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    is_text = isinstance(value, str) and as_unicode(value) == value
    is_finite = isinstance(value, float) and math.isfinite(value)
    if is_text or is_finite or isinstance(value, int):
        plain: Value = value
        return plain
    kinds = "text, a number, true or false, or a list of these"
    raise ValueError(f"{name!r}: found {type(value).__name__} {value!r:.40}, expected {kinds}")


def number_of(value: Value) -> float | None:
    """The number that a value is or that its text spells, since tables have nothing but text.

    >>> number_of(2020), number_of("2e3"), number_of("nan"), number_of(True)
    (2020.0, 2000.0, None, None)
    """
    if isinstance(value, bool) or (isinstance(value, str) and not _NUMBER.fullmatch(value)):
        return None
    try:
        # Arrow tells -0.0 from 0.0.
        return float(value) + 0.0
    except OverflowError:
        return None


def text_of(value: Value) -> str | None:
    """The text that a value is, or is compared as: true, false.

    >>> text_of("2020"), text_of(True), text_of(2020)
    ('2020', 'true', None)
    """
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else None


def digits_of(value: Value) -> str | None:
    """The digits of a whole number that float64 may not tell from its neighbours.

    >>> digits_of(2**60), digits_of("+09007199254740993"), digits_of(1e20), digits_of(2020)
    ('1152921504606846976', '9007199254740993', '100000000000000000000', None)
    """
    if isinstance(value, int):
        return str(value) if abs(value) >= EXACT_LIMIT else None
    number = number_of(value)
    if number is None or abs(number) < EXACT_LIMIT:
        return None
    if isinstance(value, str) and WHOLE_NUMBER.fullmatch(value):
        sign = "-" if number < 0 else ""
        return sign + value.lstrip("+-0")
    return str(int(number)) if math.isfinite(number) else None


def columns_of(value: Value) -> dict[str, str | float | None]:
    """What filters compare of a value: its text, its number, and the digits of a large one."""
    return {"text": text_of(value), "number": number_of(value), "digits": digits_of(value)}
