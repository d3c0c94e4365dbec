"""A moving average of the weights: often better than the last step's, and steadier."""

from __future__ import annotations

import torch

from rag.training.precision import MasterWeights

__all__ = ["MovingAverage"]


class MovingAverage:
    """avg ← d·avg + (1 − d)·weights after every step, in fp32.

    The decay d is `decay`, but at most (1 + n)/(10 + n) after n steps, so that the start is soon forgotten.

    Args:
        master: the weights.
        decay: below 1.

    Attributes:
        tensors: name → average.
    """

    def __init__(self, master: MasterWeights, decay: float) -> None:
        self.decay = decay
        self.tensors = {name: tensor.clone() for name, tensor in master.state().items()}

    @torch.no_grad()
    def update(self, master: MasterWeights, step: int) -> None:
        """Take the weights of `step` (from 1) in."""
        weight = 1.0 - min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.tensors.values()), list(master.state().values()), weight)
