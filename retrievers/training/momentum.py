"""Passages of earlier batches as negatives: a queue of vectors from a momentum copy of the encoder."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rag.core.files import hash64
from rag.core.types import Passage
from rag.training.distributed import World
from rag.training.fit import FitHooks
from rag.training.precision import MasterWeights
from retrievers.encoders.vectors import Vectors
from retrievers.examples.batches import RetrieverBatch
from retrievers.examples.data import ExampleTable
from retrievers.training.bi_encoder import BiEncoderModel
from retrievers.training.losses import Score, in_batch_loss


class MomentumQueue(FitHooks):
    """Vectors of the last `size` passages of the training batches, first in, first out.

    Their vectors come from a copy of the passage tower whose weights follow the trained ones after every
    step, θ' ← m θ' + (1 − m) θ, without dropout. Queue and copy are saved in the checkpoint, so that a
    resumed run gives the same result.

    Args:
        model: the bi-encoder in training.
        master: the model's fp32 weights.
        data: the training examples, for the positives of each question, which are never its negatives.
        size: maximum number of vectors in the queue.
        momentum: m of the update.
        world: the processes; each encodes its share of the passages, and all have the whole queue.

    Source: Xiong et al. 2021, "Answering Complex Open-Domain Questions with Multi-Hop Dense Retrieval"
        (memory bank); He et al. 2020, "Momentum Contrast for Unsupervised Visual Representation Learning".

    Note:
        The published code starts with a queue of random vectors and never updates the copy (m = 1); here the
        queue starts empty.
    """

    def __init__(
        self,
        model: BiEncoderModel,
        master: MasterWeights,
        data: ExampleTable,
        *,
        size: int,
        momentum: float,
        world: World,
    ) -> None:
        self.model, self.master, self.data, self.world = model, master, data, world
        self.size, self.momentum = size, momentum
        self._tower = copy.deepcopy(model.passage).requires_grad_(False).eval()
        side = "question." if model.shared else "passage."
        trained, named = master.state(), self._tower.named_parameters()
        self._names = {key: tensor for name, tensor in named if (key := f"{side}{name}") in trained}
        self._weights = {name: trained[name].clone() for name in self._names}
        self.vectors = torch.zeros((0, model.dim), device=world.device)
        self.keys = np.zeros(0, np.int64)

    def objective(self, questions: Vectors, passages: Vectors, batch: RetrieverBatch, score: Score) -> Tensor:
        """`in_batch_loss` over the passages of the batch and the queue."""
        scores = torch.cat([score(questions, passages), score(questions, Vectors(self.vectors))], dim=1)
        gold_keys = [_keys(example.positives) for example in self.data.take(batch.examples)]
        queued = np.array([np.isin(self.keys, keys) for keys in gold_keys]).reshape(
            len(gold_keys), len(self.keys)
        )
        ignored = torch.from_numpy(np.concatenate([batch.ignored, queued], axis=1)).to(scores.device)
        return in_batch_loss(scores, torch.from_numpy(batch.positives).to(scores.device), ignored)

    @torch.no_grad()
    def push(self, batch: RetrieverBatch) -> None:
        """Append the passages of a batch to the queue; those already in it move to its end."""
        shard = batch.shard(self.world.rank, self.world.size)
        if self.model.fixed is not None:
            own = self.model.fixed_vectors(shard.passages).values
        else:
            rows, _ = self.model.chunk()
            ids = self.model.tokenizer.passages(shard.passages)
            parts = [self._tower(ids[start : start + rows]) for start in range(0, len(ids), rows)]
            own = torch.cat([part.values for part in parts])
        new = self.world.all_gather(own.float())
        keys = _keys(batch.passages)
        kept = torch.from_numpy(~np.isin(self.keys, keys)).to(new.device)
        self.vectors = torch.cat([self.vectors[kept], new])[-self.size :]
        self.keys = np.concatenate([self.keys[kept.cpu().numpy()], keys])[-self.size :]

    @torch.no_grad()
    def after_step(self, step: int) -> None:
        """Update the weights of the copy."""
        now = self.master.state()
        for name, tensor in self._names.items():
            tensor.copy_(self._weights[name].lerp_(now[name], 1.0 - self.momentum))

    def extra_state(self) -> Mapping[str, Tensor]:
        """The queue and the copy's weights."""
        return {"queue": self.vectors, "keys": torch.from_numpy(self.keys), **self._weights}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Restore the queue and the copy's weights from a checkpoint."""
        self.vectors = state["queue"].to(self.world.device)
        self.keys = state["keys"].numpy()
        for name, tensor in self._names.items():
            tensor.copy_(self._weights[name].copy_(state[name]))


def _keys(passages: Sequence[Passage]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """A 64-bit hash of each passage's title and text."""
    return np.array([hash64(f"{p.title}\0{p.text}".encode()) for p in passages], np.uint64).view(np.int64)
