"""Options that several commands share, and commands whose options are derived from a configuration."""

import inspect
import re
from collections.abc import Callable, Mapping
from glob import escape, glob
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rag.config import preset_names
from rag.core.errors import ConfigError
from rag.data import choices
from rag.open_settings import OpenSettings

REQUIRED = inspect.Parameter.empty
DATA, SEARCH, READING, TRAINING, OUTPUT = "Data", "Search", "Reading", "Training", "Output"  # help's panels


def option(*flags: str, help: str, panel: str | None = None, **more: Any) -> Any:
    """An option in a panel of the command's help."""
    return typer.Option(*flags, help=help, rich_help_panel=panel, **more)


def out_option(help: str) -> Any:
    """The option for what a command writes."""
    return option("--out", "-o", help=help, panel=OUTPUT)


def opening_option(name: str) -> Any:
    """The option for a field of `OpenSettings`, explained as there."""
    field = OpenSettings.model_fields[name]
    panel = {"reader": READING, "effort": READING, "precision": "Models"}.get(name, SEARCH)
    help = str(field.description)
    return option(help=f"{help[0].upper()}{help[1:]}.", panel=panel)


RetrieverSpec = Annotated[str, opening_option("retriever")]
IndexEncoder = Annotated[str | None, opening_option("index_encoder")]
ReaderSpec = Annotated[str | None, opening_option("reader")]
Precision = Annotated[Literal["auto", "fp32", "bf16"], opening_option("precision")]
Read = Annotated[int, option(min=1, help="Passages to read for each question.", panel=READING)]
RayAddress = Annotated[
    str | None,
    option(help="Encode on the Ray cluster at this address (HOST:PORT, or auto).", panel="Cluster"),
]
IndexDir = Annotated[str, option("--index", "-i", help="Directory written by `rag index`.", panel=DATA)]
Corpus = Annotated[
    list[str], typer.Argument(help='Files, folders, patterns, hf:…, irds:…, or "-" for stdin.')
]
QuestionFile = Annotated[
    str,
    option(
        *("--questions", "-q"),
        help="JSONL, CSV, SQuAD, NQ, DPR, HotpotQA …, or hf:owner/name[:config][:split], irds:name.",
        panel=DATA,
    ),
]
QuestionFormat = Annotated[
    Literal["auto", choices.QuestionFormat],
    option(help="Format of --questions; auto looks at the file.", panel=DATA),
]
Limit = Annotated[
    int | None, option(min=1, help="Use only this number of questions, from the beginning.", panel=DATA)
]

FilterSpec = Annotated[
    list[str] | None,
    option(
        "--filter",
        help="Only passages with FIELD=VALUE, such as path=guide/*, document=ID, or a metadata field, also "
        "with >= and <=. May be given several times.",
        panel=SEARCH,
    ),
]


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


Options = Mapping[str, tuple[Any, Any]]  # name → (annotation, default)
OPENING: Options = {  # fields of `OpenSettings`, which `Pipeline.open` takes
    name: (
        Precision if name == "precision" else Annotated[str | None, opening_option(name)],
        field.default,
    )
    for name, field in OpenSettings.model_fields.items()
}


def _option(kind: Any, default: Any, panel: str, help: str, *flags: str, **more: Any) -> tuple[Any, Any]:
    return Annotated[kind, option(*flags, help=help, panel=panel, **more)], default


_CUT = "Passages"
CORPUS: Options = {  # how documents are read and cut into passages, see `rag.data.document_options`
    "format": _option(
        Literal["auto", choices.CorpusFormat], "auto", DATA,
        "Of the corpus; auto looks at names and first bytes.",
    ),
    "id_field": _option(str | None, None, DATA, "Field or column of the document id."),
    "title_field": _option(str | None, None, DATA, "Field or column of the title."),
    "text_field": _option(str | None, None, DATA, "Field or column of the text."),
    "metadata": _option(
        list[str] | None, None, DATA, "Field that passages keep for filters. May be given several times."
    ),
    "encoding": _option(str, "utf-8", DATA, "Of text files, such as cp1252 (Excel on Windows)."),
    "max_bad_share": _option(
        float, 0.01, DATA, "Highest tolerated share of bad records (not of files).", min=0, max=1
    ),
    "strict": _option(bool, False, DATA, "Stop at the first file that cannot be read.", "--strict"),
    "max_pages": _option(int, 5_000, DATA, "Most pages of a file; longer ones are left out.", min=1),
    "document_timeout": _option(float, 60.0, DATA, "Most seconds for reading one file.", min=0.1),
    "split": _option(
        choices.SplitMode, "auto", _CUT, "How documents are cut; auto: files by sections, else words100."
    ),
    "words": _option(int, 100, _CUT, "Words per passage, for --split words100.", min=1),
    "wrap": _option(bool, True, _CUT, "Fill the last passage with the document's first words."),
}  # fmt: skip


def adds_options(into: str, options: Options) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add options to a command, which receives their values as one mapping in its parameter `into`."""

    def make(function: Callable[..., None]) -> Callable[..., None]:
        parameters = parameters_of(function)

        def run(**given: Any) -> None:
            named = {name: given.pop(name) for name in parameters if name != into}
            function(**named, **{into: given})

        shown: dict[str, tuple[Any, Any]] = {}
        for name, parameter in parameters.items():
            shown.update(options if name == into else {name: parameter})
        return command_with(shown, run, like=function, help=inspect.getdoc(function) or "")

    return make


def options_of(settings: type[BaseModel], *names: str, panel: str | None = None, **defaults: Any) -> Options:
    """Fields of a configuration as options, explained by its docstring or that of the class which it extends.

    Choices and bounds are those of the fields, defaults too unless given; all else is checked by the class.
    """
    helps, fields = explained(settings), settings.model_fields
    return {
        name: (
            Annotated[
                fields[name].annotation,
                option(help=helps[name], panel=panel, **bounds_of(fields[name])),
            ],
            defaults.get(name, fields[name].default),
        )
        for name in names
    }


def bounds_of(field: FieldInfo) -> dict[str, Any]:
    """Lowest and highest value, both included, of a field that has such."""
    names = {"ge": "min", "le": "max"}
    return {
        names[kind]: getattr(rule, kind) for rule in field.metadata for kind in names if hasattr(rule, kind)
    }


def command_with(
    options: Options, run: Callable[..., None], *, like: Callable[..., Any], help: str
) -> Callable[..., None]:
    """Make `run` a command with these options, under the name of the function `like`."""
    usual = {name: default for name, (_, default) in options.items() if default is not REQUIRED}

    def command(**given: Any) -> None:
        run(**{**usual, **given})

    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
            for name, (kind, default) in options.items()
        ]
    )
    command.__name__, command.__doc__, command.__annotations__ = like.__name__, help, {}
    return command


def parameters_of(function: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
    """The parameters of a function as options."""
    parameters = inspect.signature(function, eval_str=True).parameters
    return {name: (parameter.annotation, parameter.default) for name, parameter in parameters.items()}


_TRAINED = {"adapt": "dpr"}  # command → recipe, where it has another name


def complete_config(ctx: typer.Context, incomplete: str) -> list[str]:
    """What --config may be: presets of the command's recipe, and YAML and JSON files."""
    recipe = ctx.params.get("recipe") or _TRAINED.get(str(ctx.info_name), str(ctx.info_name))
    presets = preset_names("" if recipe == "rounds" else recipe)
    paths = sorted(glob(f"{escape(incomplete)}*.yaml") + glob(f"{escape(incomplete)}*.json"))
    return [name for name in presets if name.startswith(incomplete)] + paths


def config_source(help: str) -> Any:
    """The option for a file of settings, or a preset."""
    return Annotated[str | None, option(help=help, panel="Settings", autocompletion=complete_config)]


ConfigSource = config_source("YAML or JSON file, or the name of a preset.")
Out = Annotated[
    Path, option(*("--out", "-o"), help="Folder of the run; an unfinished one is resumed.", panel=OUTPUT)
]
Assignments = Annotated[
    list[str] | None, option("--set", help="Any setting as key=value; wins over --config.", panel="Settings")
]
Threads = Annotated[int | None, option(min=1, help="CPU threads; default: all cores.", panel="Settings")]
From = Annotated[
    str | None, option("--from", help="Encoder to start from; default: the index's.", panel=TRAINING)
]


def files(help: str, *flags: str) -> Any:
    """An option for files that may be given several times."""
    return Annotated[
        list[Path] | None, option(*flags, help=f"{help}; may be given several times.", panel=DATA)
    ]


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
