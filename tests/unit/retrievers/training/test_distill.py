"""Distillation: losses against loops, gradients of processes and chunks against one big batch,
learning.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rag.data.examples import Candidate, Example, write_examples
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.examples.batches import RetrieverBatch
from retrievers.training.config import DistillTrainConfig
from retrievers.training.losses import kl_loss, margin_loss
from tests.support.training import falls, named
from tests.unit.retrievers.conftest import TINY, cipher_examples


def drawn(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = np.random.default_rng(seed)
    listed = draw.random((4, 7)) < 0.6
    listed[:, 0] = True
    scores, targets = draw.normal(scale=2, size=(2, 4, 7))
    return (
        torch.from_numpy(scores).requires_grad_(),
        torch.from_numpy(targets),
        torch.from_numpy(listed),
    )


def listed_batch(targets: torch.Tensor, listed: torch.Tensor) -> RetrieverBatch:
    """A batch whose questions have these targets in their lists."""
    return RetrieverBatch([], [], torch.zeros(listed.shape), targets.where(listed, torch.nan))


def test_divergence_is_the_equation() -> None:
    scores, targets, listed = drawn()
    total = 0.0
    for s, g, kept in zip(scores.tolist(), targets.tolist(), listed.tolist(), strict=True):
        p = [math.exp(value / 0.5) if k else 0.0 for value, k in zip(g, kept, strict=True)]
        q = [math.exp(value / 2) if k else 0.0 for value, k in zip(s, kept, strict=True)]
        p, q = [v / sum(p) for v in p], [v / sum(q) for v in q]
        total += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a)
    loss = kl_loss(scores / 2, listed_batch(targets, listed), target_temperature=0.5)
    assert float(loss.detach()) == pytest.approx(total / 4)
    loss.backward()
    assert scores.grad is not None
    assert not scores.grad[~listed].any()


def test_margins_are_the_double_sum() -> None:
    scores, targets, listed = drawn(2)
    margins = []
    for s, g, kept in zip(scores.tolist(), targets.tolist(), listed.tolist(), strict=True):
        own = [i for i, k in enumerate(kept) if k]
        margins += [
            max(0.0, 0.3 * (g[i] - g[j]) + s[j] - s[i]) for i in own for j in own if g[i] > g[j]
        ]
    loss = margin_loss(scores, listed_batch(targets, listed), target_temperature=1 / 0.3)
    assert float(loss.detach()) == pytest.approx(np.mean(margins))
    alike = margin_loss(scores, listed_batch(torch.zeros_like(targets), listed))
    alike.backward()
    assert float(alike.detach()) == 0.0


def scored(count: int, negatives: int = 5) -> list[Example]:
    """Examples without positives: the reader likes the right passage best."""
    draw = np.random.default_rng(1)
    result = []
    for example in cipher_examples(count, negatives=negatives):
        listed = [Candidate(example.positives[0], "retrieved", target=4.0 + draw.random())]
        listed += [replace(c, role="retrieved", target=draw.random()) for c in example.negatives]
        result.append(
            replace(example, candidates=tuple(draw.permutation(np.array(listed, object))))
        )
    return result


def settings(tmp_path: Path, encoder: Path, **more: Any) -> DistillTrainConfig:
    given: dict[str, Any] = {
        "out": tmp_path / "run",
        "train_files": (tmp_path / "scored.json",),
        "question_encoder": str(encoder),
        "pooling": "mean",
        "normalize": True,
        "temperature": 0.2,
        "per_question": 5,
        "learning_rate": 3e-3,
        "validate_every_steps": 200,
    }
    return DistillTrainConfig(**{**TINY, **given, **more})


def test_it_learns_what_the_reader_likes(tmp_path: Path, tiny_bert: Path) -> None:
    examples = scored(240)
    constant = replace(
        examples[0], candidates=tuple(replace(c, target=1.0) for c in examples[0].candidates)
    )
    write_examples(tmp_path / "scored.json", [*examples, constant])
    finished = settings(
        tmp_path, tiny_bert, epochs=12, validation_fraction=0.1, batch_size=24
    ).train_model()
    assert falls(tmp_path / "run", 0.7, over=12)
    encoder = BiEncoder.load(finished)
    right = [max(e.candidates, key=lambda c: c.target or 0.0).passage for e in examples]
    questions = encoder.encode_questions([e.question for e in examples])
    passages = encoder.encode_passages([p.title for p in right], [p.text for p in right])
    ranks = (questions @ passages.T > np.sum(questions * passages, 1)[:, None]).sum(1)
    assert np.mean(1 / (1 + ranks)) > 0.15  # by chance 0.025
    assert "| training questions |" in named(finished, "distill")
