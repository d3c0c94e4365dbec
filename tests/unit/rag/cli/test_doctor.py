"""`rag doctor` says in which numbers the reader computes, and on what."""

import pytest

from rag.cli.look import describe_models
from rag.runtime import hardware


@pytest.mark.parametrize(
    ("flags", "precision"), [({"avx2"}, "int8"), ({"avx2", "avx512f"}, "fp32"), (set(), "fp32")]
)
def test_precision_of_the_reader(flags: set[str], precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "_cpu_flags", lambda: frozenset(flags))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    described = describe_models()
    assert (described["reader's precision"], described["device"]) == (precision, "cpu")
