"""Decoder-only language models behind the interface of `Seq2Seq`: a passage's memory is its prompt's cache.

A prompt ends with the same few tokens for every passage, such as "Answer:" or the head of a chat's reply. All
but the last of its tokens are read once; their keys and values are the memory, from which any number of
answers is generated and scored. The last one starts the answer, as the start token of an encoder–decoder.

Several passages are read together (mode "fid") as parallel windows: each prompt is read separately, at the
same positions, and the answer, whose positions follow the longest prompt, attends to all of them.

Source:
    Ratner et al. 2023, "Parallel Context Windows for Large Language Models", section 2 (several passages).
"""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, GenerationConfig, PreTrainedModel

from rag.core.errors import ConfigError
from rag.runtime.chat import chat_frame
from readers.generative.marginal_decoding import beam_search
from readers.generative.model import Memory, Seq2Seq, cache_name, first_token

_BODY = "Answer the question with a few words copied from the passage.\nQuestion: {question}\n{title}: {text}"
PLAIN_END = "\nAnswer:"
FRAME_TOKENS = 16  # room for the prompt's end


def causal_layout(tokenizer: Any) -> dict[str, str]:
    """`template` and `prompt_end` of `GeneratorSettings` for a model that was not trained here."""
    before, after = chat_frame(tokenizer, PLAIN_END)
    return {"template": before.replace("{", "{{").replace("}", "}}") + _BODY, "prompt_end": after}


class Causal(Seq2Seq):
    """A decoder-only checkpoint that reads passages separately.

    Args:
        model: any `AutoModelForCausalLM` that keeps keys and values, in its compute dtype and on its device.
        tokenizer: its tokenizer.
        prompt_end: text between the input and the answer; at least one token.

    Raises:
        ConfigError: the tokenizer names no end of a text, or the model keeps no keys and values.
    """

    crosses = False
    max_rows = 32

    def __init__(self, model: PreTrainedModel, tokenizer: Any, prompt_end: str) -> None:
        self.model: Any = model
        self.tokenizer = tokenizer
        end = first_token(tokenizer.eos_token_id, getattr(model.config, "eos_token_id", None))
        tail = list(tokenizer(prompt_end, add_special_tokens=False)["input_ids"])
        if end is None or not tail:
            raise ConfigError(
                f"{type(tokenizer).__name__} names end {end} of a text, the prompt ends with {prompt_end!r} "
                f"({len(tail)} tokens); expected a token id and at least one token",
                hint="set eos_token in tokenizer_config.json, or prompt_end in reader.json",
            )
        self.end, self.pad = end, first_token(tokenizer.pad_token_id, end) or 0
        self.tail, self.start = tail[:-1], tail[-1]
        self.prefix, self._most = [], None
        self.blank = "" if prompt_end[-1].isspace() else " "  # between the prompt and an answer
        self._cache_name = cache_name(model)
        self._placed = "position_ids" in inspect.signature(model.forward).parameters
        self.model.generation_config = GenerationConfig(eos_token_id=end, pad_token_id=self.pad)

    def _input_row(self, ids: Sequence[int]) -> Sequence[int]:
        """A whole prompt but for its last token, without an end that the tokenizer put behind the input."""
        ended = bool(ids) and ids[-1] == self.end and self.tail[:1] != [self.end]
        return [*(ids[:-1] if ended else ids), *self.tail]

    def _states(self, ids: Tensor, mask: Tensor) -> Tensor:
        """(R, L, 2·N·H·D) keys of all layers, then their values."""
        given = {self._cache_name: DynamicCache()}
        output = self.model.base_model(input_ids=ids, attention_mask=mask, use_cache=True, **given)
        cache = output.get(self._cache_name)
        if not isinstance(cache, DynamicCache) or not cache.layers or cache.layers[0].keys is None:
            raise ConfigError(
                f"{type(self.model).__name__} keeps no keys and values of what it has read",
                hint="use a model with attention in every layer",
            )
        parts = [layer.keys for layer in cache.layers] + [layer.values for layer in cache.layers]
        return torch.stack(parts).permute(1, 3, 0, 2, 4).flatten(2)

    def generate(self, memory: Memory, *, answer_tokens: int, beams: int = 1) -> list[list[list[int]]]:
        """Token ids of at most `beams` answers per row, best first, without the end token.

        Args:
            memory, answer_tokens, beams: as for `Seq2Seq.generate`.
        """
        zero = memory.states.new_zeros(1, dtype=torch.float32)
        rows = [[row] for row in range(len(memory))]
        found = beam_search(self, memory, rows, [zero] * len(rows), answer_tokens=answer_tokens, beams=beams)
        return [[list(ids) for ids in answers] for answers in found]

    def logits(self, memory: Memory, labels: Tensor) -> Tensor:
        """Logits (R, T, V) for each label, float32 at least; teacher forcing, see `token_log_probs`."""
        found = self._run(memory, self.decoder_inputs(labels), self._cache(memory))
        return found if found.dtype == torch.float64 else found.float()

    def step_cache(self, memory: Memory, rows: Sequence[int]) -> DynamicCache:
        """Keys and values of the prompts of some rows."""
        return self._cache(memory, rows)

    def step(self, memory: Memory, rows: Sequence[int], inputs: Sequence[int], cache: Any) -> Tensor:
        """(R, V) float32 log-probabilities of the next token."""
        last = torch.tensor(inputs, device=self.device)[:, None]
        chosen = Memory(memory.states[:0], memory.mask[list(rows)], memory.owner[list(rows)], ())
        return self._run(chosen, last, cache)[:, -1].float().log_softmax(-1)

    def answer_ids(self, text: str) -> list[int]:
        """Token ids of an answer, as they follow the prompt."""
        return list(self.tokenizer(self.blank + text, add_special_tokens=False, verbose=False)["input_ids"])

    def _run(self, memory: Memory, inputs: Tensor, cache: DynamicCache) -> Tensor:
        """(R, T, V) logits of tokens behind the prompts, and behind those that the cache has already."""
        past, width = cache.get_seq_length(), memory.mask.shape[1]
        after = torch.ones(len(inputs), past - width + inputs.shape[1], dtype=torch.long, device=self.device)
        sizes = memory.mask.new_zeros(len(inputs), int(memory.owner.max()) + 1)  # (R, P) tokens of passages
        sizes = sizes.scatter_add(1, memory.owner.clamp_min(0), memory.mask)
        places = sizes.amax(1, keepdim=True) + past - width
        places = places + torch.arange(inputs.shape[1], device=self.device)
        return self.model(
            input_ids=inputs, attention_mask=torch.cat([memory.mask, after], 1), use_cache=True,
            **{self._cache_name: cache}, **({"position_ids": places} if self._placed else {}),
        ).logits  # fmt: skip

    def _cache(self, memory: Memory, rows: Sequence[int] | None = None) -> DynamicCache:
        """Memory → keys and values per layer."""
        config = self.model.config.get_text_config()
        states = memory.states if rows is None else memory.states[list(rows)]
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        layers = config.num_hidden_layers
        split = states.unflatten(2, (2 * layers, -1, size)).permute(2, 0, 3, 1, 4)  # (2·N, R, H, S, D)
        cache = DynamicCache()
        for layer in range(layers):
            cache.update(split[layer], split[layers + layer], layer)
        return cache


def causal_limit(model: Any) -> int:
    """Maximum number of positions for prompt and answer together."""
    return int(getattr(model.config.get_text_config(), "max_position_embeddings", None) or 1 << 20)
