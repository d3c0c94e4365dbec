"""The whole recipe on a tiny encoder and a task it can learn: warm start, questions."""

import json
import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from rag.core.types import Passage
from readers.extractive.model import SpanModel
from readers.generative.model import Seq2Seq
from readers.generative.training.config import GeneratorTrainConfig
from readers.generative.training.data import best_ranked, usable_examples
from readers.generative.training.recipe import batch_loss
from readers.generative.warm_start import warm_start
from readers.open import open_reader
from tests.support.reading import read_one
from tests.support.training import check_parts_sum_to_the_whole, falls, figures_of
from tests.tiny_generator import tiny_seq2seq
from tests.tiny_reader import WORDS, tiny_encoder, tiny_reader, tiny_tokenizer


def tiny_task(path: Path, questions: int, seed: int, first: int = 0) -> Path:
    """The answer is the figure in one of three passages; the other two hold none."""
    draw = np.random.default_rng(seed)
    records = []
    for number in range(first, first + questions):
        answer = str(draw.integers(6, 9))
        texts = [" ".join(draw.choice(WORDS[8:], 4)) for _ in range(3)]
        right = int(draw.integers(3))
        texts[right] = texts[right].replace(" ", f" {answer} ", 1)
        ctxs = [
            {"title": "a", "text": text, "score": 3.0 - i, "has_answer": i == right}
            for i, text in enumerate(texts)
        ]
        question = (
            f"how many {string.ascii_lowercase[number % 26]} {string.ascii_lowercase[number // 26]}"
        )
        records.append({"question": question, "answers": [answer], "ctxs": ctxs})
    path.write_text(json.dumps(records))
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    values: dict[str, Any] = {
        "train_files": [tiny_task(folder / "train.json", 600, 0)],
        "validation_file": tiny_task(folder / "dev.json", 60, 1, first=600),
        "out": folder / "out",
        "encoder": str(tiny_reader(folder)),
        "decoder_layers": 1,
        "template": "{question} [SEP] {text}",
        "answer_tokens": 4,
        "beams": 2,
        "no_answer": "city",
        "stages": [
            {
                "steps": 250,
                "batch_size": 32,
                "passages": 3,
                "passage_tokens": 24,
                "no_answer_fraction": 0.2,
            }
        ],
        "learning_rate": 2e-3,
        "dropout": 0.0,
        "precision": "fp32",
        "threads": 1,
        "question_tokens": 8,
    }
    GeneratorTrainConfig(**values).train_model()
    return folder


def test_it_learns_to_read_and_to_say_nothing(run: Path) -> None:
    assert falls(run / "out", 0.5)
    assert figures_of(run / "out")["em"] >= 80.0
    reader = open_reader(run / "out" / "reader", precision="fp32")
    assert reader.settings.max_passages == 3  # type: ignore[attr-defined]
    texts = ["is in near of", "was 7 built has", "meters the year of"]
    passages = [Passage(str(number), "", text) for number, text in enumerate(texts)]
    first = read_one(reader, "how many b c", passages)
    empty = read_one(reader, "how many b c", passages[::2])
    evidence = first.answers[0].evidence
    assert (first.answers[0].text, evidence.passage_id, evidence.start) == ("7", "1", 4)
    assert first.answers[0].confidence > first.no_answer_confidence
    assert empty.no_answer_confidence > first.no_answer_confidence
    tokenizer = json.loads((run / "out" / "reader" / "tokenizer.json").read_text())
    assert tokenizer["truncation"] is None, (
        "the length of the last rows was written into the tokenizer"
    )


def test_the_folder_opens_in_transformers_and_says_the_same(run: Path) -> None:
    out = run / "out" / "reader"
    model, tokenizer = (
        AutoModelForSeq2SeqLM.from_pretrained(out),
        AutoTokenizer.from_pretrained(out),
    )
    rows = tokenizer("how many b c [SEP] was 7 built has", return_tensors="pt")
    with torch.no_grad():
        output = model.generate(
            input_ids=rows["input_ids"],
            attention_mask=rows["attention_mask"],
            max_new_tokens=4,
            num_beams=1,
        )
    reader = open_reader(out, precision="fp32", beams=1)
    result = read_one(reader, "how many b c", [Passage("1", "", "was 7 built has")])
    assert tokenizer.decode(output[0], skip_special_tokens=True).strip() == result.answers[0].text


def test_processes_share_a_batch_exactly() -> None:
    ours = Seq2Seq(tiny_seq2seq("bart"), tiny_tokenizer())
    batch = [([[2, 60, 3]], [60]), ([[2, 61, 62, 3]], [61, 62, 63]), ([[2, 9, 3]], [64, 65])]
    whole = batch_loss(ours, batch, 99)
    parts = [batch_loss(ours, batch[rank::2], 99) for rank in (0, 1)]
    check_parts_sum_to_the_whole(ours.model, whole, parts)


def test_a_generator_made_from_a_reader_computes_what_it_does_and_says_what_it_points_at(
    tmp_path: Path,
) -> None:
    tokenizer, draw = tiny_tokenizer(), torch.Generator().manual_seed(0)
    reader = SpanModel.from_encoder(tiny_encoder(tmp_path)).eval()
    reader.qa_outputs.weight.data[0] = start = 3.0 * torch.randn(32, generator=draw)
    rows = torch.randint(5, len(tokenizer), (60, 12), generator=draw).tolist()
    made = warm_start(reader, tokenizer, rows, decoder_layers=1)
    with torch.no_grad():
        memory = made.encode([[row] for row in rows])
        expected = reader.encoder(torch.tensor(rows))[0]
        logits = made.logits(memory, made.targets([[]] * len(rows)))
    assert torch.allclose(memory.states, expected, atol=1e-3)
    pointed = [
        row[place] for row, place in zip(rows, (expected @ start).argmax(1).tolist(), strict=True)
    ]
    right = sum(map(int.__eq__, logits[:, 0].argmax(1).tolist(), pointed))
    assert right / len(rows) >= 0.8
    layer, last = made.model.model.decoder.layers[0], reader.encoder.encoder.layer[1].attention.self
    assert torch.equal(layer.self_attn.k_proj.weight, last.key.weight)
    assert made.model.lm_head.weight is made.model.model.shared.weight


def test_files_of_all_kinds_become_examples(tmp_path: Path) -> None:
    oslo, sunk = (
        {"question": "q1", "answers": ["oslo"]},
        [{"text": "The Titanic sank."}, {"text": "no"}],
    )
    pattern = {"question": "q4", "answers": ["Titanic|R\\.?M\\.?S"], "answers_are_regex": True}
    gold = {
        "positive_ctxs": [{"title": "g", "text": "gold"}],
        "hard_negative_ctxs": [{"text": "hard"}],
    }
    files: dict[str, list[dict[str, Any]]] = {
        "retrieved": [
            {**oslo, "ctxs": [{"text": "no"}, {"title": "t", "text": "in Oslo"}]},
            {"question": "q3", "answers": [], "ctxs": [{"text": "z"}]},
        ],
        "fid": [{"question": "q2", "target": "x", "answers": ["x", "y"], "ctxs": [{"text": "y"}]}],
        "mined": [{**oslo, **gold}],
        "regex": [{**pattern, "ctxs": sunk}],
    }
    for name, records in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(records))
    retrieved, fid, mined, regex = usable_examples([tmp_path / f"{name}.json" for name in files])
    assert [(c.has_answer, c.rank) for c in retrieved.candidates] == [(False, 1), (True, 2)]
    assert [c.passage.text for c in best_ranked(retrieved, 1)] == ["no"]
    assert fid.answers == ("x",)
    states = [(c.passage.text, c.has_answer, c.rank) for c in mined.candidates]
    assert states == [("gold", True, None), ("hard", False, None)]
    assert [c.passage.text for c in best_ranked(mined, 1)] == ["gold"]  # nothing was retrieved
    assert (regex.answers, regex.answer_profile) == (("Titanic",), "squad")
    assert [c.has_answer for c in regex.candidates] == [True, False]
