"""`rag doctor` says in which numbers the reader computes, and on what."""

import pytest

from rag.cli.look import describe_models
from readers.extractive import model


@pytest.mark.parametrize(("is_fast", "precision"), [(True, "int8"), (False, "fp32")])
def test_precision_of_the_reader(
    is_fast: bool, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "precisions", lambda: {"int8": is_fast})
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    described = describe_models()
    assert (described["reader's precision"], described["device"]) == (precision, "cpu")
