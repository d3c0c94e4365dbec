"""Validation of a bi-encoder on held-out questions: the loss, and the rank of the positive in a
pool.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rag.core.arrays import Float32
from rag.core.types import Passage, Query
from rag.data.examples import Example
from rag.metrics.ranking import average_rank
from rag.training.fit import LossFunction
from retrievers.encoders.settings import TOKENS
from retrievers.encoders.tokenization import TextTokenizer
from retrievers.examples.batches import BatchMaker, check_negatives, distinct
from retrievers.examples.data import ExampleTable
from retrievers.training.bi_encoder import TrainedRetriever
from retrievers.training.config import EncodedConfig

POOL_NEGATIVES = 30
POOL_QUESTIONS = 10_000  # as in the published average rank


def pool_rank(
    examples: Sequence[Example],
    encode_queries: Callable[[Sequence[Query]], Float32],
    encode_passages: Callable[[Sequence[str], Sequence[str]], Float32],
) -> float:
    """`average_rank` in the pool of all positives and up to 30 hard negatives of each of
    `examples`.

    At most 10,000 questions count, as in the published rule. With fewer the pool is smaller and the
    rank better: then the figure is not comparable with published ones.

    Args:
        encode_queries: questions with passages → their vectors (n, D).
        encode_passages: titles and texts of passages → their vectors (n, D).
    """
    examples = examples[:POOL_QUESTIONS]
    passages: list[Passage] = []
    places = []
    for example in examples:
        places.append(range(len(passages), len(passages) + len(example.positives)))
        passages += example.positives
        passages += [negative.passage for negative in example.negatives[:POOL_NEGATIVES]]
    pool, rows = distinct(passages)
    positives = [rows[list(of_example)].tolist() for of_example in places]
    vectors = encode_passages(
        [passage.title for passage in pool], [passage.text for passage in pool]
    )
    return average_rank(encode_queries([example.query for example in examples]), vectors, positives)


class HeldOutScores:
    """Scores the model on held-out questions: loss, and average rank of a vector per text.

    Args:
        loss: the loss of a batch of `make_batches`.

    Raises:
        ConfigError: no held-out question could be compared with a wrong passage.
    """

    def __init__(
        self,
        config: EncodedConfig,
        held_out: Sequence[Example],
        make_batches: BatchMaker,
        loss: LossFunction,
    ) -> None:
        self.loss = loss
        self.with_positives = [example for example in held_out if example.positives]
        self.batches = make_batches(config, ExampleTable.of(held_out), once=True)
        check_negatives(self.batches, "held-out")

    @torch.no_grad()
    def __call__(self, retriever: TrainedRetriever) -> dict[str, float]:
        """{"nll", "average_rank"}; `nll` is the mean over the questions in their batches."""
        model = retriever.model
        model.eval()
        total = 0.0
        n_questions = 0
        for batch in self.batches:
            loss = self.loss(batch)
            total += float(loss.value) * loss.examples
            n_questions += loss.examples
        scores = {"nll": total / n_questions}
        if self.with_positives and model.settings.passage.pooling != TOKENS:
            scores["average_rank"] = self._rank(retriever)
        model.train()
        return scores

    def _rank(self, retriever: TrainedRetriever) -> float:
        """`pool_rank` of the model; texts are as long as the finished encoder reads them."""
        model = retriever.model
        longest = retriever.encoder_settings.max_length
        question, passage = (
            TextTokenizer(side.override(max_length=longest)) for side in model.settings
        )

        def encode_queries(queries: Sequence[Query]) -> Float32:
            return _as_array(model.encode_query_tokens(question.queries(queries)))

        def encode_passages(titles: Sequence[str], texts: Sequence[str]) -> Float32:
            return _as_array(model.encode_passage_tokens(passage.passages(titles, texts)))

        return pool_rank(self.with_positives, encode_queries, encode_passages)


def _as_array(vectors: Tensor) -> Float32:
    return vectors.float().cpu().numpy()
