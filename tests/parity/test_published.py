"""Models with the config.json of the published ones open, and compute what transformers' own
classes do.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    T5EncoderModel,
)

from rag.core.errors import ArtifactError
from rag.core.types import Passage
from readers.extractive.files import start_model
from readers.extractive.model import MODERNBERT, SPAN_TYPES, SpanModel, load_question_answering
from readers.extractive.reader import ExtractiveReader
from readers.extractive.training.finish import export_trained
from readers.generative.reader import GenerativeReader
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.encoders.cross_encoder import CrossEncoder
from tests.published import (
    BART_SIZES,
    ENCODERS,
    SEQ2SEQ,
    published_encoder,
    published_seq2seq,
    published_t5_encoder,
    stored_as_bin,
    with_vocabulary_alone,
)
from tests.support.messages import refusal
from tests.support.reading import likelihoods_of, read_lists

QUESTION = "how many meters has the tower?"
PASSAGES = [Passage("1", "", "the tower is 57 meters near the river"), Passage("2", "", "the city")]


@pytest.mark.parametrize("is_bin", [False, True])
@pytest.mark.parametrize("name", SEQ2SEQ)
def test_a_generator_says_how_likely_an_answer_is(tmp_path: Path, name: str, is_bin: bool) -> None:
    """By the labels of the model's own tokenizer: T5 ends an answer, BART begins it with <s>
    too.
    """
    folder = published_seq2seq(tmp_path, name)
    if is_bin:
        stored_as_bin(folder)
    reader = GenerativeReader.load(folder, precision="fp32", passage_tokens=90, answer_tokens=8)
    [found] = likelihoods_of(reader, [QUESTION], [PASSAGES[:1]], [[1.0]], ["57 meters"])
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt = f"question: {QUESTION} title:  context: {PASSAGES[0].text}"
    labels = tokenizer("57 meters", return_tensors="pt").input_ids
    with torch.no_grad():
        loss = model(**tokenizer(prompt, return_tensors="pt"), labels=labels).loss
    assert found == pytest.approx(-float(loss) * labels.shape[1], rel=1e-4)
    [result] = read_lists(reader, [QUESTION], [PASSAGES], [[1.0, 2.0]])
    assert result.answers


@pytest.mark.parametrize("beams", [1, 3])
def test_a_generator_forgets_the_task_that_its_checkpoint_was_made_for(
    tmp_path: Path, beams: int
) -> None:
    """Each setting alone changes what transformers generates here, and nothing that the reader
    says.
    """
    folder = published_seq2seq(tmp_path, "bart-large-cnn")
    stated = json.loads((folder / "config.json").read_text())
    ids = {
        n: i for n, i in stated.items() if n.endswith("_token_id") and n != "forced_eos_token_id"
    }
    tokenizer = AutoTokenizer.from_pretrained(folder)
    row = tokenizer(f"question: {QUESTION} title:  context: ", return_tensors="pt")

    def answers(**settings: Any) -> tuple[list[Any], Any]:
        (folder / "generation_config.json").write_text(json.dumps({**ids, **settings}))
        reader = GenerativeReader.load(
            folder, precision="fp32", passage_tokens=90, answer_tokens=7, beams=beams
        )
        [result] = read_lists(reader, [QUESTION], [PASSAGES], [[1.0, 2.0]])
        model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
        search = {"do_sample": False, "num_return_sequences": beams, "num_beams": beams, **settings}
        return [(c.text, c.score) for c in result.answers], model.generate(
            **row, max_new_tokens=9, **search
        ).tolist()

    plain, generated = answers()
    first = generated[0][3]  # behind the start token and <s>
    changes: tuple[dict[str, Any], ...] = (
        {"no_repeat_ngram_size": 1},
        {"bad_words_ids": [[first]]},
        {"suppress_tokens": [first]},
        {"repetition_penalty": 9.0},
        {"forced_eos_token_id": 2},
    )
    for change in changes:
        ours, theirs = answers(**change)
        assert theirs != generated, f"{change} does nothing here"
        assert ours == plain, change


def check_means(encoder: BiEncoder, network: Any, rows: Any) -> None:
    """Fail unless the encoder's vectors of the passages' texts are means of the network's states."""
    with torch.no_grad():
        hidden = network(**rows)[0]
    mask = rows.attention_mask[:, :, None]
    mean = ((hidden * mask).sum(1) / mask.sum(1)).numpy()
    found = encoder.encode_passages(["", ""], [passage.text for passage in PASSAGES])
    assert found == pytest.approx(mean, abs=1e-4)


def stored(folder: Path, name: str, task: str = "Model", *, is_bin: bool, **more: Any) -> Path:
    """The published form of an encoder, or that of before there were safetensors."""
    published_encoder(folder, name, task, **more)
    return with_vocabulary_alone(stored_as_bin(folder)) if is_bin else folder


@pytest.mark.parametrize(
    ("name", "is_bin"), [*((name, False) for name in ENCODERS), ("roberta-base", True)]
)
def test_encoders_read_score_and_make_vectors(tmp_path: Path, name: str, is_bin: bool) -> None:
    texts = [passage.text for passage in PASSAGES]
    folder = stored(tmp_path / "reader", name, "ModelForQuestionAnswering", is_bin=is_bin)
    reader = ExtractiveReader.load(folder, precision="fp32")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    pairs = tokenizer(
        [QUESTION] * 2, texts, padding=True, return_tensors="pt", return_token_type_ids=True
    )
    inputs = {"input_ids": pairs.input_ids, "attention_mask": pairs.attention_mask}
    if ENCODERS[name].get("type_vocab_size") == 2:
        inputs["token_type_ids"] = pairs.token_type_ids
    with torch.no_grad():
        spans = reader.model.logits(pairs.input_ids, pairs.attention_mask, pairs.token_type_ids)
        expected = AutoModelForQuestionAnswering.from_pretrained(folder)(**inputs)
    seen = pairs.attention_mask.bool()
    assert torch.allclose(spans.start[seen], expected.start_logits[seen], atol=1e-4)
    assert torch.allclose(spans.end[seen], expected.end_logits[seen], atol=1e-4)

    task = "ModelForSequenceClassification"
    one = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    folder = stored(tmp_path / "judge", name, task, is_bin=is_bin, **one)
    judge = CrossEncoder.load(folder, precision="fp32")
    with torch.no_grad():
        logits = AutoModelForSequenceClassification.from_pretrained(folder)(**inputs).logits[:, 0]
    assert judge.score([QUESTION] * 2, PASSAGES) == pytest.approx(logits.numpy(), abs=1e-4)

    folder = stored(tmp_path / "encoder", name, is_bin=is_bin)
    encoder = BiEncoder.load(folder, precision="fp32")
    rows = tokenizer(texts, padding=True, return_tensors="pt", return_token_type_ids=False)
    check_means(encoder, AutoModel.from_pretrained(folder), rows)


def test_the_encoder_of_a_t5_makes_vectors_without_a_decoder(tmp_path: Path) -> None:
    folder, texts = published_t5_encoder(tmp_path), [p.text for p in PASSAGES]
    encoder = BiEncoder.load(folder, precision="fp32", pooling="mean")
    rows = AutoTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="pt")
    check_means(encoder, T5EncoderModel.from_pretrained(folder), rows)


_SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 1,
    "initializer_range": 0.3,
}
_SEQ2SEQ_SIZES = {**BART_SIZES, "vocab_size": 60, "init_std": 0.3}
_NARROW = {**_SIZES, "embedding_size": 16}
_SPAN_SIZES: dict[str, dict[str, Any]] = {
    "albert": _NARROW,
    "bart": _SEQ2SEQ_SIZES,
    "distilbert": {"vocab_size": 60, "dim": 32, "n_heads": 4, "n_layers": 2, "hidden_dim": 48},
    "electra": _NARROW,
    "mbart": _SEQ2SEQ_SIZES,
    "mobilebert": {**_NARROW, "intra_bottleneck_size": 16, "true_hidden_size": 16},
    "rembert": {**_SIZES, "input_embedding_size": 16, "output_embedding_size": 16},
    "roformer": _NARROW,
}


def span_difference(model_type: str) -> float:
    """Largest difference of span logits from those of transformers' class, over their spread."""
    config = AutoConfig.for_model(model_type, **_SPAN_SIZES.get(model_type, _SIZES))
    torch.manual_seed(0)
    model = AutoModelForQuestionAnswering.from_config(config).eval()
    ids = torch.randint(5, 60, (2, 16))
    ids[:, 0] = 0
    ids[:, [5, 10, 15]] = 2
    ids[1, 11:] = torch.tensor([2, 1, 1, 1, 1])
    mask = (ids != 1).long()
    types = torch.zeros_like(ids)
    types[:, 6:] = 1
    has_segments = (getattr(config, "type_vocab_size", 0) or 0) > 1
    segments = {"token_type_ids": types} if has_segments else {}
    encoder = getattr(model, model.base_model_prefix)
    if model_type == MODERNBERT:
        spans = SpanModel(encoder, model.classifier, transform=model.head).eval()
    else:
        spans = SpanModel(encoder, model.qa_outputs).eval()
    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=mask, **segments).start_logits[mask.bool()]
        found = spans.logits(ids, mask, types).start[mask.bool()]
    return float((found - expected).abs().max() / expected.std())


@pytest.mark.parametrize("model_type", SPAN_TYPES)
def test_spans_of_every_known_architecture_are_transformers(model_type: str) -> None:
    assert span_difference(model_type) < 1e-5


@pytest.mark.parametrize("name", ["bert-base-uncased", "ModernBERT-base"])
def test_transformers_opens_what_was_trained_from_an_encoder(tmp_path: Path, name: str) -> None:
    encoder = published_encoder(tmp_path / "encoder", name)
    model, tokenizer = start_model(str(encoder), longest=60, seed=0)
    export_trained(tmp_path / "trained", model, model.state_dict(), tokenizer)
    pair = tokenizer(QUESTION, PASSAGES[0].text, return_tensors="pt", return_token_type_ids=True)
    network = AutoModelForQuestionAnswering.from_pretrained(tmp_path / "trained")
    segments = {"token_type_ids": pair.token_type_ids} if name.startswith("bert") else {}
    with torch.no_grad():
        expected = network(pair.input_ids, attention_mask=pair.attention_mask, **segments)
        found = model.eval().logits(pair.input_ids, pair.attention_mask, pair.token_type_ids)
    torch.testing.assert_close(found.start, expected.start_logits)
    torch.testing.assert_close(found.end, expected.end_logits)


def test_longformer_is_refused_because_its_spans_are_computed_otherwise(tmp_path: Path) -> None:
    assert span_difference("longformer") > 0.1
    config = AutoConfig.for_model("longformer", **_SIZES)
    with refusal(ArtifactError):
        load_question_answering(tmp_path, config)
