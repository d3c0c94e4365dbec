"""RAG as it was published: one folder of a question encoder and a generator, read with and encoded by."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoTokenizer,
    DPRContextEncoder,
    GenerationConfig,
    RagSequenceForGeneration,
    RagTokenForGeneration,
)

from rag.core.errors import ArtifactError
from rag.core.types import Passage
from readers.generative.reader import GenerativeReader
from readers.open import open_reader
from readers.protocols import ReadRequest
from retrievers.encoders.bi_encoder import BiEncoder
from tests.published import published_dpr, published_rag, stored_as_bin, with_vocabulary_alone
from tests.support.files import change_json
from tests.support.messages import refusal

QUESTION = "How many meters has the Tower?"
PASSAGES = [
    Passage("1", "Tower", "the tower is 57 meters near the river"),
    Passage("2", "City", "the city is in the forest"),
]
SCORES = [0.4, 1.1]
# transformers' RagSequence cannot compute the loss of a T5.
KINDS = (
    (RagTokenForGeneration, "bart-base"),
    (RagSequenceForGeneration, "bart-base"),
    (RagTokenForGeneration, "t5-small"),
)


def stored(folder: Path, kind: Any, generator: str, *, is_bin: bool) -> Path:
    published_rag(folder, kind, generator)
    if is_bin:
        stored_as_bin(folder, is_archive=False)
        with_vocabulary_alone(folder / "question_encoder_tokenizer")
    if is_bin and generator == "bart-base":
        with_vocabulary_alone(folder / "generator_tokenizer")
    return folder


def contexts(tokenizer: Any) -> Any:
    """Rows as transformers' RagRetriever makes them; it has the question from a tokenizer without
    capitals.
    """
    rows = [f" {p.title} / {p.text} // {QUESTION.lower()}" for p in PASSAGES]
    return tokenizer(rows, padding=True, truncation=True, max_length=60, return_tensors="pt")


def request() -> ReadRequest:
    return ReadRequest.of(QUESTION, PASSAGES, SCORES)


@pytest.mark.parametrize("is_bin", [False, True])
@pytest.mark.parametrize(("kind", "generator"), KINDS)
def test_answers_are_as_likely_as_by_transformers(
    kind: Any, generator: str, is_bin: bool, tmp_path: Path
) -> None:
    folder = stored(tmp_path, kind, generator, is_bin=is_bin)
    reader = open_reader(folder, precision="fp32")
    assert isinstance(reader, GenerativeReader)
    [found] = reader.log_likelihood([request()], ["57 meters"])
    tokenizer = AutoTokenizer.from_pretrained(
        published_rag(tmp_path / "whole", kind, generator) / "generator_tokenizer"
    )
    rows = contexts(tokenizer)
    answer = tokenizer("57 meters").input_ids
    # A BART's answer begins with <s> already.
    labels = answer if generator == "bart-base" else [tokenizer.pad_token_id, *answer]
    network = kind.from_pretrained(folder).eval()
    with torch.no_grad():
        loss = network(
            context_input_ids=rows.input_ids,
            context_attention_mask=rows.attention_mask,
            doc_scores=torch.tensor([SCORES]),
            labels=torch.tensor([labels]),
            n_docs=2,
        ).loss
    assert found == pytest.approx(-float(loss), rel=1e-4)


def test_the_best_answer_is_that_of_transformers(tmp_path: Path) -> None:
    folder = stored(tmp_path, RagTokenForGeneration, "bart-base", is_bin=False)
    reader = GenerativeReader.load(folder, precision="fp32", beams=3, answer_tokens=6)
    tokenizer = AutoTokenizer.from_pretrained(folder / "generator_tokenizer")
    rows = contexts(tokenizer)
    network = RagTokenForGeneration.from_pretrained(folder).eval()
    # In place of that of the checkpoint. The end is forced as here, scores are not divided by length.
    network.generation_config = GenerationConfig(
        decoder_start_token_id=0,
        eos_token_id=2,
        pad_token_id=1,
        forced_eos_token_id=2,
        num_beams=3,
        max_length=8,
        length_penalty=0.0,
    )
    [ids] = network.generate(
        context_input_ids=rows.input_ids,
        context_attention_mask=rows.attention_mask,
        doc_scores=torch.tensor([SCORES]),
        n_docs=2,
    )
    [result] = reader.read([request()])
    assert result.answers[0].text == tokenizer.decode(ids, skip_special_tokens=True).strip()


@pytest.mark.parametrize("is_bin", [False, True])
def test_the_question_encoder_stands_beside_passages_of_dpr(is_bin: bool, tmp_path: Path) -> None:
    published_dpr(tmp_path / "passages", DPRContextEncoder)
    folder = stored(tmp_path / "rag", RagTokenForGeneration, "bart-base", is_bin=is_bin)
    encoder = BiEncoder.load(
        f"{tmp_path / 'passages'} + {folder}/question_encoder", precision="fp32"
    )
    tokens = AutoTokenizer.from_pretrained(tmp_path / "passages")(QUESTION, return_tensors="pt")
    network = RagTokenForGeneration.from_pretrained(folder).rag.question_encoder
    with torch.no_grad():
        expected = network(tokens.input_ids, attention_mask=tokens.attention_mask).pooler_output
    np.testing.assert_allclose(encoder.encode_questions([QUESTION]), expected.numpy(), atol=1e-5)


def test_what_cannot_be_used_is_refused_by_its_name(tmp_path: Path) -> None:
    folder = published_rag(tmp_path / "rag", RagTokenForGeneration, "bart-base")
    with refusal(ArtifactError):
        BiEncoder.load(folder)
    change_json(folder / "config.json", architectures=["RagModel"])
    with refusal(ArtifactError):
        open_reader(folder)
    change_json(folder / "config.json", architectures=["RagTokenForGeneration"])
    (folder / "generator_tokenizer" / "tokenizer.json").unlink()
    with refusal(ArtifactError):
        open_reader(folder)
