"""What the training commands share: the configuration from all its places, the last line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

Out = Annotated[Path, typer.Option("--out", "-o", help="Folder of the run; an unfinished one is resumed.")]
ConfigSource = Annotated[str | None, typer.Option(help="YAML or JSON file, or the name of a preset.")]
Assignments = Annotated[list[str] | None, typer.Option("--set", help="key=value; wins over --config.")]
Threads = Annotated[int | None, typer.Option(help="CPU threads; default: all cores.")]
Examples = Annotated[
    list[Path] | None,
    typer.Option(help="Training examples of `rag mine` or DPR's JSON (.gz); may be given several times."),
]
HeldOut = Annotated[
    Path | None, typer.Option(help="The same, held out; default: a share of the training questions.")
]
Encoder = Annotated[str | None, typer.Option(help="Encoder to start from; default: the embedded one.")]


def load_recipe(recipe: str, source: str | None, assignments: list[str] | None, **given: Any) -> Any:
    """The configuration: options of the command line win over --config, --set over both.

    Raises:
        ConfigError: it cannot be read, is not valid, or would choose checkpoints on a test set.
    """
    from rag.config import parse_overrides
    from rag.core.log import setup_logging
    from rag.recipes import RECIPES, load, read_config

    setup_logging("INFO" if os.environ.get("RANK", "0") == "0" else "WARNING")
    overrides = {key: _plain(value) for key, value in given.items() if value}
    overrides.update(parse_overrides(assignments or []))
    return read_config(load(RECIPES[recipe].config), source, overrides)


def run_recipe(recipe: str, settings: Any) -> Path:
    """Train; the folder of what was made."""
    from rag.recipes import RECIPES, load

    return Path(load(RECIPES[recipe].run)(settings))


def say_encoder(finished: Path) -> None:
    """Where the encoder is and what to do with it; once, however many processes there are."""
    if os.environ.get("RANK", "0") == "0":
        typer.echo(f"encoder → {finished}\nuse it: rag index … --encoder {finished}")


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
