"""Every training recipe by name: its configuration, its function, and one call that runs it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from rag.config import load_config
from rag.core.errors import ConfigError, DataError
from rag.core.files import fingerprint, sha256_file
from rag.core.manifest import read_manifest
from rag.data.files.huggingface import HF_PREFIX
from rag.eval.guard import check_selection_split

_INPUTS = frozenset({"train_files", "validation_file", "index", "questions", "retrieved", "serving"})
ConfigT = TypeVar("ConfigT", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Recipe:
    """Where a recipe lives; imported when it is used.

    Attributes:
        config: "module:Class" of its configuration.
        run: "module:function" that takes the configuration and returns the folder of the finished model.
        resolve: replaces settings that another package has to look up, before the run is claimed.
    """

    config: str
    run: str
    resolve: Callable[[Any], Any] = lambda config: config


def _with_plain_encoder(config: Any) -> Any:
    """A reranker may start from the encoder of an extractive reader."""
    from readers.extractive.files import plain_encoder

    return config.replaced(question_encoder=plain_encoder(config.model.question_encoder, config.out))


def _with_passages(config: Any) -> Any:
    """A generator may learn from questions without passages: `config.index` is searched for them."""
    if config.index is None:
        return config
    return config.replaced(train_files=tuple(_retrieved(config, path) for path in config.train_files))


def _retrieved(config: Any, path: Path) -> Path:
    """The file, or, if its questions come without passages, a file of passages retrieved for them."""
    from indexers.build import INDEX_KIND
    from rag.data.questions import read_questions
    from rag.eval.runs import write_results
    from rag.pipeline import Pipeline
    from readers.generative.training.data import has_passages

    if has_passages(path):
        return path
    checksum = read_manifest(config.index, kind=INDEX_KIND)["checksum"]
    key = fingerprint([sha256_file(path), checksum, config.top_k])
    out = Path(config.out / "retrieved" / f"{path.name.partition('.')[0]}-{key[:12]}.json")
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        with closing(Pipeline.open(config.index, reads=False)) as pipeline:
            write_results(pipeline, list(read_questions(path)), out, config.top_k)
    return out


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
        "retrievers.training.reranker:RerankerTrainConfig",
        "retrievers.training.reranker:train_reranker",
        _with_plain_encoder,
    ),
    "mdr": Recipe("retrievers.training.mdr:MdrTrainConfig", "retrievers.training.mdr:train_mdr"),
    "orqa": Recipe("rag.joint.orqa:OrqaTrainConfig", "rag.joint.orqa:train_orqa"),
    "mlm": Recipe("rag.joint.mlm:MlmTrainConfig", "rag.joint.mlm:train_mlm"),
    "realm": Recipe("rag.joint.realm:RealmTrainConfig", "rag.joint.realm:train_realm"),
    "reader": Recipe(
        "readers.extractive.training.config:ReaderTrainConfig",
        "readers.extractive.training.recipe:train_reader",
    ),
    "generator": Recipe(
        "readers.generative.training.config:GeneratorTrainConfig",
        "readers.generative.training.recipe:train_generator",
        _with_passages,
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
    check_files({"out": out, **settings})
    checked = read_config(load(found.config), config, {"out": str(out), **settings})
    return run(recipe, checked)


def run(recipe: str, config: Any) -> Path:
    """Train with a checked configuration, as `train` and the command line do; the finished model's folder."""
    found = RECIPES[recipe]
    return Path(load(found.run)(found.resolve(config)))


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
    check_files(config.model_dump())
    for part in (config, getattr(config, "data", None)):
        validation = getattr(part, "validation_file", None)
        if validation is not None:
            check_selection_split(validation)
    return config


def check_files(settings: Mapping[str, Any]) -> None:
    """Refuse settings that name a file which is not there: before any work, and before torch is imported.

    What lies in the run's folder, `settings["out"]`, may come to be later.

    Raises:
        DataError: with the setting's name.
    """
    out = Path(str(settings.get("out") or "/"))
    for name, path in _files_in({key: value for key, value in settings.items() if key != "out"}):
        is_made = out != Path("/") and path.is_relative_to(out)
        if not is_made and not str(path).startswith(HF_PREFIX) and not path.exists():
            raise DataError(f"{path}: no such file", hint=f"{name} names it: check the path")


def _files_in(settings: Any, name: str = "") -> Iterator[tuple[str, Path]]:
    """Setting and path of all input files in nested settings."""
    if isinstance(settings, Mapping):
        for key, value in settings.items():
            yield from _files_in(value, str(key))
    elif isinstance(settings, list | tuple):
        for value in settings:
            yield from _files_in(value, name)
    elif isinstance(settings, Path) or (isinstance(settings, str) and name in _INPUTS):
        yield name, Path(settings)


def load(place: str) -> Any:
    """Import the object that "module:name" names."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
