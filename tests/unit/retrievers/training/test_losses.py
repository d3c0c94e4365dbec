"""Losses against loops in numpy."""

import math

import numpy as np
import pytest
import torch

from retrievers.examples.batches import IGNORED, NEGATIVE, OTHER, POSITIVE, RetrieverBatch
from retrievers.training.losses import pairwise_loss


def test_pairwise_loss_is_a_softmax_of_two() -> None:
    """Of each question's positive and each of its negatives, and of nothing else."""
    draw = np.random.default_rng(3)
    scores = draw.normal(size=(7, 9))
    labels = draw.choice([IGNORED, OTHER, NEGATIVE], (7, 9))
    labels[np.arange(7), np.arange(7)] = POSITIVE
    pairs = [(scores[row, row], scores[row, c]) for row, c in np.argwhere(labels == NEGATIVE)]
    expected = -np.mean(
        [math.log(math.exp(good) / (math.exp(good) + math.exp(bad))) for good, bad in pairs]
    )
    batch = RetrieverBatch([], [], torch.from_numpy(labels))
    assert float(pairwise_loss(torch.from_numpy(scores), batch)) == pytest.approx(expected)
    extreme = torch.tensor([[-1e4, 1e4]])
    batch = RetrieverBatch([], [], torch.tensor([[POSITIVE, NEGATIVE]]))
    assert float(pairwise_loss(extreme, batch)) == 2e4  # no overflow


def test_a_batch_without_mined_negatives_teaches_nothing() -> None:
    """It ends no run: mining finds none for a question whose passages all answer it."""
    scores = torch.ones(2, 3, requires_grad=True)
    labels = torch.tensor([[POSITIVE, OTHER, IGNORED], [OTHER, POSITIVE, OTHER]])
    loss = pairwise_loss(scores, RetrieverBatch([], [], labels))
    loss.backward()
    assert loss.item() == 0
    assert scores.grad is not None
    assert not scores.grad.any()
