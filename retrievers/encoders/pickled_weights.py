"""Tensors out of a file that `torch.save` wrote, without running anything that is in it.

A pickle is a program: it names functions and calls them. Here every name leads to a stand-in made for this
one reading, or the file is refused. Nothing is imported, nothing of torch or Python is called by the file.
The bytes of a tensor are only read when that tensor is asked for: an optimiser's state costs nothing.

Both containers are read: the zip archive of torch 1.6 and later, and the plain stream before it, in which the
encoders of 2020 were published.

Source:
    Python's documentation of `pickle`, "Restricting Globals"; torch/serialization.py for the two containers.
"""

from __future__ import annotations

import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from rag.core.errors import ArtifactError

__all__ = ["CHECKPOINT_FIELDS", "PickledTensor", "read_pickled"]

CHECKPOINT_FIELDS = ("model_dict", "optimizer_dict", "scheduler_dict", "offset", "epoch", "encoder_params")
"""The fields of DPR's `CheckpointState`, in order."""

_MAGIC = 0x1950A86A20F9469CFC6C
_DTYPES = {
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "DoubleStorage": torch.float64,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}
# What published checkpoints hold beside their weights; read as nothing at all.
_IGNORED = frozenset(
    {
        "_codecs.encode",
        "argparse.Namespace",
        "collections.defaultdict",
        "copyreg._reconstructor",
        "numpy.core.multiarray.scalar",
        "numpy._core.multiarray.scalar",
        "numpy.dtype",
        "torch.Size",
        "torch.device",
        "typing.Any",
        *(
            f"{m}.{n}"
            for m in ("builtins", "__builtin__")
            for n in ("dict", "list", "object", "set", "tuple")
        ),
    }
)
_DAMAGED = (
    *(
        ArithmeticError,
        AttributeError,
        EOFError,
        LookupError,
        MemoryError,
        RecursionError,
        TypeError,
        ValueError,
    ),
    *(pickle.UnpicklingError, struct.error, zipfile.BadZipFile, NotImplementedError, RuntimeError),
)


@dataclass(frozen=True, slots=True)
class _Storage:
    """Where a run of numbers lies. `read` gives its bytes."""

    dtype: torch.dtype
    numel: int
    read: Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class PickledTensor:
    """A tensor that is still in the file."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def load(self) -> torch.Tensor:
        """Its numbers, in memory of their own.

        Raises:
            ArtifactError: it reaches beyond its storage, or the file ends before it.
        """
        numbers = (self.offset, *self.shape, *self.stride)
        plain = all(type(n) is int and n >= 0 for n in numbers) and len(self.shape) == len(self.stride)
        reach = (
            self.offset + sum((n - 1) * step for n, step in zip(self.shape, self.stride, strict=False)) + 1
        )
        empty = 0 in self.shape
        data = b"" if empty or not plain else self.storage.read()
        size = len(data) // self.storage.dtype.itemsize
        if not plain or (not empty and not reach <= self.storage.numel <= size):
            raise ArtifactError(
                f"a tensor of shape {self.shape} reaches beyond its {self.storage.numel} numbers",
                hint="the file is damaged: copy or download it again",
            )
        if empty:
            return torch.empty(self.shape, dtype=self.storage.dtype)
        flat = torch.frombuffer(bytearray(data), dtype=self.storage.dtype)
        return flat.as_strided(self.shape, self.stride, self.offset).contiguous()


def read_pickled(path: Path) -> Any:
    """What `torch.save` wrote: dicts, lists and plain values, with `PickledTensor` for tensors.

    DPR's `CheckpointState` becomes a dict of its fields; configuration objects become empty stand-ins.

    Raises:
        ArtifactError: no such file, not a file of `torch.save`, damaged, or it names something that is not
            on the list (a program instead of weights).
    """
    try:
        with path.open("rb") as file:
            return _read_zip(path) if zipfile.is_zipfile(file) else _read_stream(path)
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror or error}") from error
    except _DAMAGED as error:
        raise ArtifactError(
            f"{path} is not a file that torch.save wrote, or it is damaged ({type(error).__name__}: {error})",
            hint="copy or download it again",
        ) from error


def _read_zip(path: Path) -> Any:
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        if len(names) != 1:
            raise ValueError(f"the archive has {len(names)} entries data.pkl, expected one")
        root = names[0].removesuffix("data.pkl")
        if any(info.compress_type != zipfile.ZIP_STORED for info in archive.infolist()):
            raise ValueError("the archive is compressed, which torch.save never does")
        if f"{root}byteorder" in archive.namelist() and archive.read(f"{root}byteorder") != b"little":
            raise ValueError("it was written on a big-endian machine")

        def find(dtype: torch.dtype, key: str, numel: int) -> _Storage:
            def read() -> bytes:
                with zipfile.ZipFile(path) as again:
                    return again.read(f"{root}data/{key}")

            return _Storage(dtype, numel, read)

        with archive.open(names[0]) as stream:
            return _Reader(stream, path, find).load()


def _read_stream(path: Path) -> Any:
    places: dict[str, tuple[int, int]] = {}

    def find(dtype: torch.dtype, key: str, numel: int) -> _Storage:
        sizes[key] = dtype.itemsize

        def read() -> bytes:
            place, stated = places[key]
            with path.open("rb") as again:
                again.seek(place)
                return again.read(stated * dtype.itemsize)

        return _Storage(dtype, numel, read)

    sizes: dict[str, int] = {}
    with path.open("rb") as stream:
        if _Reader(stream, path, find).load() != _MAGIC:
            raise ValueError("it does not begin like one")
        _Reader(stream, path, find).load()  # version of the container
        if not _Reader(stream, path, find).load().get("little_endian", True):
            raise ValueError("it was written on a big-endian machine")
        found = _Reader(stream, path, find).load()
        for key in _Reader(stream, path, find).load():
            (numel,) = struct.unpack("<q", stream.read(8))
            if numel < 0:
                raise ValueError(f"a storage of {numel} numbers")
            places[key] = (stream.tell(), numel)
            stream.seek(numel * sizes[key], 1)
    return found


class _Stand:
    """Takes whatever a pickle does to an object, and keeps nothing of it."""

    def __new__(cls, *arguments: Any, **named: Any) -> _Stand:
        return super().__new__(cls)

    def __init__(self, *arguments: Any, **named: Any) -> None: ...

    def __setstate__(self, state: Any) -> None: ...

    def __setitem__(self, key: Any, value: Any) -> None: ...

    def append(self, value: Any) -> None: ...

    def extend(self, values: Any) -> None: ...


class _Reader(pickle._Unpickler):  # the one in Python: it reads exactly what it needs
    """Python's unpickler with a list of names instead of imports."""

    def __init__(
        self, stream: BinaryIO | Any, path: Path, find: Callable[[torch.dtype, str, int], _Storage]
    ) -> None:
        super().__init__(stream, encoding="utf-8")
        self._path, self._find = path, find

    def find_class(self, module: str, name: str) -> Any:
        """The stand-in for a name, made anew, or a refusal."""
        full = f"{module}.{name}"
        if name == "CheckpointState":
            return type(name, (), {"__new__": lambda _, *values: dict(zip(CHECKPOINT_FIELDS, values))})
        if full == "collections.OrderedDict":
            return type(name, (OrderedDict,), {})
        if module in ("torch", "torch.storage") and name in _DTYPES:
            return type(name, (), {"dtype": _DTYPES[name]})
        if module == "torch._utils" and name in ("_rebuild_tensor", "_rebuild_tensor_v2"):
            return lambda storage, offset, size, stride, *_: PickledTensor(
                storage, offset, tuple(size), tuple(stride)
            )
        if full == "torch._utils._rebuild_parameter":
            return lambda tensor, *_: tensor
        if full in _IGNORED or (module.partition(".")[0] == "omegaconf" and "." not in name):
            return type("Ignored", (_Stand,), {})
        raise ArtifactError(
            f"{self._path} asks for {full}, which weights do not need: refused, and nothing of it was run",
            hint="use a checkpoint from a source you trust; this program reads tensors, dicts and DPR's "
            "CheckpointState",
        )

    def persistent_load(self, saved: Any) -> _Storage:
        """The storage that a persistent id names."""
        kind, storage, key, _, numel, *view = saved
        if kind not in ("storage", b"storage") or any(part is not None for part in view):
            raise ValueError(f"unknown reference {str(saved)[:60]}")
        dtype = getattr(storage, "dtype", None)
        if not isinstance(dtype, torch.dtype) or not isinstance(key, str) or type(numel) is not int:
            raise ValueError(f"unknown reference {str(saved)[:60]}")
        return self._find(dtype, key, numel)
