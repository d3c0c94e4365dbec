"""Our vectors against those of transformers' DPR classes and of sentence-transformers."""

import numpy as np
import pytest
import torch

from retrievers.encoders.bi_encoder import BiEncoder

TEXTS = [
    "The Danube rises in the Black Forest.",
    "who wrote the text",
    "Weiß 中文 émigré",
    "x",
    "",
    "the river " * 40,
]
TITLES = ["Danube", "Text", "Straße", "X", "Title", "River"]


@pytest.fixture(scope="module", params=[0, 8])
def dpr(request, tiny, tmp_path_factory):
    return tiny.dpr(tmp_path_factory.mktemp("dpr"), projection_dim=request.param)


def test_dpr_towers(dpr):
    from transformers import AutoTokenizer, DPRContextEncoder, DPRQuestionEncoder

    encoder = BiEncoder.load(dpr, precision="fp32")
    assert encoder.identity.layout == "pair"
    tokenizer = AutoTokenizer.from_pretrained(dpr / "ctx_encoder")
    options = {
        "padding": True,
        "truncation": "longest_first",
        "max_length": 64,
        "return_tensors": "pt",
    }
    passages = tokenizer(TITLES[:4], TEXTS[:4], **options)
    questions = tokenizer(TEXTS, **options)
    with torch.no_grad():
        contexts = DPRContextEncoder.from_pretrained(dpr / "ctx_encoder").eval()
        expected = contexts(
            passages["input_ids"], attention_mask=passages["attention_mask"]
        ).pooler_output
        asking = DPRQuestionEncoder.from_pretrained(dpr / "question_encoder").eval()
        asked = asking(
            questions["input_ids"], attention_mask=questions["attention_mask"]
        ).pooler_output
    assert encoder.dim == expected.shape[1]
    np.testing.assert_allclose(
        encoder.encode_passages(TITLES[:4], TEXTS[:4]), expected.numpy(), atol=1e-5
    )
    np.testing.assert_allclose(encoder.encode_questions(TEXTS), asked.numpy(), atol=1e-5)


def test_dpr_passages_that_are_too_long_keep_their_last_separator(dpr):
    encoder = BiEncoder.load(dpr, precision="fp32")
    assert encoder.encode_passages(["River"], ["the river " * 300]).shape == (1, encoder.dim)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pooling": "cls"},
        {"pooling": "lasttoken"},
        {"pooling": "mean", "normalize": False, "similarity": "dot"},
        {"dense": 12},
        {"prompts": {"query": "who wrote ", "document": "text: "}},
        {"prompts": {"query": "who ", "document": "the "}, "normalize": False, "similarity": "dot"},
    ],
    ids=lambda options: "-".join(map(str, options)) or "plain",
)
def test_sentence_transformers(tiny, tmp_path, options):
    folder = tiny.sentence_transformer(tmp_path, **options)
    from sentence_transformers import SentenceTransformer

    peer = SentenceTransformer(str(folder), device="cpu")
    encoder = BiEncoder.load(folder, precision="fp32")
    assert encoder.identity.max_length == 24
    documents = [f"{title} {text}" for title, text in zip(TITLES, TEXTS, strict=True)]
    np.testing.assert_allclose(
        encoder.encode_passages(TITLES, TEXTS), peer.encode_document(documents), atol=1e-5
    )
    np.testing.assert_allclose(encoder.encode_questions(TEXTS), peer.encode_query(TEXTS), atol=1e-5)
    assert encoder.identity.similarity == options.get("similarity", "cosine")
