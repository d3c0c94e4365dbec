"""The fast encoder against transformers' own classes."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from transformers import BertConfig, BertModel, RobertaConfig, RobertaModel

from rag.core.errors import ConfigError
from rag.runtime.fast import fast_bert
from rag.runtime.fast.fast_bert import FastBert
from rag.runtime.fast.packing import pack

SIZES = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 64, "max_position_embeddings": 40, "initializer_range": 0.2,
}  # fmt: skip
SEQUENCES = [[5, 6, 7, 8, 9, 10, 11], [12, 13, 14, 15, 16, 17, 18], [19, 20, 21], [22]]
SEGMENTS = [[0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1, 1], [0, 1, 1], [0]]


def reference(model, sequences, segments=None):
    rows = []
    for number, sequence in enumerate(sequences):
        types = None if segments is None else torch.tensor([segments[number]])
        with torch.no_grad():
            rows.append(model(input_ids=torch.tensor([sequence]), token_type_ids=types).last_hidden_state[0])
    return torch.cat(rows)


@pytest.fixture(scope="module")
def bert():
    torch.manual_seed(0)
    return BertModel(BertConfig(**SIZES), add_pooling_layer=False).eval()


@pytest.mark.parametrize("mkl", [False, True])
@pytest.mark.parametrize("segments", [None, SEGMENTS])
def test_fp32_equals_transformers(bert, segments, mkl, monkeypatch):
    monkeypatch.setattr(fast_bert, "prefers_mkl", lambda dtype: mkl)
    fast = FastBert.from_model(bert)
    tokens = pack(SEQUENCES)
    if segments is not None:
        tokens = replace(tokens, segment_ids=torch.tensor([kind for row in segments for kind in row]))
    hidden = fast.forward(tokens)
    torch.testing.assert_close(hidden, reference(bert, SEQUENCES, segments), atol=1e-5, rtol=1e-5)


@pytest.mark.needs_bf16
def test_bf16_is_close(bert):
    hidden = FastBert.from_model(bert, precision="bf16").forward(pack(SEQUENCES))
    cosine = torch.nn.functional.cosine_similarity(hidden, reference(bert, SEQUENCES), dim=1)
    assert hidden.dtype == torch.float32
    assert cosine.min() > 0.999


@pytest.mark.parametrize("mkl", [False, True])
@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
def test_activations(activation, mkl, monkeypatch):
    monkeypatch.setattr(fast_bert, "prefers_mkl", lambda dtype: mkl)
    torch.manual_seed(1)
    model = BertModel(BertConfig(**SIZES, hidden_act=activation), add_pooling_layer=False).eval()
    hidden = FastBert.from_model(model).forward(pack(SEQUENCES))
    torch.testing.assert_close(hidden, reference(model, SEQUENCES), atol=1e-5, rtol=1e-5)


def test_roberta_positions():
    torch.manual_seed(2)
    config = RobertaConfig(**SIZES, pad_token_id=1, type_vocab_size=1)
    model = RobertaModel(config, add_pooling_layer=False).eval()
    hidden = FastBert.from_model(model).forward(pack(SEQUENCES))
    torch.testing.assert_close(hidden, reference(model, SEQUENCES), atol=1e-5, rtol=1e-5)


def test_large_logits_take_the_stable_path(bert):
    torch.manual_seed(3)
    model = BertModel(BertConfig(**SIZES), add_pooling_layer=False).eval()
    with torch.no_grad():
        for layer in model.encoder.layer:
            layer.attention.self.query.weight.mul_(40)
            layer.attention.self.key.weight.mul_(40)
    hidden = FastBert.from_model(model).forward(pack(SEQUENCES))
    assert torch.isfinite(hidden).all()
    torch.testing.assert_close(hidden, reference(model, SEQUENCES), atol=1e-3, rtol=1e-3)


def test_rows_do_not_depend_on_the_cache_limit(bert, monkeypatch):
    fast = FastBert.from_model(bert)
    expected = fast.forward(pack([SEQUENCES[0]] * 9))
    monkeypatch.setattr(fast_bert, "_SCORE_BYTES_IN_CACHE", 1)
    torch.testing.assert_close(fast.forward(pack([SEQUENCES[0]] * 9)), expected)


def test_plain_linear_layers_where_onednn_is_missing(bert, monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    hidden = FastBert.from_model(bert).forward(pack(SEQUENCES))
    torch.testing.assert_close(hidden, reference(bert, SEQUENCES), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "t5"},
        {"hidden_act": "swish"},
        {"position_embedding_type": "relative_key"},
        {"is_decoder": True},
    ],
)
def test_what_is_not_covered_is_refused(changes):
    config = SimpleNamespace(**{"model_type": "bert", "hidden_act": "gelu", **changes})
    assert not FastBert.supports(config)
    with pytest.raises(ConfigError):
        FastBert({}, config)


def test_unknown_precision(bert):
    with pytest.raises(ConfigError, match="int4"):
        FastBert.from_model(bert, precision="int4")
