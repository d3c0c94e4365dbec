"""Score passages by the likelihood that a language model gives the question after them; needs no training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

from rag.core.arrays import Float32
from rag.core.errors import ArtifactError, ConfigError
from rag.core.types import Passage
from rag.runtime.backbone import loading
from rag.runtime.chat import chat_frame, special_tokens
from rag.runtime.fast.packing import plan_batches
from rag.runtime.hardware import resolve_device, resolve_precision

_BODY = "Passage: {title}. {text}"
_REQUEST = "\nPlease write a question based on this passage."
_PLAIN_END = "\nQuestion:"
_BATCH_TOKENS, _MAX_ROWS = 4096, 32
_PASSAGE_TOKENS = 320  # longer passages are truncated
_LEAST = 16  # tokens of a passage, below which there is nothing to judge


class QuestionLikelihood:
    r"""Scores pairs by (1/|q|) log p(q | passage), the mean over the question's tokens.

    The passage and the request to write a question about it are the prompt (in the model's chat template, if
    it has one), the question is the continuation.

    Args:
        model: causal or sequence-to-sequence model.

    Attributes:
        name: folder or hub name.

    Source:
        Sachan et al. 2022, "Improving Passage Retrieval with Zero-Shot Question Generation" (UPR),
        equation 4.
    """

    def __init__(self, model: Any, tokenizer: Any, name: str) -> None:
        self.name, self._model, self._tokenizer = name, model.eval(), tokenizer
        self._fuses = bool(model.config.is_encoder_decoder)
        before, after = ("", "") if self._fuses else chat_frame(tokenizer, _PLAIN_END)
        self._blank = "" if self._fuses or after[-1].isspace() else " "
        first, last = special_tokens(tokenizer)
        self._before = [*first, *self._ids(before)]
        self._after = [*self._ids(_REQUEST + after), *(last if self._fuses else [])]
        window = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self._window = 1 << 20 if window is None or model.config.model_type in ("t5", "mt5") else int(window)

    @classmethod
    def load(
        cls, name_or_path: str | Path, *, precision: str = "auto", device: str = "auto"
    ) -> QuestionLikelihood:
        """Load any model that `AutoModelForCausalLM` or `AutoModelForSeq2SeqLM` opens.

        Raises:
            ArtifactError: no such model is there, or it generates no text.
        """
        hint = "give a folder of a causal or a sequence-to-sequence model, such as `rag import` writes"
        with loading(f"{name_or_path}: no language model there", hint=hint):
            config = AutoConfig.from_pretrained(name_or_path)
            stated = (config.architectures or [""])[0]
            if not stated.endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")):
                raise ArtifactError(
                    f"{name_or_path}: found {stated or 'no architecture'}, expected one that generates text",
                    hint=hint,
                )
            kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
            where = resolve_device(device)
            model = kind.from_pretrained(name_or_path, dtype=resolve_precision(precision, where))
            tokenizer = AutoTokenizer.from_pretrained(name_or_path)
        return cls(model.to(where), tokenizer, str(name_or_path))

    def score(self, questions: Sequence[str], passages: Sequence[Passage]) -> Float32:
        """Scores (n,) float32 of n pairs of question and passage, larger is better.

        Raises:
            ConfigError: a question leaves no room for a passage in the model's context.
        """
        ids = {text: self._ids(self._blank + text) for text in dict.fromkeys(questions)}
        prompts = [
            self._prompt(passage, len(ids[text])) for text, passage in zip(questions, passages, strict=True)
        ]
        scores = np.empty(len(prompts), np.float32)
        sizes = [len(prompt) + len(ids[text]) for prompt, text in zip(prompts, questions, strict=True)]
        measure = self._decoded if self._fuses else self._continued
        for part in plan_batches(sizes, max_rows=_MAX_ROWS, max_tokens=_BATCH_TOKENS):
            tokens = [ids[questions[row]] for row in part]
            with torch.inference_mode():
                scores[part] = measure([prompts[row] for row in part], tokens).cpu().numpy()
        return scores

    def _prompt(self, passage: Passage, question_tokens: int) -> list[int]:
        text = _BODY.format(title=passage.title, text=passage.text)
        room = self._window - question_tokens - len(self._before) - len(self._after)
        if room < _LEAST:
            raise ConfigError(
                f"{self.name} reads {self._window} tokens; a question of {question_tokens} leaves {room} to "
                f"a passage, expected at least {_LEAST}",
                hint="take a model with a longer context, or shorter questions",
            )
        return [*self._before, *self._ids(text)[: min(room, _PASSAGE_TOKENS)], *self._after]

    def _continued(self, prompts: Sequence[list[int]], questions: Sequence[list[int]]) -> Tensor:
        """(R,) of a causal model: padded on the left, so that all questions end together."""
        rows = [torch.tensor([*prompt, *tokens]) for prompt, tokens in zip(prompts, questions, strict=True)]
        width, kept = max(map(len, rows)), max(map(len, questions)) + 1
        ids, mask = torch.zeros(len(rows), width, dtype=torch.long), torch.zeros(len(rows), width).long()
        for row, own in enumerate(rows):
            ids[row, width - len(own) :], mask[row, width - len(own) :] = own, 1
        ids, mask = ids.to(self._model.device), mask.to(self._model.device)
        logits = self._model(
            input_ids=ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp_min(0),
            logits_to_keep=kept, use_cache=False,
        ).logits[:, :-1]  # fmt: skip
        return _mean(logits, ids[:, 1 - kept :], [len(tokens) for tokens in questions])

    def _decoded(self, prompts: Sequence[list[int]], questions: Sequence[list[int]]) -> Tensor:
        """(R,) of an encoder–decoder, whose decoder says the question."""
        rows = self._tokenizer.pad({"input_ids": list(prompts)}, return_tensors="pt").to(self._model.device)
        labels = torch.full((len(questions), max(map(len, questions))), -100)
        for row, tokens in enumerate(questions):
            labels[row, : len(tokens)] = torch.tensor(tokens)
        labels = labels.to(self._model.device)
        logits = self._model(**rows, labels=labels, use_cache=False).logits
        found = logits.float().log_softmax(-1).gather(2, labels.clamp_min(0)[:, :, None])[:, :, 0]
        return (found * (labels >= 0)).sum(1) / (labels >= 0).sum(1)

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def _mean(logits: Tensor, tokens: Tensor, lengths: Sequence[int]) -> Tensor:
    """(R,) mean log-probability of the last tokens of each row, as many as `lengths` says."""
    found = logits.float().log_softmax(-1).gather(2, tokens[:, :, None])[:, :, 0]  # (R, T)
    count = torch.tensor(lengths, device=found.device)[:, None]
    of_question = torch.arange(found.shape[1], device=found.device)[None] >= found.shape[1] - count
    return (found * of_question).sum(1) / count[:, 0]
