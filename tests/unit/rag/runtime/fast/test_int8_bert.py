"""The int8 encoder against the fp32 one."""

import pytest
import torch
from transformers import BertConfig, BertModel

from rag.core.errors import ConfigError
from rag.runtime.fast.fast_bert import FastBert
from rag.runtime.fast.int8_bert import Int8Bert, RangeRecorder
from rag.runtime.fast.packing import pack

SIZES = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 64, "max_position_embeddings": 40, "initializer_range": 0.2,
}  # fmt: skip
SEQUENCES = [[5, 6, 7, 8, 9, 10, 11], [12, 13, 14, 15, 16, 17, 18], [19, 20, 21], [22]]


def models(**changes):
    torch.manual_seed(0)
    model = BertModel(BertConfig(**SIZES, **changes), add_pooling_layer=False).eval()
    recorder = RangeRecorder(model.state_dict(), model.config)
    hidden = recorder.forward(pack(SEQUENCES))
    int8 = Int8Bert(model.state_dict(), model.config, recorder.ranges, attention="fp32")
    return model, recorder, hidden, int8


def test_recording_changes_nothing_and_notes_every_input():
    model, recorder, hidden, _ = models()
    assert torch.equal(hidden, FastBert.from_model(model).forward(pack(SEQUENCES)))
    assert sorted(recorder.ranges) == ["0.attention", "0.feed", "1.attention", "1.feed"]
    low, high = recorder.ranges["0.attention"]
    assert (low < high).all()
    recorder.forward(pack([[30, 31]]))
    wider = recorder.ranges["0.attention"]
    assert (wider[0] <= low).all()
    assert (wider[1] >= high).all()


@pytest.mark.needs_int8
@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
def test_int8_is_close_to_fp32(activation):
    _, _, expected, int8 = models(hidden_act=activation)
    found = int8.forward(pack(SEQUENCES))
    assert int8.precision == "int8"
    assert found.dtype == torch.float32
    assert torch.nn.functional.cosine_similarity(found, expected, dim=1).min() > 0.997


@pytest.mark.needs_int8
def test_blocks_do_not_change_the_result(monkeypatch):
    *_, int8 = models()
    expected = int8.forward(pack(SEQUENCES))
    monkeypatch.setattr("rag.runtime.fast.int8_bert._BLOCK_TOKENS", 4)
    assert torch.equal(int8.forward(pack(SEQUENCES)), expected)


def test_ranges_of_another_model_are_refused():
    model, recorder, *_ = models()
    state, config = model.state_dict(), model.config
    with pytest.raises(ConfigError, match="2 layers with 32"):
        Int8Bert(state, config, {"0.attention": recorder.ranges["0.attention"]})
    with pytest.raises(ConfigError, match="32 channels"):
        Int8Bert(state, config, {name: torch.zeros(2, 8) for name in recorder.ranges})
