"""Dropout of published models."""

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from rag.runtime.backbone import set_dropout
from tests.published import published_encoder, published_seq2seq


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
