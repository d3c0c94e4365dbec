"""From scored rows to each question's candidates, best first, and its "no answer here" score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rag.core.types import Passage
from readers.extractive.candidates import Candidate, distinct, retrieval_prior
from readers.extractive.inference import RowScores
from readers.extractive.layout import Row
from readers.extractive.requests import Pair
from readers.extractive.settings import ReaderSettings
from readers.extractive.tokens import TokenTable

__all__ = ["Ranked", "ScoredPassages", "rank"]

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ScoredPassages:
    """The network's whole output for a list of questions; ranking it again costs next to nothing.

    Attributes:
        questions: how many questions.
        pairs, unique: (question, place, unique passage) triples and the unique passages.
        texts: tokens of the unique passages' texts.
        rows, scores: windows of the pairs, and what the network says of each.
        selects_passages: whether `scores.relevances` decide between passages (DPR).
        extend: (V,) bool, tokens that continue a word, if answers are to be extended to whole words.
    """

    questions: int
    pairs: list[Pair]
    unique: list[Passage]
    texts: TokenTable
    rows: list[Row]
    scores: RowScores
    selects_passages: bool
    extend: npt.NDArray[np.bool_] | None


@dataclass(frozen=True, slots=True)
class Ranked:
    """One question's different answers, best first, and its null score (None: the model has none)."""

    candidates: list[Candidate]
    null: float | None


def rank(
    scored: ScoredPassages, retrieval: Sequence[Sequence[float]], settings: ReaderSettings
) -> list[Ranked]:
    """Rank the spans of every question across its passages.

    Args:
        scored: output of the network.
        retrieval: for each question the retrieval scores of its passages.
        settings: `retrieval_weight`, `merge`, `null` and `candidates` are read.
    """
    mine: list[list[int]] = [[] for _ in range(scored.questions)]
    for index, row in enumerate(scored.rows):
        mine[scored.pairs[row.group][0]].append(index)
    results = []
    for question, indices in enumerate(mine):
        chosen = np.array(indices, np.int64)
        place = np.array([scored.pairs[scored.rows[i].group][1] for i in indices], np.int64)
        if len(chosen) == 0:
            results.append(Ranked([], None))
            continue
        candidates = _candidates(scored, chosen, place, retrieval[question], settings)
        results.append(Ranked(candidates, _null(scored, chosen, place, settings, candidates)))
    return results


def _candidates(
    scored: ScoredPassages, chosen: Ints, place: Ints, retrieval: Sequence[float], settings: ReaderSettings
) -> list[Candidate]:
    """`chosen` rows of one question; `place` tells which of its passages each row belongs to."""
    values = scored.scores.spans[chosen].astype(np.float64)  # (r, K)
    if scored.selects_passages:
        # the best span of each passage scores its selection logit, its other spans less by what they lack
        relevance = np.full(int(place.max()) + 1, -np.inf)
        np.maximum.at(relevance, place, scored.scores.relevances[chosen].astype(np.float64))
        best = np.full_like(relevance, -np.inf)
        np.maximum.at(best, place, values[:, 0])
        values = values - best[place][:, None] + relevance[place][:, None]
    if settings.retrieval_weight:
        values = values + retrieval_prior(retrieval, settings.retrieval_weight)[place][:, None]
    row_of, rank_of = np.nonzero(np.isfinite(values))
    flat = values[row_of, rank_of]
    order = np.lexsort((rank_of, place[row_of], -flat))[: 6 * settings.candidates]

    def resolve(at: int, number: int) -> Candidate:
        row = scored.rows[int(chosen[at])]
        unique = scored.pairs[row.group][2]
        offsets = scored.texts.spans(unique)
        shift = row.first_token - row.text_from
        first = int(scored.scores.starts[chosen[at], number]) + shift
        last = int(scored.scores.ends[chosen[at], number]) + shift
        if scored.extend is not None:
            first, last = _whole_words(scored.texts.tokens(unique), first, last, scored.extend)
        start, end = int(offsets[first, 0]), int(offsets[last, 1])
        return Candidate(int(place[at]), start, end, scored.unique[unique].text[start:end], 0.0)

    return distinct([(float(flat[i]), int(row_of[i]), int(rank_of[i])) for i in order], resolve, settings)


def _null(
    scored: ScoredPassages,
    chosen: Ints,
    place: Ints,
    settings: ReaderSettings,
    candidates: Sequence[Candidate],
) -> float | None:
    """Score of "none of these passages answers it"; DPR readers were not trained to say so."""
    if scored.selects_passages:
        return None
    lowest = np.full(int(place.max()) + 1, np.inf)  # over a passage's windows the least "not here" counts
    np.minimum.at(lowest, place, scored.scores.nulls[chosen].astype(np.float64))
    if settings.null == "best":
        return float(lowest[candidates[0].passage_index]) if candidates else None
    known = lowest[np.isfinite(lowest)]
    if settings.null == "mean":
        return float(known.mean())
    return float(known.max() if settings.null == "max" else known.min())


def _whole_words(
    tokens: npt.NDArray[np.int32], first: int, last: int, continues: npt.NDArray[np.bool_]
) -> tuple[int, int]:
    """Extend a token span until it neither starts nor ends inside a word."""
    while first > 0 and continues[tokens[first]]:
        first -= 1
    while last + 1 < len(tokens) and continues[tokens[last + 1]]:
        last += 1
    return first, last
