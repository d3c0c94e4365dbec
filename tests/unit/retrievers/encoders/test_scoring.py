"""Scores of packed vectors against loops over single texts."""

import pytest
import torch

from retrievers.encoders import vectors as scoring
from retrievers.encoders.vectors import Vectors

QUESTION_LENGTHS, PASSAGE_LENGTHS = [2, 4, 1], [3, 1, 5, 2]


def packed(lengths: list[int], seed: int) -> Vectors:
    draw = torch.Generator().manual_seed(seed)
    values = torch.randn(sum(lengths), 6, generator=draw, dtype=torch.float64).requires_grad_()
    return Vectors(values, torch.tensor(lengths))


def brute_force(questions: Vectors, passages: Vectors) -> torch.Tensor:
    return torch.stack(
        [
            torch.stack(
                [
                    sum(max(i @ j for j in p) for i in q)
                    for p in passages.values.split(PASSAGE_LENGTHS)
                ]
            )
            for q in questions.values.split(QUESTION_LENGTHS)
        ]
    )


@pytest.mark.parametrize("block", [1, 24, 1 << 24])
def test_max_sim_equals_brute_force_and_so_do_its_gradients(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "_BLOCK_NUMBERS", block)
    questions, passages = packed(QUESTION_LENGTHS, 1), packed(PASSAGE_LENGTHS, 2)
    actual, expected = scoring.score(questions, passages), brute_force(questions, passages)
    torch.testing.assert_close(actual, expected)
    weight = torch.randn(3, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    sides = [questions.values, passages.values]
    ours = torch.autograd.grad((actual * weight).sum(), sides)
    theirs = torch.autograd.grad((expected * weight).sum(), sides)
    for item, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(item, other)
