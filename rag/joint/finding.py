"""Retrieval of passages while a reader learns from them: by a retriever that is trained too, over
an index that is refreshed meanwhile, or by a fixed one.

A refresh writes `embeddings/`, float32 vectors of the whole corpus by a snapshot of the encoder,
which replace those of the trainer and are searched exactly.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from indexers.embeddings import EmbeddingShards, ShardLayout, encode_corpus
from indexers.exact import FlatIndex
from indexers.index import Index
from indexers.protocols import EncodesCorpus
from rag.core.arrays import Int64
from rag.core.types import Passage, Query, Question
from rag.data.selection import check_usable
from rag.joint.config import JointTrainConfig
from rag.training.distributed import World
from rag.training.precision import MasterWeights, part
from rag.training.refresh import Refresh
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.protocols import Retriever
from retrievers.training.bi_encoder import BiEncoderModel, score_rows, snapshot_writer


class LiveIndex:
    """Passages of an index, which must have vectors, and their vectors from the latest refresh.

    Attributes:
        passages: the passages; row i of the index is passage i.
    """

    def __init__(self, index: Index) -> None:
        self.passages = index.passages
        self._search = index.require_dense().vectors

    def search(self, questions: Tensor, top_k: int) -> Int64:
        """Rows (B, K) of the best passages in the live index, best first; −1 where there are fewer
        than K.

        Args:
            questions: (B, D) vectors from the current model; the search is not differentiable.
        """
        return self._search.search(questions.detach().float().cpu().numpy(), top_k)[1]

    def passages_of(self, rows: Int64) -> list[list[Passage]]:
        """The passages of each question, from the rows that `search` returns."""
        return [self.passages.get_many(row[row >= 0]) for row in rows]

    def take_up(self, result: Path) -> Mapping[str, float]:
        """Search the vectors in the folder of a refresh's result from now on."""
        layout = ShardLayout(len(self.passages), self._search.dim, "float32")
        self._search = FlatIndex(EmbeddingShards.open(result / "embeddings", layout))
        return {}


def encode_snapshot(
    config: Any, device: str, snapshot: Path, folder: Path, encode: EncodesCorpus = encode_corpus
) -> None:
    """Encode the corpus with a snapshot; an interrupted refresh resumes after the last finished
    shard.
    """
    encoder = BiEncoder.load(snapshot / "encoder", device=device, precision=config.precision)
    with Index.open(config.index) as index:
        encode(folder / "embeddings", index.passages, encoder, "float32")


def index_refresh(
    config: Any,
    live_index: LiveIndex,
    model: BiEncoderModel,
    master: MasterWeights,
    *,
    world: World,
    encode: EncodesCorpus | None = None,
) -> Refresh:
    """Hooks of the fit loop that publish snapshots of `model`, whose fp32 weights are the entries
    `retriever.…` of `master`, and take up refreshed indexes."""
    write_snapshot = snapshot_writer(
        model, lambda: part(master.state(), "retriever"), max_length=config.passage_tokens
    )
    return Refresh(
        config,
        encode_snapshot,
        write_snapshot,
        live_index.take_up,
        world=world,
        encode=encode,
        begins_with_result=True,
    )


@dataclass(frozen=True, slots=True)
class Retrieved:
    """Passages of B questions, best first by the index, and their scores (B, K), −inf behind the
    last.
    """

    rows: Int64
    passages: list[list[Passage]]
    scores: Tensor


class LearningFinder:
    """A bi-encoder in training, over the live index; the vectors of `index` score its passages if
    they stay.

    Attributes:
        scale: factor on the scores, so that their softmax is p(z|x): one over the temperature.
    """

    def __init__(
        self,
        config: JointTrainConfig,
        retriever: BiEncoderModel,
        index: Index,
        live_index: LiveIndex,
    ) -> None:
        self._config, self._retriever, self._index, self._live_index = (
            config,
            retriever,
            index,
            live_index,
        )
        self.scale = retriever.scale

    def find(self, questions: Sequence[Question]) -> Retrieved:
        """Passages and their scores, with gradient; `document_side` decides which vectors score
        them.
        """
        config, vectors = self._config, self._ask(questions)
        rows = self._live_index.search(vectors, config.over_retrieve or config.top_k)
        if config.over_retrieve:
            with torch.no_grad():
                fresh = score_rows(self._retriever, self._index, vectors, rows, encode=True)
            best = fresh.topk(min(config.top_k, rows.shape[1]), dim=1).indices.cpu().numpy()
            rows = np.take_along_axis(rows, best, axis=1)
        encode = config.document_side != "frozen"
        scores = score_rows(self._retriever, self._index, vectors, rows, encode=encode)
        return Retrieved(rows, self._live_index.passages_of(rows), scores)

    @torch.no_grad()
    def best(self, questions: Sequence[Question], count: int) -> list[list[Passage]]:
        """The first `count` passages of each question, best first."""
        return self._live_index.passages_of(self._live_index.search(self._ask(questions), count))

    def _ask(self, questions: Sequence[Question]) -> Tensor:
        return self._retriever.ask([Query(question.text) for question in questions])


class FixedFinder:
    """Any fixed retriever: its scores times `scale` are the logits of p(z|x), without gradient.

    Source:
        Lewis et al. 2020, "Retrieval-Augmented Generation for Knowledge-Intensive NLP Tasks",
        section 4.5.
    """

    def __init__(
        self, retriever: Retriever, index: Index, top_k: int, scale: float, device: str
    ) -> None:
        self._retriever, self._passages, self._top_k = retriever, index.passages, top_k
        self.scale, self._device = scale, device

    def answerable(self, questions: Sequence[Question]) -> list[Question]:
        """The questions for which a passage is retrieved; the others are counted in a warning.

        Raises:
            DataError: there is none.
        """
        results = self._retriever.search([question.text for question in questions], 1)
        usable = [question for question, hits in zip(questions, results, strict=True) if hits]
        if questions:
            what = "questions have a passage that is retrieved for them"
            hint = "check that index and questions are of one language"
            check_usable(len(usable), len(questions), what, few=1.0, hint=hint)
        return usable

    def find(self, questions: Sequence[Question]) -> Retrieved:
        """Passages and their scores; at least one passage must be retrieved for every question."""
        results = self._retriever.search([question.text for question in questions], self._top_k)
        rows = np.full((len(questions), self._top_k), -1, dtype=np.int64)
        scores = torch.full(rows.shape, float("-inf"))
        for b, hits in enumerate(results):
            rows[b, : len(hits)] = [hit.row for hit in hits]
            scores[b, : len(hits)] = torch.tensor([hit.score for hit in hits]) * self.scale
        return Retrieved(rows, self._stored(rows), scores.to(self._device))

    def best(self, questions: Sequence[Question], count: int) -> list[list[Passage]]:
        """The first `count` passages of each question, best first."""
        results = self._retriever.search([question.text for question in questions], count)
        return self._stored([np.array([hit.row for hit in hits], np.int64) for hits in results])

    def _stored(self, rows: Sequence[Int64] | Int64) -> list[list[Passage]]:
        return [self._passages.get_many(row[row >= 0]) for row in rows]


Finder = LearningFinder | FixedFinder
