r"""Marginal likelihood over several passages, each read alone: RAG-Sequence and RAG-Token.

With K passages z of a question x, p(z|x) the softmax of their scores, and an answer y of T tokens:

    sequence    p(y|x) = Σ_z p(z|x) Π_t p(y_t | x, z, y_<t)      the whole answer comes from one passage
    token       p(y|x) = Π_t Σ_z p(z|x) p(y_t | x, z, y_<t)      every token may come from another passage

The prior p(z|x) counts once per answer ("sequence") or once per token ("token"), however short the answer is
and whatever it begins with.

Source:
    Lewis et al. 2020, "Retrieval-Augmented Generation for Knowledge-Intensive NLP Tasks", section 2.1.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from readers.generative.model import Memory, Seq2Seq
from readers.generative.settings import Marginal


def answer_log_likelihood(marginal: Marginal, scores: Tensor, logp: Tensor) -> Tensor:
    """(B,) log p(y|x), differentiable in scores (the retriever) and log-probabilities (the generator).

    Args:
        marginal: see the module.
        scores: (B, K) scores of the passages, on the scale whose softmax is p(z|x); −inf where there is none.
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
        Lewis et al. 2020, equation 2 and appendix D; the smoothing term is that of transformers' RAG classes.

    Note:
        transformers adds log p(z|x) at the second predicted token of RAG-Sequence, and so leaves it out for
        answers of one token; here it always counts.
    """
    loss = -answer_log_likelihood(marginal, scores, logp)
    if not smoothing:
        return loss
    assert everything is not None
    assert spoken is not None
    prior, kept = scores.log_softmax(1), spoken.to(scores.dtype)
    if marginal == "sequence":
        words = everything.shape[-1]
        whole = (everything.sum(3) * kept[:, None]).sum(2) + words * prior  # (B, K)
        smooth = whole.logsumexp(1) / words
    else:
        mixed = (prior[:, :, None, None] + everything).logsumexp(1)  # (B, T, V)
        smooth = (mixed.mean(2) * kept).sum(1)
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
    each = (prior[:, :, None] + logp).softmax(1) * spoken[:, None].to(logp.dtype)  # (B, K, T)
    return each.sum(2) / spoken.sum(1, keepdim=True).clamp_min(1)


@torch.inference_mode()
def passage_log_likelihood(seq2seq: Seq2Seq, memory: Memory, answers: Sequence[Sequence[int]]) -> Tensor:
    """Mean log-probability of the answer's tokens given each passage alone: g_i = 1/|y| log p(y | q, z_i).

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
        (B, K, T) log-probabilities of the answer's tokens, 0 after its end and where a question has fewer
        passages; (B, T) bool mask of its tokens; and (B, K, T, V) those of the whole vocabulary, or None.
    """
    labels = seq2seq.targets(answers)  # (B, T)
    owners = torch.repeat_interleave(torch.tensor(list(counts)))
    targets = labels[owners.to(labels.device)]  # (R, T)
    everything = seq2seq.logits(apart, targets).log_softmax(-1) if words else None
    if everything is None:
        logp = seq2seq.token_log_probs(apart, targets)
    else:
        logp = everything.gather(2, targets.clamp_min(0)[:, :, None])[:, :, 0].masked_fill(targets < 0, 0.0)
    each = None if everything is None else _by_question(everything, counts)
    return _by_question(logp, counts), labels >= 0, each


def _by_question(values: Tensor, counts: Sequence[int]) -> Tensor:
    return pad_sequence(list(values.split(list(counts))), batch_first=True)
