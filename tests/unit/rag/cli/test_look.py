"""`rag doctor` says what a model is and in which numbers the reader computes; `rag demo` runs."""

from pathlib import Path
from typing import Any

import pytest

from rag.cli.look import demo, describe_models
from rag.runtime import hardware
from readers.extractive import model
from tests.commands import run_command


@pytest.mark.parametrize(("is_fast", "precision"), [(True, "int8"), (False, "fp32")])
def test_precision_of_the_reader(
    is_fast: bool, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (hardware, model):
        monkeypatch.setattr(module, "precisions", lambda *_: {"int8": is_fast})
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    described = describe_models()
    assert (described["reader's precision"], described["device"]) == (precision, "cpu")


def test_a_model_is_described_by_its_uses(tiny: Any, tmp_path: Path) -> None:
    folder = tiny.sentence_transformer(tmp_path / "e5-tiny")
    folder = folder.rename(tmp_path / "e5-small")
    code, out, err = run_command("doctor", folder)
    assert code == 0
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert "mean pooling, cosine, 32 dimensions, 24 tokens" in lines["--encoder"]
    assert "no: " in lines["--rerank"]
    assert "makes one vector per text" in lines["--rerank"]
    assert "no: " in lines["--reader"]
    assert "--query-prefix 'query: ' --passage-prefix 'passage: '" in err
    tiny.dpr(tmp_path / "both")
    code, out, err = run_command("doctor", tmp_path / "both/ctx_encoder")
    assert code == 4
    assert "is the passage tower of a model that has two" in out
    assert "is of no use here" in err


@pytest.mark.slow
def test_the_demo_indexes_serves_and_asks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demo(out=tmp_path / "index", port=0)
    shown = capsys.readouterr().out
    assert "Khartoum" in shown  # where the Blue Nile and the White Nile come together
    assert "rag ask" in shown
