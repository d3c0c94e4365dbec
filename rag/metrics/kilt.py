"""KILT's figures: page-level R-precision and recall@k over evidence sets, EM, F1, accuracy, ROUGE-L, and
their KILT versions, which count an example only if its evidence was ranked perfectly.

Source: Petroni et al., KILT, NAACL 2021, section 4.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from rag.core.types import Passage
from rag.data.split import document_of
from rag.data.text import exact_match, f1

PageKind = Literal["document", "passage", "title"]


def page_of(passage: Passage, kind: PageKind = "document") -> str:
    """The page a passage was cut from.

    Args:
        passage: from an index over KILT's knowledge source, whose document ids are page ids.
        kind: "document" for passages named `PAGE-n` (the ids that `rag index` gives to parts of a document),
            "passage" if passages are whole pages with the page's id, "title" for passages with other ids
            (psgs_w100): then pages are identified by title, and the figures are not the official ones.

    Example:
        >>> page_of(Passage("290-12", "A", "…")), page_of(Passage("290", "A", "…"))
        ('290', '290')
    """
    if kind == "title":
        return passage.title
    return document_of(passage.id) if kind == "document" else passage.id


def evidence_sets(
    provenance: Iterable[Iterable[Mapping[str, Any]]], kind: PageKind = "document"
) -> list[frozenset[str]]:
    """Distinct non-empty sets of pages that support an answer, in file order.

    Args:
        provenance: lists of places `{wikipedia_id, title, …}`.
        kind: pages are page ids, for the kind "title" titles.
    """

    def page(place: Mapping[str, Any]) -> str:
        name = place.get("title") if kind == "title" else None
        return str(name or place.get("wikipedia_id") or "").strip()

    sets = (frozenset(map(page, places)) for places in provenance)
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
        found = [number for number, rest in enumerate(missing) if page in rest]
        for number in found:
            missing[number].discard(page)
        points += found or [None]
    last = {number: place for place, number in enumerate(points)}
    ranking = [number for place, number in enumerate(points) if number is None or place == last[number]]
    complete = sum(number is not None and not missing[number] for number in ranking[:k])
    return complete / len(gold_sets)


def rouge_l(prediction: str, reference: str) -> float:
    """Sentence-aware ROUGE-L F1 on blank-separated words: union of longest common subsequences.

    Text is cut into sentences at every full stop; for each sentence of the reference, the words that lie on a
    longest common subsequence with any sentence of the prediction are collected, and each distinct word
    counts once.

    Example:
        >>> round(rouge_l("the cat sat", "the cat sat down"), 4)
        0.8571

    Source: Lin, ROUGE, 2004, section 3.2.
    Note: only distinct words are counted, in the denominators too, as in the implementation that KILT calls.
    """
    predicted = _sentences(prediction)
    expected = _sentences(reference)
    predicted_words = {word for sentence in predicted for word in sentence}
    expected_words = {word for sentence in expected for word in sentence}
    if not predicted_words or not expected_words:
        return 0.0
    shared: set[str] = set()
    for gold_sentence in expected:
        for sentence in predicted:
            shared.update(_common_subsequence(gold_sentence, sentence))
    precision, recall = len(shared) / len(predicted_words), len(shared) / len(expected_words)
    return 2.0 * precision * recall / (precision + recall + 1e-8)


def _sentences(text: str) -> list[list[str]]:
    # A sentence of blanks only is one empty word, as in the implementation that KILT calls.
    return [" ".join(sentence.split()).split(" ") for sentence in text.split(".") if sentence]


def _common_subsequence(a: Sequence[str], b: Sequence[str]) -> list[str]:
    lengths = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, left in enumerate(a):
        for j, right in enumerate(b):
            lengths[i + 1][j + 1] = (
                lengths[i][j] + 1 if left == right else max(lengths[i][j + 1], lengths[i + 1][j])
            )
    words = []
    i, j = len(a), len(b)
    while i and j:
        if a[i - 1] == b[j - 1]:
            words.append(a[i - 1])
            i, j = i - 1, j - 1
        elif lengths[i - 1][j] > lengths[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return words


def score_kilt(
    answer: str,
    pages: Sequence[str],
    answers: Iterable[str],
    sets: Sequence[frozenset[str]],
    *,
    ks: Sequence[int] = (1, 5),
) -> dict[str, float]:
    """Figures of one question.

    Args:
        pages: retrieved pages, best first.
        answers: accepted answers.
        sets: see `evidence_sets`.
    """
    answer, answers = answer.strip(), {text for one in answers if (text := one.strip())}
    scores = {
        "accuracy": float(answer in answers),
        "em": float(exact_match(answer, answers, "kilt")),
        "f1": f1(answer, answers, "kilt"),
        "rouge_l": max((rouge_l(answer, reference) for reference in answers), default=0.0),
    }
    precision = r_precision(pages, sets)
    scores |= {f"kilt_{name}": value * (precision == 1.0) for name, value in scores.items()}
    scores["r_precision"] = precision
    scores |= {f"recall@{k}": recall_at_k(pages, sets, k) for k in ks}
    return scores
