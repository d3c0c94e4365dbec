"""Capabilities of this machine: cores, bf16 and int8 arithmetic, threads, memory."""

import ctypes
import os
import platform
from functools import lru_cache
from pathlib import Path

import torch

from rag.core.errors import ConfigError
from rag.core.log import get_logger

TESTED_TORCH = "2.13."  # the version whose kernels `rag.runtime.fast` is tested with

# Both are read when the first product is computed; values that the user has set stay.
_KERNEL_CACHES = ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY")
_CACHED_KERNELS = "64"
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # parameters of mallopt, as <malloc.h> numbers them


def available_cores() -> int:
    """Number of cores that this process may run on, by its CPU affinity where the system has one."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@lru_cache(maxsize=1)
def _cpu_facts() -> str:
    file = Path("/proc/cpuinfo")
    return file.read_text(encoding="utf-8") if file.is_file() else ""


@lru_cache(maxsize=1)
def _cpu_flags() -> frozenset[str]:
    """The processor's flags, as far as torch and oneDNN use them: users may limit both to older ones."""
    limit = (os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA") or "ALL").upper()
    lines = (line for line in _cpu_facts().splitlines() if line.startswith(("flags", "Features")))
    flags = frozenset(next(lines, "").partition(":")[2].split())
    if limit not in ("ALL", "DEFAULT"):
        return flags & {"avx2"}  # what is computed with these alone is right with all others too
    if torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "AVX2"):
        return frozenset(flag for flag in flags if not flag.startswith(("avx512", "amx")))
    return flags


def has_bf16(device: str = "cpu") -> bool:
    """Whether bf16 matrix products can be computed on `device` at all, fast or not.

    oneDNN computes them from AVX-512 on; without it torch's kernels are too slow to use.
    """
    if device.startswith("cuda"):
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported()
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def has_fast_bf16(device: str = "cpu") -> bool:
    """Whether bf16 matrix products are faster than fp32 ones on `device` ("cpu" or "cuda").

    Intel's avx512_bf16 is not, without AMX: it multiplies as many pairs a cycle as fp32 does, and oneDNN's
    products then take 1.8 times as long.
    """
    fast = {"amx_bf16", "bf16"} | (set() if "GenuineIntel" in _cpu_facts() else {"avx512_bf16"})
    return has_bf16(device) and (device.startswith("cuda") or bool(_cpu_flags() & fast))


def has_int8() -> bool:
    """Whether int8 linear layers can be computed on this CPU: it has AVX2 or VNNI instructions."""
    return (has_vnni() or "avx2" in _cpu_flags()) and torch.backends.mkldnn.is_available()


def has_fast_int8(device: str = "cpu") -> bool:
    """Whether int8 linear layers (`rag.runtime.fast.linear`) are the fastest there are on `device`.

    With VNNI instructions int8 products run twice as fast as bf16 and four times as fast as fp32, with AVX2
    alone twice as fast as fp32. With amx_bf16, bf16 products are so fast that quantising may cost more than
    it saves: False. AVX-512 without VNNI has not been measured: False.
    """
    slow = "amx_bf16" if has_vnni() else "avx512f"
    return device == "cpu" and has_int8() and slow not in _cpu_flags()


def has_vnni() -> bool:
    """Whether oneDNN adds products of bytes in 32 bits on this CPU.

    Without VNNI instructions it adds pairs of products in 16 bits, which overflow unless the weights are
    chosen for it, see `rag.runtime.fast.linear`. Processors with AVX-512 do not use avx_vnni for it.
    """
    flags = _cpu_flags()
    return "avx512_vnni" in flags or ("avx_vnni" in flags and "avx512f" not in flags)


@lru_cache(maxsize=1)
def has_tested_torch() -> bool:
    """Whether torch is the version that the fast kernels are tested with; says so once where it is not.

    They call operators of torch that are not part of its public interface, and may compute something else in
    another version.
    """
    is_tested = torch.__version__.startswith(TESTED_TORCH)
    if not is_tested:
        get_logger(__name__).warning(
            "torch is %s, the fast CPU kernels are tested with %s*: models compute with torch's own, slower",
            *(torch.__version__, TESTED_TORCH),
        )
    return is_tested


def resolve_device(device: str = "auto") -> str:
    """Turn "auto" into "cuda" if there is a GPU, else "cpu"; other values are returned as they are."""
    return device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"


def resolve_precision(precision: str, device: str = "cpu") -> torch.dtype:
    """Turn "auto" into "bf16" if the hardware computes it fast, else "fp32".

    Raises:
        ConfigError: for an unknown name, or bf16 where `device` cannot compute it.
    """
    if precision == "auto":
        precision = "bf16" if has_fast_bf16(device) else "fp32"
    elif precision == "bf16" and not has_bf16(device):
        raise ConfigError(
            f"precision is bf16, and this machine's {device} has no bf16 arithmetic",
            hint="use auto, which is the fastest that works here, or fp32",
        )
    if precision not in ("fp32", "bf16"):
        raise ConfigError(f"unknown precision {precision!r}", hint="use auto, bf16 or fp32")
    return torch.bfloat16 if precision == "bf16" else torch.float32


def use_threads(count: int | None = None) -> None:
    """Set torch's intra-op threads to `count` (default: OMP_NUM_THREADS, else all cores)."""
    stated = os.environ.get("OMP_NUM_THREADS", "")
    torch.set_num_threads(count or (int(stated) if stated.isdigit() else 0) or available_cores())


def bound_kernel_caches() -> None:
    """Let oneDNN keep 64 compiled products instead of 1,024.

    oneDNN compiles and keeps one for every shape. Texts come in all lengths, so nearly every batch is a new
    shape: with the default a process grows by a gigabyte that is hardly ever used again (measured while
    reading passages; with 64 kept the CPU time is 4 % more).
    """
    for name in _KERNEL_CACHES:
        os.environ.setdefault(name, _CACHED_KERNELS)


def keep_freed_memory() -> None:
    """Let the C library keep freed memory for the next step, instead of returning it to the system.

    By default glibc returns big blocks at once, and gets them back as pages of zeros: a training step with
    long texts then spends a fifth of its time on page faults. The process keeps its largest size.
    Has no effect with other C libraries.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_MAX, 0)
        libc.mallopt(_TRIM_THRESHOLD, -1)
