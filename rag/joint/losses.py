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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from readers.generative.marginal import marginal_loss, posterior, read_apart
from readers.generative.model import Memory, Seq2Seq
from readers.generative.settings import Marginal


@dataclass(frozen=True, slots=True)
class AnswerBatch:
    """B questions with their passages and answers, as a generator reads them.

    Attributes:
        seq2seq: the generator.
        rows: for each question the token ids of each of its passages, at least one passage.
        answers: token ids of each question's answer, without special tokens.
        batch_tokens: tokens of passages that are encoded at a time.
    """

    seq2seq: Seq2Seq
    rows: Sequence[Sequence[Sequence[int]]]
    answers: Sequence[Sequence[int]]
    batch_tokens: int


@dataclass(frozen=True, slots=True)
class JointLoss:
    """Losses of reader and retriever, summed over B questions.

    Attributes:
        reader: what the reader minimises; for RAG the whole loss.
        retriever: what the retriever minimises; for RAG 0, because it learns from `reader`.
        weights: (B, K) how much each passage contributes to the answer, as this loss measures it;
            detached.
    """

    reader: Tensor
    retriever: Tensor
    weights: Tensor


Objective = Callable[[Tensor, AnswerBatch], JointLoss]
"""Scores (B, K) of the passages and the batch → the loss."""


def rag_loss(
    scores: Tensor, batch: AnswerBatch, *, marginal: Marginal, smoothing: float = 0.0
) -> JointLoss:
    """RAG: −log p(y|x), differentiable in the generator and, through the scores, in the retriever.

    Args:
        scores: (B, K) of the passages, whose softmax is p(z|x); −inf behind a question's last one.
        batch: what the generator reads and is to say.
        marginal: over sequences or tokens, see `readers.generative.marginal`.
        smoothing: ε of label smoothing.
    """
    seq2seq = batch.seq2seq
    counts = list(map(len, batch.rows))
    passages = [[ids] for ids in chain.from_iterable(batch.rows)]
    apart = seq2seq.encode(passages, batch.batch_tokens)
    logp, spoken, everything = read_apart(
        seq2seq, apart, counts, batch.answers, words=smoothing > 0
    )
    loss = marginal_loss(
        marginal, scores, logp, smoothing=smoothing, everything=everything, spoken=spoken
    )
    weights = posterior(marginal, scores, logp, spoken).detach()
    return JointLoss(loss.sum(), loss.new_zeros(()), weights)


def emdr2_loss(scores: Tensor, batch: AnswerBatch, *, marginal: Marginal) -> JointLoss:
    """EMDR²: the reader fuses the passages, the retriever learns how useful each is alone.

    Args:
        scores, batch: as for `rag_loss`.
        marginal: per whole answer ("sequence"), as in the paper, or per token, as in its code.
    """
    seq2seq = batch.seq2seq
    memory = seq2seq.encode(batch.rows, batch.batch_tokens)
    reader = -seq2seq.token_log_probs(memory, seq2seq.targets(batch.answers)).sum()
    fixed = Memory(memory.states.detach(), memory.mask, memory.owner, memory.counts)
    was_training = seq2seq.model.training
    # The signal is decoded without dropout, from the states that the reader's pass encoded with it.
    seq2seq.model.eval()
    with torch.no_grad():
        logp, spoken, _ = read_apart(seq2seq, fixed.apart(), memory.counts, batch.answers)
    seq2seq.model.train(was_training)
    weights = posterior(marginal, scores, logp, spoken).detach()
    return JointLoss(reader, marginal_loss(marginal, scores, logp).sum(), weights)
