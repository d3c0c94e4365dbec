"""Heads of published retrievers: read from folders, equal to their formulas, trained and written
back.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional
from transformers import AutoModel

from rag.core.errors import ArtifactError
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.training.bi_encoder import export_model
from tests.support.files import change_json, write_json, write_modules
from tests.support.messages import refusal
from tests.token_towers import bi_encoder

TEXTS = ["the danube rises in the black forest", "a river", "who wrote the text"]


def hidden(folder: Path, encoder: BiEncoder) -> list[torch.Tensor]:
    """(L, H) token vectors of each text by transformers alone."""
    model = AutoModel.from_pretrained(folder)
    with torch.no_grad():
        return [
            model(torch.tensor([ids])).last_hidden_state[0]
            for ids in encoder._query.tokenizer.passages([""] * len(TEXTS), TEXTS)
        ]


def ance(folder: Path, tiny: Any) -> Any:
    tiny.bert(folder)
    head = {"embeddingHead.weight": torch.randn(6, 32), "embeddingHead.bias": torch.randn(6)}
    norm = {"norm.weight": torch.randn(6) + 1, "norm.bias": torch.randn(6)}
    file = folder / "model.safetensors"
    save_file({**load_file(file), **head, **norm}, file, metadata={"format": "pt"})

    def expected(x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(functional.linear(x[0], *head.values()), (6,), *norm.values())

    return expected


def two_dense(folder: Path, tiny: Any) -> Any:
    tiny.bert(folder)
    first = torch.randn(12, 32)
    second = torch.randn(6, 12)
    write_modules(folder, "Transformer", "Pooling", "Dense", "Dense", "Normalize")
    write_json(folder / "1_Pooling" / "config.json", {"pooling_mode": "mean"})
    for place, weight, activation in (
        (2, first, "activation.Tanh"),
        (3, second, "linear.Identity"),
    ):
        config = {"activation_function": f"torch.nn.modules.{activation}"}
        write_json(folder / f"{place}_Dense" / "config.json", config)
        save_file({"linear.weight": weight}, folder / f"{place}_Dense" / "model.safetensors")
    return lambda x: functional.normalize(second @ torch.tanh(first @ x.mean(0)), dim=0)


@pytest.mark.parametrize("layout", [ance, two_dense])
def test_published_heads_are_read_trained_and_written_back(
    tmp_path: Path, tiny: Any, layout: Any
) -> None:
    torch.manual_seed(3)
    folder = tmp_path / "start"
    expected = layout(folder, tiny)
    encoder = BiEncoder.load(folder, precision="fp32", query_prefix="")
    assert encoder.dim == 6
    target = torch.stack([expected(x) for x in hidden(folder, encoder)]).numpy()
    np.testing.assert_allclose(encoder.encode_questions(TEXTS), target, atol=2e-5)

    model = bi_encoder(folder, question_tokens=24, passage_tokens=24, dropout=0.0)
    tokens = [
        np.asarray(ids, np.int32)
        for ids in encoder._query.tokenizer.passages([""] * len(TEXTS), TEXTS)
    ]
    np.testing.assert_allclose(
        model.encode_query_tokens(tokens).detach().numpy(), target, atol=2e-5
    )
    model.encode_query_tokens(tokens).square().sum().backward()
    assert all(
        p.grad is not None and p.grad.abs().sum() > 0 for p in model.question.head.parameters()
    )

    with torch.no_grad():
        weights = {name: p * 1.01 for name, p in model.named_parameters()}
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
        target = model.encode_query_tokens(tokens).numpy()
    written = export_model(tmp_path / "new", model, weights, model.settings.passage)
    again = BiEncoder.load(written, precision="fp32")
    np.testing.assert_allclose(again.encode_questions(TEXTS), target, atol=2e-5)


@pytest.mark.parametrize(
    ("place", "lost"), [("2_Dense", "weight"), ("3_Dense", "weight"), ("3_Dense", "linear.bias")]
)
def test_a_head_without_its_weights_is_named(
    tmp_path: Path, tiny: Any, place: str, lost: str
) -> None:
    two_dense(tmp_path, tiny)
    state = {"linear.weight": torch.zeros(6, 12), "linear.bias": torch.zeros(6)}
    kept = {name: tensor for name, tensor in state.items() if lost not in name}
    save_file(kept, tmp_path / place / "model.safetensors")
    change_json(tmp_path / place / "config.json", bias=True)
    with refusal(ArtifactError):
        BiEncoder.load(tmp_path, precision="fp32").encode_questions(TEXTS)
