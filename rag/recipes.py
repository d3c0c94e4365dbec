"""Every training recipe by name: its configuration, its function, and one call that runs it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from rag.config import load_config
from rag.core.errors import ConfigError
from rag.eval.guard import check_selection_split

ConfigT = TypeVar("ConfigT", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Recipe:
    """Where a recipe lives; imported when it is used.

    Attributes:
        config: "module:Class" of its configuration.
        run: "module:function" that takes the configuration and returns the folder of what it made.
    """

    config: str
    run: str


RECIPES = {
    "rag": Recipe("rag.joint.rag:RagTrainConfig", "rag.joint.rag:train_rag"),
    "emdr2": Recipe("rag.joint.emdr2:EmdrTrainConfig", "rag.joint.emdr2:train_emdr2"),
    "dpr": Recipe("retrievers.training.config:DprTrainConfig", "retrievers.training.dpr:train_dpr"),
    "ance": Recipe("retrievers.training.config:AnceTrainConfig", "retrievers.training.ance:train_ance"),
    "adore": Recipe("retrievers.training.config:AdoreTrainConfig", "retrievers.training.adore:train_adore"),
    "distill": Recipe(
        "retrievers.training.distill:DistillTrainConfig", "retrievers.training.distill:train_distill"
    ),
    "ict": Recipe("retrievers.training.ict:IctTrainConfig", "retrievers.training.ict:train_ict"),
    "colbert": Recipe(
        "retrievers.training.colbert:ColbertTrainConfig", "retrievers.training.colbert:train_colbert"
    ),
    "reranker": Recipe(
        "retrievers.training.reranker:RerankerTrainConfig", "retrievers.training.reranker:train_reranker"
    ),
    "mdr": Recipe("retrievers.training.mdr:MdrTrainConfig", "retrievers.training.mdr:train_mdr"),
    "orqa": Recipe("rag.joint.orqa_config:OrqaTrainConfig", "rag.joint.orqa:train_orqa"),
    "mlm": Recipe("rag.joint.mlm:MlmTrainConfig", "rag.joint.mlm:train_mlm"),
    "realm": Recipe("rag.joint.realm:RealmTrainConfig", "rag.joint.realm:train_realm"),
    "reader": Recipe(
        "readers.extractive.training.config:ReaderTrainConfig",
        "readers.extractive.training.recipe:train_reader",
    ),
    "generator": Recipe(
        "readers.generative.training.config:GeneratorTrainConfig",
        "readers.generative.training.recipe:train_generator",
    ),
}


def train(recipe: str, out: str | Path, *, config: str | Path | None = None, **settings: Any) -> Path:
    """Train with a recipe, or resume the run that `out` holds.

    Args:
        recipe: one of `RECIPES`.
        out: folder of the run.
        config: a preset's name or a YAML or JSON file.
        settings: win over `config`; nested groups as mappings, or flat where the name is unique.

    Returns:
        The folder of the finished encoder or reader.

    Raises:
        ConfigError: no such recipe, a wrong setting, or checkpoints would be chosen on a test set.
        DataError: an input file is wrong.
        MismatchedArtifactError: `out` holds a run with other settings.

    Example:
        >>> train("dpr", "run", config="dpr-small", train_files=["train.json"])        # doctest: +SKIP
        PosixPath('run/encoder')
    """
    if recipe not in RECIPES:
        near = difflib.get_close_matches(recipe, RECIPES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"recipes: {', '.join(RECIPES)}"
        raise ConfigError(f"there is no recipe {recipe!r}", hint=hint)
    found = RECIPES[recipe]
    checked = read_config(load(found.config), config, {"out": str(out), **settings})
    return Path(load(found.run)(checked))


def read_config(
    kind: type[ConfigT],
    source: str | Path | None,
    overrides: Mapping[str, Any],
    flags: Mapping[str, str] | None = None,
) -> ConfigT:
    """A recipe's configuration from all its places, see `load_config`.

    Raises:
        ConfigError: it cannot be read, is not valid, or would choose checkpoints on a test set.
    """
    config = load_config(kind, source, overrides=overrides, flags=flags)
    for part in (config, getattr(config, "data", None)):
        validation = getattr(part, "validation_file", None)
        if validation is not None:
            check_selection_split(validation)
    return config


def load(place: str) -> Any:
    """What "module:name" names."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
