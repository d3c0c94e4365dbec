"""From the probabilities of a network to verdicts with the sentences that decide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from rag.core.arrays import Float32
from rag.core.types import (
    VERDICT_LABELS,
    Evidence,
    Passage,
    RankedPassages,
    SearchResult,
    Verdict,
)
from rag.data.claims import check_claims
from rag.data.sentences import sentence_spans

Judge = Callable[[Sequence[str], Sequence[Sequence[str]]], Float32]
MAX_JUDGED_CHARS = 20_000  # of a passage: more than a network reads, and few hundred sentences


def judge_results(results: Sequence[SearchResult], judge: Judge) -> list[Verdict]:
    """Judge the query of each result by the passages of its best path, or by all its passages.

    Args:
        judge: `Verifier.probabilities`.

    Raises:
        QuestionError: a claim is empty or too long.
    """
    check_claims([result.query for result in results], top_k=1)
    verdicts = [_nothing_read(result.query) for result in results]
    read = [_to_read(result) for result in results]
    judged = [number for number, ranked in enumerate(read) if ranked]
    if not judged:
        return verdicts
    claims = [results[number].query for number in judged]
    texts = [_texts(results[number], read[number]) for number in judged]
    for number, row in zip(judged, judge(claims, texts), strict=True):
        verdicts[number] = _verdict(results[number].query, read[number], row, judge)
    return verdicts


def _has_path(result: SearchResult) -> bool:
    return bool(result.paths) and len(result.paths[0]) > 1


def _to_read(result: SearchResult) -> RankedPassages:
    """The passages of the best path, or else all, without blank ones, which say nothing."""
    ranked = result.paths[0] if _has_path(result) else result.passages
    return [
        (hit, replace(passage, text=passage.text[:MAX_JUDGED_CHARS]))
        for hit, passage in ranked
        if passage.text.strip()
    ]


def _texts(result: SearchResult, ranked: RankedPassages) -> list[str]:
    texts = [titled(passage) for _, passage in ranked]
    # The passages of a path say together what none of them says alone.
    return [" ".join(texts)] if _has_path(result) else texts


def titled(passage: Passage) -> str:
    """The text under the title of its passage, without which "he" is nobody."""
    return f"{passage.title}: {passage.text}" if passage.title else passage.text


def _verdict(claim: str, ranked: RankedPassages, row: Float32, judge: Judge) -> Verdict:
    """The verdict with probabilities `row` (3,), and the sentences that speak for it most."""
    label = VERDICT_LABELS[int(row.argmax())]
    spans = [sentence_spans(passage.text) for _, passage in ranked]
    sentences = [
        [titled(replace(passage, text=passage.text[start:end]))]
        for (_, passage), places in zip(ranked, spans, strict=True)
        for start, end in places
    ]
    decisive = _decisive(judge([claim] * len(sentences), sentences), label)
    ends = np.cumsum([len(places) for places in spans])
    path = []
    best_weights = []
    for (hit, passage), places, weights in zip(
        ranked, spans, np.split(decisive, ends[:-1]), strict=True
    ):
        best = int(weights.argmax())
        best_weights.append(weights[best])
        supporting = (places[best],)
        first_stage = hit.first_stage
        path.append(Evidence.of(passage, hit.score, supporting=supporting, first_stage=first_stage))
    probabilities = dict(zip(VERDICT_LABELS, map(float, row), strict=True))
    return Verdict(claim, label, probabilities, path[int(np.argmax(best_weights))], tuple(path))


def _decisive(alone: Float32, label: str) -> Float32:
    """How far each sentence speaks for the label, by the probabilities (S, 3) of it alone."""
    if label == "not_enough":
        return 1.0 - alone[:, VERDICT_LABELS.index(label)]
    return alone[:, VERDICT_LABELS.index(label)]


def _nothing_read(claim: str) -> Verdict:
    return Verdict(
        claim,
        "not_enough",
        {"supported": 0.0, "refuted": 0.0, "not_enough": 1.0},
        notice="no passage was found to judge it by",
    )
