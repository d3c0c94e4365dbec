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

# The version whose kernels `rag.runtime.fast` is tested with.
_TESTED_TORCH = "2.13."


def available_cores() -> int:
    """Number of cores that this process may run on, by its CPU affinity where the system has
    one.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def core_pool() -> ThreadPoolExecutor:
    """As many threads as torch uses, each of which computes single-threaded, for independent
    batches.

    Splitting every operation over all cores makes them wait for each other some hundred times per
    batch; giving each core whole batches does not, and its data stay in the core's cache. The
    threads end with the last reference to the pool.
    """
    count = torch.get_num_threads()
    pool = ThreadPoolExecutor(count)
    ready = threading.Barrier(count + 1)

    def begin() -> None:
        torch.set_num_threads(1)
        # A thread adopts the global count when it first reads it: while it is 1.
        torch.get_num_threads()
        ready.wait()

    for _ in range(count):
        pool.submit(begin)
    ready.wait()
    # Torch keeps the count per thread, but what new ones start with is global.
    torch.set_num_threads(count)
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
    table: dict[str, bool] = {}
    if device.startswith("cuda"):
        if torch.cuda.is_available() and torch.cuda.is_bf16_supported():
            table["bf16"] = True
        return table
    if not torch.backends.mkldnn.is_available():
        return table
    # New in torch 2.13.
    facts: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    has_amx = bool(facts.get("amx_bf16"))
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        is_fast = facts.get("avx512_bf16") and "Intel" not in facts.get("cpu_name", "")
        table["bf16"] = has_amx or bool(facts.get("bf16") or is_fast)
    capability = torch.backends.cpu.get_cpu_capability()
    if capability in ("AVX2", "AVX512") and has_tested_torch():
        table["int8"] = (capability == "AVX2") if sums_in_16_bits() else not has_amx
    return table


@lru_cache(maxsize=1)
def sums_in_16_bits() -> bool:
    """Whether oneDNN adds pairs of int8 products in 16 bits on this CPU, by trial.

    It does without VNNI instructions, or where ONEDNN_MAX_CPU_ISA forbids them. Such sums overflow
    unless the weights are chosen for it, see `rag.runtime.fast.linear`.
    """
    # Their size is read at the first product.
    bound_kernel_caches()
    inputs = torch.full((1, 2), 255, dtype=torch.uint8)
    weights = torch.full((1, 2), 127, dtype=torch.int8)
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
        get_logger(__name__).warning(
            "torch is %s, the fast kernels are tested with %s*: models compute with torch's own, slower",
            torch.__version__,
            _TESTED_TORCH,
        )
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
    if precision not in ("auto", "fp32", "bf16"):
        raise ConfigError(f"unknown precision {precision!r}", hint="use auto, bf16 or fp32")
    table = precisions(device)
    if precision == "bf16" and "bf16" not in table:
        raise ConfigError(
            f"precision is bf16, and this machine's {device} has no bf16 arithmetic",
            hint="use auto, which is the fastest that works here, or fp32",
        )
    is_bf16 = precision == "bf16" or (precision == "auto" and table.get("bf16"))
    return torch.bfloat16 if is_bf16 else torch.float32


def use_threads(count: int | None = None) -> None:
    """Set torch's intra-op threads to `count` (default: OMP_NUM_THREADS, else all cores)."""
    variable = os.environ.get("OMP_NUM_THREADS", "")
    torch.set_num_threads(
        count or (int(variable) if variable.isdigit() else 0) or available_cores()
    )


def bound_kernel_caches() -> None:
    """Let oneDNN keep 64 compiled products instead of 1,024.

    oneDNN compiles and keeps one for every shape. Texts come in all lengths, so nearly every batch
    is a new shape: with the default a process grows by a gigabyte that is hardly ever used again
    (measured while reading passages; with 64 kept the CPU time is 4 % more). Values that the user
    has set stay. They are read when the first product is computed.
    """
    for name in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
        os.environ.setdefault(name, "64")


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
