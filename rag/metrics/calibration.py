"""How well confidences match accuracy."""

from typing import TypedDict

import numpy as np
import numpy.typing as npt

from rag.core.arrays import Float64
from rag.core.errors import DataError

ROUNDING = 1e-6
"""A confidence may be so far outside of [0, 1]: sums of 32-bit numbers are."""


class Reliability(TypedDict):
    """How confidences and accuracy agree.

    Attributes:
        ece: expected calibration error: the mean gap between confidence and accuracy weighted by
            bin size.
        bins: of the non-empty ones, by rising confidence, low and high edge, n, mean confidence and
            accuracy.
    """

    ece: float
    n: int
    bins: list[dict[str, float]]


def checked_confidences(confidences: npt.ArrayLike) -> Float64:
    """Confidences (n,) within [0, 1], without what rounding adds to them.

    Raises:
        DataError: one is no probability.
    """
    confidence = np.asarray(confidences, np.float64)
    if not ((confidence >= -ROUNDING) & (confidence <= 1 + ROUNDING)).all():
        raise DataError(
            f"confidences must lie between 0 and 1, found {confidence.min():.3g} to {confidence.max():.3g}",
            hint="pass the calibrated confidence of an answer, not its score",
        )
    return confidence.clip(0, 1)


def measure_calibration(
    confidences: npt.ArrayLike, correct: npt.ArrayLike, *, bins: int = 15
) -> Reliability | None:
    """Reliability curve and ECE.

    Args:
        confidences: (n,) in [0, 1]; questions with NaN are left out.
        correct: (n,) 1 if the prediction was right, else 0 (or any figure in [0, 1]).
        bins: number of bins of equal width; a confidence on an edge belongs to the bin below it.

    Returns:
        None if no prediction is left.

    Example:
        >>> result = measure_calibration([0.9, 0.9, 0.9, 0.9], [1, 1, 1, 0], bins=10)
        >>> round(result["ece"], 3), result["bins"][0]["n"]
        (0.15, 4)

    Source: Guo et al., On Calibration of Modern Neural Networks, ICML 2017, equations 2 and 3.
    """
    confidence = np.asarray(confidences, np.float64)
    hit = np.asarray(correct, np.float64)
    is_defined = ~np.isnan(confidence) & ~np.isnan(hit)
    confidence = checked_confidences(confidence[is_defined])
    hit = hit[is_defined]
    n = len(confidence)
    if n == 0:
        return None
    edges = np.linspace(0.0, 1.0, bins + 1)
    bin_of = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, bins - 1)
    rows = []
    for index in np.unique(bin_of):
        inside = bin_of == index
        rows.append(
            {
                "low": float(edges[index]),
                "high": float(edges[index + 1]),
                "n": int(inside.sum()),
                "confidence": float(confidence[inside].mean()),
                "accuracy": float(hit[inside].mean()),
            }
        )
    ece = sum(abs(row["confidence"] - row["accuracy"]) * row["n"] for row in rows) / n
    return {"ece": ece, "n": n, "bins": rows}
