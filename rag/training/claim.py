"""A run's folder belongs to one configuration and its data: `config.json` and `inputs.json` say which."""

import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from rag.config import RECIPE_KEY, Config
from rag.core.errors import ConfigError, MismatchedArtifactError
from rag.core.files import atomic_write_json, clean_directory, directory_lock, read_json, sha256_file
from rag.core.manifest import BUILDING_DIR, MANIFEST_NAME, claim, read_manifest
from rag.data.files.rows import in_folder
from rag.data.files.sources import find_sources
from rag.data.questions import question_files
from rag.runtime.hardware import use_threads
from rag.runtime.model_files import tower_folders
from rag.runtime.seeds import seed_everything
from rag.training.checkpoints import complete_checkpoints
from rag.training.distributed import World

_CONFIG, _INPUTS = "config.json", "inputs.json"


@contextmanager
def claimed(config: Any) -> Iterator[World]:
    """Start the run of a `TrainConfig`: join its processes, claim its folder, set seeds and threads."""
    with World.joined() as world, directory_lock(config.out) if world.is_main else nullcontext():
        if world.is_main:
            refuse_other_content(config.out)
            for folder in filter(Path.is_dir, (config.out, config.out / "data")):
                clean_directory(folder)
            claim_run(config, config.out)
        world.barrier()
        seed_everything(config.seed)
        use_threads(config.threads)
        yield world


def refuse_other_content(out: Path) -> None:
    """Refuse a file, and the folder of an index or a model, which have files of the same names as a run."""
    is_index = (out / MANIFEST_NAME).is_file() or (out / BUILDING_DIR).is_dir()
    is_model = (out / _CONFIG).is_file() and "out" not in read_json(out / _CONFIG)  # where a run's folder is
    if is_index or is_model or out.is_file():
        content = "an index" if is_index else "a model" if is_model else "a file"
        raise ConfigError(f"{out} holds {content}, not a run", hint="choose an empty or a new directory")


def claim_run(config: Config, out: Path) -> None:
    """Write the settings to `out/config.json`, or check that the run there has the same ones.

    Paths are stored as absolute ones. Settings that the class of the configuration lists in `free` may
    differ; before the first checkpoint all may, and what was made with others is removed: all that the folder
    holds belongs to its settings and data, and needs no key of its own. The checksums of the training data
    and of the models that training starts from, and the version of the index, which may be moved, are stored
    in `out/inputs.json` and checked likewise.

    Raises:
        MismatchedArtifactError: the run was started with other settings or files; the message names them.
    """
    recipe = {RECIPE_KEY: name} if (name := getattr(config, RECIPE_KEY, "")) else {}
    settings, free = {**recipe, **{name: _as_json(value) for name, value in config}}, {"out", *config.free}
    checksums = _checksums(config, free)
    try:
        hint = "choose another --out, or repeat the command that started the run"
        claim(out / _CONFIG, settings, "a run", free=free, hint=hint)
        before = read_json(out / _INPUTS) if (out / _INPUTS).is_file() else checksums
        if changed := [name for name, checksum in checksums.items() if before.get(name) != checksum]:
            raise MismatchedArtifactError(
                f"{out} holds a run that was started with other content of {', '.join(changed)}",
                hint="restore the files as they were then, or choose another --out",
            )
    except MismatchedArtifactError:
        if complete_checkpoints(out / "checkpoints"):
            raise
        for name in ("data", "refresh"):  # made with the settings and data of before
            shutil.rmtree(out / name, ignore_errors=True)
        atomic_write_json(out / _CONFIG, settings)
    atomic_write_json(out / _INPUTS, checksums)


def _checksums(config: Config, free: Collection[str]) -> dict[str, str]:
    """SHA-256 by path of data (of an index its manifest's) and of models' weights; version of `index`."""
    settings = [value for name, value in config if name not in {"index", *free}]
    paths = [path for value in settings for path in (value if isinstance(value, tuple) else (value,))]
    files = [file for path in paths if isinstance(path, Path) for file in _files(path)]
    models = [Path(path) for path in paths if isinstance(path, str) and os.path.isdir(path)]
    towers = {folder for model in models for folder in tower_folders(model)}
    files += sorted(file for folder in towers for file in folder.glob("*.safetensors"))
    index = getattr(config, "index", None)
    versions = {} if index is None else {"index": read_manifest(index, kind="index")["version"]}
    return {str(file.resolve()): sha256_file(file) for file in files} | versions


def _files(path: Path) -> list[Path]:
    """An index's manifest, the files of a question set, or those of a folder of documents; none where there
    is no such file.
    """
    manifest = path / MANIFEST_NAME
    if manifest.is_file():
        return [manifest]
    if path.is_dir() and in_folder(path, "queries.jsonl") is None:
        return [Path(source.path) for source in find_sources([path])]
    return [file for file in question_files(path) if file.is_file()]


def _as_json(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_as_json(item) for item in value]
    return str(value.resolve()) if isinstance(value, Path) else to_jsonable_python(value)
