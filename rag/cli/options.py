"""Commands made of functions: parameters are options, docstrings are help; what several share stands here.

Positional-only parameters are arguments of the command. A parameter that is annotated with `Options` gets the
values of these options as one mapping. Bounds are those of `annotated_types`.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from glob import escape, glob
from typing import Annotated, Any, Literal, get_args, get_type_hints

import typer
from annotated_types import Ge, Le
from pydantic import BaseModel

from rag.cli.lazy import command_with
from rag.config import preset_names
from rag.core.errors import ConfigError
from rag.data import choices
from rag.open_settings import OpenSettings

DATA, SEARCH, READING, TRAINING, OUTPUT = "Data", "Search", "Reading", "Training", "Output"  # help's panels
_SETTINGS = "Settings"
Count = Annotated[int, Ge(1)]
Share = Annotated[float, Ge(0), Le(1)]
QuestionFormat = Literal["auto", choices.QuestionFormat]
_TRAINED = {"adapt": "dpr"}  # command → recipe, where it has another name


class Options(dict[str, tuple[Any, Any]]):
    """Options by name: annotation and default."""


def option(*flags: str, help: str, panel: str | None = None, **more: Any) -> Any:
    """An option in a panel of the command's help."""
    return typer.Option(*flags, help=help, rich_help_panel=panel, **more)


def _complete_config(ctx: typer.Context, incomplete: str) -> list[str]:
    """What --config may be: presets of the command's recipe, and YAML and JSON files."""
    recipe = ctx.params.get("recipe") or _TRAINED.get(str(ctx.info_name), str(ctx.info_name))
    presets = preset_names("" if recipe == "rounds" else recipe)
    paths = sorted(glob(f"{escape(incomplete)}*.yaml") + glob(f"{escape(incomplete)}*.json"))
    return [name for name in presets if name.startswith(incomplete)] + paths


# Parameters that several commands have: panel, help ("" where each says it itself), and how they are spelled.
_SHARED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "index": (DATA, "Directory written by `rag index`.", {"flags": ("--index", "-i")}),
    "questions": (
        DATA,
        "JSONL, CSV, SQuAD, NQ, DPR, HotpotQA …, or hf:owner/name[:config][:split], irds:name.",
        {"flags": ("--questions", "-q")},
    ),
    "format": (DATA, "Format of --questions; auto looks at the file.", {}),
    "split": (DATA, "Split of a data set, if the file name does not contain it, such as dev.", {}),
    "limit": (DATA, "Use only this number of questions, from the beginning.", {}),
    "sample": (DATA, "A random sample of so many.", {}),
    "examples": (DATA, "", {"flags": ("--examples", "-e")}),
    "read": (READING, "Passages to read for each question.", {}),
    "filter": (
        SEARCH,
        "Only passages with FIELD=VALUE, such as path=guide/*, document=ID, or a metadata field, also with "
        ">= and <=. May be given several times.",
        {"flags": ("--filter",)},
    ),
    "ray": ("Cluster", "Encode on the Ray cluster at this address (HOST:PORT, or auto).", {}),
    "from_": (TRAINING, "Encoder to start from; default: that of the index.", {"flags": ("--from",)}),
    "config": (
        _SETTINGS,
        "YAML or JSON file, or the name of a preset.",
        {"autocompletion": _complete_config},
    ),
    "set_": (_SETTINGS, "Any setting as key=value; wins over --config.", {"flags": ("--set",)}),
    "threads": (_SETTINGS, "CPU threads; default: all cores.", {}),
    "out": (OUTPUT, "", {"flags": ("--out", "-o")}),
    "as_json": (OUTPUT, "Print JSON.", {"flags": ("--json",)}),
}
_PANELS = {  # of other parameters
    **dict.fromkeys(("train", "negatives", "dataset", "run", "corpus", "regex"), DATA),
    **dict.fromkeys(("id_field", "title_field", "text_field", "metadata", "encoding", "max_bad_share"), DATA),
    **dict.fromkeys(("strict", "max_pages", "document_timeout", "words", "wrap"), DATA),
    **dict.fromkeys(("ranks", "batch_size", "top_k", "fusion"), SEARCH),
    **dict.fromkeys(("merge", "overwrite", "n_best", "report"), OUTPUT),
    **dict.fromkeys(("host", "port", "workers", "http"), "Address"),
    **dict.fromkeys(("encoder", "query_encoder", "pooling", "max_length"), "Encoder"),
    **dict.fromkeys(("update", "watch", "interval", "max_deleted_share"), "Updates"),
    **dict.fromkeys(("reuse", "until"), "Build"),
    **dict.fromkeys(("ks", "by"), "Figures"),
    **dict.fromkeys(("signal", "reader"), READING),
    "precision": "Models",
    "recipe": "Rounds",
}


def parse_numbers(text: str, option: str) -> tuple[int, ...]:
    """Positive numbers separated by commas, ascending and distinct.

    Raises:
        ConfigError: something else was given.

    Example:
        >>> parse_numbers("20,1,5", "--top-k")
        (1, 5, 20)
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdigit() and int(part) > 0 for part in parts):
        raise ConfigError(f"{option} {text!r}: expected positive numbers separated by commas, as 1,5,20")
    return tuple(sorted({int(part) for part in parts}))


def _parse_words(text: str, option: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


_LISTS: dict[Any, Callable[..., tuple[Any, ...]]] = {
    Sequence[int]: parse_numbers,
    Sequence[str]: _parse_words,
}


def command_of(name: str, function: Callable[..., None], helps: Mapping[str, str] | None = None) -> Any:
    """A command made of a function.

    Args:
        helps: of parameters that its docstring does not explain.
    """
    parameters = inspect.signature(function).parameters.values()
    groups = {it.name: group for it in parameters if (group := _group(_hints(function)[it.name]))}

    def run(**given: Any) -> None:
        values = {
            it.name: {each: given[each] for each in groups[it.name]} if it.name in groups else given[it.name]
            for it in parameters
        }
        arguments = [values.pop(it.name) for it in parameters if it.kind is it.POSITIONAL_ONLY]
        function(*arguments, **values)

    about = (inspect.getdoc(function) or "").partition("\n\nArgs:\n")[0]
    return command_with(name, options_from(function, helps), run, help=about)


def options_from(function: Callable[..., None], helps: Mapping[str, str] | None = None) -> Options:
    """The parameters of a function as options, see `command_of`."""
    helps, hints, options = {**(helps or {}), **documented(function)}, _hints(function), Options()
    for it in inspect.signature(function).parameters.values():
        is_argument = it.kind is it.POSITIONAL_ONLY
        own = {it.name: _option(it.name, hints[it.name], it.default, helps.get(it.name, ""), is_argument)}
        options.update(_group(hints[it.name]) or own)
    return options


def _hints(function: Callable[..., None]) -> dict[str, Any]:
    return get_type_hints(function, include_extras=True)


def _group(hint: Any) -> Options | None:
    return next((it for it in _metadata(hint) if isinstance(it, Options)), None)


def _option(name: str, kind: Any, default: Any, help: str, is_argument: bool) -> tuple[Any, Any]:
    panel, shared, more = _SHARED.get(name, (_PANELS.get(name), "", {}))
    more = {**bounds_of(_metadata(kind)), **more}
    flags = more.pop("flags", ())
    plain = get_type_hints(type("", (), {"__annotations__": {name: kind}}))[name]
    if plain in _LISTS:  # given with commas
        read, flag = _LISTS[plain], f"--{name.replace('_', '-')}"
        more["parser"], more["metavar"] = partial(read, option=flag), "A,B,…"
        plain, default = str, ",".join(map(str, default))
    help = help or shared
    if is_argument:
        return Annotated[plain, typer.Argument(help=help, **more)], default
    if default is False and not flags:
        flags = (f"--{name.replace('_', '-')}",)  # without a --no-…
    return Annotated[plain, option(*flags, help=help, panel=panel, **more)], default


def _metadata(annotation: Any) -> Iterator[Any]:
    yield from getattr(annotation, "__metadata__", ())
    for inner in get_args(annotation):
        yield from _metadata(inner)


def bounds_of(metadata: Any) -> dict[str, Any]:
    """Lowest and highest value, both included, where there are such."""
    names = {"ge": "min", "le": "max"}
    return {names[kind]: getattr(rule, kind) for rule in metadata for kind in names if hasattr(rule, kind)}


def options_of(settings: type[BaseModel], *names: str, panel: str | None = None, **defaults: Any) -> Options:
    """Fields of a configuration as options, explained by its docstring or that of the class which it extends.

    Choices and bounds are those of the fields, defaults too unless given; all else is checked by the class.
    """
    helps, fields = explained(settings), settings.model_fields
    return Options(
        {
            name: (
                Annotated[
                    fields[name].annotation,
                    option(help=helps[name], panel=panel, **bounds_of(fields[name].metadata)),
                ],
                defaults.get(name, fields[name].default),
            )
            for name in names
        }
    )


def _opening(name: str, panel: str = SEARCH, metavar: str | None = None, kind: Any = str | None) -> Options:
    field = OpenSettings.model_fields[name]
    help = str(field.description)
    shown = option(help=f"{help[0].upper()}{help[1:]}.", panel=panel, metavar=metavar)
    return Options({name: (Annotated[kind, shown], field.default)})


OPENING = Options(  # what `Pipeline.open` takes
    _opening("retriever", metavar="auto|dense|colbert|bm25|hybrid|multihop[:…]")
    | _opening("fusion")
    | _opening("rerank")
    | _opening("index_encoder")
    | _opening("reader", READING)
    | _opening("effort", READING, metavar="full|normal|low|N")
    | _opening("precision", "Models", kind=Literal["auto", "fp32", "bf16"])
)
Opening = Annotated[dict[str, Any], OPENING]


def some(options: Options, *names: str, without: tuple[str, ...] = ()) -> Options:
    """Some of the options, or all but some."""
    chosen = names or [name for name in options if name not in without]
    return Options({name: options[name] for name in chosen})


def explained(kind: type[BaseModel]) -> dict[str, str]:
    """Explanation of each field of a model: its description, or the docstring of its class."""
    helps: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        helps |= documented(base)
    helps |= {name: field.description for name, field in kind.model_fields.items() if field.description}
    return {name: helps.get(name, "") for name in kind.model_fields}


def documented(thing: Any) -> dict[str, str]:
    """The docstring's explanation of each argument or attribute, as sentences.

    Example:
        >>> from rag.config import Config
        >>> documented(Config)
        {'free': 'Settings that may differ when a run is resumed, because its steps do not depend on them.'}
    """
    entry = r"^    (\w+(?:, \w+)*): (.+(?:\n {8}.+)*)"  # several names may share an explanation
    items = re.findall(entry, inspect.getdoc(thing) or "", re.MULTILINE)
    return {
        name: text[:1].upper() + re.sub(r"\s+", " ", text[1:])
        for names, text in items
        for name in names.split(", ")
    }
