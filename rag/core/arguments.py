"""Arguments of public functions are checked against their annotations: a wrong one is refused by its name."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, wraps
from types import UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from rag.core.errors import ConfigError

P = ParamSpec("P")
T = TypeVar("T")
_FURTHER = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """The function with a check of every argument before it runs; numbers of numpy become Python's.

    What is annotated as `Any` or `Iterable`, and further settings (`**`), are left to the function.

    Raises:
        ConfigError: when it is called, if an argument has a type that its annotation does not name.

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
        bound = signature.bind(*args, **kwargs)
        bound.arguments.update(fitting(bound.arguments, types()))
        return function(*bound.args, **bound.kwargs)

    return call


def types_of(thing: Any) -> dict[str, Any]:
    """The annotations of a function or class; types imported for type checkers alone count as `Any`."""
    missing: dict[str, Any] = {}
    while True:
        try:
            return get_type_hints(thing, localns=missing)
        except NameError as error:
            missing[str(error.name)] = Any


def fitting(arguments: Mapping[str, Any], types: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments, numbers of numpy as Python's.

    Raises:
        ConfigError: one has not the type of its name.
    """
    values = {}
    for name, value in arguments.items():
        kind = type(value)
        is_number = kind.__module__ == "numpy" and kind.__name__ != "ndarray" and value.shape == ()
        values[name] = value.item() if is_number else value
        if not _fits(values[name], hint := types.get(name, Any)):
            expected = hint.__name__ if isinstance(hint, type) else re.sub(r"\b(?:\w+\.)+", "", str(hint))
            raise ConfigError(f"{name} is {' '.join(repr(value).split()):.60}, expected {expected}")
    return values


def _fits(value: Any, hint: Any) -> bool:
    kind, parts = get_origin(hint) or hint, get_args(hint)
    if kind in (Any, Iterable):
        return True
    if kind in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if kind is Literal:
        return value in parts
    if kind in (Sequence, tuple):
        is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes)
        return is_list and all(_fits(one, parts[0]) for one in value)
    if isinstance(value, bool) and kind in (int, float):
        return False
    return not isinstance(kind, type) or isinstance(value, (int, float) if kind is float else kind)
