"""Shared by the training commands: options, merging of the configuration, the final message."""

import inspect
import os
from collections.abc import Callable, Mapping
from glob import escape, glob
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any, Literal

import typer

from rag.cli.options import DATA, OUTPUT, REQUIRED, TRAINING, command_with, option, parameters_of
from rag.config import preset_names

_TRAINED = {"adapt": "reader"}  # command → recipe, where it has another name


def complete_config(ctx: typer.Context, incomplete: str) -> list[str]:
    """What --config may be: presets of the command's recipe, and YAML and JSON files."""
    recipe = ctx.params.get("recipe") or _TRAINED.get(str(ctx.info_name), str(ctx.info_name))
    presets = preset_names("" if recipe == "rounds" else recipe)
    paths = sorted(glob(f"{escape(incomplete)}*.yaml") + glob(f"{escape(incomplete)}*.json"))
    return [name for name in presets if name.startswith(incomplete)] + paths


Out = Annotated[
    Path, option(*("--out", "-o"), help="Folder of the run; an unfinished one is resumed.", panel=OUTPUT)
]


def config_source(help: str) -> Any:
    """The option for a file of settings, or a preset."""
    return Annotated[str | None, option(help=help, panel="Settings", autocompletion=complete_config)]


ConfigSource = config_source("YAML or JSON file, or the name of a preset.")
Assignments = Annotated[
    list[str] | None, option("--set", help="Any setting as key=value; wins over --config.", panel="Settings")
]
Threads = Annotated[int | None, option(min=1, help="CPU threads; default: all cores.", panel="Settings")]
Validation = Annotated[
    Path | None,
    option(help="Held-out examples of this kind; default: a share of the training questions.", panel=DATA),
]
From = Annotated[
    str | None, option("--from", help="Encoder to start from; default: all-MiniLM-L6-v2.", panel=TRAINING)
]
Role = Annotated[
    Literal["both", "trainer", "refresher"],
    option(
        help="both: train and refresh in turn; or one of the two processes that share --out.", panel=TRAINING
    ),
]
Refresh = Annotated[
    str | None,
    option(help='"never", "every 500", "0:500,2000:2000" (from step:every), "drift>0.05".', panel=TRAINING),
]


def files(help: str, *flags: str) -> Any:
    """An option for files that may be given several times."""
    return Annotated[
        list[Path] | None, option(*flags, help=f"{help}; may be given several times.", panel=DATA)
    ]


def index(help: str) -> Any:
    """The option for an index."""
    return Annotated[Path | None, option("--index", "-i", help=help, panel=DATA)]


_RETRIEVER = {
    "train": files("Training examples of `rag mine` or DPR's JSON (.gz)"),
    "validation": Validation,
    "index": index("Its passages are the corpus."),
    "from_": From,
}
_SETTINGS = {
    "train": "train_files", "validation": "validation_file",
    "from_": "question_encoder", "index_encoder": "question_encoder",
}  # fmt: skip
_RESUMED = "Ctrl-C or a crash loses at most a few minutes: the same command resumes from the last checkpoint."


def training_command(**options: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a training command from a function that takes a recipe's checked settings.

    The recipe has the function's name. The command has the options of `_RETRIEVER` and those given here, by
    setting; one given here replaces that of `_RETRIEVER`, and None leaves it out. Further parameters of the
    function become options as well, which are no settings.
    """
    kinds = {**_RETRIEVER, **options, "config": ConfigSource, "set_": Assignments, "threads": Threads}
    kinds = {name: kind for name, kind in kinds.items() if kind is not None}

    def make(function: Callable[..., None]) -> Callable[..., None]:
        others = parameters_of(function)
        others.pop("settings")

        def run(config: str | None, set_: list[str] | None, **given: Any) -> None:
            chosen = {name: given.pop(name) for name in others}
            settings = {name: _SETTINGS.get(name, name) for name in given}
            flags = {settings[name]: _flag(name, kinds.get(name)) for name in given}
            named = {settings[name]: value for name, value in given.items()}
            function(load_recipe(function.__name__, config, set_, flags, **named), **chosen)

        shown = {**{name: (kind, None) for name, kind in kinds.items()}, **others, "out": (Out, REQUIRED)}
        return command_with(shown, run, like=function, help=f"{inspect.getdoc(function)}\n\n{_RESUMED}")

    return make


def _flag(name: str, kind: Any) -> str:
    """The first spelling of an option on the command line."""
    declared = kind.__metadata__[0].default if kind is not None else ...  # where typer keeps the first one
    return declared if isinstance(declared, str) else f"--{name.replace('_', '-')}"


def load_recipe(
    recipe: str,
    source: str | None,
    assignments: list[str] | None,
    flags: Mapping[str, str] | None = None,
    **given: Any,
) -> Any:
    """The configuration: options of the command line win over --config, --set over both.

    Args:
        flags: setting → option, for messages.
        given: settings from options; None, False and empty ones count as not given.

    Raises:
        ConfigError: it cannot be read, is not valid, or would choose checkpoints on a test set.
    """
    from rag.config import parse_overrides
    from rag.core.log import setup_logging
    from rag.recipes import RECIPES, read_config

    setup_logging("INFO" if os.environ.get("RANK", "0") == "0" else "WARNING")
    is_number = (int, float)  # 0 is a value, False is none
    overrides = {key: _plain(value) for key, value in given.items() if value or type(value) in is_number}
    overrides.update(parse_overrides(assignments or []))
    return read_config(resolve_name(RECIPES[recipe].config), source, overrides, flags)


def run_recipe(recipe: str, settings: Any) -> Path:
    """Train, and return the folder of the result."""
    from rag.recipes import run

    return run(recipe, settings)


def say_encoder(finished: Path) -> None:
    """Print where the encoder is and what to do with it."""
    from rag.runtime.model_files import tower_folders
    from retrievers.encoders.settings import read_settings

    has_tokens = read_settings(tower_folders(finished)[0]).pooling == "tokens"
    kind = " --index-type plaid" if has_tokens else ""
    say_once(f"encoder → {finished}\nuse it: rag index … --encoder {finished}{kind}")


def say_once(text: str) -> None:
    """Print it once, however many processes there are."""
    if os.environ.get("RANK", "0") == "0":
        typer.echo(text)


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
