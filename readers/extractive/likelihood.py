"""How likely an extractive reader finds an answer in each passage, read by itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from rag.core.types import Passage
from rag.data.text import AnswerMatcher
from readers.extractive.inference import map_rows
from readers.extractive.model import Logits
from readers.extractive.reader import ExtractiveReader
from readers.ranking import Floats


def span_log_likelihood(
    reader: ExtractiveReader,
    questions: Sequence[str],
    passages: Sequence[Sequence[Passage]],
    answers: Sequence[AnswerMatcher],
) -> list[Floats]:
    r"""Log-probability of the places where an answer stands, in each passage by itself.

        g_i = log Σ_{(s,e) ∈ A_i} P_start(s)·P_end(e)

    with A_i all places in passage i where an answer stands literally, and both softmaxes over the passage's
    tokens and its [CLS], "not here", as the reader was trained. Windows of a long passage share the softmax.

    Args:
        answers: finds the answers of each.

    Returns:
        For each question one number a passage, −inf where no answer stands in it.

    Source:
        Izacard et al. 2022, "Atlas", section 2.2 (perplexity distillation), with spans for generated answers;
        Clark and Gardner 2018 for the probabilities.
    """
    everything = reader.rows(questions, passages)
    pairs, unique = everything.pairs, everything.unique
    spans = [
        list(everything.texts.located(passage, answers[question].places(unique[passage].text)))
        for question, _, passage in pairs
    ]
    # passages without an answer need no reading: nothing is added up
    rows = [row for row in everything.rows if spans[row.group]]
    of_rows = np.full((len(rows), 3), -np.inf)  # answers, all starts, all ends

    def use(part: list[int], _: torch.Tensor, text: torch.Tensor, found: Logits) -> None:
        allowed = text.clone()
        allowed[:, reader.layout.template.cls_position] = True
        start, end = (logits.double().cpu() for logits in (found.start, found.end))
        for side, logits in ((1, start), (2, end)):
            of_rows[part, side] = logits.masked_fill(~allowed, float("-inf")).logsumexp(1).numpy()
        for place, number in enumerate(part):
            row = rows[number]
            shift = row.text_from - row.first_token
            inside = [
                (first + shift, last + shift)
                for first, last in spans[row.group]
                if row.text_from <= first + shift and last + shift < row.text_to
            ]
            if inside:
                at = torch.tensor(inside)
                of_rows[number, 0] = (start[place, at[:, 0]] + end[place, at[:, 1]]).logsumexp(0)

    map_rows(reader.model, reader.layout, rows, use, device=reader.device)
    sums = np.full((len(pairs), 3), -np.inf)
    for row, values in zip(rows, of_rows, strict=True):
        sums[row.group] = np.logaddexp(sums[row.group], values)
    read = np.isfinite(sums[:, 1])
    totals = np.where(read, sums[:, 1], 0.0) + np.where(read, sums[:, 2], 0.0)
    return _by_question(sums[:, 0] - totals, passages)


def passage_relevance(
    reader: ExtractiveReader, questions: Sequence[str], passages: Sequence[Sequence[Passage]]
) -> list[Floats]:
    """How much rather an answer, whichever, stands in each passage than none.

    The passage selection logit of a reader that selects passages, else the best span's score less that of
    "not here"; the best window of a passage counts.

    Returns:
        For each question one number a passage, −inf for empty ones.

    Source: Karpukhin et al. 2020, section 6.1 (passage selection).
    """
    scored = reader.score(questions, passages)
    given = scored.scores
    values = given.relevances if reader.settings.select else given.spans[:, 0] - given.nulls
    best = np.full(len(scored.pairs), -np.inf)
    np.maximum.at(best, [row.group for row in scored.rows], values.astype(np.float64))
    return _by_question(best, passages)


def _by_question(values: Floats, passages: Sequence[Sequence[Passage]]) -> list[Floats]:
    return np.split(values, np.cumsum([len(found) for found in passages])[:-1])
