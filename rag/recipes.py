"""Every training recipe by name: a class that states its settings and trains with them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, cast

from rag.config import ConfigT, Setting, load_config
from rag.core.errors import ConfigError, DataError, did_you_mean
from rag.core.files import fingerprint
from rag.core.manifest import read_manifest
from rag.data.files.named import is_named
from rag.training.config import ENTRY_POINTS, TrainConfig

if TYPE_CHECKING:
    from indexers.protocols import EncodesCorpus

# Name of a recipe → its class, as module:class, and a summary.
RECIPES = {
    "dpr": (
        "retrievers.training.config:DprTrainConfig",
        "A dense retriever with in-batch and hard negatives (DPR).",
    ),
    "ance": (
        "retrievers.training.config:AnceTrainConfig",
        "A dense retriever with negatives that it retrieves itself (ANCE).",
    ),
    "mdr": (
        "retrievers.training.config:MdrTrainConfig",
        "A multi-hop retriever (MDR); search with --retriever multihop.",
    ),
    "ict": (
        "retrievers.training.config:IctTrainConfig",
        "A dense retriever from passages alone (ICT).",
    ),
    "distill": (
        "retrievers.training.config:DistillTrainConfig",
        "A dense retriever towards a reader's scores (DKRR).",
    ),
    "static": (
        "retrievers.training.config:StaticTrainConfig",
        "A static encoder, a vector per token, from any encoder.",
    ),
    "colbert": (
        "retrievers.training.config:ColbertTrainConfig",
        "A retriever with a vector per token (ColBERT).",
    ),
    "reranker": (
        "retrievers.training.config:RerankerTrainConfig",
        "A cross-encoder that re-ranks what a search finds.",
    ),
    "reader": (
        "readers.extractive.training.config:ReaderTrainConfig",
        "An extractive reader, from questions with answers.",
    ),
    "verifier": (
        "readers.verifying.settings:VerifierTrainConfig",
        "What judges claims by evidence: supported, refuted or not enough.",
    ),
    "generator": (
        "readers.generative.training.config:GeneratorTrainConfig",
        "A reader that generates its answers (FiD).",
    ),
    "orqa": (
        "rag.joint.config:OrqaTrainConfig",
        "Question encoder and span reader from answers alone (ORQA).",
    ),
    "mlm": (
        "rag.joint.config:MlmTrainConfig",
        "An encoder that predicts masked names and dates, REALM's first reader.",
    ),
    "realm": (
        "rag.joint.config:RealmTrainConfig",
        "A retriever, by predicting masked names and dates (REALM).",
    ),
    "rag": (
        "rag.joint.config:RagTrainConfig",
        "Question encoder and generator, by the likelihood of answers (RAG).",
    ),
    "emdr2": (
        "rag.joint.config:EmdrTrainConfig",
        "Retriever and Fusion-in-Decoder reader (EMDR²).",
    ),
}
_INPUTS = frozenset({"train_files", "validation_file", "index", "questions", "retrieved"})


def recipe_class(name: str) -> type[TrainConfig]:
    """The class of a recipe, whose method `train_model` returns a folder.

    Args:
        name: one of `RECIPES`, an entry point of the group "openqa_rag.recipes" of an installed
            package, or "FILE.py:Class".

    Raises:
        ConfigError: there is no such recipe.
    """
    if name in RECIPES:
        return cast("type[TrainConfig]", resolve_name(RECIPES[name][0]))
    file, _, attribute = name.rpartition(":")
    if file.endswith(".py"):
        return _class_of_file(Path(file), attribute)
    for point in entry_points(group=ENTRY_POINTS, name=name):
        return cast("type[TrainConfig]", point.load())
    raise ConfigError(
        f"there is no recipe {name!r}",
        hint=did_you_mean(name, RECIPES, f"recipes: {', '.join(RECIPES)}; or FILE.py:Class"),
    )


def _class_of_file(file: Path, attribute: str) -> type[TrainConfig]:
    name = f"recipe_{file.stem}_{fingerprint(str(file.resolve()))[:8]}"
    if name not in sys.modules:
        spec = spec_from_file_location(name, file) if file.is_file() else None
        if spec is None or spec.loader is None:
            raise ConfigError(
                f"{file}: no such file", hint="give a recipe of your own as FILE.py:Class"
            )
        module = module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            # A second try would find half a module.
            del sys.modules[name]
            raise
    recipe = getattr(sys.modules[name], attribute, None)
    if not hasattr(recipe, "recipe"):
        raise ConfigError(
            f"{file} has no recipe {attribute!r}",
            hint="derive a class from `rag.recipe.TrainConfig` with a name `recipe` and a method "
            "`train_model`",
        )
    return cast("type[TrainConfig]", recipe)


def train(
    recipe: str, out: str | Path, *, config: str | Path | None = None, **settings: Setting
) -> Path:
    """Train with a recipe, or resume the run that `out` holds.

    Args:
        recipe: see `recipe_class`.
        out: folder of the run.
        config: a preset's name or a YAML or JSON file.
        settings: override those of `config`.

    Returns:
        The folder of the finished encoder or reader.

    Raises:
        ConfigError: no such recipe, a wrong setting, or checkpoints would be chosen on a test set.
        DataError: an input file is wrong.
        MismatchedArtifactError: `out` holds a run with other settings.
    """
    return run(read_config(recipe_class(recipe), config, {"out": str(out), **settings}))


def run(config: TrainConfig, **encoding: EncodesCorpus) -> Path:
    """Train with a checked configuration, as `train` and the command line do; the finished model's
    folder.

    Args:
        encoding: `encode=`, what encodes the corpus at a refresh; for recipes that have one.
    """
    # A re-ranker may start from the encoder of a reader.
    if config.recipe == "reranker":
        from rag.training.run_folder import refuse_other_content
        from readers.extractive.files import plain_encoder
        from retrievers.training.config import RerankerTrainConfig

        assert isinstance(config, RerankerTrainConfig)
        # Refused before the encoder is written into it.
        refuse_other_content(config.out)
        encoder = plain_encoder(config.question_encoder, config.out)
        config = config.replaced(question_encoder=encoder)
    # Only some recipes encode a corpus.
    train_model: Callable[..., Path] = config.train_model
    return train_model(**encoding)


def read_config(
    kind: type[ConfigT], source: str | Path | None, overrides: Mapping[str, object]
) -> ConfigT:
    """A recipe's configuration from file, options and overrides, see `load_config`.

    The files that it names must be there before any work, but for those in the run's folder.

    Raises:
        ConfigError: it cannot be read or is not valid, names a file twice, or selects on a test
            set.
        DataError: a file does not exist; the hint names the setting.
        ArtifactError: there is no index in the folder that is named as one.
    """
    from rag.eval.source import check_selection_split

    config = load_config(kind, source, overrides=overrides)
    validation = getattr(config, "validation_file", None)
    if validation is not None:
        check_selection_split(validation)
    settings = config.model_dump()
    out = settings.pop("out", None)
    inputs = list(_inputs(settings))
    files = [value for name, value in inputs if name in ("train_files", "corpus")]
    repeated = [file for file in files if files.count(file) > 1]
    if repeated:
        raise ConfigError(f"{repeated[0]} is given twice", hint="name each file once")
    for name, value in inputs:
        path = Path(value)
        if is_named(path) or (out is not None and path.is_relative_to(out)):
            continue
        if not path.exists():
            raise DataError(
                f"{path}: no such file",
                hint=f"{{{name}}} names it: check the path",
                arguments=(name,),
            )
        if name == "index":
            read_manifest(path)
    return config


def _inputs(settings: object, name: str = "") -> Iterator[tuple[str, str | Path]]:
    """Setting and value of all input files and indexes."""
    if isinstance(settings, Mapping):
        for key, value in settings.items():
            yield from _inputs(value, str(key))
    elif isinstance(settings, list | tuple):
        for value in settings:
            yield from _inputs(value, name)
    elif isinstance(settings, Path) or (isinstance(settings, str) and name in _INPUTS):
        yield name, settings
