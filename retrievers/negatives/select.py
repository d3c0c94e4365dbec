"""From hits to hard negatives: merge the sources by rank, filter."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from indexers.gold import text_key
from rag.core.types import Hit, Passage
from rag.data.text import AnswerMatcher


@dataclass(frozen=True, slots=True)
class Proposal:
    """A hit that may become a negative.

    Attributes:
        row: row in the corpus.
        source: "bm25" or "dense"; "bm25+dense" if both retrieved it, the one with the better rank first.
        rank: 1-based, in the search named first.
        score: score from the search named first.
    """

    row: int
    source: str
    rank: int
    score: float


def candidates_by_rank(
    retrieved: Mapping[str, Sequence[Hit]], first_rank: int, last_rank: int
) -> list[Proposal]:
    """Hits of ranks first … last of every source, interleaved by rank, each passage once.

    Example:
        >>> bm25, dense = [Hit(7, "g", 9.0), Hit(3, "c", 8.0)], [Hit(3, "c", 0.5)]
        >>> [(c.row, c.source) for c in candidates_by_rank({"bm25": bm25, "dense": dense}, 1, 2)]
        [(7, 'bm25'), (3, 'dense+bm25')]
    """
    merged: dict[int, Proposal] = {}
    for rank in range(first_rank, last_rank + 1):
        for source, hits in retrieved.items():
            if rank > len(hits):
                continue
            hit = hits[rank - 1]
            present = merged.get(hit.row)
            if present is None:
                merged[hit.row] = Proposal(hit.row, source, rank, hit.score)
            else:
                merged[hit.row] = replace(present, source=f"{present.source}+{source}")
    return list(merged.values())


class NegativeFilter:
    """Removes passages that are not negatives: the positives, their copies, passages with an answer.

    Args:
        matcher: finds the question's answers; None keeps passages with an answer.
        positive_rows: rows of the positives.
        positive_texts: texts of the positives, of the corpus or not.
        removed: number of removed passages by reason, to be added to.
    """

    def __init__(
        self,
        matcher: AnswerMatcher | None,
        positive_rows: Collection[int],
        positive_texts: Sequence[str],
        removed: Counter[str],
    ) -> None:
        self._matcher = matcher
        self._rows = set(positive_rows)
        self._texts = {text_key(text) for text in positive_texts}
        self._removed = removed

    def accepts(self, row: int, passage: Passage) -> bool:
        """Whether the passage may be a negative of this question."""
        if row in self._rows or text_key(passage.text) in self._texts:
            self._removed["gold"] += 1
            return False
        if self._matcher is not None and self._matcher.matches(passage.text):
            self._removed["answer"] += 1
            return False
        return True


def below_margin(
    candidates: Sequence[Proposal],
    scores: np.ndarray,
    positive_score: float,
    margin: float,
    removed: Counter[str],
) -> list[Proposal]:
    """Candidates whose model score (n,) is below the positive's by a margin: s ≤ s⁺ − (1 − margin) · |s⁺|.

    Source: Moreira et al. 2024, "NV-Retriever: Improving text embedding models with effective hard-negative
        mining", TopK-PercPos; the form with |s⁺| is the same for positive scores and right for negative ones.
    """
    limit = positive_score - (1 - margin) * abs(positive_score)
    kept = [candidate for candidate, score in zip(candidates, scores.tolist(), strict=True) if score <= limit]
    removed["margin"] += len(candidates) - len(kept)
    return kept
