"""Any encoder family: what was trained, what is exported, and what sentence-transformers reads are one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModel

from rag.core.types import Passage
from rag.data.examples import Example
from rag.training.precision import MasterWeights
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.examples.data import TrainingArrays
from retrievers.examples.tokens import RetrieverTokenizer
from retrievers.training.bi_encoder import encoder_form, export_model, load_model
from retrievers.training.config import DprTrainConfig

_FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {"max_position_embeddings": 66},
    "electra": {"embedding_size": 16},
    "albert": {"embedding_size": 16},
    "distilbert": {"dim": 32, "n_heads": 4, "n_layers": 2, "hidden_dim": 48},
    "mpnet": {"max_position_embeddings": 66},
}


def _folder(tiny: Any, folder: Path, family: str) -> Path:
    settings = {**tiny.config(), **_FAMILIES[family], "pad_token_id": 0}
    if family == "distilbert":
        settings = {k: v for k, v in settings.items() if k not in ("hidden_size", "intermediate_size")}
        settings = {k: v for k, v in settings.items() if not k.startswith("num_")}
    torch.manual_seed(1)
    AutoModel.from_config(AutoConfig.for_model(family, **settings)).save_pretrained(folder)
    tiny.tokenizer(folder)
    return folder


@pytest.mark.parametrize("family", sorted(_FAMILIES))
@pytest.mark.parametrize("shared", [True, False])
def test_vectors_stay_the_same(tmp_path: Path, tiny: Any, family: str, shared: bool) -> None:
    start = _folder(tiny, tmp_path / "start", family)
    config = DprTrainConfig(
        out=tmp_path, train_files=(tmp_path,), question_encoder=str(start),
        shared=shared, pooling="mean", normalize=True, projection_dim=8, precision="fp32", dropout=0.0,
        question_tokens=24, passage_tokens=40,
    )  # fmt: skip
    model = load_model(config, "cpu")
    master = MasterWeights.lowering(model, torch.float32)
    with torch.no_grad():
        for tensor in master.master:  # as if trained: towers differ, the file's weights are not used
            tensor.mul_(1.01 + 0.1 * torch.rand(tensor.shape))
    master.write_back()
    folder = export_model(tmp_path / "encoder", model, master.state(), encoder_form(config, model))

    titles, texts = ["danube", "title"], ["the danube rises in the black forest", "river"]
    tokenizer = RetrieverTokenizer(model.settings.question, model.settings.passage)
    examples = [Example.labelled(t, t, (), (Passage("", t, x),)) for t, x in zip(titles, texts, strict=True)]
    data = TrainingArrays.build(examples, tokenizer)
    with torch.no_grad():
        questions = model.eval().encode_questions([data.questions[0], data.questions[1]]).numpy()
        passages = model.encode_passages([data.passages[0], data.passages[1]]).numpy()
    encoder = BiEncoder.load(folder, precision="fp32")
    np.testing.assert_allclose(encoder.encode_questions(titles), questions, atol=2e-5)
    np.testing.assert_allclose(encoder.encode_passages(titles, texts), passages, atol=2e-5)
    if shared:
        library = pytest.importorskip("sentence_transformers")
        peer = library.SentenceTransformer(str(folder), device="cpu")
        joined = [f"{title} {text}" for title, text in zip(titles, texts, strict=True)]
        np.testing.assert_allclose(peer.encode(joined), passages, atol=2e-5)
