"""The trainable bi-encoder and its loss against transformers' DPR classes and
sentence-transformers.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from transformers import AutoModel

from rag.core.types import Passage, Query
from retrievers.examples.batches import NEGATIVE, POSITIVE, RetrieverBatch
from retrievers.training.step import contrastive_step
from tests.conftest import TinyModels
from tests.token_towers import bi_encoder

QUESTIONS = ["who wrote the title", "danube", "where in the black forest rises the river"]
PASSAGES = [
    "the danube rises in the black forest",
    "text",
    "who wrote the river text in the forest",
]
NEGATIVES = ["black title", "the river", "forest danube in the text title"]


def test_the_step_is_multiple_negatives_ranking(tiny: TinyModels, tmp_path: Path) -> None:
    """Same weights, same texts: same loss and same gradients as sentence-transformers' class."""
    folder = tiny.sentence_transformer(tmp_path)
    theirs = SentenceTransformer(str(folder), device="cpu").eval()
    objective = MultipleNegativesRankingLoss(theirs, scale=20.0)
    columns = [QUESTIONS, PASSAGES, NEGATIVES]
    expected = objective([theirs.preprocess(column) for column in columns], torch.zeros(3))
    expected.backward()

    ours = bi_encoder(folder, question_tokens=24, passage_tokens=24, dropout=0.0)
    assert (ours.settings.passage.pooling, ours.settings.passage.normalize) == ("mean", True)
    assert ours.scale == pytest.approx(20)
    passages = [text for pair in zip(PASSAGES, NEGATIVES, strict=True) for text in pair]
    batch = RetrieverBatch(
        [Query(question) for question in QUESTIONS],
        [Passage("", "", text) for text in passages],
        torch.eye(3).repeat_interleave(2, 1) * torch.tensor([POSITIVE, NEGATIVE] * 3),
    )
    loss = contrastive_step(ours, batch)
    assert float(loss.value) == pytest.approx(float(expected.detach()), abs=1e-5)
    loss.compute_gradients(lambda: None)
    wanted = dict(theirs[0].named_parameters())
    compared = 0
    for name, parameter in ours.question.encoder.named_parameters():
        other = next(p for n, p in wanted.items() if n.endswith("." + name))
        torch.testing.assert_close(parameter.grad, other.grad, atol=1e-5, rtol=1e-3, msg=name)
        compared += 1
    assert compared > 30


FAMILIES = ["bert", "roberta", "electra", "distilbert", "albert", "mpnet"]


@pytest.mark.parametrize("family", FAMILIES)
def test_any_encoder_family_is_transformers(tiny: TinyModels, family: str, tmp_path: Path) -> None:
    """Our padding, masks and attention give what the family's own default forward pass gives a lone
    text.
    """
    tiny.base(tmp_path, family)
    model = bi_encoder(tmp_path, pooling="mean", question_tokens=32, passage_tokens=32, dropout=0.0)
    draw = np.random.default_rng(0)
    texts = [draw.integers(5, 99, length).astype(np.int32) for length in (3, 12, 7)]
    plain = AutoModel.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        result = model.encode_passage_tokens(texts)
        for text, vector in zip(texts, result, strict=True):
            ids = torch.from_numpy(text.astype(np.int64))[None]
            alone = plain(ids)[0][0].mean(0)
            torch.testing.assert_close(vector, alone, atol=1e-5, rtol=1e-4)
    model.encode_passage_tokens(texts).sum().backward()
    first = next(iter(model.question.encoder.parameters()))
    assert first.grad is not None
