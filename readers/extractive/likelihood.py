"""Likelihood of an answer in each passage, by an extractive reader that reads every passage
separately.
"""

from collections.abc import Sequence

import numpy as np
import torch

from rag.core.arrays import Float32, Float64, Int64
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
    read = reader.rows(questions, passages)
    spans = []
    for number, (question, _) in enumerate(read.pairs):
        places = answers[question].places(read.passages[number].text)
        spans.append(list(read.texts.located(number, places)))
    # Passages without an answer need no reading: their sum is empty.
    rows = [row for row in read.rows if spans[row.group]]
    logs = np.full((3, len(rows)), -np.inf)  # of the answers, of all starts and of all ends

    def enter(batch: Int64, _: torch.Tensor, text: torch.Tensor, logits: Logits) -> None:
        unseen = ~text
        unseen[:, 0] = False  # [CLS]
        start = logits.start.double().cpu()
        end = logits.end.double().cpu()
        logs[1, batch] = start.masked_fill(unseen, float("-inf")).logsumexp(1).numpy()
        logs[2, batch] = end.masked_fill(unseen, float("-inf")).logsumexp(1).numpy()
        for position, number in enumerate(batch.tolist()):
            row = rows[number]
            answer = torch.tensor(spans[row.group]) + row.text_from - row.first_token  # (A, 2)
            # Those that this window of the passage has.
            answer = answer[(answer[:, 0] >= row.text_from) & (answer[:, 1] < row.text_to)]
            scores = start[position, answer[:, 0]] + end[position, answer[:, 1]]
            logs[0, number] = scores.logsumexp(0)

    numbers = np.arange(len(rows))
    map_rows(reader.model, reader.template, rows, numbers, enter, device=reader.device)
    # Windows of a passage share its softmax.
    sums = np.full((3, len(read.pairs)), -np.inf)
    groups = [row.group for row in rows]
    for of_passages, of_rows in zip(sums, logs, strict=True):
        np.logaddexp.at(of_passages, groups, of_rows)
    likelihoods, starts, ends = sums
    is_read = np.isfinite(starts)
    likelihoods[is_read] -= starts[is_read] + ends[is_read]
    return np.split(likelihoods, np.cumsum(list(map(len, passages)))[:-1])


class ReaderRelevance:
    """An extractive reader that scores pairs for "this passage answers the question", to re-rank
    hits.

    The score is the passage selection logit of a reader that selects passages, else the best span's
    score minus that of "not here"; for a long passage the best window's.

    Source: Karpukhin et al. 2020, section 6.1 (passage selection).
    """

    is_log_odds = True

    def __init__(self, reader: ExtractiveReader) -> None:
        self.reader = reader
        self.name = reader.name

    def score(self, questions: Sequence[str], passages: Sequence[Passage]) -> Float32:
        """Scores (n,) float32 of n pairs; empty passages get the lowest of these scores."""
        if not questions:
            return np.zeros(0, np.float32)
        rows = self.reader.score(questions, [[passage] for passage in passages])
        scores = rows.scores
        values = scores.spans[:, 0] - scores.nulls
        if self.reader.settings.select:
            values = scores.relevances
        best = np.full(len(passages), -np.inf, np.float32)
        np.maximum.at(best, [row.group for row in rows.rows], values)
        finite = best[np.isfinite(best)]
        return np.maximum(best, finite.min() if len(finite) else 0.0)
