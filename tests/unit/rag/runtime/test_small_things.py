"""Schedules, seeds, hardware, precision, master weights."""

import os

import pytest
import torch

from rag.core.errors import ConfigError
from rag.runtime import hardware
from rag.runtime.hardware import (
    has_bf16,
    has_fast_bf16,
    resolve_precision,
)
from rag.training.config import FitConfig, schedule_factor
from rag.training.precision import MasterWeights


def test_the_rate_rises_and_falls_on_straight_lines_or_stays() -> None:
    config = FitConfig(warmup_steps=200)
    factors = [schedule_factor(config, step, 1000) for step in (0, 199, 200, 600, 999)]
    assert factors == pytest.approx([1 / 200, 1.0, 1.0, 0.5, 1 / 800])
    config = FitConfig(schedule="constant", warmup_fraction=0.9, warmup_steps=2)
    assert [schedule_factor(config, step, 10) for step in range(10)] == [0.5] + [1.0] * 9


def test_precision_names() -> None:
    assert resolve_precision("fp32") == torch.float32
    assert resolve_precision("auto") == (torch.bfloat16 if has_fast_bf16() else torch.float32)
    with pytest.raises(ConfigError, match="fp8"):
        resolve_precision("fp8")


def test_bf16_is_refused_exactly_where_it_cannot_be_computed() -> None:
    """Torch raises a RuntimeError for it in the middle of the work."""
    weight = torch.ones(16, 16, dtype=torch.bfloat16)
    if has_bf16():
        packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        product = torch.ops.mkldnn._linear_pointwise(weight, packed, weight[0], "none", [], "")
        assert torch.equal(product, torch.full_like(weight, 17.0))
        assert resolve_precision("bf16") == torch.bfloat16
    else:
        assert resolve_precision("auto") == torch.float32
        with pytest.raises(ConfigError, match="no bf16 arithmetic"):
            resolve_precision("bf16")


@pytest.mark.parametrize(
    ("onednn", "torch_uses", "left"),
    [
        ("", "AVX512", {"avx2", "avx_vnni", "avx512f", "amx_bf16"}),
        ("ALL", "AVX2", {"avx2", "avx_vnni"}),
        ("AVX512_CORE", "AVX512", {"avx2"}),
    ],
)
def test_limits_of_the_libraries_count_as_limits_of_the_processor(
    onednn: str, torch_uses: str, left: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", onednn)
    monkeypatch.setattr(hardware, "_cpu_facts", lambda: "flags : avx2 avx_vnni avx512f amx_bf16")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: torch_uses)
    assert hardware._cpu_flags.__wrapped__() == left


@pytest.mark.parametrize(
    ("vendor", "flags", "is_fast"),
    [
        ("AuthenticAMD", {"avx512_bf16"}, True),
        ("GenuineIntel", {"avx512_bf16"}, False),
        ("GenuineIntel", {"avx512_bf16", "amx_bf16"}, True),
        ("AuthenticAMD", {"avx512f"}, False),
    ],
)
def test_bf16_is_taken_where_it_is_faster_than_fp32(
    vendor: str, flags: set[str], is_fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "has_bf16", lambda device="cpu": True)
    monkeypatch.setattr(hardware, "_cpu_flags", lambda: frozenset(flags))
    monkeypatch.setattr(hardware, "_cpu_facts", lambda: f"vendor_id\t: {vendor}")
    assert hardware.has_fast_bf16() is is_fast
    assert resolve_precision("auto") == (torch.bfloat16 if is_fast else torch.float32)


@pytest.mark.skipif(os.environ.get("ONEDNN_MAX_CPU_ISA") != "AVX2", reason="a run of `make test-avx2` alone")
def test_the_simulated_processor_has_avx2_alone() -> None:
    assert torch.backends.cpu.get_cpu_capability() == "AVX2"
    assert [hardware.has_bf16(), hardware.has_fast_bf16(), hardware.has_vnni()] == [False] * 3
    assert [hardware.has_int8(), hardware.has_fast_int8()] == [True] * 2


def test_master_weights_keep_updates_that_bf16_would_lose() -> None:
    layer = torch.nn.Linear(4, 4, bias=False).to(torch.bfloat16)
    with torch.no_grad():
        layer.weight.fill_(1.0)
    master = MasterWeights(layer)
    optimizer = torch.optim.SGD(master.groups(1e-3), lr=1e-3)
    for _ in range(100):
        layer(torch.ones(1, 4, dtype=torch.bfloat16)).sum().backward()
        master.gather_gradients()
        optimizer.step()
        master.write_back()
    assert torch.allclose(master.master[0], torch.full((4, 4), 0.9), atol=1e-4)
    assert torch.allclose(layer.weight.float(), torch.full((4, 4), 0.9), atol=4e-3)
