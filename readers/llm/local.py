"""A causal language model in a local folder, run by transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from jinja2 import TemplateError
from transformers import AutoModelForCausalLM, GenerationConfig, TextStreamer

from rag.core.wanted import check_wanted
from rag.runtime.backbone import load_network, loading, transformers_config
from rag.runtime.hardware import resolve_device, resolve_precision
from rag.runtime.model_files import model_folder, transformers_tokenizer
from readers.generative.causal import PLAIN_END, causal_limit
from readers.generative.model import first_token
from readers.llm.prompt import Completion
from readers.llm.reader import LanguageModelReader
from readers.llm.specs import LanguageModel
from readers.protocols import TextSink


def open_local(
    spec: LanguageModel, *, precision: str = "auto", device: str = "auto"
) -> LanguageModelReader:
    """The reader of a folder (or Hugging Face name) that `AutoModelForCausalLM` opens; see
    `open_reader`.

    Raises:
        ArtifactError: no such model is there.
        ConfigError: bf16 was requested and the processor has none.
    """
    where = resolve_device(device)
    folder = model_folder(spec.model)
    config = transformers_config(folder)
    tokenizer = transformers_tokenizer(folder)
    with loading(
        f"{spec.model}: no language model there", hint="give a folder of `save_pretrained`"
    ):
        dtype = resolve_precision(precision, where)
        model, _ = load_network(AutoModelForCausalLM, folder, config, dtype=dtype)
    return LanguageModelReader(LocalModel(model.to(where).eval(), tokenizer, spec.model), spec)


class LocalModel:
    """Completes chats greedily, whatever sampling and penalties the folder states."""

    is_remote = False
    takes_schemas = False

    def __init__(self, model: Any, tokenizer: Any, name: str) -> None:
        self.name = name
        self._model = model
        self._tokenizer = tokenizer
        self._window = causal_limit(model)
        ends = getattr(model.generation_config, "eos_token_id", None)
        ends = tokenizer.eos_token_id if ends is None else ends
        pad = first_token(tokenizer.pad_token_id, ends)
        model.generation_config = GenerationConfig(
            eos_token_id=ends, pad_token_id=pad, output_logits=True, return_dict_in_generate=True
        )

    def fits(self, messages: Sequence[dict[str, str]], max_tokens: int) -> bool:
        """Whether messages and reply fit into the model's positions."""
        return len(self._prompt(messages)) + max_tokens <= self._window

    @torch.inference_mode()
    def complete(
        self,
        messages: Sequence[dict[str, str]],
        max_tokens: int,
        schema: Mapping[str, Any] | None = None,
        on_text: TextSink | None = None,
    ) -> Completion:
        """The greedy continuation, and the log-probabilities of its tokens; a schema is ignored."""
        prompt = self._prompt(messages)
        ids = torch.tensor([prompt], device=self._model.device)
        mask = torch.ones_like(ids)
        streamer = None if on_text is None else _Streamer(self._tokenizer, on_text)
        output = self._model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=max_tokens,
            streamer=streamer,
            stopping_criteria=[_stop_unwanted],
        )
        reply = output.sequences[0, len(prompt) :]
        logp = torch.stack(output.logits)[:, 0].float().log_softmax(-1)  # (T, V)
        chosen = logp.gather(1, reply[:, None])[:, 0].tolist()
        pieces = self._pieces(reply)
        text = b"".join(pieces).decode().strip()
        return Completion(text, tuple(zip(pieces, chosen, strict=True)))

    def _pieces(self, reply: torch.Tensor) -> list[bytes]:
        """The text of each token in UTF-8; a character belongs to the token that completes it."""
        pieces = list[bytes]()
        done = 0
        for end in range(1, len(reply) + 1):
            # Tokenizers drop spaces where they decode a token alone.
            text = self._tokenizer.decode(reply[:end], skip_special_tokens=True)
            if end < len(reply) and text.endswith("\ufffd"):
                pieces.append(b"")
                continue
            pieces.append(text[done:].encode())
            done = len(text)
        return pieces

    def _prompt(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Token ids of the messages, up to where the reply begins."""
        whole = "\n\n".join(message["content"] for message in messages)
        if not getattr(self._tokenizer, "chat_template", None):
            return list(self._tokenizer(whole + PLAIN_END, verbose=False)["input_ids"])
        chat = partial(
            self._tokenizer.apply_chat_template, add_generation_prompt=True, tokenize=False
        )
        try:
            text = chat(list(messages))
        except TemplateError:  # the template has no system role
            text = chat([{"role": "user", "content": whole}])
        return list(self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def _stop_unwanted(ids: torch.Tensor, scores: object, **_: object) -> torch.Tensor:
    """Stops no reply (B,) at its next token; ends all if nobody waits for them."""
    check_wanted()
    return torch.zeros(len(ids), dtype=torch.bool, device=ids.device)


class _Streamer(TextStreamer):
    """Hands on whole words as they are generated."""

    def __init__(self, tokenizer: Any, on_text: TextSink) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self._on_text = on_text

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """See `TextStreamer`."""
        if text:
            self._on_text(text)
