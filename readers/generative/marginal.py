r"""Several passages, each read alone: likelihood and decoding of RAG-Sequence and RAG-Token.

With K passages z of a question x, p(z|x) the softmax of their scores, and an answer y of T tokens:

    sequence    p(y|x) = Σ_z p(z|x) Π_t p(y_t | x, z, y_<t)      the whole answer comes from one
    passage token       p(y|x) = Π_t Σ_z p(z|x) p(y_t | x, z, y_<t)      every token may come from
    another passage

The prior p(z|x) counts once per answer ("sequence") or once per token ("token"), however short the
answer is and whatever it begins with. Hypotheses that reach the maximum length are ended there;
scores are not divided by length, so the search is for the likeliest answer.

Source:
    Lewis et al. 2020, "Retrieval-Augmented Generation for Knowledge-Intensive NLP Tasks", section
    2.1.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import LogitsProcessor

from readers.generative.model import Memory, Seq2Seq
from readers.generative.settings import Marginal


def answer_log_likelihood(marginal: Marginal, scores: Tensor, logp: Tensor) -> Tensor:
    """(B,) log p(y|x), differentiable in scores (the retriever) and log-probabilities (the
    generator).

    Args:
        marginal: see the module.
        scores: (B, K) scores of the passages, on the scale whose softmax is p(z|x); −inf where
            there is none.
        logp: (B, K, T) log p(y_t | x, z, y_<t) of the answer's tokens, 0 after its end.

    Example:
        >>> scores, logp = torch.zeros(1, 2), torch.tensor([[[0.5, 0.1], [0.1, 0.5]]]).log()
        >>> [round(float(answer_log_likelihood(m, scores, logp).exp()), 2) for m in ("sequence", "token")]
        [0.05, 0.09]
    """
    prior = scores.log_softmax(1)  # (B, K)
    if marginal == "sequence":
        return (prior + logp.sum(2)).logsumexp(1)
    return (prior[:, :, None] + logp).logsumexp(1).sum(1)


def marginal_loss(
    marginal: Marginal,
    scores: Tensor,
    logp: Tensor,
    *,
    smoothing: float = 0.0,
    everything: Tensor | None = None,
    spoken: Tensor | None = None,
) -> Tensor:
    r"""(B,) −log p(y|x), label-smoothed on the marginal:

        L = −(1−ε) log p(y|x) − ε S,   V words
        token:    S = Σ_t 1/V Σ_v log Σ_z p(z|x) p(v | x, z, y_<t)
        sequence: S = 1/V log Σ_z Π_t Π_v p(v | x, z, y_<t) · p(z|x)^V

    Args:
        marginal, scores, logp: as in `answer_log_likelihood`.
        smoothing: ε.
        everything: (B, K, T, V) log-probabilities of the whole vocabulary; needed for smoothing.
        spoken: (B, T) bool mask of the answer's tokens; needed for smoothing.

    Source:
        Lewis et al. 2020, equation 2 and appendix D; the smoothing term is that of transformers'
        RAG classes.

    Note:
        transformers adds log p(z|x) at the second predicted token of RAG-Sequence, and so leaves it
        out for answers of one token; here it always counts.
    """
    loss = -answer_log_likelihood(marginal, scores, logp)
    if not smoothing:
        return loss
    assert everything is not None
    assert spoken is not None
    prior = scores.log_softmax(1)
    is_counted = spoken.to(scores.dtype)
    if marginal == "sequence":
        words = everything.shape[-1]
        whole = (everything.sum(3) * is_counted[:, None]).sum(2) + words * prior  # (B, K)
        smooth = whole.logsumexp(1) / words
    else:
        mixed = (prior[:, :, None, None] + everything).logsumexp(1)  # (B, T, V)
        smooth = (mixed.mean(2) * is_counted).sum(1)
    return (1 - smoothing) * loss - smoothing * smooth


def posterior(marginal: Marginal, scores: Tensor, logp: Tensor, spoken: Tensor) -> Tensor:
    """(B, K) share of each passage in an answer's probability; rows sum to 1.

        sequence: p(z | x, y);   token: the mean of p(z | x, y_t) over the answer's tokens

    Args:
        marginal, scores, logp: as in `answer_log_likelihood`.
        spoken: (B, T) bool mask of the answer's tokens.

    Source:
        Lewis et al. 2020, figure 2 (the posterior of each token).
    """
    prior = scores.log_softmax(1)
    if marginal == "sequence":
        return (prior + logp.sum(2)).softmax(1)
    shares = (prior[:, :, None] + logp).softmax(1) * spoken[:, None].to(logp.dtype)  # (B, K, T)
    return shares.sum(2) / spoken.sum(1, keepdim=True).clamp_min(1)


@torch.inference_mode()
def passage_log_likelihood(
    seq2seq: Seq2Seq, memory: Memory, answers: Sequence[Sequence[int]]
) -> Tensor:
    """Mean log-probability of the answer's tokens given each passage alone: g_i = 1/|y| log p(y |
    q, z_i).

    The encoder is not run again, because passages were encoded separately.

    Returns:
        (B, P) float32, −inf where a question has fewer passages.

    Source:
        Izacard et al. 2022, "Atlas", section 2.2 (perplexity distillation).
    """
    logp, spoken, _ = read_apart(seq2seq, memory.apart(), memory.counts, answers)
    read = torch.arange(logp.shape[1]) < torch.tensor(memory.counts)[:, None]
    means = logp.sum(2) / spoken.sum(1, keepdim=True)
    return means.cpu().masked_fill(~read, float("-inf"))


def read_apart(
    seq2seq: Seq2Seq,
    apart: Memory,
    counts: Sequence[int],
    answers: Sequence[Sequence[int]],
    words: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Log-likelihood of the answer given each passage alone.

    Args:
        apart: one row per passage.
        counts: passages of each question.
        words: also return the log-probabilities of the whole vocabulary.

    Returns:
        (B, K, T) log-probabilities of the answer's tokens, 0 after its end and where a question has
        fewer passages; (B, T) bool mask of its tokens; and (B, K, T, V) those of the whole
        vocabulary, or None.
    """
    labels = seq2seq.targets(answers)  # (B, T)
    owners = torch.repeat_interleave(torch.tensor(list(counts)))
    targets = labels[owners.to(labels.device)]  # (R, T)

    def by_question(values: Tensor) -> Tensor:
        return pad_sequence(list(values.split(list(counts))), batch_first=True)

    if not words:
        return by_question(seq2seq.token_log_probs(apart, targets)), labels >= 0, None
    everything = seq2seq.logits(apart, targets).log_softmax(-1)
    logp = everything.gather(2, targets.clamp_min(0)[:, :, None])[:, :, 0]
    logp = logp.masked_fill(targets < 0, 0.0)
    return by_question(logp), labels >= 0, by_question(everything)


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

    "token" searches with the mixture of all passages' next-token distributions. "sequence" searches
    passage by passage, and scores every answer that was found under all passages (the paper's
    thorough decoding).

    Args:
        apart: one row per passage, question by question.
        scores: for each question (K,) scores of its passages, whose softmax is p(z|x).
        marginal: see `readers.generative.marginal`.
        beams: number of hypotheses kept at a time; 1 is greedy.

    Source:
        Lewis et al. 2020, "Retrieval-Augmented Generation", section 2.5.
    """
    priors = [of_question.float().log_softmax(0).to(seq2seq.device) for of_question in scores]
    shared = priors if marginal == "token" else [priors[0].new_zeros(1)] * len(apart)
    mixture = _Mixture(shared, seq2seq.end, 1 + len(seq2seq.prefix) + answer_tokens)
    search = {"length_penalty": 0.0} if beams > 1 else {}
    answers = seq2seq.search(
        apart, answer_tokens=answer_tokens, beams=beams, logits_processor=[mixture], **search
    )
    results = []
    begin = 0
    for prior in priors:
        end = begin + len(prior)
        passages = apart.rows(range(begin, end))
        found = chain.from_iterable(answers[begin:end])
        results.append(_rescored(seq2seq, passages, prior, found, marginal))
        begin = end
    return results


class _Mixture(LogitsProcessor):
    """Gives all rows of a group the same next-token distribution, log Σ_z p(z) p(y_t | z, y_<t).

    So the searches of its rows, which are as many as its `priors` (M,) log p(z), run alike. Behind
    `longest` tokens stands `end`.
    """

    def __init__(self, priors: Sequence[Tensor], end: int, longest: int) -> None:
        self._priors = priors
        self._end = end
        self._longest = longest

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        sizes = [len(prior) for prior in self._priors]
        groups = scores.float().log_softmax(-1).view(sum(sizes), -1, scores.shape[-1]).split(sizes)
        mixtures = []
        for prior, logp in zip(self._priors, groups, strict=True):
            mixture = (prior[:, None, None] + logp).logsumexp(0, keepdim=True)
            mixtures.append(mixture.expand_as(logp))
        mixed = torch.cat(mixtures).flatten(0, 1)
        if input_ids.shape[1] < self._longest:
            return mixed
        ended = torch.full_like(mixed, float("-inf"))
        ended[:, self._end] = mixed[:, self._end]
        return ended


def _rescored(
    seq2seq: Seq2Seq,
    passages: Memory,
    prior: Tensor,
    answers: Iterable[Sequence[int]],
    marginal: Marginal,
) -> list[Hypothesis]:
    """The different answers to a question, by their likelihood given all of its passages (K rows)."""
    scores = prior.float()[None]
    hypotheses = []
    for ids in dict.fromkeys(map(tuple, answers)):
        labels = seq2seq.targets([ids] * len(passages))  # (K, T)
        logp = seq2seq.token_log_probs(passages, labels)[None]  # (1, K, T)
        likelihood = answer_log_likelihood(marginal, scores, logp)
        weights = posterior(marginal, scores, logp, labels[:1] >= 0)
        hypotheses.append(Hypothesis(ids, float(likelihood), tuple(weights[0].tolist())))
    return sorted(hypotheses, key=lambda hypothesis: (-hypothesis.score, hypothesis.ids))
