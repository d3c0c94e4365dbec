"""ORQA: both losses and their gradients against brute force, learning from answers alone, what it
refuses.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from indexers.index_writer import write_index
from indexers.settings import BuildSettings
from rag.core.errors import DataError
from rag.core.types import Passage
from rag.data.examples import write_examples
from rag.data.files.rows import json_records, write_json_lines
from rag.data.text import exact_match
from rag.joint.config import OrqaTrainConfig
from rag.joint.orqa import early_loss, full_loss
from rag.pipeline import Pipeline
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.training.config import DprTrainConfig
from tests.conftest import TinyModels
from tests.support.messages import refusal
from tests.support.training import records
from tests.unit.retrievers.conftest import cipher_examples

WORDS = [a + b + c for a in "uvwxyz" for b in "pqrstuvw" for c in "stuvwxyz"]
SMALL: dict[str, Any] = {"precision": "fp32", "threads": 1, "question_tokens": 16, "dropout": 0.0}


class OrqaWorld(NamedTuple):
    """Questions with answers, an index by an encoder that was trained a little on others, and a
    reader to start from.
    """

    questions: Path
    index: Path
    reader: Path

    def config(self, out: Path, **changes: Any) -> OrqaTrainConfig:
        given: dict[str, Any] = {
            "out": out,
            "train_files": (self.questions,),
            "index": self.index,
            "early": 60,
            "batch_size": 16,
            "validation_fraction": 0.15,
            "shared": False,
            "reader": str(self.reader),
            "reader_tokens": 96,
            "max_answer_tokens": 4,
            "freeze_word_embeddings": False,
            "log_every_steps": 1,
        }
        return OrqaTrainConfig(**{**SMALL, **given, **changes})


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, tiny: TinyModels, tiny_bert: Path) -> OrqaWorld:
    place = tmp_path_factory.mktemp("orqa")
    examples = cipher_examples(360)
    passages = []
    lines = []
    for number, example in enumerate(examples):
        answer = WORDS[number % len(WORDS)]
        text = f"{example.positives[0].text} {answer}"
        passages.append(Passage(str(number), "title", text))
        asked = {"id": example.id, "question": example.question, "answers": [answer]}
        lines.append(asked)
    write_json_lines(place / "asked.jsonl", lines)
    write_examples(place / "warm.json", examples)
    config = DprTrainConfig(
        out=place / "run",
        train_files=(place / "warm.json",),
        question_encoder=str(tiny_bert),
        epochs=6,
        hard_negatives=0,
        learning_rate=3e-3,
        pooling="mean",
        normalize=True,
        passage_tokens=24,
        batch_size=32,
        validation_fraction=0,
        **SMALL,
    )
    encoder = BiEncoder.load(config.train_model(), precision="fp32")
    write_index(place / "index", passages, encoder=encoder, settings=BuildSettings(probes=8))
    reader = tiny.bert(place / "reader", max_position_embeddings=128)
    return OrqaWorld(place / "asked.jsonl", place / "index", reader)


def test_losses_and_gradients_are_the_sums_over_passages_and_spans() -> None:
    draw = np.random.default_rng(3)
    questions = 3
    passages = 4
    tokens = 6
    width = 3
    vectors = torch.from_numpy(draw.normal(size=(questions, 5))).requires_grad_()
    fixed = torch.from_numpy(draw.normal(size=(questions, passages, 5)))
    start, end = (
        torch.from_numpy(draw.normal(size=(questions, passages, tokens))).requires_grad_()
        for _ in range(2)
    )
    text = torch.from_numpy(draw.random((questions, passages, tokens)) < 0.8)
    right = torch.zeros(questions, passages, tokens, width, dtype=torch.bool)
    for b, p, s, w in [(0, 1, 2, 1), (0, 3, 0, 0), (2, 0, 1, 2)]:  # question 1 has no answer
        right[b, p, s, w] = True
        text[b, p, s : s + w + 1] = True
    answered = right.flatten(2).any(2)
    missing = torch.zeros(questions, passages, dtype=torch.bool)
    missing[2, 3] = True  # fewer passages than K

    retrieval = torch.einsum("bd,bkd->bk", vectors, fixed).masked_fill(missing, float("-inf"))
    ours = early_loss(retrieval, answered) + full_loss(retrieval, start, end, text, right)
    leaves = (vectors, start, end)
    gradients = torch.autograd.grad(ours, leaves)

    total = torch.zeros((), dtype=torch.float64)
    for b in (0, 2):
        scores = [vectors[b] @ fixed[b, p] for p in range(passages) if not missing[b, p]]
        z = torch.stack(scores).exp()
        hit = torch.stack([z[p] for p in range(len(scores)) if answered[b, p]])
        total = total - (hit.sum() / z.sum()).log() / 2
        every = []
        good = []
        for p, score in enumerate(scores):
            for s in range(tokens):
                for w in range(width):
                    if s + w < tokens and text[b, p, s] and text[b, p, s + w]:
                        weight = (score + start[b, p, s] + end[b, p, s + w]).exp()
                        every.append(weight)
                        if right[b, p, s, w]:
                            good.append(weight)
        total = total - (torch.stack(good).sum() / torch.stack(every).sum()).log() / 2
    torch.testing.assert_close(ours, total)
    for mine, its in zip(gradients, torch.autograd.grad(total, leaves), strict=True):
        torch.testing.assert_close(mine, its)
        assert not mine[1].any()  # a question whose answer was not found teaches nothing


def figures(asked: list[dict[str, Any]], index: Path, reader: Path | None) -> tuple[float, float]:
    """Shares of questions with an answer in the first passages, and with a right answer."""
    texts = [question["question"] for question in asked]
    found = []
    right = []
    with Pipeline.open(index, reader=False if reader is None else reader) as pipeline:
        hits = pipeline.retrieve_many(texts, top_k=5)
        for question, passages in zip(asked, hits, strict=True):
            found.append(any(question["answers"][0] in passage.text for _, passage in passages))
        if reader is not None:
            for question, result in zip(asked, pipeline.ask_many(texts, top_k=5), strict=True):
                best = result.answers[0].text if result.answers else ""
                right.append(exact_match(best, question["answers"]))
    return float(np.mean(found)), float(np.mean(right or [0]))


def test_answers_alone_teach_retrieval_and_reading(
    tmp_path: Path, world: OrqaWorld, caplog: pytest.LogCaptureFixture
) -> None:
    config = world.config(tmp_path / "run", epochs=8, learning_rate=3e-3)
    config.train_model()
    steps = records(config.out)
    assert {"early", "full", "found", "read"} <= steps[0].keys()
    assert "eval/top5" in records(config.out, "eval/em")[-1]
    early = [record["early"] for record in steps]
    read = [record["read"] for record in steps]
    assert np.mean(early[-19:]) < 0.9 * np.mean(early[:19])
    assert np.mean(read[-19:]) > np.mean(read[:19]) + 0.1

    # What was written finds and answers.
    asked = list(json_records(world.questions))
    before, _ = figures(asked, world.index, None)
    caplog.clear()
    after, right = figures(asked, config.out / "index", config.out / "reader")
    assert "not comparable" not in caplog.text
    figures(asked, world.index, config.out / "reader")
    assert "not comparable" in caplog.text
    assert after > before + 0.1
    assert right > 0.1


@pytest.mark.parametrize("known", [0, 60])
def test_questions_without_an_answer_in_the_corpus(
    tmp_path: Path, world: OrqaWorld, known: int, caplog: pytest.LogCaptureFixture
) -> None:
    lines = world.questions.read_text().splitlines()
    unknown = [line.replace('"answers": ["', '"answers": ["q') for line in lines[known:]]
    (tmp_path / "asked.jsonl").write_text("\n".join([*lines[:known], *unknown]))
    files = (tmp_path / "asked.jsonl",)
    config = world.config(tmp_path / "run", train_files=files, max_steps=1, early=360)
    if known:
        config.train_model()
        assert "the others are left out" in caplog.text
        return
    with refusal(DataError):
        config.train_model()


def test_more_passages_cannot_be_read_than_are_ranked(tmp_path: Path, world: OrqaWorld) -> None:
    with pytest.raises(ValidationError, match="must be at most early"):
        world.config(tmp_path, early=3)
