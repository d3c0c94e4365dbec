"""Decoder-only language models behind the interface of `Seq2Seq`: a passage's memory is its
prompt's cache.

A prompt ends with the same few tokens for every passage, such as "Answer:" or the head of a chat's
reply. All but the last of its tokens are read once; their keys and values are the memory, from
which any number of answers is generated and scored. The last one starts the answer, as the start
token of an encoder–decoder.

Several passages are read together (mode "fid") as parallel windows: each prompt is read separately,
at the same positions, and the answer, whose positions follow the longest prompt, attends to all of
them.

Source:
    Ratner et al. 2023, "Parallel Context Windows for Large Language Models", section 2 (several
    passages).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from rag.core.errors import ConfigError
from rag.runtime.model_files import chat_frame
from readers.generative.model import Memory, Seq2Seq, first_token
from readers.generative.settings import as_literal

_BODY = "Answer the question with a few words copied from the passage.\nQuestion: {question}\n{title}: {text}"
PLAIN_END = "\nAnswer:"
_KEPT = {DynamicLayer, DynamicSlidingWindowLayer}  # the layers of a cache that can be taken apart
FRAME_TOKENS = 16  # room for the prompt's end


def causal_layout(tokenizer: PreTrainedTokenizerBase) -> dict[str, str]:
    """`template` and `prompt_end` of `GeneratorSettings` for a model that was not trained here."""
    before, after = chat_frame(tokenizer, PLAIN_END)
    return {"template": as_literal(before) + _BODY, "prompt_end": after}


class Causal(Seq2Seq):
    """A decoder-only checkpoint that reads passages separately.

    Args:
        model: any `AutoModelForCausalLM` that keeps keys and values, in its compute dtype and on
            its device.
        tokenizer: its tokenizer.
        prompt_end: text between the input and the answer; at least one token.

    Raises:
        ConfigError: the tokenizer names no end of a text, or the model does not keep keys and values
            in all layers.
    """

    max_rows = 32

    def __init__(self, model: PreTrainedModel, tokenizer: Any, prompt_end: str) -> None:
        self.model: Any = model
        self.tokenizer = tokenizer
        config = model.config.get_text_config()
        kinds = {type(layer) for layer in DynamicCache(config=config).layers}
        # Multi-head latent attention keeps something else under their names.
        is_latent = hasattr(config, "kv_lora_rank")
        if kinds - _KEPT or is_latent or getattr(model, "_is_stateful", False):
            raise ConfigError(
                f"{type(model).__name__} does not keep keys and values of what it has read in all layers",
                hint="use a model with usual attention in every layer",
            )
        end = first_token(tokenizer.eos_token_id, getattr(model.config, "eos_token_id", None))
        tail = list(tokenizer(prompt_end, add_special_tokens=False)["input_ids"])
        if end is None or not tail:
            raise ConfigError(
                f"{type(tokenizer).__name__} names end {end} of a text, the prompt ends with {prompt_end!r} "
                f"({len(tail)} tokens); expected a token id and at least one token",
                hint="set eos_token in tokenizer_config.json, or prompt_end in reader.json",
            )
        self.end = end
        self.pad = first_token(tokenizer.pad_token_id, end) or 0
        self.tail = tail[:-1]
        self.start = tail[-1]
        self.prefix = []
        self._max_answer_tokens = None
        self._silent = set()
        # What stands between the prompt and an answer.
        self.blank = "" if prompt_end[-1].isspace() else " "
        self.model.generation_config = GenerationConfig(eos_token_id=end, pad_token_id=self.pad)

    def _input_row(self, ids: Sequence[int]) -> Sequence[int]:
        """A whole prompt but for its last token, without an end that the tokenizer put behind the
        input.
        """
        ended = bool(ids) and ids[-1] == self.end and self.tail[:1] != [self.end]
        return [*(ids[:-1] if ended else ids), *self.tail]

    def _states(self, ids: Tensor, mask: Tensor) -> Tensor:
        """(R, L, 2·N·H·D) keys of all layers, then their values."""
        cache = DynamicCache()
        self.model.base_model(
            input_ids=ids, attention_mask=mask, use_cache=True, past_key_values=cache
        )
        keys = [layer.keys for layer in cache.layers]
        values = [layer.values for layer in cache.layers]
        return torch.stack(keys + values).permute(1, 3, 0, 2, 4).flatten(2)

    def _forced(self, memory: Memory, inputs: Tensor) -> dict[str, Any]:
        return {"input_ids": inputs, "use_cache": True, **self._behind(memory, inputs.shape[1])}

    def answer_ids(self, text: str) -> list[int]:
        """Token ids of an answer, as they follow the prompt."""
        return super().answer_ids(self.blank + text)

    def _inputs(self, memory: Memory, beams: int) -> dict[str, Any]:
        behind = self._behind(memory, 1)
        behind["past_key_values"].batch_repeat_interleave(beams)
        return {"input_ids": memory.mask.new_full((len(memory), 1), self.start), **behind}

    def _behind(self, memory: Memory, tokens: int) -> dict[str, Any]:
        """Keys and values of the prompts; mask and places of so many tokens behind each of them."""
        cache = DynamicCache()
        config = self.model.config.get_text_config()
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        split = memory.states.unflatten(2, (2 * config.num_hidden_layers, -1, size))
        keys, values = split.permute(2, 0, 3, 1, 4).chunk(2)  # (N, R, H, S, D) each
        for layer, pair in enumerate(zip(keys, values, strict=True)):
            cache.update(*pair, layer)
        mask = memory.mask
        sizes = mask.new_zeros(len(mask), max(memory.counts))  # (R, P) tokens of passages
        sizes = sizes.scatter_add(1, memory.owner.clamp_min(0), mask)
        places = sizes.amax(1, keepdim=True) + torch.arange(tokens, device=mask.device)
        everything = torch.cat([mask, mask.new_ones(len(mask), tokens)], 1)
        return {"attention_mask": everything, "past_key_values": cache, "position_ids": places}


def causal_limit(model: PreTrainedModel) -> int:
    """Maximum number of positions for prompt and answer together."""
    return int(getattr(model.config.get_text_config(), "max_position_embeddings", None) or 1 << 20)
