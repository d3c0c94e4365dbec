"""`rag doctor` says in which numbers the reader computes."""

import pytest

from rag.cli.look import describe_hardware, describe_models
from rag.runtime import hardware


@pytest.mark.parametrize(
    ("flags", "precision"), [({"avx2"}, "int8"), ({"avx2", "avx512f"}, "fp32"), (set(), "fp32")]
)
def test_precision_of_the_reader(flags: set[str], precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "_cpu_flags", lambda: frozenset(flags))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert describe_models()["reader's precision"] == precision
    assert ("int8" in describe_hardware()["fast numbers"]) is (precision == "int8")


def test_a_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: f"H100 at {device}")
    assert describe_hardware()["device"] == "H100 at cuda"
