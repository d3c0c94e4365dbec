"""Random generators from a seed that is passed in."""

from enum import IntEnum, unique

import numpy as np


@unique
class Stream(IntEnum):
    """What random numbers of a run are for, so that two uses never draw the same numbers."""

    ADAPTED_PASSAGES = 1
    # The order of examples, and what a batch takes of its examples.
    ORDER = 2
    BATCH = 3
    VALIDATION = 4
    CALIBRATION = 5
    RANGES = 7
    EPOCH = 21
    NEGATIVES = 22
    CANDIDATES = 23
    POSITIVES = 24
    CLAIMS = 30
    PAIRS = 31
    HELD_OUT = 32
    HELD_OUT_PAIRS = 33
    FREQUENCIES = 41
    MASKED = 51
    SAMPLE = 52
    SAMPLE_MASKED = 53


def generator(*keys: int) -> np.random.Generator:
    """A numpy generator for a tuple of keys, such as (seed, stream, step).

    Equal keys always give equal streams, so any step of a run can be redone without replaying those
    before.

    Example:
        >>> bool(generator(7, 3).integers(1000) == generator(7, 3).integers(1000))
        True
    """
    return np.random.default_rng(keys)
