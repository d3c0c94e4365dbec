"""Retrieval of passages while a reader learns from them: by a retriever that is trained too, or by a fixed
one."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from indexers.index import Index
from rag.core.arrays import Int64
from rag.core.errors import DataError
from rag.core.log import get_logger
from rag.core.types import Passage, Query, Question
from rag.joint.config import JointTrainConfig
from rag.joint.live_index import LiveIndex
from retrievers.protocols import Passages, Retriever
from retrievers.training.bi_encoder import BiEncoderModel, listed_scores, score_rows

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Retrieved:
    """Passages of B questions, best first by the index, and their scores (B, K), −inf behind the last."""

    rows: Int64
    passages: list[list[Passage]]
    scores: Tensor


class LearningFinder:
    """A bi-encoder in training, over the live index.

    Args:
        config: gives `document_side`, `top_k` and `over_retrieve`.
        retriever: encodes questions, and passages if the passage encoder is trained.
        index: its vectors score the passages if the passage encoder is fixed.
        live_index: the index that is searched.
    """

    def __init__(
        self, config: JointTrainConfig, retriever: BiEncoderModel, index: Index, live_index: LiveIndex
    ) -> None:
        self._config, self._retriever, self._index, self._live_index = config, retriever, index, live_index

    @property
    def scale(self) -> float:
        """Factor on the scores, so that their softmax is p(z|x): one over the temperature."""
        return self._retriever.scale

    def find(self, questions: Sequence[Question]) -> Retrieved:
        """Passages and their scores, with gradient; `document_side` decides which vectors score them."""
        side, top_k = self._config.document_side, self._config.top_k
        vectors = self._ask(questions)
        rows = self._live_index.search(vectors, self._config.over_retrieve or top_k)
        if side == "rerank":
            with torch.no_grad():
                fresh = self._scores(vectors, rows)
            best = fresh.topk(min(top_k, rows.shape[1]), dim=1).indices.cpu().numpy()
            rows = np.take_along_axis(rows, best, axis=1)
        scores = (
            score_rows(self._retriever, self._index, vectors, rows)
            if side == "frozen"
            else self._scores(vectors, rows)
        )
        return Retrieved(rows, self._live_index.passages_of(rows), scores)

    @torch.no_grad()
    def best(self, questions: Sequence[Question], count: int) -> list[list[Passage]]:
        """The first `count` passages of each question, best first."""
        return self._live_index.passages_of(self._live_index.search(self._ask(questions), count))

    def _ask(self, questions: Sequence[Question]) -> Tensor:
        return self._retriever.ask([Query(question.text) for question in questions])

    def _scores(self, vectors: Tensor, rows: Int64) -> Tensor:
        """(B, K) with passages encoded by the model as it is."""
        distinct, places = np.unique(np.maximum(rows, 0), return_inverse=True)
        encoded = self._retriever.read(self._live_index.passages.get_many(distinct))
        listed = np.where(rows < 0, -1, places.reshape(rows.shape))
        return listed_scores(vectors, encoded, torch.from_numpy(listed), self._retriever.scale)


class FixedFinder:
    """Any fixed retriever: its scores times `scale` are the logits of p(z|x), without gradient.

    Args:
        retriever: finds the passages.
        passages: passages of the index that it searches.
        top_k: number of passages per question, K.
        scale: factor on its scores.
        device: device of the scores.

    Source:
        Lewis et al. 2020, "Retrieval-Augmented Generation for Knowledge-Intensive NLP Tasks", section 4.5.
    """

    def __init__(
        self, retriever: Retriever, passages: Passages, top_k: int, scale: float, device: str = "cpu"
    ) -> None:
        self._retriever, self._stored, self._top_k, self.scale = retriever, passages, top_k, scale
        self._device = device

    def answerable(self, questions: Sequence[Question]) -> list[Question]:
        """The questions for which a passage is retrieved; the others are counted in a warning.

        Raises:
            DataError: there is none.
        """
        results = self._retriever.search([question.text for question in questions], 1)
        kept = [question for question, hits in zip(questions, results, strict=True) if hits]
        if questions and not kept:
            raise DataError(f"no passage was retrieved for any of {len(questions):,} questions")
        if len(kept) < len(questions):
            left_out = len(questions) - len(kept)
            log.warning(
                "%d of %d questions left out: no passage was retrieved for them", left_out, len(questions)
            )
        return kept

    def find(self, questions: Sequence[Question]) -> Retrieved:
        """Passages and their scores; at least one passage must be retrieved for every question."""
        results = self._retriever.search([question.text for question in questions], self._top_k)
        rows = np.full((len(questions), self._top_k), -1, dtype=np.int64)
        scores = torch.full(rows.shape, float("-inf"))
        for b, hits in enumerate(results):
            rows[b, : len(hits)] = [hit.row for hit in hits]
            scores[b, : len(hits)] = torch.tensor([hit.score for hit in hits]) * self.scale
        return Retrieved(
            rows, [self._stored.get_many(row[row >= 0]) for row in rows], scores.to(self._device)
        )

    def best(self, questions: Sequence[Question], count: int) -> list[list[Passage]]:
        """The first `count` passages of each question, best first."""
        results = self._retriever.search([question.text for question in questions], count)
        return [self._stored.get_many([hit.row for hit in hits]) for hits in results]


Finder = LearningFinder | FixedFinder
