"""KILT's figures: page-level R-precision and recall@k over evidence sets, EM, F1, accuracy, and their KILT
versions, which count an example only if its evidence was ranked perfectly.

Source: Petroni et al., KILT, NAACL 2021, section 4.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rag.data.text import exact_match, f1


def evidence_sets(provenance: Iterable[Iterable[Mapping[str, Any]]]) -> list[frozenset[str]]:
    """Distinct non-empty sets of page ids that support an answer, in file order.

    Args:
        provenance: lists of places `{wikipedia_id, …}`.
    """
    sets = (
        frozenset(str(place.get("wikipedia_id") or "").strip() for place in places) for places in provenance
    )
    return [pages for pages in dict.fromkeys(sets) if pages]


def r_precision(pages: Sequence[str], gold_sets: Iterable[frozenset[str]]) -> float:
    """Best over evidence sets of the share of the set found in the first R distinct pages, R = its size.

    Example:
        >>> r_precision(["a", "a", "b", "c"], [frozenset({"a", "c"}), frozenset({"b", "x", "y"})])
        0.5
    """
    distinct = list(dict.fromkeys(page.strip() for page in pages))
    return max(
        (len(gold.intersection(distinct[: len(gold)])) / len(gold) for gold in gold_sets if gold), default=0.0
    )


def recall_at_k(pages: Sequence[str], gold_sets: Sequence[frozenset[str]], k: int) -> float:
    """Share of evidence sets that are complete among the first k points of the ranking.

    A set is one point of the ranking, at the rank of its last page; its other pages, which come before,
    are not counted as points.

    Example:
        >>> recall_at_k(["a", "x", "b"], [frozenset({"a", "b"})], 2)
        1.0
    """
    if not gold_sets:
        return 0.0
    missing = [set(gold) for gold in gold_sets]
    points: list[int | None] = []  # the set that a page belongs to, by number; None for other pages
    for page in map(str.strip, pages):
        numbers = [number for number, rest in enumerate(missing) if page in rest]
        for number in numbers:
            missing[number].discard(page)
        points += numbers or [None]
    last = {number: place for place, number in enumerate(points)}
    ranking = [number for place, number in enumerate(points) if number is None or place == last[number]]
    complete = sum(number is not None and not missing[number] for number in ranking[:k])
    return complete / len(gold_sets)


def score_pages(pages: Sequence[str], sets: Sequence[frozenset[str]], ks: Sequence[int]) -> dict[str, float]:
    """R-precision and recall@k of a question's retrieved pages, best first."""
    return {
        "r_precision": r_precision(pages, sets),
        **{f"recall@{k}": recall_at_k(pages, sets, k) for k in ks},
    }


def score_answers(answer: str, answers: Iterable[str], r_precision: float) -> dict[str, float]:
    """EM, F1 and accuracy of an answer; with "kilt_" before the name 0 unless the R-precision is 1."""
    answer, accepted = answer.strip(), {text for each in answers if (text := each.strip())}
    scores = {
        "accuracy": float(answer in accepted),
        "em": float(exact_match(answer, accepted, "kilt")),
        "f1": f1(answer, accepted, "kilt"),
    }
    return scores | {f"kilt_{name}": value * (r_precision == 1.0) for name, value in scores.items()}
