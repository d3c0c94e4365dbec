"""Decoding of RAG-Sequence and RAG-Token: answers by their likelihood over several passages, each read alone.

Hypotheses that reach the maximum length are ended there. Scores are not divided by length, so the search is
for the likeliest answer.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

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
    counts = [len(mine) for mine in scores]
    priors = [mine.float().log_softmax(0).to(seq2seq.device) for mine in scores]
    ends = torch.tensor([0, *counts]).cumsum(0).tolist()
    rows = [list(range(begin, end)) for begin, end in pairwise(ends)]
    limits = {"answer_tokens": answer_tokens, "beams": beams}
    if marginal == "token":
        beams_of = beam_search(seq2seq, apart, rows, priors, **limits)
        results = [_scored(seq2seq, apart, *of) for of in zip(rows, priors, beams_of, strict=True)]
    else:
        every = [[row] for row in range(ends[-1])]
        alone = beam_search(seq2seq, apart, every, [priors[0].new_zeros(1)] * len(every), **limits)
        results = [
            _of_own_beams([alone[row] for row in mine], prior)
            for mine, prior in zip(rows, priors, strict=True)
        ]
    return [sorted(mine, key=lambda h: (-h.score, h.ids)) for mine in results]


@dataclass(slots=True)
class _Group:
    """A search: passages that speak together, hypotheses that are still open and those that are whole."""

    rows: list[int]
    prior: Tensor  # (M,)
    open: list[tuple[int, ...]] = field(default_factory=lambda: [()])
    scores: list[float] = field(default_factory=lambda: [0.0])
    whole: dict[tuple[int, ...], float] = field(default_factory=dict)


@torch.inference_mode()
def beam_search(
    seq2seq: Seq2Seq,
    memory: Memory,
    groups: Sequence[Sequence[int]],
    priors: Sequence[Tensor],
    *,
    answer_tokens: int,
    beams: int,
) -> list[dict[tuple[int, ...], float]]:
    """For each group of passages at most `beams` answers with Σ_t log Σ_z p(z) p(y_t | z, y_<t), best first.

    Args:
        memory: one row per passage.
        groups: rows of each group.
        priors: (M,) log p(z) of each group's passages.

    Returns:
        Answers as token ids without start and end tokens.
    """
    searches = [_Group(list(rows), prior) for rows, prior in zip(groups, priors, strict=True)]
    active = searches
    inputs, kept = [seq2seq.start for g in active for _ in g.rows], [row for g in active for row in g.rows]
    cache = seq2seq.step_cache(memory, kept)
    last = len(seq2seq.prefix) + answer_tokens
    for step in range(last + 1):
        logp = seq2seq.step(memory, kept, inputs, cache)  # (R, V)
        begin = 0
        inputs, kept = [], []
        came_from: list[int] = []
        forced = seq2seq.prefix[step] if step < len(seq2seq.prefix) else seq2seq.end if step == last else None
        for group in active:
            size = len(group.rows)
            mine = logp[begin : begin + len(group.open) * size].view(len(group.open), size, -1)
            mixed = (group.prior[:, None] + mine).logsumexp(1)  # (n, V)
            for parent in _advance(group, mixed, forced, seq2seq.end, beams):
                came_from += range(begin + parent * size, begin + (parent + 1) * size)
                kept += group.rows
            inputs += [ids[-1] for ids in group.open for _ in range(size)]
            begin += len(mine) * size
        active = [group for group in active if group.open]
        if not active:
            break
        if came_from != list(range(len(logp))):
            cache.reorder_cache(torch.tensor(came_from, device=seq2seq.device))
    skipped = len(seq2seq.prefix)
    return [
        {ids[skipped:]: s for ids, s in sorted(group.whole.items(), key=lambda item: (-item[1], item[0]))}
        for group in searches
    ]


def _advance(group: _Group, mixed: Tensor, forced: int | None, end: int, beams: int) -> list[int]:
    """Take the best continuations; returns which hypothesis each open one continues."""
    total = torch.tensor(group.scores, device=mixed.device)[:, None] + mixed  # (n, V)
    if forced is not None:
        only = torch.full_like(total, float("-inf"))
        only[:, forced] = total[:, forced]
        total = only
    words = total.shape[1]
    best, places = total.flatten().topk(min(2 * beams, total.numel()))
    parents: list[int] = []
    opened: list[tuple[int, ...]] = []
    scores: list[float] = []
    for rank, (score, place) in enumerate(zip(best.tolist(), places.tolist(), strict=True)):
        parent, token = divmod(place, words)
        if score == float("-inf"):
            break
        if token == end:
            if rank < beams:
                group.whole[group.open[parent]] = score
        elif len(opened) < beams:
            parents.append(parent)
            opened.append((*group.open[parent], token))
            scores.append(score)
    kept = sorted(group.whole.items(), key=lambda item: (-item[1], item[0]))[:beams]
    group.whole = dict(kept)
    if len(kept) == beams and opened and scores[0] <= kept[-1][1]:  # probabilities only shrink
        parents, opened, scores = [], [], []
    group.open, group.scores = opened, scores
    return parents


def _of_own_beams(beams: Sequence[dict[tuple[int, ...], float]], prior: Tensor) -> list[Hypothesis]:
    """Each answer under the passages that found it."""
    hypotheses = []
    for ids in dict.fromkeys(ids for beam in beams for ids in beam):
        known = torch.tensor([beam.get(ids, float("-inf")) for beam in beams]).to(prior)
        joint = prior + known
        hypotheses.append(Hypothesis(ids, float(joint.logsumexp(0)), tuple(joint.softmax(0).tolist())))
    return hypotheses


def _scored(
    seq2seq: Seq2Seq, apart: Memory, rows: Sequence[int], prior: Tensor, answers: Iterable[tuple[int, ...]]
) -> list[Hypothesis]:
    """Each answer of "token" under every passage, for the passages' shares in it."""
    found = list(answers)
    labels = seq2seq.targets(found)  # (H, T)
    pairs = [(number, row) for number in range(len(found)) for row in rows]
    memory = apart.rows([row for _, row in pairs])
    logp = seq2seq.token_log_probs(memory, labels[[number for number, _ in pairs]])
    logp = logp.view(len(found), len(rows), -1)  # (H, K, T)
    prior = prior.to(logp)[None].expand(len(found), -1)
    values = answer_log_likelihood("token", prior, logp).tolist()
    weights = posterior("token", prior, logp, labels >= 0).tolist()
    return [Hypothesis(ids, v, tuple(w)) for ids, v, w in zip(found, values, weights, strict=True)]
