"""A run's folder: whose it is, the checkpoints from which it resumes exactly, and its records.

OUT/config.json, OUT/inputs.json      the settings, and the checksums of the data, to which the
folder belongs OUT/metrics.jsonl                     losses and scores by step
OUT/checkpoints/step-00001200/        written whole or not at all
    weights.safetensors     fp32 master weights of the trained parameters
    optimizer.safetensors   AdamW's moments and step counts, keyed by parameter name
    hooks.safetensors       tensors of the recipe's hooks, if there are any
    state.json              step, counters, the best score so far and its step
"""

import json
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from pydantic_core import to_jsonable_python
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from rag.config import RECIPE_KEY
from rag.core.errors import ConfigError, DataError, IncompleteArtifactError, MismatchedArtifactError
from rag.core.files import (
    TEMPORARY_MARK,
    atomic_path,
    atomic_write_text,
    clean_directory,
    directory_lock,
    read_json,
    sha256_file,
)
from rag.core.log import get_logger
from rag.core.manifest import BUILDING_DIR, MANIFEST_NAME, claim, index_version
from rag.data.files.sources import find_sources
from rag.data.formats import find_in_folder
from rag.data.questions import question_files
from rag.runtime.hardware import use_threads
from rag.runtime.model_files import tower_folders
from rag.training.config import TrainConfig
from rag.training.distributed import World
from rag.training.precision import MasterWeights

CHECKPOINTS = "checkpoints"
_CONFIG, _INPUTS, _STATE = "config.json", "inputs.json", "state.json"
_RELEASED = ("data", "refresh")  # folders of a run that are removed when it is refused
_NEWEST = 2  # checkpoints that stay whatever their scores

log = get_logger(__name__)


@contextmanager
def claimed(config: TrainConfig) -> Iterator[World]:
    """Start a run: join its processes, claim its folder, set seeds and threads."""
    from accelerate.utils import set_seed

    with World.joined() as world, directory_lock(config.out) if world.is_main else nullcontext():
        if world.is_main:
            refuse_other_content(config.out)
            for folder in filter(
                Path.is_dir, (config.out, config.out / "data", config.out / CHECKPOINTS)
            ):
                clean_directory(folder)
            claim_run(config, config.out)
        world.barrier()
        set_seed(config.seed)  # third-party code draws from the global generators
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
    content = "a file" if out.is_file() else ""
    if (out / MANIFEST_NAME).is_file() or (out / BUILDING_DIR).is_dir():
        content = "an index"
    elif (out / _CONFIG).is_file() and "out" not in read_json(
        out / _CONFIG
    ):  # where a run's folder is
        content = "a model"
    elif not (out / _CONFIG).exists():
        others = (name for name in _RELEASED if _has_files(out / name))
        content = " and ".join(f"other files in {name}" for name in others)
    if content:
        raise ConfigError(
            f"{out} holds {content}, not a run", hint="choose an empty or a new directory"
        )


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
    settings = {RECIPE_KEY: config.recipe, **{name: _as_json(value) for name, value in config}}
    free = {"out", *config.free}
    checksums = _checksums(config, free)
    hint = "choose another --out, delete that folder, or repeat the command that started the run"
    claim(out / _CONFIG, settings, "a run with other settings", free=free, hint=hint)
    hint = "restore the files as they were then, delete that folder, or choose another --out"
    claim(out / _INPUTS, checksums, "a run with files of other content", hint=hint)


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
    files, towers = list[Path](), set[Path]()
    for name, value in config:
        if name == "index" or name in free:
            continue
        for path in value if isinstance(value, tuple) else (value,):
            if isinstance(path, Path):
                files += _files(path)
            elif isinstance(path, str) and os.path.isdir(path):
                towers.update(tower_folders(Path(path)))
    files += sorted(file for folder in towers for file in folder.glob("*.safetensors"))
    index = getattr(config, "index", None)
    versions = {} if index is None else {"index": index_version(index)}
    return {str(file.resolve()): sha256_file(file) for file in files} | versions


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


def checkpoint_path(out: Path, step: int) -> Path:
    """The folder of the checkpoint of a step."""
    return out / CHECKPOINTS / f"step-{step:08d}"


def complete_checkpoints(out: Path) -> list[Path]:
    """Folders of a run's complete checkpoints, oldest first."""
    return sorted(path.parent for path in (out / CHECKPOINTS).glob(f"step-*/{_STATE}"))


def read_checkpoint(checkpoint: Path, part: str) -> dict[str, Any]:
    """The JSON values ("state"), or the tensors ("weights", "optimizer", "hooks") of a checkpoint.

    Raises:
        IncompleteArtifactError: their file is damaged, or missing.
    """
    file = checkpoint / (_STATE if part == "state" else f"{part}.safetensors")
    try:
        values: dict[str, Any] = read_json(file) if part == "state" else load_file(file)
    except (SafetensorError, OSError, DataError) as error:
        raise IncompleteArtifactError(
            f"{file} is damaged ({error})", hint="delete this folder to resume from the one before"
        ) from error
    return values


def save_checkpoint(
    out: Path,
    step: int,
    master: MasterWeights,
    optimizer: torch.optim.Optimizer,
    state: Mapping[str, Any],
    hooks: Mapping[str, Any],
) -> None:
    """Write the checkpoint of `step` atomically, and delete those that are needed no more.

    Args:
        state: `best_step` in it names the checkpoint with the best score, which is not deleted.
        hooks: state of the recipe's hooks: tensors, and JSON values.
    """
    moments = {
        f"{name}//{key}": value
        for name, tensor in zip(master.names, master.master, strict=True)
        for key, value in optimizer.state.get(tensor, {}).items()
    }
    tensors = {name: value for name, value in hooks.items() if isinstance(value, torch.Tensor)}
    values = {name: value for name, value in hooks.items() if name not in tensors}
    files = {"weights": master.state(), "optimizer": moments, "hooks": tensors}
    path = checkpoint_path(out, step)
    with atomic_path(path, folder=True) as temporary:
        for name, content in files.items():
            # a clone each: safetensors refuses tensors that share memory
            cloned = {key: tensor.detach().clone().contiguous() for key, tensor in content.items()}
            save_file(cloned, temporary / f"{name}.safetensors")
        (temporary / _STATE).write_text(
            json.dumps({**state, "hooks": values, "step": step}), "utf-8"
        )
    newest = complete_checkpoints(out)[-_NEWEST:]
    best = [read_checkpoint(checkpoint, "state")["best_step"] for checkpoint in newest]
    needed = {*newest, *(checkpoint_path(out, number) for number in best if number is not None)}
    for old in {*(out / CHECKPOINTS).glob("step-*")} - needed:
        shutil.rmtree(old, ignore_errors=True)


def load_checkpoint(
    checkpoint: Path, master: MasterWeights, optimizer: torch.optim.Optimizer
) -> None:
    """Restore weights and optimiser moments exactly.

    Raises:
        MismatchedArtifactError: if it belongs to another model.
    """
    stored = read_checkpoint(checkpoint, "weights")
    shapes = [{(k, tuple(t.shape)) for k, t in own.items()} for own in (master.state(), stored)]
    if shapes[0] != shapes[1]:
        raise MismatchedArtifactError(
            f"{checkpoint}: holds other parameters than the model (for example "
            f"{sorted(shapes[0] ^ shapes[1])[:3]})",
            hint="use another output folder, or the configuration this run was started with",
        )
    master.load(stored)
    parameters = dict(zip(master.names, master.master, strict=True))
    for entry, value in read_checkpoint(checkpoint, "optimizer").items():
        name, _, key = entry.partition("//")
        optimizer.state[parameters[name]][key] = value.to(parameters[name].device)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Records of a metrics.jsonl; a torn last line is passed over."""
    records: list[dict[str, Any]] = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        with suppress(json.JSONDecodeError):
            records.append(json.loads(line))
    return records


class RunLog:
    """Counts steps and reports them, on the screen and in metrics.jsonl.

    Args:
        step: steps taken before; later records of an interrupted run are cut off.
        state: the value of `state` at the checkpoint from which the run resumes, or an empty
            mapping.
        writes: False writes nothing (in all processes but one).
    """

    def __init__(
        self,
        config: TrainConfig,
        *,
        step: int,
        total_steps: int,
        state: Mapping[str, Any],
        writes: bool,
    ) -> None:
        self._path, self._total, self._writes = config.out / "metrics.jsonl", total_steps, writes
        self._every = config.log_every_steps or min(20, max(1, total_steps // 10))
        self._counters = self._reported = state.get(
            "counters", {"examples": 0, "tokens": 0, "seconds": 0.0}
        )
        self._means: dict[str, tuple[float, int]] = dict(
            state.get("sums", {})
        )  # totals, numbers of steps
        if writes:
            earlier = [record for record in read_metrics(self._path) if record["step"] <= step]
            atomic_write_text(self._path, "".join(json.dumps(record) + "\n" for record in earlier))

    def record(
        self,
        step: int,
        sums: Mapping[str, float],
        means: Mapping[str, float],
        values: Mapping[str, Any],
    ) -> None:
        """Count a step, and report the last ones if it is time to: every `every` steps and at the
        end.

        Args:
            sums: examples, tokens and seconds of the step, which are summed over the run.
            means: "loss" and its parts, which are averaged over the steps that have them.
            values: "rate", "norm" and others, which are reported as they are now.
        """
        for name, value in means.items():
            total, steps = self._means.get(name, (0.0, 0))
            self._means[name] = (total + value, steps + 1)
        self._counters = {name: total + sums[name] for name, total in self._counters.items()}
        if step % self._every and step != self._total:
            return
        shown = {**{name: total / steps for name, (total, steps) in self._means.items()}, **values}
        self._write({"step": step, **shown, **self._counters})
        examples, tokens, seconds = (
            now - self._reported[name] for name, now in self._counters.items()
        )
        self._means, self._reported, seconds = {}, self._counters, max(seconds, 1e-9)
        loss, norm, rate = (shown.pop(name) for name in ("loss", "norm", "rate"))
        if self._writes:
            log.info(
                f"step {step}/{self._total}  loss {loss:.4f}  norm {norm:.2f}  lr {rate:.2e}  "
                f"{examples / seconds:.1f} examples/s  {tokens / seconds:.0f} tokens/s{_shown(shown)}"
            )

    def scores(self, step: int, scores: Mapping[str, float], *, note: str = "") -> None:
        """Log the scores of a validation."""
        self._write({"step": step, **{f"eval/{name}": value for name, value in scores.items()}})
        if self._writes:
            log.info("step %d/%d%s%s", step, self._total, _shown(scores), note)

    def state(self) -> dict[str, Any]:
        """State for a checkpoint, so that a resumed run reports the same losses as an undisturbed
        one.
        """
        return {"counters": self._counters, "sums": self._means}

    def _write(self, record: Mapping[str, Any]) -> None:
        if self._writes:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
                file.flush()
                os.fsync(file.fileno())


def _shown(fields: Mapping[str, Any]) -> str:
    return "".join(f"  {k} {f'{v:.4f}' if isinstance(v, float) else v}" for k, v in fields.items())
