"""Every training recipe by name: its configuration, its function, and one call that runs it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, TypeVar

from pydantic import BaseModel

from rag.config import load_config
from rag.core.arguments import checked
from rag.core.errors import ArtifactError, ConfigError, DataError, did_you_mean
from rag.core.files import fingerprint, sha256_file
from rag.core.manifest import read_manifest
from rag.data.examples import read_examples
from rag.data.files.named import is_named
from rag.data.questions import read_questions
from rag.eval.guard import check_selection_split
from rag.runtime.model_files import TOWER_SEPARATOR

_INPUTS = frozenset({"train_files", "validation_file", "index", "questions", "retrieved", "serving"})
_MODELS = frozenset(
    {"question_encoder", "passage_encoder", "index_encoder", "encoder", "generator", "reader"}
)
# these learn from question sets, not from examples
_BY_QUESTION = frozenset({"orqa", "rag", "emdr2", "mdr", "generator"})
_MOST_BYTES = 1 << 26  # of a file whose first record is read beforehand: some formats are parsed whole
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
    """A generator may learn from questions without passages: `config.index` is searched for them, and for
    held-out ones.
    """
    if config.index is None:
        return config
    held_out = config.validation_file
    return config.replaced(
        train_files=tuple(_retrieved(config, path) for path in config.train_files),
        validation_file=None if held_out is None else _retrieved(config, held_out),
    )


def _retrieved(config: Any, path: Path) -> Path:
    """The file, or, if its questions come without passages, a file of passages retrieved for them."""
    from filelock import FileLock

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
    out.parent.mkdir(parents=True, exist_ok=True)
    lock = out.parent.with_suffix(".lock")
    with FileLock(lock):  # the processes of torchrun come here together
        if not out.exists():
            with closing(Pipeline.open(config.index, reads=False)) as pipeline:
                write_results(pipeline, list(read_questions(path)), out, config.top_k)
    lock.unlink(missing_ok=True)  # who still waits for it finds the file written
    return out


RECIPES = {
    "rag": Recipe("rag.joint.config:RagTrainConfig", "rag.joint.rag:train_rag"),
    "emdr2": Recipe("rag.joint.config:EmdrTrainConfig", "rag.joint.emdr2:train_emdr2"),
    "dpr": Recipe("retrievers.training.config:DprTrainConfig", "retrievers.training.dpr:train_dpr"),
    "ance": Recipe("retrievers.training.config:AnceTrainConfig", "retrievers.training.ance:train_ance"),
    "distill": Recipe(
        "retrievers.training.recipe_configs:DistillTrainConfig", "retrievers.training.distill:train_distill"
    ),
    "ict": Recipe("retrievers.training.recipe_configs:IctTrainConfig", "retrievers.training.ict:train_ict"),
    "static": Recipe(
        "retrievers.training.static_config:StaticTrainConfig", "retrievers.training.static:train_static"
    ),
    "colbert": Recipe(
        "retrievers.training.recipe_configs:ColbertTrainConfig", "retrievers.training.colbert:train_colbert"
    ),
    "reranker": Recipe(
        "retrievers.training.recipe_configs:RerankerTrainConfig",
        "retrievers.training.reranker:train_reranker",
        _with_plain_encoder,
    ),
    "mdr": Recipe("retrievers.training.recipe_configs:MdrTrainConfig", "retrievers.training.mdr:train_mdr"),
    "orqa": Recipe("rag.joint.config:OrqaTrainConfig", "rag.joint.orqa:train_orqa"),
    "mlm": Recipe("rag.joint.config:MlmTrainConfig", "rag.joint.mlm:train_mlm"),
    "realm": Recipe("rag.joint.config:RealmTrainConfig", "rag.joint.realm:train_realm"),
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


@checked
def train(recipe: str, out: str | Path, *, config: str | Path | None = None, **settings: Any) -> Path:
    """Train with a recipe, or resume the run that `out` holds.

    Args:
        recipe: one of `RECIPES`.
        out: folder of the run.
        config: a preset's name or a YAML or JSON file.
        settings: override `config`; nested groups as mappings, or flat where the name is unique.

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
        hint = did_you_mean(recipe, RECIPES, f"recipes: {', '.join(RECIPES)}")
        raise ConfigError(f"there is no recipe {recipe!r}", hint=hint)
    found = RECIPES[recipe]
    checked = read_config(resolve_name(found.config), config, {"out": str(out), **settings})
    return run(recipe, checked)


def run(recipe: str, config: Any) -> Path:
    """Train with a checked configuration, as `train` and the command line do; the finished model's folder."""
    found = RECIPES[recipe]
    resolve_name("rag.training.claim:refuse_other_content")(config.out)  # before `resolve` writes into it
    return Path(resolve_name(found.run)(found.resolve(config)))


def read_config(
    kind: type[ConfigT],
    source: str | Path | None,
    overrides: Mapping[str, Any],
    flags: Mapping[str, str] | None = None,
) -> ConfigT:
    """A recipe's configuration from file, options and overrides, see `load_config`.

    Raises:
        ConfigError: it cannot be read, is not valid, or would choose checkpoints on a test set.
        DataError, ArtifactError: a file or folder that it names is missing or of the wrong kind.
    """
    config = load_config(kind, source, overrides=overrides, flags=flags)
    for part in (config, getattr(config, "data", None)):
        validation = getattr(part, "validation_file", None)
        if validation is not None:
            check_selection_split(validation)
    check_files(config.model_dump())
    _check_first_records(config)
    return config


def check_files(settings: Mapping[str, Any]) -> None:
    """Refuse settings that name a file, an index or a model's folder that is not there: before any work, and
    before torch is imported.

    Paths in the run's folder, `settings["out"]`, may be missing, because they may be written later.

    Raises:
        DataError: a file does not exist; the message has the setting's name.
        ArtifactError: the same for a model's folder, or there is no index in that folder.
    """
    out = Path(str(settings.get("out") or "/"))
    for name, value in _named_in({key: value for key, value in settings.items() if key != "out"}):
        path = Path(value)
        if is_named(path) or (out != Path("/") and path.is_relative_to(out)):
            continue
        if name in _MODELS and isinstance(value, str):
            if _is_missing_folder(value):
                raise ArtifactError(f"{value}: no such folder", hint=f"{name} names it: check the path")
        elif not path.exists():
            raise DataError(f"{path}: no such file", hint=f"{name} names it: check the path")
        elif name == "index":
            read_manifest(path, kind="index")


def _is_missing_folder(model: str) -> bool:
    """Whether the name of a model is a path, of one folder, that does not exist."""
    is_path = Path(model).is_absolute() or model.startswith(".") or model.count("/") > 1
    return is_path and ":" not in model and TOWER_SEPARATOR not in model and not Path(model).is_dir()


def _named_in(settings: Any, name: str = "") -> Iterator[tuple[str, str | Path]]:
    """Setting and value of all input files, indexes and models in nested settings."""
    if isinstance(settings, Mapping):
        for key, value in settings.items():
            yield from _named_in(value, str(key))
    elif isinstance(settings, list | tuple):
        for value in settings:
            yield from _named_in(value, name)
    elif isinstance(settings, Path) or (isinstance(settings, str) and name in _INPUTS | _MODELS):
        yield name, settings


def _check_first_records(config: Any) -> None:
    """Read what the first record of each file of questions or examples is, as the recipe reads it.

    Files in the run's folder are its own.

    Raises:
        DataError: a file has no record to learn from.
    """
    recipe, needs = getattr(config, "recipe", ""), getattr(config, "needs", None)
    sets = [one.questions for one in getattr(config, "train", ())]
    for path in (*getattr(config, "train_files", ()), *sets):
        is_own = path.is_relative_to(config.out)
        if is_own or not path.exists() or (path.is_file() and path.stat().st_size > _MOST_BYTES):
            continue
        if sets or recipe in _BY_QUESTION:
            next(read_questions(path), None)
        elif needs is not None and recipe != "ict":
            next(read_examples(path, needs=needs, quiet=True), None)
