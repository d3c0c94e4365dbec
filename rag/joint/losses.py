r"""Losses of joint training, given the retrieved passages.

| loss | the reader's part | the retriever's part |
|---|---|---|
| RAG | −log p(y|x), marginal over passages that are read separately | the same |
| EMDR² | −log p(y | x, all passages) (Fusion-in-Decoder) | −log p(y|x), marginal, the reader held fixed |

EMDR²'s part of the retriever has no gradient in the reader's parameters.

Source:
    Lewis et al. 2020, "Retrieval-Augmented Generation" (RAG); Sachan et al. 2021, "End-to-End
    Training of Multi-Document Reader and Retriever for Open-Domain Question Answering" (EMDR²),
    equations 4 to 7.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from readers.generative.marginal import marginal_loss, posterior, read_apart
from readers.generative.model import Memory, Seq2Seq
from readers.generative.settings import Marginal

Rows = Sequence[Sequence[Sequence[int]]]
"""For each question the token ids of each of its passages, as the reader reads them."""


@dataclass(frozen=True, slots=True)
class JointLoss:
    """Losses of reader and retriever, summed over B questions.

    Attributes:
        reader: what the reader minimises; for RAG the whole loss.
        retriever: what the retriever minimises; for RAG 0, it learns from `reader`.
        weights: (B, K) how much each passage contributes to the answer, as this loss measures it;
            detached.
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
    loss = marginal_loss(
        marginal, scores, logp, smoothing=smoothing, everything=everything, spoken=spoken
    )
    weights = posterior(marginal, scores, logp, spoken).detach()
    return JointLoss(loss.sum(), loss.new_zeros(()), weights)


def emdr2_loss(
    marginal: Marginal,
    seq2seq: Seq2Seq,
    rows: Rows,
    answers: Sequence[Sequence[int]],
    scores: Tensor,
    *,
    batch_tokens: int = 8192,
) -> JointLoss:
    """EMDR²: the reader fuses the passages, the retriever learns how useful each is alone.

    Args:
        marginal: per whole answer ("sequence"), as in the paper, or per token, as in its code.
        seq2seq, rows, answers, scores, batch_tokens: as for `rag_loss`.
    """
    memory = seq2seq.encode(rows, batch_tokens)
    reader = -seq2seq.token_log_probs(memory, seq2seq.targets(answers)).sum()
    fixed = Memory(memory.states.detach(), memory.mask, memory.owner, memory.counts)
    was_training = seq2seq.model.training
    seq2seq.model.eval()  # the signal is read without dropout
    with torch.no_grad():
        logp, spoken, _ = read_apart(seq2seq, fixed.apart(), memory.counts, answers)
    seq2seq.model.train(was_training)
    weights = posterior(marginal, scores, logp, spoken).detach()
    return JointLoss(reader, marginal_loss(marginal, scores, logp).sum(), weights)
