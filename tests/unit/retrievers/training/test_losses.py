"""Losses against loops in numpy."""

import math

import numpy as np
import pytest
import torch

from rag.core.errors import DataError
from retrievers.training.losses import in_batch_loss, pairwise_loss


def scores_of(rows: int, columns: int, seed: int) -> torch.Tensor:
    drawn = np.random.default_rng(seed).normal(scale=3, size=(rows, columns))
    return torch.from_numpy(drawn).requires_grad_()


@pytest.mark.parametrize("masked", [False, True])
def test_in_batch_loss_is_the_equation(masked: bool) -> None:
    scores = scores_of(5, 11, 0)
    draw = np.random.default_rng(1)
    positives = draw.permutation(11)[:5]
    ignored = draw.random((5, 11)) < (0.4 if masked else 0.0)
    ignored[np.arange(5), positives] = False
    values = scores.detach().numpy()
    expected = 0.0
    for i in range(5):
        kept = [math.exp(values[i, j]) for j in range(11) if not ignored[i, j]]
        expected -= math.log(math.exp(values[i, positives[i]]) / sum(kept)) / 5
    mask = torch.from_numpy(ignored) if masked else None
    loss = in_batch_loss(scores, torch.from_numpy(positives), mask)
    assert float(loss.detach()) == pytest.approx(expected, abs=1e-12)
    loss.backward()
    assert scores.grad is not None
    assert not scores.grad[torch.from_numpy(ignored)].any()
    assert torch.allclose(scores.grad.sum(1), torch.zeros(5, dtype=torch.float64))


def test_an_ignored_positive_is_refused() -> None:
    with pytest.raises(DataError, match="own positive"):
        in_batch_loss(torch.zeros(1, 2), torch.tensor([1]), torch.tensor([[False, True]]))


def test_pairwise_loss_is_a_softmax_of_two() -> None:
    draw = np.random.default_rng(3)
    good, bad = draw.normal(size=7), draw.normal(size=7)
    expected = -np.mean([math.log(math.exp(g) / (math.exp(g) + math.exp(b))) for g, b in zip(good, bad)])
    assert float(pairwise_loss(torch.from_numpy(good), torch.from_numpy(bad))) == pytest.approx(expected)
    extreme = pairwise_loss(torch.tensor([-1e4]), torch.tensor([1e4]))
    assert float(extreme) == 2e4  # no overflow
