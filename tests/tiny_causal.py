"""A tiny random Llama with a byte-level tokenizer."""

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tests.tiny_reader import byte_pairs

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""In the shape of published instruction-tuned models."""


def causal_tokenizer(chat: bool = True) -> PreTrainedTokenizerFast:
    """Byte pairs: nothing is unknown, nothing is put around a text."""
    made = PreTrainedTokenizerFast(
        tokenizer_object=byte_pairs(SPECIAL),
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
