"""A causal language model in a local folder, run by transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jinja2 import TemplateError
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from rag.config import load_config
from rag.core.errors import ReaderError
from rag.runtime.backbone import loading
from rag.runtime.hardware import resolve_device, resolve_precision
from readers.llm.prompt import Completion
from readers.llm.reader import LanguageModelReader, LanguageModelSettings


def open_local(
    source: str | Path, *, precision: str = "auto", device: str = "auto", **settings: Any
) -> LanguageModelReader:
    """The reader of a folder (or Hugging Face name) that `AutoModelForCausalLM` opens.

    Args:
        source: folder or name.
        precision: "auto", "fp32" or "bf16".
        device: "auto", "cpu" or "cuda".

    Raises:
        ArtifactError: no such model is there.
        ConfigError: a setting is wrong, or the processor has no bf16 and it was asked for.
    """
    checked = load_config(LanguageModelSettings, overrides=settings)
    where = resolve_device(device)
    with loading(f"{source}: no language model there", hint="give a folder of `save_pretrained`"):
        tokenizer = AutoTokenizer.from_pretrained(source)
        model = AutoModelForCausalLM.from_pretrained(source, dtype=resolve_precision(precision, where))
    return LanguageModelReader(LocalModel(model.to(where).eval(), tokenizer, str(source)), checked)


class LocalModel:
    """Completes chats greedily, whatever sampling and penalties the folder states.

    Attributes:
        name: folder or hub name.
        parallel: 1: the model uses all cores by itself.
    """

    parallel = 1

    def __init__(self, model: Any, tokenizer: Any, name: str) -> None:
        self._model, self._tokenizer, self.name = model, tokenizer, name
        stated = model.generation_config  # its penalties would fall on words that are copied from passages
        model.generation_config = GenerationConfig(
            bos_token_id=stated.bos_token_id,
            eos_token_id=stated.eos_token_id,
            pad_token_id=tokenizer.pad_token_id or tokenizer.eos_token_id or 0,
        )

    def fits(self, messages: Sequence[dict[str, str]], max_tokens: int) -> bool:
        """Whether messages and reply fit into the model's positions."""
        window = getattr(self._model.config, "max_position_embeddings", None)
        return window is None or self._prompt(messages).shape[1] + max_tokens <= int(window)

    def complete(
        self, messages: Sequence[dict[str, str]], max_tokens: int, *, timeout_s: float | None = None
    ) -> Completion:
        """The greedy continuation, with the log-probability of each token; it takes the time that it takes.

        Raises:
            ReaderError: question and a single passage are longer than the model's window.
        """
        if not self.fits(messages, max_tokens):
            raise ReaderError(
                f"{self.name}: a question with one passage and {max_tokens} tokens of reply exceeds the "
                f"model's window of {self._model.config.max_position_embeddings} tokens",
                hint="index shorter passages, or use a model with a longer window",
            )
        prompt = self._prompt(messages).to(self._model.device)  # (1, L)
        with torch.inference_mode():
            made = self._model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=max_tokens,
                return_dict_in_generate=True,
                output_logits=True,
            )
        ids = made.sequences[0, prompt.shape[1] :].tolist()
        log_probs = [float(step[0].float().log_softmax(-1)[token]) for step, token in zip(made.logits, ids)]
        pieces = tuple(zip(self._tokenizer.convert_ids_to_tokens(ids), log_probs, strict=True))
        return Completion(self._tokenizer.decode(ids, skip_special_tokens=True), pieces)

    def _prompt(self, messages: Sequence[dict[str, str]]) -> torch.Tensor:
        if getattr(self._tokenizer, "chat_template", None):
            try:
                return self._chat(messages)
            except TemplateError:  # a template that knows no system role
                whole = "\n\n".join(message["content"] for message in messages)
                return self._chat([{"role": "user", "content": whole}])
        plain = "\n\n".join(message["content"] for message in messages) + "\nReply: "
        return torch.as_tensor(self._tokenizer(plain, return_tensors="pt")["input_ids"])

    def _chat(self, messages: Sequence[dict[str, str]]) -> torch.Tensor:
        made = self._tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        return torch.as_tensor(made["input_ids"])
