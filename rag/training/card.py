"""The model card of a finished model: purpose, data, command, settings, figures, licence."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from itertools import takewhile
from pathlib import Path
from typing import Any

from rag.config import RECIPE_KEY
from rag.runtime.model_files import EMBEDDED_ENCODER_NAMES
from rag.training.config import ENTRY_POINTS, TrainConfig

# Folders of any run, whose names alone identify nothing.
_FOLDERS = (
    "encoder",
    "cross-encoder",
    "reader",
    "verifier",
    "trained",
    "query_encoder",
    "passage_encoder",
)
_PACKAGES = ("rag", "readers", "retrievers")
_LEFT_OUT = {"out", *TrainConfig.free}


@dataclass(frozen=True, slots=True)
class Card:
    """The content of a model card for one kind of model.

    Attributes:
        package: package whose folder `templates` has the template, which extends `card.md` of this
            one.
        template: file name of the template.
        values: further variables of the template, besides `config`, `facts` and `figures`.
    """

    package: str
    template: str
    values: Mapping[str, object] = field(default_factory=dict)


def render_card(
    config: TrainConfig, card: Card, facts: Mapping[str, object], figures: Mapping[str, object]
) -> str:
    """Render Markdown with a YAML header. It names no path of this machine.

    Args:
        facts: facts about the data and the run, by name.
        figures: measured values or tables of values, by name.
    """
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=ChoiceLoader([PackageLoader(card.package), PackageLoader("rag.training")]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"cell": _cell, "model": model_name}
    settings = {RECIPE_KEY: config.recipe, **_nameless(config.model_dump(exclude=_LEFT_OUT))}
    settings_text = json.dumps(settings, indent=2, ensure_ascii=False)
    template = environment.get_template(card.template)
    return template.render(
        **card.values,
        config=config,
        command=recipe_name(type(config)),
        facts=facts,
        figures=figures,
        settings=settings_text,
    )


def recipe_name(kind: type[TrainConfig]) -> str:
    """What the command `rag train` calls a recipe: a name, or FILE.py:Class for a file of a user."""
    module = kind.__module__
    if module.partition(".")[0] in _PACKAGES:
        return kind.recipe
    for point in entry_points(group=ENTRY_POINTS):
        if point.value == f"{module}:{kind.__qualname__}":
            return point.name
    file = getattr(sys.modules[module], "__file__", None) or f"{kind.recipe}.py"
    return f"{Path(file).name}:{kind.__qualname__}"


def model_name(source: str | Path | None) -> str:
    """Short name of a model in a card: the last parts of a folder, enough to identify it, not its
    full path.

    Example:
        >>> model_name("/data/runs/first/encoder"), model_name("owner/name"), model_name(None)
        ('first/encoder', 'owner/name', 'all-MiniLM-L6-v2')
    """
    if source is None:
        return EMBEDDED_ENCODER_NAMES[0]
    if not (isinstance(source, Path) or source.startswith((".", "/")) or Path(source).exists()):
        return source
    parts = Path(source).absolute().parts
    common = len(list(takewhile(_FOLDERS.__contains__, reversed(parts))))
    return "/".join(parts[-1 - common :])


def _nameless(value: Any) -> Any:
    """The settings as JSON values, with names of files and folders in place of their paths."""
    if isinstance(value, Mapping):
        return {model_name(k): _nameless(v) for k, v in value.items() if v not in (None, (), {})}
    if isinstance(value, list | tuple):
        return [_nameless(item) for item in value]
    return model_name(value) if isinstance(value, str | Path) and value != "" else value


def _cell(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_cell(number)}" for key, number in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)
