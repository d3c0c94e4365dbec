"""Retrieval of passages while a generator learns from them: by a bi-encoder that is trained too,
over an index that is refreshed meanwhile, or by a fixed retriever.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from indexers.index import Index
from rag.core.arrays import Int64
from rag.core.types import Hit, Passage, Query, Question
from rag.data.selection import check_usable
from rag.joint.live_index import LiveIndex
from rag.joint.questions import JUDGED, holding_answers, retrieval_figures
from rag.metrics.ranking import first_true
from readers.answers import answer_scores, first_answers
from readers.protocols import Reader, ReadRequest
from retrievers.protocols import HitLists, Retriever
from retrievers.training.bi_encoder import BiEncoderModel, score_rows


class Retrieved(NamedTuple):
    """Passages of B questions, best first by the index, and their scores (B, K), −inf behind the
    last.
    """

    passages: list[list[Passage]]
    scores: Tensor


class Finder(ABC):
    """Finds the passages that a reader reads.

    Attributes:
        scale: factor on the scores, so that their softmax is p(z|x): one over the temperature.
    """

    scale: float

    @abstractmethod
    def find(self, questions: Sequence[Question]) -> Retrieved:
        """Passages of each question and their scores, which include `scale`."""

    @abstractmethod
    def best(self, questions: Sequence[Question], count: int) -> list[list[Passage]]:
        """The first `count` passages of each question, best first."""

    @torch.no_grad()
    def evaluate(
        self, questions: Sequence[Question], reader: Reader, batch_size: int
    ) -> tuple[list[ReadRequest], dict[str, float]]:
        """Retrieve passages for held-out questions and read them: the reader's requests, and the
        figures of retrieval and answers in percent.
        """
        ranks: list[int | None] = []
        requests = []
        for begin in range(0, len(questions), batch_size):
            part = questions[begin : begin + batch_size]
            holds = holding_answers(part, self.best(part, JUDGED), (len(part), JUDGED))
            ranks += map(first_true, holds.tolist())
            found = self.find(part)
            # A reader multiplies scores by its scale itself.
            scores = (found.scores / self.scale).tolist()
            for question, passages, row in zip(part, found.passages, scores, strict=True):
                requests.append(ReadRequest.of(question.text, passages, row[: len(passages)]))
        accepted = [question.answers for question in questions]
        profiles = [question.answer_profile for question in questions]
        figures = answer_scores(first_answers(reader, requests), accepted, profiles)
        return requests, {**figures, **retrieval_figures(ranks)}


@dataclass
class LearningFinder(Finder):
    """A bi-encoder in training, over the live index.

    Args:
        top_k: passages per question.
        over_retrieve: passages taken from the index, of which the `top_k` best by the model as it
            is are found; 0 takes `top_k`.
        encode: score with passage vectors of the model as it is, with gradient, in place of those
            of the index as it was built.
    """

    retriever: BiEncoderModel
    live_index: LiveIndex
    top_k: int
    over_retrieve: int = 0
    encode: bool = False

    def __post_init__(self) -> None:
        self.scale = self.retriever.scale

    def find(self, questions: Sequence[Question]) -> Retrieved:
        """Passages and their scores, with gradient."""
        vectors = self.vectors(questions)
        rows = self.live_index.search(vectors, self.over_retrieve or self.top_k)
        if self.over_retrieve:
            with torch.no_grad():
                fresh = self._scores(vectors, rows, encode=True)
            best = fresh.topk(min(self.top_k, rows.shape[1]), dim=1).indices
            rows = np.take_along_axis(rows, best.cpu().numpy(), axis=1)
        scores = self._scores(vectors, rows, encode=self.encode)
        return Retrieved(self.live_index.passages_of(rows), scores)

    @torch.no_grad()
    def best(self, questions: Sequence[Question], count: int) -> list[list[Passage]]:
        """The first `count` passages of each question, best first."""
        rows = self.live_index.search(self.vectors(questions), count)
        return self.live_index.passages_of(rows)

    def vectors(self, questions: Sequence[Question]) -> Tensor:
        """(B, D) vectors of questions, with gradient."""
        return self.retriever.encode_queries([Query(question.text) for question in questions])

    def _scores(self, vectors: Tensor, rows: Int64, *, encode: bool) -> Tensor:
        return score_rows(self.retriever, self.live_index.index, vectors, rows, encode=encode)


@dataclass
class FixedFinder(Finder):
    """Any fixed retriever: its scores times `scale` are the logits of p(z|x), without gradient.

    Source:
        Lewis et al. 2020, "Retrieval-Augmented Generation for Knowledge-Intensive NLP Tasks",
        section 4.5.
    """

    retriever: Retriever
    index: Index
    top_k: int
    scale: float
    device: str

    def answerable(self, questions: Sequence[Question]) -> list[Question]:
        """The questions for which a passage is retrieved; the others are counted in a warning.

        Raises:
            DataError: there is none.
        """
        if not questions:
            return []
        results = self._search(questions, 1)
        usable = [question for question, hits in zip(questions, results, strict=True) if hits]
        what = "questions have a passage that is retrieved for them"
        hint = "check that index and questions are of one language"
        check_usable(len(usable), len(questions), what, few=1.0, hint=hint)
        return usable

    def find(self, questions: Sequence[Question]) -> Retrieved:
        """Passages and their scores; at least one passage must be retrieved for every question."""
        results = self._search(questions, self.top_k)
        scores = torch.full((len(questions), self.top_k), float("-inf"))
        for row, hits in zip(scores, results, strict=True):
            row[: len(hits)] = torch.tensor([hit.score for hit in hits]) * self.scale
        return Retrieved(list(map(self._stored, results)), scores.to(self.device))

    def best(self, questions: Sequence[Question], count: int) -> list[list[Passage]]:
        """The first `count` passages of each question, best first."""
        return list(map(self._stored, self._search(questions, count)))

    def _search(self, questions: Sequence[Question], count: int) -> HitLists:
        return self.retriever.search([question.text for question in questions], count)

    def _stored(self, hits: Sequence[Hit]) -> list[Passage]:
        return self.index.passages.get_many(np.array([hit.row for hit in hits], np.int64))
