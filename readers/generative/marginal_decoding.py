"""Decoding of RAG-Sequence and RAG-Token: answers by their likelihood over several passages, each read alone.

Hypotheses that reach the maximum length are ended there. Scores are not divided by length, so the search is
for the likeliest answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor
from transformers import LogitsProcessor

from readers.generative.marginal import answer_log_likelihood, posterior
from readers.generative.model import Memory, Seq2Seq
from readers.generative.settings import Marginal


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """An answer as token ids, log p(y|x), and each passage's share in its probability."""

    ids: tuple[int, ...]
    score: float
    weights: tuple[float, ...]


@torch.inference_mode()
def decode(
    seq2seq: Seq2Seq,
    apart: Memory,
    scores: Sequence[Tensor],
    *,
    marginal: Marginal,
    answer_tokens: int,
    beams: int = 1,
) -> list[list[Hypothesis]]:
    """Answers of each question, best first.

    "token" searches with the mixture of all passages' next-token distributions. "sequence" searches passage
    by passage; an answer has probability 0 under the passages whose beams do not contain it (the paper's fast
    decoding).

    Args:
        apart: one row per passage, question by question.
        scores: for each question (K,) scores of its passages, whose softmax is p(z|x).
        marginal: see `readers.generative.marginal`.
        beams: number of hypotheses kept at a time; 1 is greedy.

    Source:
        Lewis et al. 2020, "Retrieval-Augmented Generation", section 2.5.
    """
    priors = [mine.float().log_softmax(0).to(seq2seq.device) for mine in scores]
    shared = priors if marginal == "token" else [priors[0].new_zeros(1)] * len(apart)
    mixture = _Mixture(shared, seq2seq.end, 1 + len(seq2seq.prefix) + answer_tokens)
    search = {"length_penalty": 0.0} if beams > 1 else {}
    answers = seq2seq.search(
        apart, answer_tokens=answer_tokens, beams=beams, logits_processor=[mixture], **search
    )
    ends = accumulate(map(len, priors), initial=0)
    return [
        _scored(seq2seq, apart, range(begin, end), prior, answers[begin:end], marginal)
        for (begin, end), prior in zip(pairwise(ends), priors, strict=True)
    ]


class _Mixture(LogitsProcessor):
    """Gives all rows of a group the same next-token distribution, log Σ_z p(z) p(y_t | z, y_<t).

    So the searches of its rows, which are as many as its `priors` (M,) log p(z), run alike. Behind `longest`
    tokens stands `end`.
    """

    def __init__(self, priors: Sequence[Tensor], end: int, longest: int) -> None:
        self._priors, self._end, self._longest = priors, end, longest

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        sizes = [len(prior) for prior in self._priors]
        groups = scores.float().log_softmax(-1).view(sum(sizes), -1, scores.shape[-1]).split(sizes)
        mixed = torch.cat(
            [
                (prior[:, None, None] + logp).logsumexp(0, keepdim=True).expand_as(logp)
                for prior, logp in zip(self._priors, groups, strict=True)
            ]
        ).flatten(0, 1)
        if input_ids.shape[1] < self._longest:
            return mixed
        only = torch.full_like(mixed, float("-inf"))
        only[:, self._end] = mixed[:, self._end]
        return only


def _scored(
    seq2seq: Seq2Seq,
    apart: Memory,
    rows: Sequence[int],
    prior: Tensor,
    answers: Sequence[Sequence[Sequence[int]]],
    marginal: Marginal,
) -> list[Hypothesis]:
    """The different answers of a question's passages, by their likelihood under those that gave them."""
    beams = [{tuple(ids) for ids in mine} for mine in answers]
    found = list(dict.fromkeys(tuple(ids) for mine in answers for ids in mine))
    labels = seq2seq.targets(found)  # (H, T)
    pairs = [(n, k) for n, ids in enumerate(found) for k, mine in enumerate(beams) if ids in mine]
    number, place = torch.tensor(pairs, device=labels.device).T
    values = seq2seq.token_log_probs(apart.rows([rows[k] for _, k in pairs]), labels[number])
    logp = values.new_full((len(found), len(rows), labels.shape[1]), float("-inf"))
    logp[number, place] = values
    scores = prior.to(logp).expand(len(found), -1)
    likelihoods = answer_log_likelihood(marginal, scores, logp).tolist()
    weights = posterior(marginal, scores, logp, labels >= 0).tolist()
    hypotheses = [Hypothesis(ids, v, tuple(w)) for ids, v, w in zip(found, likelihoods, weights, strict=True)]
    return sorted(hypotheses, key=lambda h: (-h.score, h.ids))
