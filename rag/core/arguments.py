"""Arguments of public functions are checked against their annotations: a wrong one is refused by its name."""

import inspect
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, wraps
from pathlib import Path
from types import UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from rag.core.errors import ConfigError

P = ParamSpec("P")
T = TypeVar("T")
_FURTHER = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_NO = object()  # what a value that does not fit becomes


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """The function, or dataclass, with a check of every argument before it runs.

    Numbers of numpy become Python's, and any iterable a list where a sequence is expected. What is annotated
    as `Any` or `Iterable`, and further settings (`**`), are left to the function.

    Raises:
        ConfigError: when it is called, if an argument has a type that its annotation does not name, is NaN,
            or is empty in place of a path.

    Example:
        >>> @checked
        ... def cut(text: str, words: int = 100) -> list[str]:
        ...     return text.split()[:words]
        >>> cut("one two three", words="2")
        Traceback (most recent call last):
        ...
        rag.core.errors.ConfigError: words is '2', expected int
    """
    signature = inspect.signature(function)
    further = {name: Any for name, one in signature.parameters.items() if one.kind in _FURTHER}
    types = cache(lambda: {**types_of(function), **further})

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        given = signature.bind(*args, **kwargs)
        given.arguments.update(fitting(given.arguments, types()))
        return function(*given.args, **given.kwargs)

    return call


def types_of(thing: Any) -> dict[str, Any]:
    """The annotations of a function or class; types imported for type checkers alone count as `Any`."""
    missing: dict[str, Any] = {}
    while True:
        try:
            return get_type_hints(thing, localns=missing)
        except NameError as error:
            missing[str(error.name)] = Any


def fitting(given: Mapping[str, Any], types: Mapping[str, Any]) -> dict[str, Any]:
    """The values, as the types of their names have them; see `checked`.

    Raises:
        ConfigError: a value does not fit its type.
    """
    fitted = {name: _fitted(value, types.get(name, Any)) for name, value in given.items()}
    for name, value in given.items():
        if fitted[name] is _NO:
            found = " ".join(repr(value).split())
            but = {"''": ", not empty", "nan": ", not NaN"}.get(found, "")
            raise ConfigError(f"{name} is {found:.60}, expected {_described(types[name])}{but}")
    return fitted


def _fitted(value: Any, hint: Any) -> Any:
    """The value as the annotation has it, or `_NO`."""
    kind, parts = get_origin(hint) or hint, get_args(hint)
    if kind in (Any, Iterable):
        return value
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        value = value.item()
    if kind in (Union, UnionType):
        if isinstance(value, str) and not value and {str, Path} <= {*parts}:
            return _NO
        return next((fit for part in parts if (fit := _fitted(value, part)) is not _NO), _NO)
    if kind is Literal:
        return value if any(isinstance(value, type(part)) and value == part for part in parts) else _NO
    if kind in (Sequence, tuple):
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            return _NO
        items = [_fitted(one, parts[0]) for one in value]
        return _NO if any(one is _NO for one in items) else items
    if isinstance(value, bool) and kind in (int, float):
        return _NO
    if kind is float:
        return value if isinstance(value, int | float) and not math.isnan(value) else _NO
    if kind is Path:
        return value if isinstance(value, os.PathLike) and isinstance(os.fspath(value), str) else _NO
    return value if not isinstance(kind, type) or isinstance(value, kind) else _NO


def _described(hint: Any) -> str:
    """The annotation as it is written, without the modules of its types."""
    return hint.__name__ if isinstance(hint, type) else re.sub(r"\b(?:\w+\.)+", "", str(hint))
