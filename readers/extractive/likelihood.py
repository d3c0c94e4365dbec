"""Likelihood of an answer in each passage, by an extractive reader that reads every passage
separately.
"""

from collections.abc import Sequence

import numpy as np
import torch

from rag.core.arrays import Float32, Float64
from rag.core.types import Passage
from rag.data.text import AnswerMatcher
from readers.extractive.layout import map_rows
from readers.extractive.model import Logits
from readers.extractive.reader import ExtractiveReader
from readers.protocols import PassageLists


def span_log_likelihood(
    reader: ExtractiveReader,
    questions: Sequence[str],
    passages: PassageLists,
    answers: Sequence[AnswerMatcher],
) -> list[Float64]:
    r"""Log-probability of the occurrences of an answer, for each passage separately.

        g_i = log Σ_{(s,e) ∈ A_i} P_start(s)·P_end(e)

    with A_i all literal occurrences of an answer in passage i, and both softmaxes over the
    passage's tokens and its [CLS], "not here", as in the reader's training. Windows of a long
    passage share the softmax.

    Args:
        answers: for each question, a matcher that finds its answers.

    Returns:
        For each question one number per passage, −inf where no answer occurs.

    Source:
        Izacard et al. 2022, "Atlas", section 2.2 (perplexity distillation), with spans for
        generated answers; Clark and Gardner 2018 for the probabilities.
    """
    everything = reader.rows(questions, passages)
    spans = [
        list(
            everything.texts.located(
                number, answers[question].places(everything.passages[number].text)
            )
        )
        for number, (question, _) in enumerate(everything.pairs)
    ]
    # passages without an answer need no reading: their sum is empty
    rows = [row for row in everything.rows if spans[row.group]]
    of_rows = np.full((len(rows), 3), -np.inf)  # answers, all starts, all ends

    def use(part: list[int], _: torch.Tensor, text: torch.Tensor, logits: Logits) -> None:
        allowed = text.clone()
        allowed[:, reader.template.cls_position] = True
        start, end = logits.start.double().cpu(), logits.end.double().cpu()
        for side, own in ((1, start), (2, end)):
            of_rows[part, side] = own.masked_fill(~allowed, float("-inf")).logsumexp(1).numpy()
        for place, number in enumerate(part):
            row = rows[number]
            at = torch.tensor(spans[row.group]) + row.text_from - row.first_token  # (A, 2)
            at = at[(at[:, 0] >= row.text_from) & (at[:, 1] < row.text_to)]
            of_rows[number, 0] = (start[place, at[:, 0]] + end[place, at[:, 1]]).logsumexp(0)

    map_rows(reader.model, reader.template, rows, use, device=reader.device)
    sums = np.full((len(everything.pairs), 3), -np.inf)
    for row, values in zip(rows, of_rows, strict=True):
        sums[row.group] = np.logaddexp(sums[row.group], values)
    totals = np.where(np.isneginf(sums[:, 1]), 0.0, sums[:, 1] + sums[:, 2])
    return np.split(sums[:, 0] - totals, np.cumsum([len(own) for own in passages])[:-1])


class ReaderRelevance:
    """An extractive reader that scores pairs for "this passage answers the question", to re-rank
    hits.

    The score is the passage selection logit of a reader that selects passages, else the best span's
    score minus that of "not here"; for a long passage the best window's.

    Source: Karpukhin et al. 2020, section 6.1 (passage selection).
    """

    def __init__(self, reader: ExtractiveReader) -> None:
        self.reader, self.name = reader, reader.name

    def score(self, questions: Sequence[str], passages: Sequence[Passage]) -> Float32:
        """Scores (n,) float32 of n pairs; empty passages get the lowest of these scores."""
        if not questions:
            return np.zeros(0, np.float32)
        everything, scores = self.reader.score(questions, [[passage] for passage in passages])
        values = (
            scores.relevances if self.reader.settings.select else scores.spans[:, 0] - scores.nulls
        )
        best = np.full(len(passages), -np.inf, np.float32)
        np.maximum.at(best, [row.group for row in everything.rows], values)
        finite = best[np.isfinite(best)]
        return np.maximum(best, finite.min() if len(finite) else 0.0)
