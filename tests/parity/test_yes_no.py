"""Re-rankers that answer yes or no: their scores are those of the authors' code, by transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

from rag.core.errors import ConfigError
from rag.core.types import Passage
from retrievers.encoders.yes_no import YesNoScorer
from retrievers.rerank import open_scorer
from tests.published import published_seq2seq, stored_as_bin
from tests.support.messages import refusal
from tests.tiny_causal import causal_folder

QUESTIONS = ["how many meters has the tower?", "where is the river?"]
PASSAGES = [
    Passage("1", "Tower", "the tower is 57 meters"),
    Passage("2", "", "the river is near the bridge in the city {year}"),
]
TEXTS = ["Tower the tower is 57 meters", PASSAGES[1].text]
PREFIX = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the "
    'Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
TASK = "Given a web search query, retrieve relevant passages that answer the query"


def with_words(folder: Path, words: list[str], auto: Any) -> Path:
    """The folder with these words in the vocabulary, and vectors for them."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(words)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(4)
    model = auto.from_pretrained(folder)
    model.resize_token_embeddings(len(tokenizer) + 4, mean_resizing=False)
    model.save_pretrained(folder)
    return folder


def test_monot5(tmp_path: Path) -> None:
    folder = published_seq2seq(tmp_path / "monot5-tiny", "t5-small")
    stored_as_bin(with_words(folder, ["▁true", "▁false"], AutoModelForSeq2SeqLM))
    scorer, identity = open_scorer(str(folder), "fp32")
    assert identity["kind"] == "yes-no"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    true, false = tokenizer.convert_tokens_to_ids(["▁true", "▁false"])
    expected = []
    for question, text in zip(QUESTIONS, TEXTS, strict=True):
        inputs = tokenizer(f"Query: {question} Document: {text} Relevant:", return_tensors="pt")
        start = torch.tensor([[model.config.decoder_start_token_id]])
        with torch.no_grad():
            logits = model(**inputs, decoder_input_ids=start).logits[0, 0]
        expected.append(float(logits[true] - logits[false]))
    np.testing.assert_allclose(scorer.score(QUESTIONS, PASSAGES), expected, atol=1e-4)
    assert scorer.score([], []).shape == (0,)


def test_qwen3_reranker(tmp_path: Path) -> None:
    folder = causal_folder(tmp_path / "Qwen3-Reranker-tiny", positions=1024)
    with_words(folder, ["yes", "no"], AutoModelForCausalLM)
    scorer, _ = open_scorer(str(folder), "fp32")
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder)
    pairs = [
        f"<Instruct>: {TASK}\n<Query>: {question}\n<Document>: {text}"
        for question, text in zip(QUESTIONS, TEXTS, strict=True)
    ]
    before, after = (tokenizer.encode(part, add_special_tokens=False) for part in (PREFIX, SUFFIX))
    rows = [before + tokenizer.encode(pair, add_special_tokens=False) + after for pair in pairs]
    padded = tokenizer.pad({"input_ids": rows}, return_tensors="pt")
    with torch.no_grad():
        logits = model(**padded).logits[:, -1]
    yes, no = tokenizer.convert_tokens_to_ids(["yes", "no"])
    expected = (logits[:, yes] - logits[:, no]).numpy()
    np.testing.assert_allclose(scorer.score(QUESTIONS, PASSAGES), expected, atol=1e-4)


def test_a_long_passage_is_cut_before_the_question_for_its_relevance(tmp_path: Path) -> None:
    folder = published_seq2seq(tmp_path / "monot5-tiny", "t5-small")
    with_words(folder, ["▁true", "▁false"], AutoModelForSeq2SeqLM)
    scorer = YesNoScorer(str(folder), precision="fp32")
    long = [Passage("1", "", "the river " * n) for n in (900, 1000)]
    first, second = scorer.score(QUESTIONS[:1] * 2, long)
    assert first == pytest.approx(second, abs=1e-5)


def test_another_language_model_is_refused(tmp_path: Path) -> None:
    folder = causal_folder(tmp_path / "llama", positions=64)
    with refusal(ConfigError):
        open_scorer(str(folder), "fp32")
