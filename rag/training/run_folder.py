"""A run's folder: whose it is.

OUT/config.json     the settings to which the folder belongs
OUT/inputs.json     the checksums of the data to which it belongs
OUT/metrics.jsonl   losses and scores by step, see `rag.training.run_log`
OUT/checkpoints/    see `rag.training.checkpoints`
"""

import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from rag.config import RECIPE_KEY
from rag.core.errors import ConfigError, DataError
from rag.core.files import (
    TEMPORARY_MARK,
    clean_directory,
    directory_lock,
    read_json,
    sha256_file,
)
from rag.core.manifest import BUILDING_DIR, MANIFEST_NAME, claim, index_version
from rag.data.files.sources import find_sources
from rag.data.formats import find_in_folder
from rag.data.questions import question_files
from rag.runtime.hardware import use_threads
from rag.runtime.model_files import tower_folders
from rag.training.checkpoints import CHECKPOINTS, complete_checkpoints
from rag.training.config import TrainConfig
from rag.training.distributed import World

_CONFIG = "config.json"
_INPUTS = "inputs.json"
# Folders of a run that are removed when it is refused.
_RELEASED = ("data", "refresh")


@contextmanager
def claimed(config: TrainConfig) -> Iterator[World]:
    """Start a run: join its processes, claim its folder, set seeds and threads."""
    from accelerate.utils import set_seed

    with World.joined() as world, directory_lock(config.out) if world.is_main else nullcontext():
        if world.is_main:
            refuse_other_content(config.out)
            for folder in (config.out, config.out / "data", config.out / CHECKPOINTS):
                if folder.is_dir():
                    clean_directory(folder)
            claim_run(config, config.out)
        world.barrier()
        # Third-party code draws from the global generators.
        set_seed(config.seed)
        use_threads(config.threads)
        try:
            yield world
        except (ConfigError, DataError):
            if world.is_main and not complete_checkpoints(config.out):
                _release(config.out)
            raise


def refuse_other_content(out: Path) -> None:
    """Refuse a file, and a folder with files that have the names of a run's: an index, a model, or
    data that belong to no run.
    """
    content = _other_content(out)
    if content:
        raise ConfigError(
            f"{out} holds {content}, not a run", hint="choose an empty or a new directory"
        )


def _other_content(out: Path) -> str:
    """What a folder holds if that is no run."""
    if out.is_file():
        return "a file"
    if (out / MANIFEST_NAME).is_file() or (out / BUILDING_DIR).is_dir():
        return "an index"
    if (out / _CONFIG).is_file():
        # A run's settings say where its folder is.
        return "" if "out" in read_json(out / _CONFIG) else "a model"
    others = [f"other files in {name}" for name in _RELEASED if _has_files(out / name)]
    return " and ".join(others)


def _has_files(folder: Path) -> bool:
    """Whether a folder holds anything but what a killed run was writing."""
    return any(TEMPORARY_MARK not in entry.name for entry in folder.glob("*"))


def claim_run(config: TrainConfig, out: Path) -> None:
    """Write the settings to `out/config.json`, or check that the run there has the same ones.

    Paths are stored as absolute ones. Settings that the class of the configuration lists in `free`
    may differ. All that the folder holds belongs to its settings and data from the start, and needs
    no key of its own. The checksums of the training data and of the models that training starts
    from, and the version of the index, which may be moved, are stored in `out/inputs.json` and
    checked likewise.

    Raises:
        MismatchedArtifactError: the run was started with other settings or files; the message names
            them.
    """
    settings: dict[str, Any] = {RECIPE_KEY: config.recipe}
    for name, value in config:
        settings[name] = _as_json(value)
    free = {"out", *config.free}
    checksums = _checksums(config, free)
    claim(
        out / _CONFIG,
        settings,
        "a run with other settings",
        free=free,
    )
    claim(
        out / _INPUTS,
        checksums,
        "a run with files of other content",
        hint="restore the files as they were then, delete that folder, or choose another {out}",
    )


def _release(out: Path) -> None:
    """Free the folder of a run that was refused before any training, for a corrected command."""
    for name in _RELEASED:
        shutil.rmtree(out / name, ignore_errors=True)
    for name in (_CONFIG, _INPUTS):
        (out / name).unlink(missing_ok=True)


def _checksums(config: TrainConfig, free: Collection[str]) -> dict[str, str]:
    """SHA-256 by path of data (of an index its manifest's) and of models' weights; version of
    `index`.
    """
    files = list[Path]()
    towers = set[Path]()
    for name, value in config:
        if name == "index" or name in free:
            continue
        for path in value if isinstance(value, tuple) else (value,):
            if isinstance(path, Path):
                files += _files(path)
            elif isinstance(path, str) and os.path.isdir(path):
                towers.update(tower_folders(Path(path)))
    for folder in sorted(towers):
        files += sorted(folder.glob("*.safetensors"))
    checksums = {str(file.resolve()): sha256_file(file) for file in files}
    index = getattr(config, "index", None)
    if index is not None:
        checksums["index"] = index_version(index)
    return checksums


def _files(path: Path) -> list[Path]:
    """The manifest of an index, or the files of a question set or a folder of documents, if there
    are any.
    """
    manifest = path / MANIFEST_NAME
    if manifest.is_file():
        return [manifest]
    if path.is_dir() and find_in_folder(path, "queries.jsonl") is None:
        return [Path(source.path) for source in find_sources([path])]
    return question_files(path) if path.exists() else []


def _as_json(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_as_json(item) for item in value]
    return str(value.resolve()) if isinstance(value, Path) else to_jsonable_python(value)
