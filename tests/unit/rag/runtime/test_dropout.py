"""Dropout: rate, mean, seeds, gradients, and where it does nothing."""

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from rag.runtime.backbone import set_dropout
from rag.runtime.cpu_training import dropped_out
from tests.published import published_encoder, published_seq2seq


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_rate_and_scale(dtype: torch.dtype, probability: float) -> None:
    torch.manual_seed(1)
    found = dropped_out(torch.ones(401, 503, dtype=dtype), probability)
    assert found.dtype == dtype
    kept = found[found != 0].float()
    assert 1 - len(kept) / found.numel() == pytest.approx(probability, abs=0.005)
    assert torch.allclose(kept, torch.tensor(1 / (1 - probability)), rtol=5e-3)
    columns = (found != 0).float().mean(0)  # no position is favoured
    assert float((columns - (1 - probability)).abs().max()) < 0.13


def test_the_seed_decides() -> None:
    def drawn(seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        return [dropped_out(torch.ones(7, 9), 0.5) for _ in range(2)]

    first, second = drawn(3)
    assert not torch.equal(first, second)
    assert torch.equal(drawn(3)[1], second)
    assert not torch.equal(drawn(4)[0], first)


def test_gradients_pass_where_values_do() -> None:
    values = torch.randn(31, 17).T.requires_grad_()  # not contiguous
    found = dropped_out(values, 0.3)
    found.sum().backward()
    assert values.grad is not None
    torch.testing.assert_close(values.grad * values.detach(), found.detach())


def test_no_dropout_of_a_published_model_is_left(tmp_path: Path) -> None:
    """BART drops activations too, DistilBERT and ALBERT in front of the head; what is 0 stays 0."""
    for name in ("distilbert-base-uncased", "albert-base-v2", "roberta-base"):
        folder = published_encoder(tmp_path / name, name, "ModelForSequenceClassification")
        config = AutoConfig.from_pretrained(folder)
        set_dropout(config, 0.0)
        modules = AutoModelForSequenceClassification.from_config(config).modules()
        assert not [m for m in modules if isinstance(m, torch.nn.Dropout) and m.p > 0], name
    config = AutoConfig.from_pretrained(published_seq2seq(tmp_path / "bart", "bart-base"))
    set_dropout(config, 0.3)
    assert (config.dropout, config.activation_dropout, config.classifier_dropout) == (0.3, 0.3, 0.0)
    set_dropout(config, None)
    assert config.dropout == 0.3
