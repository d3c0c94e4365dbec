"""Loading, global attention, segments and pooling of encoders."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LongformerConfig, LongformerModel

from rag.core.errors import ArtifactError, ConfigError
from rag.runtime.backbone import load_backbone, pad, pool, run_backbone, segments_of, token_vectors
from rag.runtime.cpu_training import MATH_ATTENTION, FastDropout


def longformer(folder: Path) -> LongformerModel:
    torch.manual_seed(0)
    config = LongformerConfig(
        vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=66, attention_window=[4, 4], pad_token_id=0, sep_token_id=2,
        type_vocab_size=1, initializer_range=0.5,
    )  # fmt: skip
    model = LongformerModel(config).eval()
    model.save_pretrained(folder)
    return model


def test_longformers_first_token_sees_the_whole_text(tmp_path: Path) -> None:
    reference = longformer(tmp_path)
    ids, mask = pad([[1, *range(5, 40), 2], [1, 7, 8, 2]], 0)
    seen = torch.zeros_like(ids)
    seen[:, 0] = 1
    with torch.no_grad():
        found = token_vectors(load_backbone(tmp_path), ids, mask)
        expected = reference(ids, attention_mask=mask, global_attention_mask=seen).last_hidden_state
        blind = reference(ids, attention_mask=mask).last_hidden_state
    real = mask.bool()
    torch.testing.assert_close(found[real], expected[real], atol=1e-5, rtol=1e-5)
    assert (found[0, 0] - blind[0, 0]).abs().max() > 0.01  # two layers of a window of 4 do not reach the end


def test_a_question_at_the_beginning_is_seen_as_a_whole(tmp_path: Path) -> None:
    reference = longformer(tmp_path)
    ids, mask = pad([[1, 5, 6, 2, *range(7, 40), 2]], 0)
    seen = torch.zeros_like(ids)
    seen[:, :3] = 1
    with torch.no_grad():
        found = run_backbone(load_backbone(tmp_path), ids, mask, question=True)[0]
        expected = reference(ids, attention_mask=mask, global_attention_mask=seen).last_hidden_state
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_training_gets_fast_attention_and_dropout_and_inference_neither(tmp_path: Path, tiny: Any) -> None:
    folder = tiny.bert(tmp_path)
    trained, used = load_backbone(folder, train=True, dropout=0.25), load_backbone(folder)
    assert trained.training
    assert not used.training
    assert trained.config._attn_implementation == MATH_ATTENTION != used.config._attn_implementation
    kinds = {type(m) for m in trained.modules() if isinstance(m, torch.nn.Dropout)}
    assert kinds == {FastDropout}
    assert {m.p for m in trained.modules() if isinstance(m, FastDropout)} == {0.25}
    assert not any(isinstance(m, FastDropout) for m in used.modules())


def test_token_types_reach_a_model_that_has_them(tmp_path: Path, tiny: Any) -> None:
    model = load_backbone(tiny.bert(tmp_path))
    ids, mask = pad([[2, 9, 3, 8, 3]], 0)
    with torch.no_grad():
        plain = token_vectors(model, ids, mask)
        zeros = token_vectors(model, ids, mask, torch.zeros_like(ids))
        typed = token_vectors(model, ids, mask, segments_of(ids, mask, 3))
    assert torch.equal(plain, zeros)
    assert (plain - typed).abs().max() > 0.01


def test_missing_weights_are_named(tmp_path: Path, tiny: Any) -> None:
    from safetensors.torch import load_file, save_file

    folder = tiny.bert(tmp_path)
    state = load_file(folder / "model.safetensors")
    state.pop("encoder.layer.1.output.dense.bias")
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ArtifactError, match=r"lacks 1 weights, the first is encoder\.layer\.1"):
        load_backbone(folder)


def test_an_unknown_pooling_is_refused() -> None:
    with pytest.raises(ConfigError, match="middle"):
        pool(torch.zeros(1, 2, 3), torch.ones(1, 2), "middle")
