"""Settings as options of commands: what a command takes beside the parameters that it states.

The fields of a configuration become options whose help is the docstring of its class, so that a
setting is explained once. A command gets those that were given; the configuration checks them.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from cyclopts import Parameter, Token
from cyclopts.types import PositiveInt
from docstring_parser.google import parse
from pydantic import BaseModel

from rag.config import parse_scalar
from rag.opening import OpenSettings

Command = TypeVar("Command", bound=Callable[..., None])
Options = dict[str, inspect.Parameter]

_ALIASES = {"index": "-i", "questions": "-q", "out": "-o"}
_SIMPLE = (bool, int, float, str, Path)

# An option that may be given several times.
REPEATABLE = Parameter(allow_repeating=True)
# Parameters that several commands state.
Index = Annotated[str, Parameter(alias="-i", help="Directory written by `rag index`.")]
Questions = Annotated[
    str,
    Parameter(
        alias="-q",
        help="JSONL, CSV, SQuAD, NQ, DPR, HotpotQA …, or hf:owner/name[[:config]:split], "
        "irds:name.",
    ),
]
Filter = Annotated[
    list[str] | None,
    REPEATABLE,
    Parameter(
        help="Only passages with FIELD=VALUE, such as path=guide/*, document=ID, or a metadata "
        "field, also with >= and <=. May be given several times."
    ),
]
Read = Annotated[
    PositiveInt, Parameter(alias="--top-k", help="Passages to read for each question.")
]
As = Annotated[
    str | None,
    Parameter(
        name="--as",
        help='Show what a person of these groups may read, such as staff,board; "": of none.',
    ),
]
Limit = Annotated[
    PositiveInt | None, Parameter(help="Use only this number of questions, from the beginning.")
]
Preset = Annotated[str | None, Parameter(help="YAML or JSON file, or the name of a preset.")]
Assignments = Annotated[
    list[str] | None,
    REPEATABLE,
    Parameter(name="--set", help="Any setting as key=value; wins over --config."),
]
Out = Annotated[Path, Parameter(alias="-o")]
AsJson = Annotated[bool, Parameter(name="--json")]


def with_options(*groups: Options) -> Callable[[Command], Command]:
    """Decorate a command whose `**settings` are these options."""

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command)
        parameters = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        for options in groups:
            parameters += options.values()
        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return command

    return decorate


def options_of(
    settings: type[BaseModel],
    *names: str,
    panel: str = "Settings",
    flags: Mapping[str, str] | None = None,
    **defaults: object,
) -> Options:
    """Fields of a configuration as options; any may be left out, since a file can state it.

    Args:
        names: fields; all by default.
        panel: the part of the help that lists them, but for those of a class that names its
            `group`.
        flags: options that are not spelled like their fields.
        defaults: defaults that are not those of the class.
    """
    explained = dict[str, str]()
    groups = dict[str, str]()
    for base in reversed(settings.__mro__):
        if issubclass(base, BaseModel) and base is not BaseModel:
            explained |= documented(base)
            for name in base.model_fields:
                groups.setdefault(name, vars(base).get("group", panel))
    spelled = {name: f"--{name.replace('_', '-')}" for name in settings.model_fields}
    spelled |= flags or {}

    def spell(word: re.Match[str]) -> str:
        return spelled.get(word[1], word[0])

    options = Options()
    for name in names or settings.model_fields:
        field = settings.model_fields[name]
        default = None
        if not field.is_required():
            default = defaults.get(name, field.get_default(call_default_factory=True))
        text = re.sub(r"`(\w+)`", spell, explained.get(name, ""))
        help = Parameter(help=text, group=groups[name], name=spelled[name])
        options[name] = option(name, field.annotation, default, help)
    for name in getattr(settings, "replaced_by", ()):
        # It is refused with what is to be set instead.
        options[name] = option(name, str, None, Parameter(show=False))
    return options


def without(options: Options, *names: str) -> Options:
    """All options but these."""
    return {name: option for name, option in options.items() if name not in names}


def options_from(function: Callable[..., object], shared: Mapping[str, str]) -> Options:
    """Parameters of a function as options.

    Args:
        shared: help of parameters that its docstring does not explain.
    """
    explained = {**shared, **documented(function)}
    options = Options()
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        help = Parameter(help=explained.get(name))
        options[name] = option(name, parameter.annotation, parameter.default, help)
    return options


def option(name: str, kind: object, default: object, help: Parameter) -> inspect.Parameter:
    """A keyword-only parameter of a command, with the help and the spelling of its option."""
    line_type, reader = _type_on_the_line(kind)
    spelling = Parameter(alias=_ALIASES.get(name))
    if line_type in (bool, bool | None) and default is not False:
        # What is on, or decided elsewhere, can be switched off; what is off needs no --no- option.
        spelling = Parameter(negative=f"--no-{name.replace('_', '-')}")
    default_help = Parameter()
    if isinstance(default, list | tuple | dict):
        # As it is typed; nothing where it is empty.
        default_help = Parameter(show_default=",".join(map(str, default)) or False)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[
            line_type | None if default is None else line_type, help, spelling, default_help, reader
        ],
    )


def _type_on_the_line(kind: object) -> tuple[Any, Parameter]:
    """The type that the command line reads for a setting, and how it reads it."""
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    members = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    kinds = [member for member in members if member is not type(None)]
    if all(member in _SIMPLE or get_origin(member) is Literal for member in kinds):
        return kind, Parameter()
    # Where Python also takes an object, the command line takes its name.
    if kinds == [Any] or str in kinds:
        return str | None, Parameter()
    origin = get_origin(kinds[0])
    item = get_args(kinds[0])[:1]
    if origin is list or (origin is tuple and item == (Path,)):
        return list[str] | None, REPEATABLE
    if origin in (tuple, Sequence) and item[0] in (int, str):
        return Any, _read_as("[{}]", "A,B,…")
    return Any, _read_as("{}", "YAML")


def _read_as(template: str, metavar: str) -> Parameter:
    """An option whose word, in a template, is read as YAML."""

    def read(kind: object, tokens: Sequence[Token]) -> object:
        return parse_scalar(template.format(tokens[0].value))

    return Parameter(converter=read, n_tokens=1, metavar=metavar)


def documented(subject: object) -> dict[str, str]:
    """The docstring's explanation of each argument or attribute, as sentences; a word in capitals
    or with signs keeps its case.
    """
    explained = dict[str, str]()
    for entry in parse(inspect.getdoc(subject) or "").params:
        text = " ".join((entry.description or "").split())
        sentence = re.sub(r"^[a-z-]+ ", lambda word: word[0].capitalize(), text)
        explained |= dict.fromkeys(entry.arg_name.split(", "), sentence)
    return explained


OPENING = options_of(OpenSettings, panel="Search")
"""What `Pipeline.open` takes."""
