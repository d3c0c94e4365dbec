"""Retrieval figures: answer-string accuracy, trec_eval measures, average rank. One value per
question.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from rag.core.arrays import Float64
from rag.metrics import DEFAULT_MEASURES

# Questions that are scored at once.
_QUESTIONS = 256


def first_true(flags: Sequence[bool]) -> int | None:
    """1-based rank of the first True, or None."""
    return next((rank for rank, flag in enumerate(flags, start=1) if flag), None)


def rank_figures(ranks: Sequence[int | None], ks: Iterable[int]) -> dict[str, Float64]:
    """Top-k accuracy and reciprocal rank of every question.

    Args:
        ranks: (n,) 1-based rank of each question's first right passage; None where there is none.

    Returns:
        "top{k}" for every k and "mrr", each (n,).

    Example:
        >>> figures = rank_figures([1, 4, None], [1, 5])
        >>> figures["top1"].tolist(), figures["top5"].tolist(), figures["mrr"].tolist()
        ([1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 0.25, 0.0])
    """
    rank_of = np.array([math.inf if rank is None else rank for rank in ranks], dtype=np.float64)
    figures = {f"top{k}": (rank_of <= k).astype(np.float64) for k in ks}
    return {**figures, "mrr": 1.0 / rank_of}


def average_rank(
    questions: npt.NDArray[np.floating],
    passages: npt.NDArray[np.floating],
    positives: Sequence[Sequence[int]],
) -> float:
    """Mean number of pool passages that score above the gold one, those that tie with it counting
    half.

    0 is perfect; an encoder that gives every text the same vector gets half the pool; NaN scores
    count as worse than all others.

    Args:
        questions: (B, D).
        passages: (P, D), the pool.
        positives: rows of each question's positives, the gold one first; the others do not count.

    Source: Karpukhin et al. 2020 and its code: validation by the average rank of the gold passage.

    Example:
        >>> pool = np.float32([[1, 0], [0, 1], [2, 0]])
        >>> average_rank(np.float32([[1, 0], [0, 1]]), pool, [[0], [1]])
        0.5
    """
    total = 0.0
    for start in range(0, len(questions), _QUESTIONS):
        scores = questions[start : start + _QUESTIONS] @ passages.T  # (b, P)
        for row, positive_rows in enumerate(positives[start : start + _QUESTIONS]):
            others = np.delete(scores[row], list(positive_rows))
            gold = scores[row, positive_rows[0]]
            total += len(others) - np.count_nonzero(others < gold)
            total -= np.count_nonzero(others == gold) / 2
    return float(total) / max(1, len(questions))


def trec_measures(
    rankings: Mapping[str, Sequence[str]],
    qrels: Mapping[str, Mapping[str, int]],
    measures: Sequence[str] = DEFAULT_MEASURES,
) -> dict[str, dict[str, float]]:
    """Recall, MRR, MAP, nDCG, … of every question by trec_eval's rules.

    Args:
        rankings: question id → passage ids, each once, the best first.
        qrels: question id → passage id → grade. Questions without a relevant passage are left out
            of the result; questions without a ranking score 0.
        measures: names in the syntax of ir_measures ("R@20", "RR", "AP", "nDCG@10", "P@5",
            "Success@5", …).

    Returns:
        measure → question id → value.

    Example:
        >>> scores = trec_measures({"q": ["a", "b"]}, {"q": {"b": 1}}, ["RR", "R@1"])
        >>> scores["RR"]["q"], scores["R@1"]["q"]
        (0.5, 0.0)
    """
    import ir_measures as ir

    judged: dict[str, dict[str, int]] = {}
    run: dict[str, dict[str, float]] = {}
    for question, grades in qrels.items():
        if max(grades.values(), default=0) > 0:
            judged[question] = dict(grades)
            # Scores fall with the rank: trec_eval orders by them, and ties in its own way.
            ranking = rankings.get(question, ())
            run[question] = {passage: -float(rank) for rank, passage in enumerate(ranking)}
    # Two names may mean one measure, as RR and MRR do.
    parsed = {name: ir.parse_measure(name) for name in measures}
    values = {measure: dict.fromkeys(judged, 0.0) for measure in parsed.values()}
    for metric in ir.iter_calc([*values], judged, run):
        values[metric.measure][metric.query_id] = float(metric.value)
    return {name: values[measure] for name, measure in parsed.items()}
