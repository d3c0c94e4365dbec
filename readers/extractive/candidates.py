"""From spans in many windows to the different answers of one question, and how sure each is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from rag.data.text import normalize_answer
from readers.extractive.settings import Calibration, ReaderSettings

__all__ = ["Candidate", "confidences", "distinct", "retrieval_prior"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A span of one passage: characters `start` to `end` (exclusive) and its score."""

    passage_index: int
    start: int
    end: int
    text: str
    score: float


def retrieval_prior(scores: Sequence[float], weight: float) -> Floats:
    """−weight·ln(1 + rank) for each passage, rank 0 for the highest retrieval score; equal scores share a
    rank.

    Ranks, not scores, because BM25, cosine and fused scores live on different scales.

    Example:
        >>> retrieval_prior([0.2, 0.9, 0.2], 1.0).round(2).tolist()
        [-0.69, -0.0, -0.69]
    """
    values = np.asarray(scores, np.float64)
    ranks = (values[None, :] > values[:, None]).sum(axis=1)
    return np.asarray(-weight * np.log1p(ranks), np.float64)


def distinct(
    ordered: Sequence[tuple[float, int, int]],
    resolve: Callable[[int, int], Candidate],
    settings: ReaderSettings,
) -> list[Candidate]:
    """Different answers, best first, from spans that come best first.

    A span is dropped if its normalised text is that of a better one (under merge="sum" its score is added
    to the better one's, once per passage), or if it overlaps a better one in the same passage.

    Args:
        ordered: (score, row, rank in row), by descending score.
        resolve: turns row and rank into a `Candidate` (its score is replaced).
        settings: gives `candidates` and `merge`.
    """
    kept: list[Candidate] = []
    by_text: dict[str, int] = {}
    counted: set[tuple[str, int]] = set()
    for score, row, rank in ordered:
        candidate = replace(resolve(row, rank), score=score)
        key = normalize_answer(candidate.text) or candidate.text
        at = by_text.get(key)
        if at is not None:
            if settings.merge == "sum" and (key, candidate.passage_index) not in counted:
                counted.add((key, candidate.passage_index))
                kept[at] = replace(kept[at], score=float(np.logaddexp(kept[at].score, score)))
            continue
        if any(_overlap(candidate, other) for other in kept):
            continue
        if len(kept) < settings.candidates:
            by_text[key] = len(kept)
            counted.add((key, candidate.passage_index))
            kept.append(candidate)
    return sorted(kept, key=lambda c: -c.score)


def _overlap(one: Candidate, other: Candidate) -> bool:
    return one.passage_index == other.passage_index and one.start < other.end and other.start < one.end


def confidences(scores: Floats, null: float | None, calibration: Calibration) -> tuple[Floats, float]:
    r"""Probabilities of the candidates and of "no answer here".

        p_i = exp(z_i / T) / (Σ_j exp(z_j / T) + exp(z_0 / T + b)),  p_0 likewise

    with z_0 the null score, T the temperature and b the null bias; without a null score p_0 = 0.

    Example:
        >>> p, none = confidences(np.array([2.0, 0.0]), 0.0, Calibration())
        >>> p.round(3).tolist(), round(none, 3)
        ([0.787, 0.107], 0.107)
    """
    logits = np.asarray(scores, np.float64) / calibration.temperature
    extra = -np.inf if null is None else null / calibration.temperature + calibration.null_bias
    everything = np.append(logits, extra)
    if not np.isfinite(everything).any():
        return np.zeros(len(logits)), 1.0
    weights = np.exp(everything - everything.max())
    weights /= weights.sum()
    return weights[:-1], float(weights[-1])
