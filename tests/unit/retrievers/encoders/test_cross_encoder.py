import json
import shutil

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder as LibraryCrossEncoder
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

from rag.core.errors import ArtifactError, ConfigError
from rag.core.types import Passage
from retrievers.encoders import cross_encoder
from retrievers.encoders.cross_encoder import CrossEncoder
from tests.support.files import change_json, write_modules
from tests.support.messages import refusal

PASSAGES = [
    Passage(str(n), "Danube" if n % 2 else "", "the river rises " * (n + 1)) for n in range(7)
]


def folder_with(tiny, place, outputs, **changes):
    torch.manual_seed(0)
    config = BertConfig(**tiny.config(**changes), num_labels=outputs)
    BertForSequenceClassification(config).save_pretrained(place)
    tiny.tokenizer(place)
    return place


@pytest.fixture(scope="module")
def folder(tiny, tmp_path_factory):
    return folder_with(tiny, tmp_path_factory.mktemp("cross"), 1)


def reference(folder, questions, passages):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = BertForSequenceClassification.from_pretrained(folder).eval()
    scores = []
    for question, passage in zip(questions, passages, strict=True):
        text = f"{passage.title} {passage.text}" if passage.title else passage.text
        batch = tokenizer(
            question, text, truncation="longest_first", max_length=64, return_tensors="pt"
        )
        with torch.no_grad():
            logits = model(**batch).logits[0]
        scores.append(float(logits[0] if len(logits) == 1 else logits[1] - logits[0]))
    return np.array(scores, np.float32)


@pytest.mark.parametrize(("outputs", "side"), [(1, "right"), (2, "left")])
def test_scores_equal_one_pair_at_a_time(tiny, tmp_path, outputs, side, monkeypatch):
    place = folder_with(tiny, tmp_path, outputs)
    change_json(place / "tokenizer_config.json", padding_side=side)
    # The first two are cut.
    questions = ["the river " * 90, "who wrote the river " * 10]
    questions += [f"who wrote {n}" for n in range(7)]
    passages = [PASSAGES[6], Passage("long", "", "the danube rises " * 20), *PASSAGES]
    monkeypatch.setattr(cross_encoder, "_BATCH_LIMITS", (3, 8192))
    encoder = CrossEncoder.load(place, precision="fp32")
    scores = encoder.score(questions, passages)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, reference(place, questions, passages), atol=1e-5)
    assert encoder.score([], []).shape == (0,)
    with pytest.raises(ValueError, match="batch length"):
        encoder.score(["a", "b"], PASSAGES[:1])


def assert_scores_of_the_library(folder, texts, passages):
    """Fail unless the scores of a question are those of sentence-transformers."""
    peer = LibraryCrossEncoder(str(folder), device="cpu")
    expected = peer.predict([("wrote", text) for text in texts], activation_fn=torch.nn.Identity())
    found = CrossEncoder.load(folder, precision="fp32").score(["wrote"] * len(texts), passages)
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_length_and_prompt_of_sentence_transformers_are_read(folder, tmp_path):
    stated = {"prompts": {"ask": "who: "}, "default_prompt_name": "ask", "max_length": 20}
    LibraryCrossEncoder(str(folder), device="cpu", **stated).save_pretrained(str(tmp_path))
    texts = [f"{p.title} {p.text}".strip() for p in PASSAGES]
    assert_scores_of_the_library(tmp_path, texts, PASSAGES)
    # What is trained is saved without it.
    assert CrossEncoder.load(tmp_path, train=True).prompt == ""


def test_pairs_are_cut_at_the_folders_own_length(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(tiny, "max_tokens", 900)
    folder_with(tiny, tmp_path, 1, max_position_embeddings=1024)
    texts = ["the river rises " * 200 + "danube " * 50 + "text " * 300, "text"]
    assert_scores_of_the_library(tmp_path, texts, [Passage("1", "", text) for text in texts])
    assert CrossEncoder.load(tmp_path).max_length == 900
    assert CrossEncoder.load(tmp_path, max_length=512, train=True).max_length == 512


@pytest.mark.parametrize(
    ("modalities", "is_refused"),
    [(None, True), ({"text": {}, "message": {}}, True), ({"text": {}}, False)],
)
def test_chat_templates_are_refused(folder, tiny_bert, tmp_path, modalities, is_refused):
    """They change what is read; an encoder with one, such as Qwen3, is trained without it."""
    for source in (folder, tiny_bert):
        place = shutil.copytree(source, tmp_path / source.name)
        tokenizer = AutoTokenizer.from_pretrained(place)
        tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
        tokenizer.save_pretrained(place)
        if modalities is not None:
            stated = json.dumps({"modality_config": modalities})
            (place / "sentence_bert_config.json").write_text(stated)
    if is_refused:
        with refusal(ArtifactError):
            CrossEncoder.load(tmp_path / folder.name)
    else:
        assert CrossEncoder.load(tmp_path / folder.name).score(["who"], PASSAGES[:1]).shape == (1,)
    trained = CrossEncoder.load(tmp_path / tiny_bert.name, train=True)
    assert trained.tokenizer.chat_template is None


def test_other_models_are_refused(tiny, tiny_bert, tmp_path):
    with refusal(ArtifactError):
        CrossEncoder.load(tiny_bert)
    with refusal(ArtifactError):
        CrossEncoder.load(folder_with(tiny, tmp_path, 5))
    write_modules(folder_with(tiny, tmp_path, 2), "Transformer", "Dense")
    with refusal(ArtifactError):
        CrossEncoder.load(tmp_path)
    with refusal(ConfigError):
        CrossEncoder.load(tiny_bert, layout="pair")
