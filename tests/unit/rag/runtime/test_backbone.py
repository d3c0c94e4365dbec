"""Loading, dropout, segments and batches of encoders."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from rag.runtime.backbone import load_backbone, pad, plan_batches, run_backbone, set_dropout
from tests.published import published_encoder, published_seq2seq


def test_training_gets_plain_attention_and_dropout_and_inference_neither(
    tmp_path: Path, tiny: Any
) -> None:
    folder = tiny.bert(tmp_path)
    trained = load_backbone(folder, train=True, dropout=0.25)
    used = load_backbone(folder)
    assert trained.training
    assert not used.training
    assert trained.config._attn_implementation == "eager" != used.config._attn_implementation
    assert {m.p for m in trained.modules() if isinstance(m, torch.nn.Dropout)} == {0.25}


def test_token_types_reach_a_model_that_has_them(tmp_path: Path, tiny: Any) -> None:
    model = load_backbone(tiny.bert(tmp_path))
    ids, mask = pad([[2, 9, 3, 8, 3]], 0)
    with torch.no_grad():
        plain = run_backbone(model, ids, mask)[0]
        zeros = run_backbone(model, ids, mask, torch.zeros_like(ids))[0]
        typed = run_backbone(model, ids, mask, torch.tensor([[0, 0, 0, 1, 1]]))[0]
    assert torch.equal(plain, zeros)
    assert (plain - typed).abs().max() > 0.01


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


@pytest.mark.parametrize(("rows", "tokens"), [(1, 10), (4, 30), (32, 2048)])
def test_plan_keeps_limits_and_every_row_once(rows: int, tokens: int) -> None:
    lengths = np.random.default_rng(0).integers(1, 25, 200).tolist()
    batches = plan_batches(lengths, max_rows=rows, max_tokens=tokens)
    assert sorted(row for batch in batches for row in batch) == list(range(200))
    for batch in batches:
        assert len(batch) <= rows
        assert sum(lengths[row] for row in batch) <= tokens or len(batch) == 1
    flat = [lengths[row] for batch in batches for row in batch]
    assert flat == sorted(flat, reverse=True)
    assert plan_batches([], max_rows=2, max_tokens=8) == []
