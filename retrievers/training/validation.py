"""Validation of a bi-encoder on held-out questions: the loss, and the rank of the positive in a
pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from rag.core.arrays import Float32
from rag.core.types import Query
from rag.data.examples import Example
from rag.metrics.ranking import average_rank
from rag.training.distributed import World
from retrievers.encoders.settings import TOKENS
from retrievers.encoders.tokenization import TextTokenizer
from retrievers.examples.batches import BatchMaker
from retrievers.examples.data import ExampleTable
from retrievers.training.bi_encoder import BiEncoderModel, encoder_form
from retrievers.training.config import EncodedConfig
from retrievers.training.losses import BatchLoss
from retrievers.training.step import contrastive_step

POOL_NEGATIVES = 30
POOL_QUESTIONS = 10_000  # as in the published average rank


def pool_rank(encoder: PoolEncoder, examples: Sequence[Example]) -> float:
    """`average_rank` in the pool of all positives and up to 30 hard negatives of each of
    `examples`.

    At most 10,000 questions count, as in the published rule. With fewer the pool is smaller and the
    rank better: then the figure is not comparable with published ones.
    """
    examples = examples[:POOL_QUESTIONS]
    rows: dict[tuple[str, str], int] = {}
    positives = []
    for example in examples:
        contents = [(passage.title, passage.text) for passage in example.positives]
        positives.append([rows.setdefault(content, len(rows)) for content in contents])
        for negative in example.negatives[:POOL_NEGATIVES]:
            rows.setdefault((negative.passage.title, negative.passage.text), len(rows))
    vectors = encoder.encode_passages([title for title, _ in rows], [text for _, text in rows])
    queries = encoder.encode_queries([example.query for example in examples])
    return average_rank(queries, vectors, positives)


class PoolEncoder(Protocol):
    """What `pool_rank` compares texts with: an encoder, or a model in training."""

    def encode_queries(self, queries: Sequence[Query]) -> Float32:
        """Vectors (n, D) of questions with passages."""

    def encode_passages(self, titles: Sequence[str], texts: Sequence[str]) -> Float32:
        """Vectors (n, D) of passages."""


class ModelEncoder:
    """A model in training as an encoder of at most `max_length` tokens; the caller turns dropout
    off.
    """

    def __init__(self, model: BiEncoderModel, max_length: int) -> None:
        self.model = model
        question, passage = model.settings
        self._questions = TextTokenizer(question.override(max_length=max_length))
        self._passages = TextTokenizer(passage.override(max_length=max_length))

    def encode_queries(self, queries: Sequence[Query]) -> Float32:
        """Vectors (n, D) of questions with passages."""
        return _as_array(self.model.encode_questions(self._questions.queries(queries)))

    def encode_passages(self, titles: Sequence[str], texts: Sequence[str]) -> Float32:
        """Vectors (n, D) of passages."""
        return _as_array(self.model.encode_passages(self._passages.passages(titles, texts)))


def _as_array(vectors: Tensor) -> Float32:
    return np.asarray(vectors.float().cpu().numpy(), np.float32)


class HeldOutScores:
    """Scores the model on held-out questions: loss, and average rank of a vector per text."""

    def __init__(
        self,
        config: EncodedConfig,
        held_out: Sequence[Example],
        make_batches: BatchMaker,
        loss: BatchLoss,
    ) -> None:
        self.config = config
        self.loss = loss
        self.judged = [example for example in held_out if example.positives]
        self.batches = make_batches(config, ExampleTable.of(held_out), once=True)

    @torch.no_grad()
    def __call__(self, model: BiEncoderModel) -> dict[str, float]:
        """{"nll", "average_rank"}."""
        model.eval()
        scores = {"nll": self._loss(model)}
        if self.judged and model.settings.passage.pooling != TOKENS:
            encoder = ModelEncoder(model, encoder_form(model).max_length)
            scores["average_rank"] = pool_rank(encoder, self.judged)
        model.train()
        return scores

    def _loss(self, model: BiEncoderModel) -> float:
        world = World(device=model.device)
        total = 0.0
        for number in range(len(self.batches)):
            batch = self.batches[number]
            step = contrastive_step(model, batch, world, self.config.chunk_size, loss=self.loss)
            total += float(step.value)
        return total / len(self.batches)
