"""Arguments of public functions are checked against their annotations: a wrong one is refused by its name."""

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
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
    further = {name: Any for name, it in signature.parameters.items() if it.kind in _FURTHER}
    types = cache(lambda: {**_types_of(function), **further})

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        bound = signature.bind(*args, **kwargs)
        for name, value in bound.arguments.items():
            kind = type(value)
            if kind.__module__ == "numpy" and kind.__name__ != "ndarray" and value.shape == ():
                bound.arguments[name] = value = value.item()
            if not _fits(value, hint := types().get(name, Any)):
                expected = hint.__name__ if isinstance(hint, type) else re.sub(r"\b(?:\w+\.)+", "", str(hint))
                raise ConfigError(f"{name} is {' '.join(repr(value).split()):.60}, expected {expected}")
        return function(*bound.args, **bound.kwargs)

    return call


def _types_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function; types imported for type checkers alone count as `Any`."""
    missing: dict[str, Any] = {}
    while True:
        try:
            return get_type_hints(function, localns=missing)
        except NameError as error:
            missing[str(error.name)] = Any


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
        return is_list and all(_fits(item, parts[0]) for item in value)
    if isinstance(value, bool) and kind in (int, float):
        return False
    return not isinstance(kind, type) or isinstance(value, (int, float) if kind is float else kind)
