r"""Losses of joint training, given the retrieved passages.

| objective | the reader's part | the retriever's part |
|---|---|---|
| sequence, token | −log p(y|x), marginal over passages that are read separately (RAG) | the same |
| emdr2 | −log p(y | x, all passages) (Fusion-in-Decoder) | −log p(y|x), marginal, the reader held fixed |
| pdist | as emdr2 | KL from the reader's signal to p(z|x) |

With a Fusion-in-Decoder reader, the retriever's part has no gradient in the reader's parameters.

Source:
    Lewis et al. 2020, "Retrieval-Augmented Generation" (RAG); Sachan et al. 2021, "End-to-End Training of
    Multi-Document Reader and Retriever for Open-Domain Question Answering" (EMDR²), equations 4 to 7; Izacard
    et al. 2022, "Atlas", section 2.2 (PDist).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from rag.joint.config import Fused
from readers.generative.marginal import marginal_loss, passage_log_likelihood, posterior, read_apart
from readers.generative.model import Memory, Seq2Seq
from readers.generative.settings import Marginal
from retrievers.training.losses import kl_loss

Rows = Sequence[Sequence[Sequence[int]]]
"""For each question the token ids of each of its passages, as the reader reads them."""


@dataclass(frozen=True, slots=True)
class JointLoss:
    """Losses of reader and retriever, summed over B questions.

    Attributes:
        reader: what the reader minimises; for RAG the whole loss.
        retriever: what the retriever minimises; for RAG 0, it learns from `reader`.
        weights: (B, K) how much each passage contributes to the answer, as this loss measures it; detached.
    """

    reader: Tensor
    retriever: Tensor
    weights: Tensor


def rag_loss(
    marginal: Marginal,
    seq2seq: Seq2Seq,
    rows: Rows,
    answers: Sequence[Sequence[int]],
    scores: Tensor,
    *,
    smoothing: float = 0.0,
    batch_tokens: int = 8192,
) -> JointLoss:
    """RAG: −log p(y|x), differentiable in the generator and, through the scores, in the retriever.

    Args:
        marginal: over sequences or tokens, see `readers.generative.marginal`.
        seq2seq: the generator.
        rows: at least one passage per question.
        answers: token ids of each question's answer, without special tokens.
        scores: (B, K) of the passages, whose softmax is p(z|x); −inf behind a question's last one.
        smoothing: ε of label smoothing.
        batch_tokens: tokens of passages that are encoded at a time.
    """
    apart = seq2seq.encode([[ids] for passages in rows for ids in passages], batch_tokens)
    counts = [len(passages) for passages in rows]
    logp, spoken, everything = read_apart(seq2seq, apart, counts, answers, words=smoothing > 0)
    loss = marginal_loss(marginal, scores, logp, smoothing=smoothing, everything=everything, spoken=spoken)
    weights = posterior(marginal, scores, logp, spoken).detach()
    return JointLoss(loss.sum(), loss.new_zeros(()), weights)


def fused_loss(
    objective: Fused,
    seq2seq: Seq2Seq,
    rows: Rows,
    answers: Sequence[Sequence[int]],
    scores: Tensor,
    *,
    marginal: Marginal = "token",
    temperature: float = 1.0,
    target_temperature: float = 1.0,
    batch_tokens: int = 8192,
) -> JointLoss:
    """EMDR² and PDist: the reader fuses the passages, the retriever learns how useful each is alone.

    Args:
        objective: the retriever's, see the module.
        seq2seq, rows, answers, scores, batch_tokens: as for `rag_loss`.
        marginal: for "emdr2": per whole answer, as in the paper, or per token, as in its code.
        temperature, target_temperature: for "pdist", temperatures of the scores and of the reader's signal.
    """
    memory = seq2seq.encode(rows, batch_tokens)
    reader = -seq2seq.token_log_probs(memory, seq2seq.targets(answers)).sum()
    fixed = Memory(memory.states.detach(), memory.mask, memory.owner, memory.counts)
    with torch.no_grad(), _at_rest(seq2seq):
        if objective == "emdr2":
            logp, spoken, _ = read_apart(seq2seq, fixed.apart(), memory.counts, answers)
        else:
            signal = passage_log_likelihood(seq2seq, fixed, answers).to(scores)
    if objective == "emdr2":
        weights = posterior(marginal, scores, logp, spoken).detach()
        return JointLoss(reader, marginal_loss(marginal, scores, logp).sum(), weights)
    listed = signal.isfinite()
    divergence = kl_loss(
        scores / temperature, signal.masked_fill(~listed, 0.0), listed, target_temperature=target_temperature
    )
    return JointLoss(reader, divergence * len(rows), (signal / target_temperature).softmax(1))


@contextmanager
def _at_rest(seq2seq: Seq2Seq) -> Iterator[None]:
    """Without dropout inside."""
    was_training = seq2seq.model.training
    seq2seq.model.eval()
    yield
    seq2seq.model.train(was_training)
