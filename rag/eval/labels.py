"""Plain words for the figures, in the terminal and in the report."""

import re
from collections.abc import Mapping
from typing import Any

_FIXED = {
    "em": ("Exact match", "first answer equals an accepted one after normalisation"),
    "f1": ("Token F1", "word overlap of the first answer with the best accepted one"),
    "prec": ("Answer precision", "share of predicted words that are right"),
    "recall": ("Answer recall", "share of accepted words that are predicted"),
    "sp_em": ("Supporting facts EM", "the set of supporting sentences is exactly right"),
    "sp_f1": ("Supporting facts F1", "overlap of supporting sentences"),
    "sp_prec": ("Supporting facts precision", ""),
    "sp_recall": ("Supporting facts recall", ""),
    "joint_em": ("Joint EM", "answer and supporting facts both exactly right"),
    "joint_f1": ("Joint F1", "answer and supporting facts together"),
    "joint_prec": ("Joint precision", ""),
    "joint_recall": ("Joint recall", ""),
    "accuracy": ("Strict accuracy", "equal without normalisation"),
    "kilt_em": ("KILT EM", "exact match, counted only with perfect evidence"),
    "kilt_f1": ("KILT F1", "F1, counted only with perfect evidence"),
    "kilt_accuracy": ("KILT accuracy", "strict accuracy, counted only with perfect evidence"),
    "r_precision": ("R-precision", "gold pages among the first R pages"),
    "n_best_em": ("Any of the n best", "one of all answers returned is right"),
    "answered": ("Answered", "the best answer is more likely than “no answer”"),
    "gold_span_em": ("Ceiling of reading", "an accepted answer stands in the passages that were read"),
    "mrr": ("Reciprocal rank of the answer", "1 / rank of the first passage that holds an answer"),
    "RR": ("Reciprocal rank of the gold", "1 / rank of the first gold passage"),
    "AP": ("Average precision", "over gold passages"),
}

_PATTERNS = (
    (r"top(\d+)", "Answer in top {}", "an accepted answer stands in one of the first {} passages"),
    (r"R@(\d+)", "Gold recall at {}", "share of gold passages among the first {}"),
    (r"recall@(\d+)", "Evidence recall at {}", "share of evidence sets complete among the first {} pages"),
    (r"nDCG@(\d+)", "nDCG at {}", "graded ranking quality of the first {}"),
    (r"P@(\d+)", "Precision at {}", "share of gold among the first {}"),
    (r"passage_em@(\d+)", "All gold passages in top {}", "every passage that is needed was retrieved"),
    (r"passage_any@(\d+)", "Any gold passage in top {}", "at least one of them was retrieved"),
    (r"path_em@(\d+)", "Right path in top {}", "one of the first {} paths is exactly the gold passages"),
    (r"path_cover@(\d+)", "All gold passages in {} paths", "every passage that is needed is in one of them"),
    (r"hop1_recall@(\d+)", "First gold passage in {} paths", "in the order of the question set"),
    (r"hop2_recall@(\d+)", "Second gold passage in {} paths", "in the order of the question set"),
    (r"passage_recall@(\d+)", "Share of gold passages in top {}", "of multi-hop questions"),
)
_MAIN = (  # most telling first
    *("em", "f1", "sp_f1", "joint_f1", "kilt_em", "r_precision", "top1", "top5", "top20", "top100", "mrr"),
    *("path_em@1", "path_cover@20", "passage_em@2", "passage_em@20", "passage_em@100"),
)
_BY_GOLD = ("nDCG@10", "RR", "R@5", "R@20", "R@100")  # where it is known which passages are right


def describe(name: str) -> tuple[str, str]:
    """Title and explanation of a figure; an unknown name as it is."""
    if name in _FIXED:
        return _FIXED[name]
    for pattern, title, note in _PATTERNS:
        match = re.fullmatch(pattern, name)
        if match:
            if match[1] == "1":
                note = note.replace("one of the first {} passages", "the first passage")
            return title.format(match[1]), note.format(match[1])
    return name, ""


def main_figures(figures: Mapping[str, Any], limit: int = 5) -> list[str]:
    """The figures for the top of the page: those that exist, most telling first."""
    return [name for name in (*_MAIN, *_BY_GOLD) if name in figures][:limit]


def percent(value: float | None, digits: int = 1) -> str:
    """A share as per cent, "–" if undefined.

    Example:
        >>> percent(0.41234), percent(None)
        ('41.2 %', '–')
    """
    return "–" if value is None else f"{100 * value:.{digits}f} %"


def with_interval(figure: Mapping[str, Any]) -> str:
    """A share with its interval: "41.2 % (38.6–43.9)"."""
    if figure.get("value") is None:
        return "–"
    return f"{percent(figure['value'])} ({100 * figure['low']:.1f}–{100 * figure['high']:.1f})"
