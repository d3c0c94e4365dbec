"""The trainable bi-encoder: what folders say, what is refused, what is trained, what export
gets.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cosine_similarity

from indexers.index import Index
from rag.core.errors import ArtifactError, ConfigError, MismatchedArtifactError
from rag.core.types import Passage, Query
from rag.training.precision import MasterWeights
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.encoders.folders import read_settings
from retrievers.examples.batches import IGNORED, NEGATIVE, POSITIVE, RetrieverBatch
from retrievers.training.bi_encoder import FixedVectors, export_model
from retrievers.training.step import contrastive_step
from tests.conftest import TinyModels
from tests.spelled import spell
from tests.support.messages import refusal
from tests.tiny_masks import write_passages
from tests.token_towers import bi_encoder, spelled

TOKENS = {"question_tokens": 16, "passage_tokens": 32}


def texts(count: int, seed: int = 0) -> list[np.ndarray]:
    draw = np.random.default_rng(seed)
    return [draw.integers(5, 120, draw.integers(3, 30)).astype(np.int32) for _ in range(count)]


def batch(questions: int, each: int = 1) -> RetrieverBatch:
    total = questions * each
    own = torch.eye(questions).repeat_interleave(each, 1)
    kinds = torch.tensor(([POSITIVE] + [NEGATIVE] * (each - 1)) * questions)
    return RetrieverBatch(
        [Query(spell(ids)) for ids in texts(questions)],
        [Passage("", "", spell(ids)) for ids in texts(total, 1)],
        own * kinds,
    )


def test_a_new_projection_follows_the_seed_and_differs_between_towers(tiny_bert: Path) -> None:
    def weights(seed: int) -> list[Any]:
        model = bi_encoder(tiny_bert, shared=False, projection_dim=6, seed=seed, **TOKENS)
        assert model.dim == 6
        return [tower.head.layers[0].weight for tower in (model.question, model.passage)]

    (questions, passages), again, other = weights(1), weights(1), weights(3)
    assert torch.equal(questions, again[0])
    assert not torch.equal(questions, other[0])
    assert not torch.equal(questions, passages)


def test_a_frozen_passage_tower_takes_no_gradients(tiny_bert: Path) -> None:
    model = spelled(bi_encoder(tiny_bert, shared=False, frozen="passage", **TOKENS))
    contrastive_step(model, batch(3), chunk_size=1).compute_gradients(lambda: None)
    grads = {name: p.grad is not None for name, p in model.named_parameters()}
    assert not any(given for name, given in grads.items() if name.startswith("passage."))
    assert any(given for name, given in grads.items() if name.startswith("question."))
    with refusal(ConfigError):
        bi_encoder(tiny_bert, frozen="passage", **TOKENS)


def test_questions_are_read_as_their_own_folder_says(tiny_bert: Path, tmp_path: Path) -> None:
    model = bi_encoder(tiny_bert, **TOKENS)
    straight = replace(model.settings.passage, straight_apostrophes=True, query_prefix="ask ")
    folder = export_model(tmp_path / "questions", model, {}, straight)
    both = bi_encoder(folder, tiny_bert, shared=False, **TOKENS)
    written = export_model(tmp_path / "both", both, {}, both.settings.passage)
    finished = read_settings(written / "query_encoder")
    assert (finished.straight_apostrophes, finished.query_prefix) == (True, "ask ")


def test_fixed_vectors_are_the_index_s_or_the_tower_s_without_dropout(
    tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory does not grow with the passages of a run."""
    model = bi_encoder(tiny_bert, shared=False, dropout=0.5, frozen="passage", **TOKENS).eval()
    passages = [Passage("", "", text) for text in ("the river", "title", "who wrote the text")]
    expected = model.encode_passages(passages)
    model.train()
    encoder = BiEncoder.load(tiny_bert, precision="fp32", pooling="mean")
    with Index.open(write_passages(tmp_path / "index", encoder, ["title"])) as index:
        expected[1] = torch.from_numpy(index.require_dense().embeddings.rows(np.array([0])))
        fixed = FixedVectors(model, index)
        torch.testing.assert_close(fixed.of(passages).values, expected)
        monkeypatch.setattr("retrievers.training.bi_encoder._KEPT_VECTORS", 2)
        torch.testing.assert_close(fixed.of(passages[1:]).values, expected[1:])
        assert len(fixed._vectors) == 2


@pytest.mark.needs_bf16
def test_bf16_keeps_vectors_and_scores_in_fp32(tiny_bert: Path) -> None:
    exact, model = (
        spelled(bi_encoder(tiny_bert, normalize=True, dropout=0.0, **TOKENS)) for _ in range(2)
    )
    master = MasterWeights(model, "bf16")
    rows = texts(5)
    result = model.encode_passage_tokens(rows)
    assert result.dtype == torch.float32
    assert cosine_similarity(result, exact.encode_passage_tokens(rows)).min() > 0.99
    loss = contrastive_step(model, batch(4, 2), chunk_size=2)
    loss.compute_gradients(master.gather_gradients)
    contrastive_step(exact, batch(4, 2)).compute_gradients(lambda: None)
    ours = torch.cat([tensor.grad.flatten() for tensor in master.master if tensor.grad is not None])
    theirs = torch.cat([p.grad.flatten() for p in exact.parameters() if p.grad is not None])
    assert ours.dtype == torch.float32
    assert cosine_similarity(ours, theirs, dim=0) > 0.98


def test_what_cannot_be_trained_is_refused(
    tiny: TinyModels, tiny_bert: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="is another model than"):
        bi_encoder(tiny_bert, tmp_path, **TOKENS)
    with refusal(ConfigError):
        bi_encoder(tiny_bert, passage_tokens=100)
    with refusal(ArtifactError):
        bi_encoder(tmp_path, **TOKENS)
    wide = tiny.bert(tmp_path / "wide", hidden_size=48)
    with refusal(MismatchedArtifactError):
        bi_encoder(tiny_bert, wide, shared=False, **TOKENS)
    bi_encoder(tiny_bert, wide, shared=False, projection_dim=8, **TOKENS)
    dpr = tiny.dpr(tmp_path / "dpr", projection_dim=8)
    with refusal(ConfigError):
        bi_encoder(dpr, shared=False, projection_dim=9, **TOKENS)


def test_a_batch_without_negatives_teaches_nothing_and_ends_no_run(
    tiny_bert: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = spelled(bi_encoder(tiny_bert, **TOKENS))
    masked = batch(3)
    masked.labels[~torch.eye(3, dtype=torch.bool)] = IGNORED
    for lonely in (batch(1), masked):
        loss = contrastive_step(model, lonely)
        loss.compute_gradients(lambda: None)
        assert float(loss.value) == 0
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        assert gradients
        assert not any(gradient.any() for gradient in gradients)
        assert f"its {len(lonely.questions)} questions have the same positives" in caplog.text
    assert float(contrastive_step(model, batch(1, 2)).value) > 0


def test_upper_layers_can_begin_anew(tiny_bert: Path) -> None:
    loaded, blunted = (
        bi_encoder(tiny_bert, shared=False, reset_layers=count, seed=3, **TOKENS)
        for count in (0, 1)
    )
    new = dict(blunted.named_parameters())
    for name, tensor in loaded.named_parameters():
        same = torch.equal(tensor, new[name])
        assert same == ("layer.1." not in name or "LayerNorm" in name or name.endswith("bias"))
        if name.startswith("question."):  # both towers begin alike
            assert torch.equal(new[name], new[name.replace("question.", "passage.", 1)])
    with refusal(ConfigError):
        bi_encoder(tiny_bert, reset_layers=3, **TOKENS)
