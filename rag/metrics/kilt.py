"""KILT's figures: R-precision and recall@k of pages over evidence sets; answers count if these are
perfect.

Source: Petroni et al., KILT, NAACL 2021, section 4.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rag.data.text import exact_match, f1


def evidence_sets(provenance: Iterable[Iterable[Mapping[str, Any]]]) -> list[frozenset[str]]:
    """Distinct non-empty sets of page ids that support an answer, of places `{wikipedia_id, …}`."""
    sets = (
        frozenset(str(it.get("wikipedia_id") or "").strip() for it in places)
        for places in provenance
    )
    return [pages for pages in dict.fromkeys(sets) if pages]


def score_pages(
    pages: Sequence[str], sets: Sequence[frozenset[str]], ks: Sequence[int]
) -> dict[str, float]:
    """R-precision and recall@k of a question's retrieved pages, best first.

    R-precision is the best over evidence sets of the share of the set among the first R distinct
    pages, R = its size. Recall is the share of sets that are complete among the first k points of
    the ranking: a set is one point, at the rank of its last page, and its other pages are none.

    Example:
        >>> score_pages(["a", "x", "b"], [frozenset({"a", "b"})], [1, 2])
        {'r_precision': 0.5, 'recall@1': 0.0, 'recall@2': 1.0}
    """
    distinct = list(dict.fromkeys(page.strip() for page in pages))
    shares = (len(gold.intersection(distinct[: len(gold)])) / len(gold) for gold in sets)
    missing = [set(gold) for gold in sets]
    points: list[int | None] = []  # the set that a page belongs to, by number; None for other pages
    for page in map(str.strip, pages):
        numbers = [number for number, rest in enumerate(missing) if page in rest]
        for number in numbers:
            missing[number].discard(page)
        points += numbers or [None]
    last = {number: place for place, number in enumerate(points)}
    ranking = [
        number for place, number in enumerate(points) if number is None or place == last[number]
    ]
    recalls = {
        f"recall@{k}": sum(it is not None and not missing[it] for it in ranking[:k])
        / max(1, len(sets))
        for k in ks
    }
    return {"r_precision": max(shares, default=0.0), **recalls}


def score_answers(answer: str, answers: Iterable[str], r_precision: float) -> dict[str, float]:
    """EM, F1 and accuracy of an answer; with "kilt_" before the name 0 unless the R-precision is
    1.
    """
    answer, accepted = answer.strip(), {text for each in answers if (text := each.strip())}
    right = float(answer in accepted), float(exact_match(answer, accepted, "kilt"))
    scores = {"accuracy": right[0], "em": right[1], "f1": f1(answer, accepted, "kilt")}
    return scores | {f"kilt_{name}": value * (r_precision == 1.0) for name, value in scores.items()}
