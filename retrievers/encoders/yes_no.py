"""Re-ranking by language models that are asked whether a passage is relevant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from rag.core.arrays import Float32
from rag.core.errors import ConfigError
from rag.core.types import Passage
from rag.runtime.backbone import load_network, loading, pad, run_by_length, transformers_config
from rag.runtime.hardware import resolve_device, resolve_precision
from rag.runtime.model_files import model_folder, position_limit, transformers_tokenizer
from retrievers.encoders.settings import TITLE_AND_TEXT
from retrievers.encoders.tokenization import PassageLayout

_BATCH_LIMITS = (64, 8192)  # pairs and tokens per forward pass


@dataclass(frozen=True, slots=True)
class _Prompt:
    """How a family of models was asked in training.

    Attributes:
        before, body, after: the input; only the end of the body is cut where it is too long.
        yes, no: the tokens whose logits are compared where the answer begins.
        max_length: tokens of an input.
    """

    before: str
    body: str
    after: str
    yes: str
    no: str
    max_length: int


# A part of the model's name → the prompt. Nothing else in such a folder says how it is asked.
_PROMPTS = {
    # Nogueira et al. 2020, "Document Ranking with a Pretrained Sequence-to-Sequence Model", section 3
    "monot5": _Prompt(
        before="",
        body="Query: {question} Document: {passage}",
        after="Relevant:</s>",
        yes="▁true",
        no="▁false",
        max_length=512,
    ),
    # Zhang et al. 2025, "Qwen3 Embedding: Advancing Text Embedding and Reranking Through Foundation
    # Models", section 2, and the model's card
    "qwen3-reranker": _Prompt(
        before="<|im_start|>system\nJudge whether the Document meets the requirements based on the "
        'Query and the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
        "<|im_start|>user\n",
        body="<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
        "<Query>: {question}\n<Document>: {passage}",
        after="<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        yes="yes",
        no="no",
        max_length=8192,
    ),
}


class YesNoScorer:
    """Scores pairs by the log-odds of "relevant" against "not", as monoT5 and Qwen3-Reranker do.

    Args:
        name: folder or hub name, in which the family stands.
        precision: "auto", "fp32" or "bf16".

    Raises:
        ConfigError: the name is of no known family.
        ArtifactError: the model is not there, or not whole.
    """

    is_log_odds = True

    def __init__(self, name: str, *, precision: str = "auto") -> None:
        self.name = name
        self._prompt = _prompt_of(name)
        folder = model_folder(name)
        config: Any = transformers_config(folder)
        device = resolve_device("auto")
        self._is_decoder = not config.is_encoder_decoder
        auto = AutoModelForCausalLM if self._is_decoder else AutoModelForSeq2SeqLM
        with loading(f"{folder}: no language model could be loaded"):
            network, _ = load_network(
                auto, folder, config, dtype=resolve_precision(precision, device)
            )
        self._network: Any = network.to(device)
        self._tokenizer: Any = transformers_tokenizer(folder)
        self._limit = min(self._prompt.max_length, position_limit(config.to_dict()))
        self._before = self._ids(self._prompt.before)
        self._after = self._ids(self._prompt.after)
        self._answers = self._tokenizer.convert_tokens_to_ids([self._prompt.yes, self._prompt.no])
        self._layout = PassageLayout(TITLE_AND_TEXT)

    def score(self, questions: Sequence[str], passages: Sequence[Passage]) -> Float32:
        """Log-odds (n,) that passage i is relevant to question i."""
        pairs = zip(questions, self._layout.joined(passages), strict=True)
        rows = [self._row(*pair) for pair in pairs]
        if not rows:
            return np.zeros(0, np.float32)

        def run(batch: list[int]) -> Tensor:
            ids, mask = pad([rows[row] for row in batch], pad_id=0)
            device = self._network.device
            return self._odds(ids.to(device), mask.to(device)).cpu()

        parts, order = run_by_length(run, list(map(len, rows)), _BATCH_LIMITS)
        return torch.cat(parts)[order].numpy()

    def _row(self, question: str, passage: str) -> list[int]:
        body = self._ids(self._prompt.body.format(question=question, passage=passage))
        room = self._limit - len(self._before) - len(self._after)
        return [*self._before, *body[:room], *self._after]

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    @torch.inference_mode()
    def _odds(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Log-odds (n,) float32 of n padded inputs, where the answer begins."""
        if self._is_decoder:
            hidden = self._network.base_model(input_ids=ids, attention_mask=mask)[0]  # (n, L, H)
            rows = torch.arange(len(ids), device=ids.device)
            logits = self._network.get_output_embeddings()(hidden[rows, mask.sum(1) - 1])  # (n, V)
        else:
            start = self._network.config.decoder_start_token_id
            begun = torch.full((len(ids), 1), start, device=ids.device)
            output = self._network(input_ids=ids, attention_mask=mask, decoder_input_ids=begun)
            logits = output.logits[:, 0]
        yes, no = logits[:, self._answers].float().unbind(1)
        return yes - no


def _prompt_of(name: str) -> _Prompt:
    """How the model of this name is asked."""
    last = Path(name).name.lower()
    for part, prompt in _PROMPTS.items():
        if part in last:
            return prompt
    raise ConfigError(
        f"{name} is a language model, expected a re-ranker: a cross-encoder "
        f"(…ForSequenceClassification), a ColBERT model, or one called {' or '.join(_PROMPTS)}",
        hint="for example cross-encoder/ms-marco-MiniLM-L6-v2",
    )
