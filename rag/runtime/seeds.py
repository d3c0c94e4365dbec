"""Random generators from a seed that is passed in."""

import random

import numpy as np
import torch


def seed_everything(seed: int) -> None:
    """Seed Python's, numpy's and torch's global generators: third-party code draws from them."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    torch.manual_seed(seed)


def seed_torch(*keys: int) -> None:
    """Seed torch's generators, from which dropout draws, with a tuple of keys, such as (seed, step, rank)."""
    torch.manual_seed(int(generator(*keys).integers(1 << 62)))


def generator(*keys: int) -> np.random.Generator:
    """A numpy generator for a tuple of keys, such as (seed, step).

    Equal keys always give equal streams, so any step of a run can be redone without replaying those before.

    Example:
        >>> bool(generator(7, 3).integers(1000) == generator(7, 3).integers(1000))
        True
    """
    return np.random.default_rng(keys)
