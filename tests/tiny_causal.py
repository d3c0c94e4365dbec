"""A tiny random Llama with a byte-level tokenizer, and the same model as a GGUF file."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
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
    merges = list(dict.fromkeys((word[:end], word[end]) for word in words for end in range(1, len(word))))
    return [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *map("".join, merges)], merges


def causal_tokenizer(chat: bool = True) -> PreTrainedTokenizerFast:
    """Byte pairs: nothing is unknown, nothing is put around a text."""
    entries, merges = _vocabulary()
    tokenizer = Tokenizer(models.BPE({entry: n for n, entry in enumerate(entries)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=SPECIAL[1], eos_token=SPECIAL[2], pad_token=SPECIAL[2],
        unk_token=SPECIAL[0],
    )  # fmt: skip
    made.chat_template = CHAT if chat else None
    return made


def tiny_causal(seed: int = 0, positions: int = 512) -> LlamaForCausalLM:
    """Two layers, grouped heads; weights are large enough that its answers differ."""
    torch.manual_seed(seed)
    size = len(causal_tokenizer())
    config = LlamaConfig(
        vocab_size=size, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=positions, initializer_range=0.3,
        bos_token_id=1, eos_token_id=2, pad_token_id=2, tie_word_embeddings=False, attention_dropout=0.0,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def causal_folder(place: Path, *, chat: bool = True, seed: int = 0, positions: int = 512) -> Path:
    """A folder that transformers opens."""
    tiny_causal(seed, positions).save_pretrained(place)
    causal_tokenizer(chat).save_pretrained(place)
    return place


def write_gguf(
    path: Path,
    model: Any,
    *,
    kind: gguf.GGMLQuantizationType | None = None,
    arch: str = "llama",
    drop: str = "",
) -> Path:
    """The model as llama.cpp's converter writes it: other names, and the halves of rotary heads interleaved.

    Args:
        kind: quantisation of the matrices; None: fp32.
        drop: name of a tensor that is left out.
    """
    config, (entries, merges) = model.config, _vocabulary()
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(entries)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(entries) - len(SPECIAL)))
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(CHAT)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        values, base = tensor.float().numpy(), name.removesuffix(".weight")
        for part, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
            if base.endswith(part):
                halves = values.reshape(heads, 2, -1, values.shape[1])
                values = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)
        known = f"{names.get_name(base)}.weight"
        if known == drop:
            continue
        if kind is not None and values.ndim == 2:
            writer.add_tensor(known, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(known, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
