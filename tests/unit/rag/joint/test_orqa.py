"""ORQA: both losses and their gradients against brute force, learning from answers alone, what it
refuses.
"""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from indexers.index_writer import write_index
from indexers.settings import BuildSettings
from rag.core.errors import DataError
from rag.core.types import Passage
from rag.data.examples import write_examples
from rag.data.text import exact_match
from rag.joint.config import OrqaTrainConfig
from rag.joint.orqa import early_loss, full_loss, train_orqa
from rag.pipeline import Pipeline
from rag.training.run_log import read_metrics
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.training.config import DprTrainConfig
from tests.unit.retrievers.conftest import cipher_examples

WORDS = [a + b + c for a in "uvwxyz" for b in "pqrstuvw" for c in "stuvwxyz"]
SMALL: dict[str, Any] = {
    "early": 60,
    "batch_size": 16,
    "precision": "fp32",
    "threads": 1,
    "validation_fraction": 0.15,
    "question_tokens": 16,
    "dropout": 0.0,
    "shared": False,
}


def reader_start(folder: Path) -> dict[str, Any]:
    return {
        "reader": str(folder),
        "reader_tokens": 48,
        "reader_question_tokens": 16,
        "title_tokens": 4,
        "max_answer_tokens": 4,
        "freeze_word_embeddings": False,
    }


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> tuple[Path, Path]:
    """(questions with answers, index by an encoder that was trained a little on others)."""
    place = tmp_path_factory.mktemp("orqa")
    examples = cipher_examples(360)
    passages = [
        Passage(str(n), "title", f"{e.positives[0].text} {WORDS[n % len(WORDS)]}")
        for n, e in enumerate(examples)
    ]
    questions = [
        {"id": e.id, "question": e.question, "answers": [WORDS[n % len(WORDS)]]}
        for n, e in enumerate(examples)
    ]
    (place / "asked.jsonl").write_text("".join(json.dumps(q) + "\n" for q in questions))
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
        question_tokens=16,
        batch_size=32,
        dropout=0.0,
        precision="fp32",
        threads=1,
        validation_fraction=0,
    )
    encoder = BiEncoder.load(config.train_model(), precision="fp32")
    write_index(place / "index", passages, encoder=encoder, settings=BuildSettings(probes=8))
    return place / "asked.jsonl", place / "index"


def test_losses_and_gradients_are_the_sums_over_passages_and_spans() -> None:
    draw = np.random.default_rng(3)
    questions, passages, tokens, width = 3, 4, 6, 3
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
        every, good = [], []
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


def test_answers_alone_teach_retrieval_and_reading(
    tmp_path: Path, tiny_bert: Path, world: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    config = OrqaTrainConfig(
        out=tmp_path / "run",
        train_files=(world[0],),
        index=world[1],
        epochs=8,
        learning_rate=3e-3,
        log_every_steps=1,
        **reader_start(tiny_bert),
        **SMALL,
    )
    train_orqa(config)
    records = list(read_metrics(config.out / "metrics.jsonl"))
    steps = [record for record in records if "loss" in record]
    assert np.mean([r["early"] for r in steps[-19:]]) < 0.9 * np.mean(
        [r["early"] for r in steps[:19]]
    )
    assert (
        np.mean([r["read"] for r in steps[-19:]]) > np.mean([r["read"] for r in steps[:19]]) + 0.1
    )
    assert {"early", "full", "found", "read"} <= steps[0].keys()
    assert {"eval/em", "eval/top5"} <= records[-1].keys()

    # what was written finds and answers
    asked = [json.loads(line) for line in world[0].read_text().splitlines()]

    def figures(index: Path, reader: Any) -> tuple[float, float]:
        pipeline = Pipeline.open(index, reader=reader)
        texts, answers = (
            [question["question"] for question in asked],
            [q["answers"][0] for q in asked],
        )
        hits = [
            any(answer in passage.text for _, passage in result)
            for result, answer in zip(pipeline.retrieve_many(texts, top_k=5), answers, strict=True)
        ]
        right = []
        if reader:
            for result, answer in zip(pipeline.ask_many(texts, top_k=5), answers, strict=True):
                right.append(bool(result.answers) and exact_match(result.answers[0].text, [answer]))
        pipeline.close()
        return float(np.mean(hits)), float(np.mean(right or [0]))

    before, _ = figures(world[1], False)
    caplog.clear()
    after, right = figures(config.out / "index", str(config.out / "reader"))
    assert "not comparable" not in caplog.text
    figures(world[1], str(config.out / "reader"))
    assert "not comparable" in caplog.text
    assert after > before + 0.1
    assert right > 0.1


def test_what_cannot_work_is_refused(
    tmp_path: Path,
    tiny_bert: Path,
    world: tuple[Path, Path],
    caplog: pytest.LogCaptureFixture,
) -> None:
    def run(name: str, questions: Path, **settings: Any) -> None:
        train_orqa(
            OrqaTrainConfig(
                out=tmp_path / name,
                train_files=(questions,),
                index=world[1],
                max_steps=1,
                **reader_start(tiny_bert),
                **{**SMALL, **settings},
            )
        )

    lines = world[0].read_text().splitlines()
    for name, known in (("none", 0), ("few", 60)):
        file = tmp_path / f"{name}.jsonl"
        file.write_text(
            "\n".join(
                line if n < known else line.replace('"answers": ["', '"answers": ["q')
                for n, line in enumerate(lines)
            )
        )
    with pytest.raises(
        DataError, match="0 training questions have an answer among their first 60 passages"
    ):
        run("a", tmp_path / "none.jsonl")
    with caplog.at_level(logging.WARNING):
        run("b", tmp_path / "few.jsonl", early=360)
    assert "the others are left out" in caplog.text
    with pytest.raises(ValidationError, match="must be at most early"):
        OrqaTrainConfig(out=tmp_path, train_files=(world[0],), index=world[1], early=3)
