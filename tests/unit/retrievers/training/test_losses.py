"""Losses against loops in numpy."""

import math

import numpy as np
import pytest
import torch

from rag.core.errors import DataError
from retrievers.training.losses import in_batch_loss, pairwise_loss


def test_an_ignored_positive_is_refused() -> None:
    with pytest.raises(DataError, match="own positive"):
        in_batch_loss(torch.zeros(1, 2), torch.tensor([1]), torch.tensor([[False, True]]))


def test_pairwise_loss_is_a_softmax_of_two() -> None:
    draw = np.random.default_rng(3)
    good, bad = draw.normal(size=7), draw.normal(size=7)
    expected = -np.mean(
        [math.log(math.exp(g) / (math.exp(g) + math.exp(b))) for g, b in zip(good, bad)]
    )
    assert float(pairwise_loss(torch.from_numpy(good), torch.from_numpy(bad))) == pytest.approx(
        expected
    )
    extreme = pairwise_loss(torch.tensor([-1e4]), torch.tensor([1e4]))
    assert float(extreme) == 2e4  # no overflow
