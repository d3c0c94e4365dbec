"""Numbers from lists of predictions: answers, rankings, calibration, significance, HotpotQA, KILT.

Here are cut-offs and measures of rankings, light, so that a command's help can show them.
"""

from collections.abc import Iterable

from rag.core.errors import ConfigError

DEFAULT_MEASURES = ("R@5", "R@20", "R@100", "RR", "AP", "nDCG@10")


def check_ks(ks: Iterable[int]) -> tuple[int, ...]:
    """Sorted distinct cut-offs; a ConfigError where there are none, or one is below 1."""
    cutoffs = tuple(sorted(set(ks)))
    if not cutoffs or cutoffs[0] < 1:
        raise ConfigError(f"cut-offs k are {list(cutoffs)}, expected at least one, each 1 or more")
    return cutoffs
