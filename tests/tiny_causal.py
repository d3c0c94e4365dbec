"""A tiny random Llama with a byte-level tokenizer."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tests.tiny_reader import WORDS

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""In the shape of published instruction-tuned models."""


def _vocabulary() -> tuple[list[str], list[tuple[str, str]]]:
    words = [f"\u0120{word}" for word in WORDS]  # that sign is a blank
    merges = list(
        dict.fromkeys((word[:end], word[end]) for word in words for end in range(1, len(word)))
    )
    return [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *map("".join, merges)], merges


def causal_tokenizer(chat: bool = True) -> PreTrainedTokenizerFast:
    """Byte pairs: nothing is unknown, nothing is put around a text."""
    entries, merges = _vocabulary()
    tokenizer = Tokenizer(models.BPE({entry: n for n, entry in enumerate(entries)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=SPECIAL[1],
        eos_token=SPECIAL[2],
        pad_token=SPECIAL[2],
        unk_token=SPECIAL[0],
    )
    made.chat_template = CHAT if chat else None
    return made


def tiny_causal(seed: int = 0, positions: int = 512) -> LlamaForCausalLM:
    """Two layers, grouped heads; weights are large enough that its answers differ."""
    torch.manual_seed(seed)
    size = len(causal_tokenizer())
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=positions,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        tie_word_embeddings=False,
        attention_dropout=0.0,
    )
    return LlamaForCausalLM(config).eval()


def causal_folder(place: Path, *, chat: bool = True, seed: int = 0, positions: int = 512) -> Path:
    """A folder that transformers opens."""
    tiny_causal(seed, positions).save_pretrained(place)
    causal_tokenizer(chat).save_pretrained(place)
    return place
