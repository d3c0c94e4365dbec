"""The fast encoder against transformers' own classes."""

from types import SimpleNamespace

import pytest
import torch
from transformers import BertConfig, BertModel, RobertaConfig, RobertaModel

from rag.runtime.backbone import pad
from rag.runtime.fast import fast_bert
from rag.runtime.fast.fast_bert import FastBert, RangeRecorder

SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
    "initializer_range": 0.2,
}
SEQUENCES = [[5, 6, 7, 8, 9, 10, 11], [12, 13, 14, 15, 16, 17, 18], [19, 20, 21], [22]]
SEGMENTS = [[0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1, 1], [0, 1, 1], [0]]
NAMES = ["0.attention", "0.feed", "1.attention", "1.feed"]


def reference(network, sequences, segments=None):
    rows = []
    for number, sequence in enumerate(sequences):
        types = None if segments is None else torch.tensor([segments[number]])
        with torch.no_grad():
            rows.append(
                network(input_ids=torch.tensor([sequence]), token_type_ids=types).last_hidden_state[
                    0
                ]
            )
    return torch.cat(rows)


def states(network, sequences, types=None):
    """(T, H) of all tokens."""
    ids, mask = pad(sequences, 0)
    return network.padded(ids, mask, None if types is None else pad(types, 0)[0])[mask.bool()]


def model(seed=0, **changes):
    torch.manual_seed(seed)
    return BertModel(BertConfig(**SIZES, **changes), add_pooling_layer=False).eval()


@pytest.fixture(scope="module")
def bert():
    return model()


def fast(network, **options):
    return FastBert(network.state_dict(), network.config, **options)


@pytest.mark.parametrize("segments", [None, SEGMENTS])
def test_fp32_equals_transformers(bert, segments):
    hidden = states(fast(bert), SEQUENCES, segments)
    torch.testing.assert_close(hidden, reference(bert, SEQUENCES, segments), atol=1e-5, rtol=1e-5)


@pytest.mark.needs_bf16
def test_bf16_is_close(bert):
    hidden = states(fast(bert, precision="bf16"), SEQUENCES)
    cosine = torch.nn.functional.cosine_similarity(hidden, reference(bert, SEQUENCES), dim=1)
    assert hidden.dtype == torch.float32
    assert cosine.min() > 0.999


def test_roberta_positions():
    torch.manual_seed(2)
    config = RobertaConfig(**SIZES, pad_token_id=1, type_vocab_size=1)
    roberta = RobertaModel(config, add_pooling_layer=False).eval()
    hidden = states(fast(roberta), SEQUENCES)
    torch.testing.assert_close(hidden, reference(roberta, SEQUENCES), atol=1e-5, rtol=1e-5)


def test_large_logits_take_the_stable_path():
    large = model(3)
    with torch.no_grad():
        for layer in large.encoder.layer:
            layer.attention.self.query.weight.mul_(40)
            layer.attention.self.key.weight.mul_(40)
    hidden = states(fast(large), SEQUENCES)
    assert torch.isfinite(hidden).all()
    torch.testing.assert_close(hidden, reference(large, SEQUENCES), atol=1e-3, rtol=1e-3)


def test_rows_do_not_depend_on_the_cache_limit(bert, monkeypatch):
    network = fast(bert)
    expected = states(network, [SEQUENCES[0]] * 9)
    monkeypatch.setattr(fast_bert, "_SCORE_BYTES_IN_CACHE", 1)
    torch.testing.assert_close(states(network, [SEQUENCES[0]] * 9), expected)


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "t5"},
        {"hidden_act": "swish"},
        {"position_embedding_type": "relative_key"},
        {"is_decoder": True},
    ],
)
def test_what_is_not_covered(changes):
    config = SimpleNamespace(**{"model_type": "bert", "hidden_act": "gelu", **changes})
    assert not FastBert.supports(config)


def measured(network):
    recorder = RangeRecorder(network.state_dict(), network.config)
    return recorder, states(recorder, SEQUENCES)


def test_recording_changes_nothing_and_notes_every_input(bert):
    recorder, hidden = measured(bert)
    assert torch.equal(hidden, states(fast(bert), SEQUENCES))
    assert sorted(recorder.ranges) == NAMES
    low, high = recorder.ranges["0.attention"]
    assert (low < high).all()
    states(recorder, [[30, 31]])
    wider = recorder.ranges["0.attention"]
    assert (wider[0] <= low).all()
    assert (wider[1] >= high).all()


@pytest.mark.needs_int8
def test_int8_is_close_to_fp32_whatever_the_blocks(bert, monkeypatch):
    recorder, expected = measured(bert)
    int8 = fast(bert, ranges=recorder.ranges)
    hidden = states(int8, SEQUENCES)
    assert (int8.precision, hidden.dtype) == ("int8", torch.float32)
    assert torch.nn.functional.cosine_similarity(hidden, expected, dim=1).min() > 0.997
    monkeypatch.setattr(fast_bert, "_BLOCK_TOKENS", 4)
    assert torch.equal(states(int8, SEQUENCES), hidden)
