"""What a processor computes in, and its threads."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from rag.core.errors import ConfigError
from rag.runtime import hardware
from rag.runtime.hardware import core_pool, precisions, resolve_precision
from tests.support.messages import refusal


def test_precision_names() -> None:
    assert resolve_precision("fp32") == torch.float32
    assert resolve_precision("auto") == (
        torch.bfloat16 if precisions().get("bf16") else torch.float32
    )
    with refusal(ConfigError):
        resolve_precision("fp8")


def test_bf16_is_refused_exactly_where_it_cannot_be_computed() -> None:
    """Torch raises a RuntimeError for it in the middle of the work."""
    weight = torch.ones(16, 16, dtype=torch.bfloat16)
    if "bf16" in precisions():
        packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        product = torch.ops.mkldnn._linear_pointwise(weight, packed, weight[0], "none", [], "")
        assert torch.equal(product, torch.full_like(weight, 17.0))
        assert resolve_precision("bf16") == torch.bfloat16
    else:
        assert resolve_precision("auto") == torch.float32
        # The message depends on the machine, so it is not a recorded one.
        with pytest.raises(ConfigError, match="has no bf16 arithmetic"):
            resolve_precision("bf16")


INTEL = {"cpu_name": "Intel Xeon"}
BF16 = {"avx512_bf16": True}


@pytest.mark.parametrize(
    ("capability", "has_16_bit_sums", "facts", "table"),
    [
        ("DEFAULT", False, {}, {}),
        ("AVX2", True, {}, {"int8": True}),
        ("AVX2", False, {**INTEL, "avx_vnni": True}, {"int8": True}),
        ("AVX512", True, INTEL, {"bf16": False, "int8": False}),
        ("AVX512", False, {"cpu_name": "AMD EPYC", **BF16}, {"bf16": True, "int8": True}),
        ("AVX512", False, {**INTEL, **BF16}, {"bf16": False, "int8": True}),
        ("AVX512", False, {**INTEL, **BF16, "amx_bf16": True}, {"bf16": True, "int8": False}),
    ],
)
def test_what_is_faster_than_fp32(
    capability: str,
    has_16_bit_sums: bool,
    facts: dict[str, object],
    table: dict[str, bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: facts)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: "bf16" in table)
    monkeypatch.setattr(hardware, "sums_in_16_bits", lambda: has_16_bit_sums)
    assert precisions() == table
    assert "int8" not in precisions("cuda")
    assert resolve_precision("auto") == (torch.bfloat16 if table.get("bf16") else torch.float32)


def test_each_core_computes_with_a_thread_of_its_own() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        pool = core_pool()
        pairs = list(pool.map(lambda n: (n, torch.get_num_threads()), range(20)))
        with ThreadPoolExecutor(1) as other:  # threads started later are not slowed down
            assert other.submit(torch.get_num_threads).result() == torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert pairs == [(n, 1) for n in range(20)]


@pytest.mark.skipif(
    os.environ.get("ONEDNN_MAX_CPU_ISA") != "AVX2", reason="a run of `make test-avx2` alone"
)
def test_the_simulated_processor_has_avx2_alone() -> None:
    assert torch.backends.cpu.get_cpu_capability() == "AVX2"
    assert precisions() == {"int8": True}
    assert hardware.sums_in_16_bits()
