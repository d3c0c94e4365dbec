"""Random generators from a seed that is passed in."""

import numpy as np


def generator(*keys: int) -> np.random.Generator:
    """A numpy generator for a tuple of keys, such as (seed, step).

    Equal keys always give equal streams, so any step of a run can be redone without replaying those
    before.

    Example:
        >>> bool(generator(7, 3).integers(1000) == generator(7, 3).integers(1000))
        True
    """
    return np.random.default_rng(keys)
