"""Capabilities of this machine: cores, threads, bf16 and int8 arithmetic, memory."""

import ctypes
import os
import platform
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import torch

from rag.core.errors import ConfigError
from rag.core.log import get_logger

_TESTED_TORCH = "2.13."  # the version whose kernels `rag.runtime.fast` is tested with


def available_cores() -> int:
    """Number of cores that this process may run on, by its CPU affinity where the system has
    one.
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def core_pool() -> ThreadPoolExecutor:
    """As many threads as torch uses, each of which computes single-threaded, for independent
    batches.

    Splitting every operation over all cores makes them wait for each other some hundred times per
    batch; giving each core whole batches does not, and its data stay in the core's cache. The
    threads end with the last reference to the pool.
    """
    count = torch.get_num_threads()
    pool, ready = ThreadPoolExecutor(count), threading.Barrier(count + 1)

    def begin() -> None:
        torch.set_num_threads(1)
        # a thread adopts the global count when it first reads it: while it is 1
        torch.get_num_threads()
        ready.wait()

    for _ in range(count):
        pool.submit(begin)
    ready.wait()
    torch.set_num_threads(
        count
    )  # torch keeps it per thread, but what new ones start with is global
    return pool


def precisions(device: str = "cpu") -> dict[str, bool]:
    """The number types beside fp32 in which `device` ("cpu" or "cuda") computes matrix products,
    and whether each is faster there than those before it.

    "bf16": oneDNN computes it from AVX-512 on; without it torch's kernels are too slow to use.
    Intel's avx512_bf16 multiplies as many pairs a cycle as fp32 does, and oneDNN's products then
    take 1.8 times as long. "int8" (`rag.runtime.fast.linear`): with VNNI instructions twice as fast
    as bf16 and four times as fast as fp32, with AVX2 alone twice as fast as fp32. With amx_bf16,
    bf16 products are so fast that quantising may cost more than it saves. AVX-512 without VNNI has
    not been measured.
    """
    if device.startswith("cuda"):
        return (
            {"bf16": True} if torch.cuda.is_available() and torch.cuda.is_bf16_supported() else {}
        )
    if not torch.backends.mkldnn.is_available():
        return {}
    facts: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # new in torch 2.13
    has_amx, is_intel = bool(facts.get("amx_bf16")), "Intel" in facts.get("cpu_name", "")
    table, capability = dict[str, bool](), torch.backends.cpu.get_cpu_capability()
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        table["bf16"] = has_amx or bool(
            facts.get("bf16") or (facts.get("avx512_bf16") and not is_intel)
        )
    if capability in ("AVX2", "AVX512") and has_tested_torch():
        table["int8"] = (capability == "AVX2") if sums_in_16_bits() else not has_amx
    return table


@lru_cache(maxsize=1)
def sums_in_16_bits() -> bool:
    """Whether oneDNN adds pairs of int8 products in 16 bits on this CPU, by trial.

    It does without VNNI instructions, or where ONEDNN_MAX_CPU_ISA forbids them. Such sums overflow
    unless the weights are chosen for it, see `rag.runtime.fast.linear`.
    """
    bound_kernel_caches()  # before the first product
    inputs, weights = (
        torch.full((1, 2), 255, dtype=torch.uint8),
        torch.full((1, 2), 127, dtype=torch.int8),
    )
    product = torch.ops.onednn.qlinear_pointwise(
        inputs,
        1.0,
        0,
        torch.ops.onednn.qlinear_prepack(weights, None),
        torch.ones(1),
        torch.zeros(1, dtype=torch.int32),
        None,
        1.0,
        0,
        torch.float32,
        "none",
        [],
        "",
    )
    return float(product) != 255 * 127 * 2


@lru_cache(maxsize=1)
def has_tested_torch() -> bool:
    """Whether torch is the version that the fast kernels are tested with; says so once where it is
    not.

    They call operators of torch that are not part of its public interface, and may compute
    something else in another version.
    """
    is_tested = torch.__version__.startswith(_TESTED_TORCH)
    if not is_tested:
        what = "torch is %s, the fast kernels are tested with %s*: models compute with torch's own, slower"
        get_logger(__name__).warning(what, torch.__version__, _TESTED_TORCH)
    return is_tested


def resolve_device(device: str = "auto") -> str:
    """Turn "auto" into "cuda" if there is a GPU, else "cpu"; other values are returned as they
    are.
    """
    if device != "auto":
        return device
    return "cuda" if torch.cuda.is_available() else "cpu"


def resolve_precision(precision: str, device: str = "cpu") -> torch.dtype:
    """Turn "auto" into "bf16" if the hardware computes it fast, else "fp32".

    Raises:
        ConfigError: for an unknown name, or bf16 where `device` cannot compute it.
    """
    table = precisions(device)
    if precision == "auto":
        precision = "bf16" if table.get("bf16") else "fp32"
    elif precision == "bf16" and "bf16" not in table:
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

    oneDNN compiles and keeps one for every shape. Texts come in all lengths, so nearly every batch
    is a new
    shape: with the default a process grows by a gigabyte that is hardly ever used again (measured
        while
    reading passages; with 64 kept the CPU time is 4 % more). Values that the user has set stay.
    """
    for name in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
        os.environ.setdefault(name, "64")  # read when the first product is computed


def keep_freed_memory() -> None:
    """Let the C library keep freed memory for the next step, instead of returning it to the system.

    By default glibc returns big blocks at once, and gets them back as pages of zeros: a training
    step with long texts then spends a fifth of its time on page faults. The process keeps its
    largest size. Has no effect with other C libraries.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(-4, 0)  # M_MMAP_MAX of <malloc.h>
        libc.mallopt(-1, -1)  # M_TRIM_THRESHOLD
