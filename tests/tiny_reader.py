"""Tiny random encoders, tokenizers without unknowns, and a made-up task for the reader tests."""

import json
import string
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, RobertaConfig, RobertaModel

from readers.extractive.model import SpanModel
from readers.extractive.settings import ReaderSettings
from readers.extractive.training.finish import export_int8

WORDS = [
    "the",
    "tower",
    "river",
    "city",
    "bridge",
    "castle",
    "harbour",
    "forest",
    "is",
    "in",
    "was",
    "built",
    "near",
    "has",
    "meters",
    "year",
    "of",
    "how",
    "many",
]
_SIGNS = [*string.ascii_lowercase, *string.digits, *".,?!'-()"]
PIECES = [*_SIGNS, *(f"##{sign}" for sign in _SIGNS), *WORDS]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def word_pieces(entries: Iterable[str], unknown: str) -> Tokenizer:
    """WordPiece over lower-cased words, whose ids are the places of `entries`."""
    vocabulary = {entry: number for number, entry in enumerate(dict.fromkeys(entries))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """WordPiece over a few words, with every letter and digit as a fallback: nothing becomes
    [UNK].
    """
    tokenizer = word_pieces([*SPECIAL, *PIECES], "[UNK]")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, SPECIAL.index(name)) for name in ("[CLS]", "[SEP]")],
    )
    names = {f"{kind}_token": f"[{kind.upper()}]" for kind in ("cls", "sep", "pad", "unk", "mask")}
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=inputs, **names)


def byte_pairs(special: Sequence[str]) -> Tokenizer:
    """Byte pairs of a few words: nothing is unknown, nothing is put around a text."""
    words = [f"\u0120{word}" for word in WORDS]  # that sign is a blank
    merges = list(
        dict.fromkeys((word[:end], word[end]) for word in words for end in range(1, len(word)))
    )
    entries = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet()), *map("".join, merges)]
    vocabulary = {entry: number for number, entry in enumerate(entries)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def tiny_roberta_tokenizer() -> PreTrainedTokenizerFast:
    """Byte pairs as RoBERTa has them: pairs are <s> question </s></s> text </s>, all of one
    segment.
    """
    tokenizer = byte_pairs(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), add_prefix_space=False
    )
    names = {f"{kind}_token": f"<{kind}>" for kind in ("pad", "unk", "mask")}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, cls_token="<s>", sep_token="</s>", **names
    )


def tiny_config(**changes: Any) -> BertConfig:
    values: dict[str, Any] = {
        "vocab_size": len(tiny_tokenizer()),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 128,
        "initializer_range": 0.3,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    return BertConfig(**{**values, **changes})


def tiny_encoder(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """A folder with a random BERT encoder and its tokenizer."""
    torch.manual_seed(seed)
    BertModel(tiny_config(initializer_range=0.05, **changes)).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def tiny_reader(folder: Path) -> Path:
    """A folder of `rag train reader` with random weights."""
    model = SpanModel.from_encoder(tiny_encoder(folder / "encoder"), seed=0)
    export_int8(
        folder / "reader",
        model,
        dict(model.state_dict()),
        tiny_tokenizer(),
        name="tiny",
        settings=ReaderSettings(max_tokens=128),
    )
    return folder / "reader"


TINY_TRAINING: dict[str, Any] = {
    "question_tokens": 32,
    "title_tokens": 8,
    "learning_rate": 5e-3,
    "precision": "fp32",
    "threads": 1,
    "freeze_word_embeddings": False,
    "validation_questions": 24,
    "calibration_questions": 24,
}
"""Settings of `ReaderTrainConfig` under which a tiny encoder learns `tiny_squad`."""


def random_roberta(size: int, spread: float, seed: int = 0) -> RobertaModel:
    """A random RoBERTa of as many tokens, whose weights are drawn from a normal distribution."""
    torch.manual_seed(seed)
    config = RobertaConfig(
        vocab_size=size,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=162,
        type_vocab_size=1,
        initializer_range=spread,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return RobertaModel(config, add_pooling_layer=False)


def tiny_roberta(folder: Path) -> Path:
    """A folder with a random RoBERTa encoder and its tokenizer."""
    tokenizer = tiny_roberta_tokenizer()
    random_roberta(len(tokenizer), 0.05).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def tiny_squad(path: Path, articles: int, seed: int, results: Path | None = None) -> Path:
    """SQuAD JSON in which the answer is the number in the text; negatives are texts without a
    number.
    """
    draw = np.random.default_rng(seed)
    data = []
    records = []
    for article in range(articles):
        title = f"{WORDS[article % 8]}_{string.ascii_lowercase[article % 26]}"
        paragraphs = []
        for number in range(4):
            before = " ".join(draw.choice(WORDS[:14], draw.integers(2, 8)))
            after = " ".join(draw.choice(WORDS[:14], draw.integers(2, 8)))
            answer = str(draw.integers(10, 100))
            context = f"{before} {answer} {after}."
            question = f"how many meters has the {WORDS[draw.integers(1, 8)]} {article} {number}?"
            answers = [{"text": answer, "answer_start": len(before) + 1}]
            item = {"id": f"{article}-{number}", "question": question, "answers": answers}
            paragraphs.append({"context": context, "qas": [item]})
            others = [" ".join(draw.choice(WORDS[:14], 9)) + "." for _ in range(2)]
            texts = [(context, True), *((text, False) for text in others)]
            shown = title.replace("_", " ")
            ctxs = [
                {"id": str(i), "title": shown, "text": text, "score": 9.0 - i, "has_answer": has}
                for i, (text, has) in enumerate(texts)
            ]
            records.append({"question": question, "answers": [answer], "ctxs": ctxs})
        data.append({"title": title, "paragraphs": paragraphs})
    path.write_text(json.dumps({"version": "1.1", "data": data}))
    if results is not None:
        results.write_text(json.dumps(records))
    return path
