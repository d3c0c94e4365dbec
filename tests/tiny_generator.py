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

__all__ = ["KINDS", "tiny_generator", "tiny_seq2seq"]

KINDS = ("bart", "t5")


def tiny_seq2seq(kind: str, seed: int = 0) -> Any:
    """A random model of two layers a side; weights are large enough that its answers differ."""
    torch.manual_seed(seed)
    tokenizer = tiny_tokenizer()
    ids = {
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.sep_token_id,
        "bos_token_id": tokenizer.cls_token_id,
        "decoder_start_token_id": tokenizer.cls_token_id,
    }
    size = len(tokenizer)
    model: Any
    if kind == "bart":
        config: Any = BartConfig(
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
            **ids,
        )
        model = BartForConditionalGeneration(config)
    else:
        config = T5Config(
            vocab_size=size,
            d_model=32,
            d_kv=8,
            d_ff=48,
            num_layers=2,
            num_heads=2,
            dropout_rate=0.0,
            tie_word_embeddings=False,
            **{name: i for name, i in ids.items() if name != "bos_token_id"},
        )
        model = T5ForConditionalGeneration(config)
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
