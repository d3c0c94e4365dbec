"""From the probabilities of a network to verdicts with the sentences that decide."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from rag.core.arrays import Bool, Float32
from rag.core.types import VERDICT_LABELS, Evidence, Passage, RankedPassages, SearchResult, Verdict
from rag.data.claims import check_claims
from rag.data.sentences import sentence_spans

Judge = Callable[[Sequence[str], Sequence[str]], Float32]
_CODE = re.compile(r"\b[A-Z]+-?\d{3,}\b")
_NOTHING = np.array([0, 0, 1], np.float32)
MAX_JUDGED_CHARS = 20_000  # of a passage: few hundred sentences
# Both were chosen on claims made of SQuAD's training questions, over the passages found for them.
_SHARPNESS = 2.5
_DOUBT = 0.3


def judge_results(results: Sequence[SearchResult], judge: Judge) -> list[Verdict]:
    """Judge the query of each result by the passages of its best path, or by all its passages.

    Every sentence is judged alone and every passage as a whole, a path as one text, since its
    passages say together what none of them says alone; see `over_texts` for the verdict. A text that
    names other codes than the claim ("E-4711") is not enough.

    Args:
        judge: `Verifier.probabilities`.

    Raises:
        QuestionError: a claim is empty or too long.
    """
    check_claims([result.query for result in results], top_k=1)
    readings = [_to_read(result) for result in results]
    texts = [_texts(result, ranked) for result, ranked in zip(results, readings, strict=True)]
    counts = list(map(len, texts))
    rows = np.zeros((0, len(VERDICT_LABELS)), np.float32)
    if any(counts):
        claims = np.repeat(np.array([result.query for result in results], object), counts).tolist()
        texts_read = list(chain.from_iterable(texts))
        rows = judge(claims, texts_read)
        rows = np.where(_names_other_codes(claims, texts_read), _NOTHING, rows)
    parts = np.split(rows, np.cumsum(counts)[:-1])
    return list(map(_verdict, results, readings, parts))


def _names_other_codes(claims: Sequence[str], texts: Sequence[str]) -> Bool:
    """Whether the text names codes, but not all of the claim's, (N, 1): E-4711 is not E-4712."""
    differ = []
    for claim, text in zip(claims, texts, strict=True):
        text_codes = set(_CODE.findall(text.upper()))
        differ.append([bool(text_codes) and not set(_CODE.findall(claim.upper())) <= text_codes])
    return np.array(differ)


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
    """All sentences under the titles of their passages; behind them what is judged as a whole."""
    sentences = []
    for _, passage in ranked:
        for start, end in sentence_spans(passage.text):
            sentences.append(titled(replace(passage, text=passage.text[start:end])))
    whole = [titled(passage) for _, passage in ranked]
    if _has_path(result):
        whole = [" ".join(whole)]
    known = set(sentences)
    return sentences + [text for text in whole if text not in known]


def titled(passage: Passage) -> str:
    """The text under the title of its passage, without which "he" is nobody."""
    return f"{passage.title}: {passage.text}" if passage.title else passage.text


def over_texts(alone: Float32) -> Float32:
    """The probabilities (3,) of a claim from those by each text alone, (N, 3).

    p ∝ d ∘ Σ_i w_i p_i, with w_i = ((1 − n_i) / n_i)^2.5 and n_i the probability that text i is not
    enough: texts count by how near they are to the claim, so that one that is merely related does
    not refute what another supports. d multiplies "not enough" by N^0.3: the more texts, the
    likelier one of them looks near by chance. A single text keeps its probabilities.

    Example:
        >>> over_texts(np.array([[0.75, 0.125, 0.125], [0.0, 0.5, 0.5]], np.float32)).round(2)
        array([0.72, 0.12, 0.15], dtype=float32)
    """
    total = _nearness(alone) @ alone
    total[2] *= len(alone) ** _DOUBT
    return np.asarray(total / total.sum(), np.float32)


def _nearness(alone: Float32) -> Float32:
    not_enough = alone[:, 2].clip(1e-6)
    return np.asarray(((1.0 - not_enough) / not_enough).clip(1e-6) ** _SHARPNESS)


def _verdict(result: SearchResult, ranked: RankedPassages, rows: Float32) -> Verdict:
    """The verdict on a query, with the sentence of each passage that speaks for it most."""
    if not ranked:
        return _nothing_read(result.query)
    row = over_texts(rows)
    label = VERDICT_LABELS[int(row.argmax())]
    speaks = _nearness(rows)
    if label != "not_enough":
        speaks = speaks * rows[:, VERDICT_LABELS.index(label)]
    path = []
    best_weights = []
    first = 0
    for hit, passage in ranked:
        spans = sentence_spans(passage.text)
        weights = speaks[first : first + len(spans)]
        first += len(spans)
        best_weights.append(weights.max())
        supporting = (spans[int(weights.argmax())],)
        first_stage = hit.first_stage
        path.append(Evidence.of(passage, hit.score, supporting=supporting, first_stage=first_stage))
    probabilities = dict(zip(VERDICT_LABELS, map(float, row), strict=True))
    decisive = path[int(np.argmax(best_weights))]
    return Verdict(result.query, label, probabilities, decisive, tuple(path))


def _nothing_read(claim: str) -> Verdict:
    return Verdict(
        claim,
        "not_enough",
        {"supported": 0.0, "refuted": 0.0, "not_enough": 1.0},
        notice="no passage was found to judge it by",
    )
