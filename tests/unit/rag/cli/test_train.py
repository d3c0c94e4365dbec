"""`rag train reranker`, which starts from a reader."""

from pathlib import Path

import torch
from safetensors.torch import load_file

from rag.core.types import Passage
from rag.data.examples import Example, write_examples
from readers.extractive.files import load_span_model, plain_encoder
from retrievers.encoders.cross_encoder import CrossEncoder
from tests.commands import run_successfully


def test_a_cross_encoder_starts_from_the_encoder_of_the_reader_that_ships(
    tiny_bert: Path, tmp_path: Path
) -> None:
    right, *wrong = (Passage(name, name, f"{name} is a river") for name in ("Inn", "Po", "Main"))
    examples = [Example.labelled("q", "which river is Inn", (), [right], wrong)]
    write_examples(tmp_path / "train.json", examples)
    settings = ("max_steps=1", "validation_fraction=0", "learning_rate=1e-12", "weight_decay=0")
    command: list[object] = [
        "train",
        "reranker",
        "--config",
        "reranker-small",
        "--out",
        tmp_path / "run",
    ]
    command += ["--train", tmp_path / "train.json"]
    for setting in (*settings, "precision=fp32"):
        command += ["--set", setting]
    run_successfully(*command)
    model, _ = load_span_model("shipped")
    finished = load_file(tmp_path / "run" / "cross-encoder" / "model.safetensors")
    trained = {name.removeprefix("bert."): tensor for name, tensor in finished.items()}
    for name, tensor in model.encoder.state_dict().items():
        torch.testing.assert_close(trained[name], tensor, msg=name)
    assert len(CrossEncoder.load(tmp_path / "run" / "cross-encoder").score(["a"], [right])) == 1
    card = (tmp_path / "run" / "cross-encoder" / "README.md").read_text()
    assert "It started from shipped." in card
    assert '"question_encoder": "shipped"' in card
    run_successfully(*command)  # finished: the same settings
    for other in (None, str(tiny_bert), "owner/name"):  # no readers
        assert plain_encoder(other, tmp_path / "other") == other
