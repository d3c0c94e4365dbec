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
from rag.data.sentences import Spans, sentence_spans

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
    read = {number: ranked for number, ranked in enumerate(map(_to_read, results)) if ranked}
    if not read:
        return verdicts
    claims = [results[number].query for number in read]
    texts = [_texts(results[number], ranked) for number, ranked in read.items()]
    probabilities = judge(claims, texts)
    spans = [[sentence_spans(passage.text) for _, passage in ranked] for ranked in read.values()]
    alone = _judge_sentences(claims, list(read.values()), spans, judge)
    first = 0
    for place, (number, ranked) in enumerate(read.items()):
        last = first + sum(map(len, spans[place]))
        row = probabilities[place]
        verdicts[number] = _verdict(
            claims[place], row, ranked, spans[place], _decisive(alone[first:last], row)
        )
        first = last
    return verdicts


def _to_read(result: SearchResult) -> RankedPassages:
    """The passages of the best path, or else all, without blank ones, which say nothing."""
    ranked = result.paths[0] if _has_path(result) else result.passages
    return [
        (hit, replace(passage, text=passage.text[:MAX_JUDGED_CHARS]))
        for hit, passage in ranked
        if passage.text.strip()
    ]


def _texts(result: SearchResult, ranked: RankedPassages) -> list[str]:
    texts = [_titled(passage, passage.text) for _, passage in ranked]
    # The passages of a path say together what none of them says alone.
    return [" ".join(texts)] if _has_path(result) else texts


def _has_path(result: SearchResult) -> bool:
    return bool(result.paths) and len(result.paths[0]) > 1


def _titled(passage: Passage, text: str) -> str:
    """The text under the title of its passage, without which "he" is nobody."""
    return f"{passage.title}: {text}" if passage.title else text


def _judge_sentences(
    claims: Sequence[str],
    read: Sequence[RankedPassages],
    spans: Sequence[Sequence[Spans]],
    judge: Judge,
) -> Float32:
    """Probabilities (S, 3) of all sentences, each judged alone."""
    repeated = []
    sentences = []
    for claim, ranked, spans_of_claim in zip(claims, read, spans, strict=True):
        for (_, passage), spans_of_passage in zip(ranked, spans_of_claim, strict=True):
            for start, end in spans_of_passage:
                repeated.append(claim)
                sentences.append([_titled(passage, passage.text[start:end])])
    return judge(repeated, sentences)


def _decisive(alone: Float32, together: Float32) -> Float32:
    """How far each sentence (S, 3), judged alone, speaks for the verdict over all passages (3,)."""
    label = int(together.argmax())
    if VERDICT_LABELS[label] == "not_enough":
        return 1.0 - alone[:, label]
    return alone[:, label]


def _verdict(
    claim: str,
    row: Float32,
    ranked: RankedPassages,
    spans: Sequence[Spans],
    weights: Float32,
) -> Verdict:
    path = []
    decisive = []
    first = 0
    for (hit, passage), spans_of_passage in zip(ranked, spans, strict=True):
        of_passage = weights[first : first + len(spans_of_passage)]
        first += len(spans_of_passage)
        best = int(of_passage.argmax())
        decisive.append(of_passage[best])
        marked = Evidence.of(
            passage,
            hit.score,
            supporting=(spans_of_passage[best],),
            first_stage=hit.first_stage,
        )
        path.append(marked)
    probabilities = dict(zip(VERDICT_LABELS, map(float, row), strict=True))
    label = VERDICT_LABELS[int(row.argmax())]
    return Verdict(claim, label, probabilities, path[int(np.argmax(decisive))], tuple(path))


def _nothing_read(claim: str) -> Verdict:
    return Verdict(
        claim,
        "not_enough",
        {"supported": 0.0, "refuted": 0.0, "not_enough": 1.0},
        notice="no passage was found to judge it by",
    )
