"""Commands made of functions and settings: parameters and fields are options, docstrings are help.

Positional-only parameters are arguments of the command; `**more: Annotated[Any, options]` are
options that the function passes on. Bounds are those of `annotated_types`.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer
from annotated_types import Ge, Le
from pydantic import BaseModel

from rag.cli.lazy import command_with
from rag.config import parse_scalar
from rag.opening import OpenSettings

Options = dict[str, tuple[Any, Any]]  # by name: annotation and default
DATA, SEARCH, READING, TRAINING, OUTPUT = (
    "Data",
    "Search",
    "Reading",
    "Training",
    "Output",
)  # help's panels
Count = Annotated[int, Ge(1)]
Share = Annotated[float, Ge(0), Le(1)]

# Parameters that several commands have: help ("" where each says it itself), and how they are
# spelled.
_SHARED: dict[str, tuple[str, dict[str, Any]]] = {
    "index": ("Directory written by `rag index`.", {"flags": ("--index", "-i")}),
    "questions": (
        "JSONL, CSV, SQuAD, NQ, DPR, HotpotQA …, or hf:owner/name[[:config]:split], irds:name.",
        {"flags": ("--questions", "-q")},
    ),
    "split": ("Split of a data set, if the file name does not contain it, such as dev.", {}),
    "limit": ("Use only this number of questions, from the beginning.", {}),
    "sample": ("A random sample of so many.", {}),
    "passages": ("", {"flags": ("--passages", "-n")}),
    "examples": ("", {"flags": ("--examples", "-e")}),
    "read": ("Passages to read for each question.", {"flags": ("--read", "--top-k")}),
    "filter": (
        "Only passages with FIELD=VALUE, such as path=guide/*, document=ID, or a metadata field, also with "
        ">= and <=. May be given several times.",
        {"flags": ("--filter",)},
    ),
    "retriever": ("", {"metavar": "auto|dense|colbert|bm25|hybrid|multihop[:…]"}),
    "effort": ("", {"metavar": "full|normal"}),
    "ray": ("Encode on the Ray cluster at this address (HOST:PORT, or auto).", {}),
    "config": ("YAML or JSON file, or the name of a preset.", {}),
    "set_": ("Any setting as key=value; wins over --config.", {"flags": ("--set",)}),
    "threads": ("CPU threads; default: all cores.", {}),
    "out": ("", {"flags": ("--out", "-o")}),
    "as_json": ("Print JSON.", {"flags": ("--json",)}),
}
_PANELS = {  # of parameters that have one of their own, whatever their command's is
    **dict.fromkeys(("index", "questions", "format", "split", "limit", "sample", "examples"), DATA),
    **dict.fromkeys(("train", "dataset", "run", "corpus", "regex"), DATA),
    **dict.fromkeys(("filter", "top_k", "batch_size"), SEARCH),
    **dict.fromkeys(("read", "reader", "effort", "signal", "gold"), READING),
    **dict.fromkeys(("out", "merge", "overwrite", "n_best", "report", "as_json"), OUTPUT),
    **dict.fromkeys(("update", "watch", "max_deleted_share"), "Updates"),
    **dict.fromkeys(("encoder", "precision"), "Models"),
}
_LISTS = (Sequence[int], tuple[int, ...], Sequence[str], tuple[str, ...])


def _split(text: str) -> tuple[Any, ...]:
    return tuple(parse_scalar(f"[{text}]"))


def command_of(name: str, function: Callable[..., None]) -> Any:
    """A command made of a function."""
    parameters = inspect.signature(function).parameters.values()

    def run(**values: Any) -> None:
        arguments = [values.pop(it.name) for it in parameters if it.kind is it.POSITIONAL_ONLY]
        function(*arguments, **values)

    about = (inspect.getdoc(function) or "").partition("\n\nArgs:\n")[0]
    return command_with(name, options_from(function), run, help=about)


def options_from(
    function: Callable[..., Any], helps: Mapping[str, str] | None = None, panel: str = "Settings"
) -> Options:
    """The parameters of a function as options.

    Args:
        helps: of parameters that its docstring does not explain.
    """
    helps, options = {**(helps or {}), **documented(function)}, Options()
    hints = get_type_hints(function, include_extras=True)
    for it in inspect.signature(function).parameters.values():
        if it.kind is it.VAR_KEYWORD:
            options |= getattr(hints[it.name], "__metadata__", [{}])[0]
        else:
            kind, help, is_argument = (
                hints[it.name],
                helps.get(it.name, ""),
                it.kind is it.POSITIONAL_ONLY,
            )
            options[it.name] = make_option(
                it.name, kind, it.default, help, panel, is_argument=is_argument
            )
    return options


def options_of(
    settings: type[BaseModel],
    *names: str,
    panel: str = "Settings",
    flags: Mapping[str, Sequence[str]] | None = None,
    is_partial: bool = False,
    **defaults: Any,
) -> Options:
    """Fields of a configuration as options, explained by its docstring or that of the class which
    it extends.

    Choices and bounds are those of the fields, defaults too unless given; all else is checked by
    the class.

    Args:
        names: fields; all by default.
        flags: how some are spelled.
        is_partial: all may be left out, because a file can state them.
    """
    helps, options = dict[str, str](), Options()
    for base in reversed(settings.__mro__):
        helps |= documented(base)
    for name in names or settings.model_fields:
        field, help = settings.model_fields[name], helps.get(name, "")
        kind: Any = field.annotation
        default = defaults.get(name, field.default)
        if is_partial:
            default = None if field.is_required() else field.get_default(call_default_factory=True)
            if isinstance(default, int | float) or (isinstance(default, str) and default):
                help += f" Default: {default}."
            kind, default = kind | None if kind is not Any else kind, None
        kind, spellings = Annotated[kind, None, *field.metadata], (flags or {}).get(name, ())
        options[name] = make_option(
            name, kind, default, help, panel, spellings, is_partial=is_partial
        )
    return options


def make_option(
    name: str,
    kind: Any,
    default: Any,
    help: str = "",
    panel: str = "Settings",
    flags: Sequence[str] = (),
    *,
    is_argument: bool = False,
    is_partial: bool = False,
) -> tuple[Any, Any]:
    """Annotation and default of an option, or of an argument, for a value of this kind.

    Numbers, choices and files are typer's; lists of words or numbers have commas; all else is read
    as YAML.
    """
    usual_help, shared = _SHARED.get(name, ("", {}))
    help, extra = help or usual_help, {**_bounds(kind), **shared}
    usual_flags = extra.pop("flags", ())
    flags = flags or usual_flags
    shown = get_type_hints(type("", (), {"__annotations__": {name: kind}}))[
        name
    ]  # without its `Annotated`
    kinds = get_args(shown) if get_origin(shown) in (Union, UnionType) else (shown,)
    inner, *others = [it for it in kinds if it is not NoneType]
    flag = f"--{name.replace('_', '-')}"
    if inner in _LISTS and not is_partial:
        extra |= {"parser": _split, "metavar": "A,B,…"}
        shown, default = str, ",".join(map(str, default))
    elif (
        get_origin(inner) is tuple and get_args(inner)[0] is Path and not others
    ):  # given once or more often
        shown, panel = list[str] | None, DATA
    elif inner is Any:  # a name here; in Python also an object
        shown = str | None
    elif {inner, *others} == {str, Path}:
        shown = str
    elif others or not (
        inner in (int, float, str, bool, Path) or get_origin(inner) in (Literal, list)
    ):
        shown, extra = str | None, {**extra, "parser": parse_scalar, "metavar": "YAML"}
    elif inner is Path and is_partial:
        shown, panel = str | None, DATA
    elif get_origin(inner) is Literal:  # typer shows the choices
        extra.pop("metavar", None)
    elif inner is bool and not flags:  # what is on by default can be switched off
        flags = (flag,) if default is False else (f"{flag}/--no{flag[1:]}",)
    if is_argument:
        return Annotated[shown, typer.Argument(help=help, **extra)], default
    panel = panel if is_partial else _PANELS.get(name, panel)
    return Annotated[
        shown, typer.Option(*flags, help=help, rich_help_panel=panel, **extra)
    ], default


def _bounds(kind: Any) -> dict[str, Any]:
    """Lowest and highest value, both included, where there are such."""
    names, bounds = {"ge": "min", "le": "max"}, dict[str, Any]()
    for rule in getattr(kind, "__metadata__", ()):
        bounds |= {names[it]: getattr(rule, it) for it in names if hasattr(rule, it)}
    for inner in get_args(kind):
        bounds |= _bounds(inner)
    return bounds


def some(options: Options, *names: str, without: tuple[str, ...] = ()) -> Options:
    """Some of the options, or all but some."""
    return {name: options[name] for name in names or options if name not in without}


def documented(thing: Any) -> dict[str, str]:
    """The docstring's explanation of each argument or attribute, as sentences; values keep their
    case.
    """
    entry = r"^    (\w+(?:, \w+)*): (.+(?:\n {8}.+)*)"  # several names may share an explanation
    items = re.findall(entry, inspect.getdoc(thing) or "", re.MULTILINE)
    return {
        name: re.sub(r"^[a-z]+ ", lambda word: word[0].capitalize(), " ".join(text.split()))
        for names, text in items
        for name in names.split(", ")
    }


OPENING = options_of(OpenSettings, panel=SEARCH)  # what `Pipeline.open` takes
