"""Tiny random sequence-to-sequence models with a tokenizer that fits them."""

from pathlib import Path
from typing import Any

import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
)

from tests.tiny_reader import tiny_tokenizer

KINDS = ("bart", "t5")


def tiny_seq2seq(kind: str, seed: int = 0) -> Any:
    """A random model of the words of `tiny_tokenizer`."""
    tokenizer = tiny_tokenizer()
    return random_seq2seq(
        kind,
        len(tokenizer),
        pad=tokenizer.pad_token_id,
        start=tokenizer.cls_token_id,
        end=tokenizer.sep_token_id,
        seed=seed,
    )


def random_seq2seq(kind: str, size: int, *, pad: int, start: int, end: int, seed: int) -> Any:
    """Two layers a side over `size` tokens; weights are large enough that its answers differ."""
    torch.manual_seed(seed)
    ids = {"pad_token_id": pad, "eos_token_id": end, "decoder_start_token_id": start}
    if kind == "bart":
        bart = BartConfig(
            vocab_size=size,
            d_model=32,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=48,
            decoder_ffn_dim=48,
            max_position_embeddings=128,
            init_std=0.4,
            forced_eos_token_id=None,
            dropout=0.0,
            bos_token_id=start,
            **ids,
        )
        return BartForConditionalGeneration(bart).eval()
    t5 = T5Config(
        vocab_size=size,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_heads=2,
        dropout_rate=0.0,
        tie_word_embeddings=False,
        **ids,
    )
    model = T5ForConditionalGeneration(t5)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(0.0, 0.5)
    return model.eval()


def tiny_generator(folder: Path, kind: str = "bart", seed: int = 0) -> Path:
    """A folder that transformers opens."""
    tiny_seq2seq(kind, seed).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder
