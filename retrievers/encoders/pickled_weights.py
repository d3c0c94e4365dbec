"""Tensors out of a file that `torch.save` wrote, without running anything that is in it.

A pickle is a program: it names functions and calls them. torch's weights-only reader knows the few that make
tensors and refuses every other name. What published checkpoints hold beside their weights (an optimiser's
state, a configuration) is given stand-ins here that keep nothing.
"""

from __future__ import annotations

import pickle
import re
import struct
import zipfile
from pathlib import Path
from typing import Any

import torch

from rag.core.errors import ArtifactError

__all__ = ["CHECKPOINT_FIELDS", "read_pickled"]

CHECKPOINT_FIELDS = ("model_dict", "optimizer_dict", "scheduler_dict", "offset", "epoch", "encoder_params")
"""The fields of DPR's `CheckpointState`, in order."""

_IGNORED = (
    *("argparse.Namespace", "copyreg._reconstructor", "typing.Any"),
    *("numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar", "numpy.dtype"),
    *(f"builtins.{name}" for name in ("dict", "list", "object", "set", "tuple")),
    *(f"omegaconf.base.{name}" for name in ("ContainerMetadata", "Metadata")),
    *(f"omegaconf.nodes.{name}" for name in ("AnyNode", "StringNode", "IntegerNode", "FloatNode")),
    *("omegaconf.nodes.BooleanNode", "omegaconf.dictconfig.DictConfig", "omegaconf.listconfig.ListConfig"),
)
_DAMAGED = (
    *(ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, MemoryError, RecursionError),
    *(RuntimeError, TypeError, ValueError, NotImplementedError),
    *(pickle.UnpicklingError, struct.error, zipfile.BadZipFile),
)


class _Ignored:
    """Takes whatever a pickle does to an object, and keeps nothing of it."""

    def __new__(cls, *arguments: Any) -> _Ignored:
        return super().__new__(cls)

    def __init__(self, *arguments: Any) -> None: ...

    def __setstate__(self, state: Any) -> None: ...


def _plain_dict(*arguments: Any) -> dict[Any, Any]:
    """In place of a defaultdict: its items follow."""
    return {}


class _CheckpointState(dict[str, Any]):
    """DPR's named tuple as a dict of its fields; a pickle makes it by `__new__` alone."""

    def __new__(cls, *values: Any) -> _CheckpointState:
        made = super().__new__(cls)
        made.update(zip(CHECKPOINT_FIELDS, values, strict=False))
        return made

    def __init__(self, *values: Any) -> None: ...


def read_pickled(path: Path) -> Any:
    """What `torch.save` wrote, as a zip archive or as the plain stream of torch before 1.6.

    Returns:
        Dicts, lists, plain values and tensors (of an archive, memory-mapped). DPR's `CheckpointState` becomes
        a dict of its fields; configuration objects become empty.

    Raises:
        ArtifactError: no such file, not a file of `torch.save`, damaged, or it names something that weights
            do not need (a program instead of weights).
    """
    known: list[Any] = [(_Ignored, name) for name in _IGNORED]
    known.append((_plain_dict, "collections.defaultdict"))
    known.append((_CheckpointState, "dpr.utils.model_utils.CheckpointState"))
    try:
        with torch.serialization.safe_globals(known):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror or error}") from error
    except _DAMAGED as error:
        asked = re.search(r"\bGLOBAL (\S+)", str(error))
        if asked is not None:
            raise ArtifactError(
                f"{path} asks for {asked[1]}, which weights do not need: refused, and nothing of it was run",
                hint="use a checkpoint from a source you trust; this program reads tensors, dicts and DPR's "
                "CheckpointState",
            ) from error
        said = str(error).partition("\n")[0]
        raise ArtifactError(
            f"{path} is not a file that torch.save wrote, or it is damaged ({type(error).__name__}: {said})",
            hint="copy or download it again",
        ) from error
