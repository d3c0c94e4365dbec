"""KILT's figures: R-precision and recall@k of pages over evidence sets; answers count if these are
perfect.

Source: Petroni et al., KILT, NAACL 2021, section 4.
"""

from collections.abc import Iterable, Mapping, Sequence

from rag.data.text import exact_match, f1


def evidence_sets(provenance: Iterable[Iterable[Mapping[str, object]]]) -> list[frozenset[str]]:
    """Distinct non-empty sets of page ids that support an answer, of places `{wikipedia_id, …}`."""
    sets: dict[frozenset[str], None] = {}
    for places in provenance:
        pages = frozenset(str(page.get("wikipedia_id") or "").strip() for page in places)
        if pages:
            sets[pages] = None
    return list(sets)


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
    pages = [page.strip() for page in pages]
    distinct = list(dict.fromkeys(pages))
    shares = [len(gold.intersection(distinct[: len(gold)])) / len(gold) for gold in sets]
    missing = [set(gold) for gold in sets]
    # The number of the set that the page of a rank belongs to; None for other pages.
    points: list[int | None] = []
    for page in pages:
        numbers = [number for number, rest in enumerate(missing) if page in rest]
        for number in numbers:
            missing[number].discard(page)
        points += numbers or [None]
    last = {number: rank for rank, number in enumerate(points)}
    is_complete = []
    for rank, point in enumerate(points):
        if point is None:
            is_complete.append(False)
        elif rank == last[point]:
            is_complete.append(not missing[point])
    scores = {"r_precision": max(shares, default=0.0)}
    for k in ks:
        scores[f"recall@{k}"] = sum(is_complete[:k]) / max(1, len(sets))
    return scores


def score_answers(answer: str, answers: Iterable[str], r_precision: float) -> dict[str, float]:
    """EM, F1 and accuracy of an answer; with "kilt_" before the name 0 unless the R-precision is
    1.
    """
    answer = answer.strip()
    accepted = {text.strip() for text in answers} - {""}
    scores = {
        "accuracy": float(answer in accepted),
        "em": float(exact_match(answer, accepted, "kilt")),
        "f1": f1(answer, accepted, "kilt"),
    }
    for name, value in list(scores.items()):
        scores[f"kilt_{name}"] = value * (r_precision == 1.0)
    return scores
