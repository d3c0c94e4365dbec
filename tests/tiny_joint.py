"""A made-up task for joint training: which of the passages about a thing tells its number."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import BartForConditionalGeneration

from indexers.index_writer import write_index
from indexers.settings import BuildSettings
from rag.core.types import Passage
from rag.data.files.rows import write_json_lines
from readers.generative.model import Seq2Seq
from retrievers.encoders.bi_encoder import BiEncoder
from tests.tiny_generator import tiny_generator
from tests.tiny_reader import tiny_encoder, tiny_tokenizer

THINGS = ["tower", "river", "city", "bridge", "castle", "harbour"]
PLACES = ["in", "near", "of", "is", "was"]
ASKED = ("how", "many", "year", "meters")
LETTERS = "qvwxz"  # what questions call the places

__all__ = ["joint_world"]


def joint_world(folder: Path, *, copy_steps: int = 150) -> dict[str, Any]:
    """Settings of a run: 30 passages, questions about each, a random encoder, a copying generator.

    Questions name the thing as passages do, and the place by another word, which only answers can
    teach.
    """
    draw = np.random.default_rng(0)
    numbers = {(t, p): str(draw.integers(2, 10)) for t in THINGS for p in range(len(PLACES))}
    passages = [
        Passage(f"{thing}-{p}", "", f"{thing} {PLACES[p]} {PLACES[p]} has {number}")
        for (thing, p), number in numbers.items()
    ]
    asked = [
        {"question": f"{thing} {LETTERS[p]} {LETTERS[p]} {word}", "answers": [number]}
        for (thing, p), number in numbers.items()
        for word in ASKED
    ]
    order = draw.permutation(len(asked))
    held_out = [asked[i] for i in order[:30]]
    for name, part in (("train", [asked[i] for i in order[30:]]), ("dev", held_out)):
        write_json_lines(folder / f"{name}.jsonl", part)
    encoder = tiny_encoder(folder / "encoder")
    write_index(
        folder / "index",
        passages,
        encoder=BiEncoder.load(encoder, precision="fp32", pooling="mean"),
        settings=BuildSettings(probes=8),
    )
    generator = tiny_generator(folder / "generator", "bart")
    _teach_to_copy(generator, copy_steps)
    return {
        "train_files": [str(folder / "train.jsonl")],
        "validation_file": str(folder / "dev.jsonl"),
        "index": str(folder / "index"),
        "top_k": 5,
        "generator": str(generator),
        "template": "{question} [SEP] {text}",
        "reader_passage_tokens": 24,
        "answer_tokens": 2,
        "reader_question_tokens": 12,
        "batch_tokens": 4096,
        "dropout": 0.0,
        "shared": False,
        "batch_size": 16,
        "precision": "fp32",
        "threads": 1,
    }


def _teach_to_copy(folder: Path, steps: int) -> None:
    """A generator that says the number in the one passage that it is given, whatever is asked."""
    torch.manual_seed(0)
    model = BartForConditionalGeneration.from_pretrained(folder).train()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(0.0, 0.05)
    tokenizer = tiny_tokenizer()
    draw = np.random.default_rng(0)
    seq2seq = Seq2Seq(model, tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), 4e-3)
    for _ in range(steps):
        rows = []
        answers = []
        for _ in range(32):
            number = str(draw.integers(2, 10))
            place = " ".join([str(draw.choice(PLACES))] * 2)
            passage = f"{draw.choice(THINGS)} {place} has {number}"
            letter = " ".join([str(draw.choice(list(LETTERS)))] * 2)
            asked = f"{draw.choice(THINGS)} {letter} {draw.choice(ASKED)}"
            rows.append([tokenizer(f"{asked} [SEP] {passage}")["input_ids"]])
            answers.append(seq2seq.answer_ids(number))
        loss = (
            -seq2seq.token_log_probs(seq2seq.encode(rows), seq2seq.targets(answers)).sum(1).mean()
        )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval().save_pretrained(folder)
