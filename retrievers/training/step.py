"""One contrastive training step, exact for any number of processes: encode, gather, compare, and back.

Every process encodes its own questions and passages, gathers everybody's vectors and computes the loss of
the whole batch from them. From its gradient each process keeps the rows of its own vectors. The parameter
gradients of the processes then add up to the gradient of one process with the whole batch: for both towers,
with negatives across processes, without a factor of the number of processes.

Note:
    In the original DPR code the averaging of gradients divides this sum by the number of processes; the
    common variant in which a process scores its own questions against gathered, detached passages loses the
    gradients that other processes' questions have for its passages.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from rag.core.errors import ConfigError
from rag.training.distributed import World
from rag.training.fit import Loss
from retrievers.examples.batches import RetrieverBatch
from retrievers.training.gradient_cache import ChunkedEncoding
from retrievers.training.losses import in_batch_loss, pairwise_loss
from retrievers.training.model import BiEncoderModel

__all__ = ["Objective", "contrastive_step", "in_batch_objective", "pairwise_objective"]

Objective = Callable[[Tensor, RetrieverBatch], Tensor]


def in_batch_objective(scores: Tensor, batch: RetrieverBatch) -> Tensor:
    """Each question's positive against all passages of the batch that are not ignored (`in_batch_loss`).

    Raises:
        ConfigError: no question of the batch has a negative: the loss would be 0, whatever is learned.
    """
    left = batch.ignored.shape[1] - batch.ignored.sum(1)
    if not (left > 1).any():
        raise ConfigError(
            f"no question of a batch of {len(left)} has a negative: nothing can be learned from it",
            hint="raise batch_size, add hard negatives, or check why all other passages count as answers",
        )
    ignored = torch.from_numpy(batch.ignored) if batch.ignored.any() else None
    return in_batch_loss(
        scores,
        torch.from_numpy(batch.positives).to(scores.device),
        None if ignored is None else ignored.to(scores.device),
    )


def pairwise_objective(scores: Tensor, batch: RetrieverBatch) -> Tensor:
    """Each question's positive against each of the negatives drawn for it (`pairwise_loss`); none are shared.

    Raises:
        ConfigError: no question of the batch has a negative of its own.
    """
    rows, negatives = batch.drawn
    kept = ~batch.ignored[rows, negatives] & (negatives != batch.positives[rows])
    rows, negatives = rows[kept], negatives[kept]
    if not len(rows):
        raise ConfigError(
            f"no question of a batch of {len(batch.positives)} has a mined negative, which this loss is made "
            "of",
            hint="mine negatives first (`rag mine`), or use the in-batch loss",
        )
    take = torch.from_numpy(np.stack([rows, batch.positives[rows], negatives])).to(scores.device)
    return pairwise_loss(scores[take[0], take[1]], scores[take[0], take[2]])


def contrastive_step(
    model: BiEncoderModel,
    batch: RetrieverBatch,
    world: World | None = None,
    chunk_size: int | None = None,
    *,
    objective: Objective = in_batch_objective,
) -> Loss:
    """Forward pass and loss of a batch; `Loss.backward` computes this process's share of the gradient.

    Args:
        model: the bi-encoder; its dropout follows from torch's global generator of the main process.
        batch: the whole batch, the same in every process.
        world: the processes; None: this one alone.
        chunk_size: texts that go through an encoder at once, by the gradient cache: memory does not grow with
            the batch, every text is encoded twice. None keeps all graphs.
        objective: scores (B, P) of the whole batch → scalar.

    Returns:
        The loss divided by the number of processes (shares add up), the own examples and tokens.

    Raises:
        ConfigError: the batch has no negatives, or fewer questions than there are processes.

    Source:
        Karpukhin et al. 2020, equation 2; Gao et al. 2021 (gradient cache).
    """
    world = World.single(model.device) if world is None else world
    shard = batch.shard(world.rank, world.size)
    rows, tokens = model.chunk(chunk_size)
    seed = world.shared_seed()

    questions = ChunkedEncoding(
        model.question, shard.questions, [len(text) for text in shard.questions],
        chunk_rows=rows, chunk_tokens=tokens, keep_graphs=chunk_size is None,
        seed=seed, first=shard.first_question, device=world.device,
    )  # fmt: skip
    passages = ChunkedEncoding(
        model.passage, shard.passages, [len(text) for text in shard.passages],
        chunk_rows=rows, chunk_tokens=tokens, keep_graphs=chunk_size is None,
        seed=seed ^ 1, first=shard.first_passage, device=world.device,
    )  # fmt: skip
    trains = torch.is_grad_enabled()
    all_questions = world.all_gather(questions.vectors).requires_grad_(trains)  # (B, D)
    all_passages = world.all_gather(passages.vectors).requires_grad_(trains)  # (P, D)
    value = objective(model.score(all_questions, all_passages), batch)

    def backward(flush: Callable[[], None]) -> None:
        extra = model.score_parameters()
        gradients = torch.autograd.grad(value, [all_questions, all_passages, *extra])
        for parameter, gradient in zip(extra, gradients[2:], strict=True):
            if world.is_main:  # every process has the whole gradient of the scale: it counts once
                parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        if model.question.is_trained:
            first = shard.first_question
            questions.backward(gradients[0][first : first + len(questions.vectors)], flush)
        if model.passage.is_trained:
            first = shard.first_passage
            passages.backward(gradients[1][first : first + len(passages.vectors)], flush)

    return Loss(
        value.detach() / world.size,
        examples=len(shard.questions),
        tokens=shard.tokens,
        backward=backward,
    )
