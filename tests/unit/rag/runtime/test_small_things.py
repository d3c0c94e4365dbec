"""Schedules, seeds, hardware, precision, master weights."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from rag.core.errors import ConfigError
from rag.runtime import hardware
from rag.runtime.hardware import core_pool, precisions, resolve_precision
from rag.training.config import TrainConfig, schedule_factor
from rag.training.precision import MasterWeights
from tests.support.messages import refusal


def test_the_rate_rises_and_falls_on_straight_lines_or_stays() -> None:
    config = TrainConfig(out=Path("run"), name="toy", warmup_steps=200)
    factors = [schedule_factor(config, step, 1000) for step in (0, 199, 200, 600, 999)]
    assert factors == pytest.approx([1 / 200, 1.0, 1.0, 0.5, 1 / 800])
    config = TrainConfig(
        out=Path("run"), name="toy", schedule="constant", warmup_fraction=0.9, warmup_steps=2
    )
    assert [schedule_factor(config, step, 10) for step in range(10)] == [0.5] + [1.0] * 9


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
        with refusal(ConfigError):
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


@pytest.mark.needs_bf16
def test_master_weights_keep_updates_that_bf16_would_lose() -> None:
    layer = torch.nn.Linear(4, 4, bias=False).to(torch.bfloat16)
    with torch.no_grad():
        layer.weight.fill_(1.0)
    master = MasterWeights(layer, "bf16")
    optimizer = torch.optim.SGD(master.groups(1e-3), lr=1e-3)
    for _ in range(100):
        layer(torch.ones(1, 4, dtype=torch.bfloat16)).sum().backward()
        master.gather_gradients()
        optimizer.step()
        master.write_back()
    assert torch.allclose(master.master[0], torch.full((4, 4), 0.9), atol=1e-4)
    assert torch.allclose(layer.weight.float(), torch.full((4, 4), 0.9), atol=4e-3)
