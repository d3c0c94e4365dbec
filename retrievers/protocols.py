"""Interfaces of retrievers (questions in, hits out) and of their encoders and scorers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Protocol

from indexers.protocols import PassageEncoder, Selection
from rag.core.arrays import Float32
from rag.core.errors import MismatchedArtifactError, RetrievalError
from rag.core.log import Timer
from rag.core.types import EvidencePath, Hit, Passage, Query, SearchResult

if TYPE_CHECKING:
    from indexers.index import Index

Selected = Selection | None
"""The passages that may be returned; None: all."""
HitLists = list[list[Hit]]
"""For each question its hits, best first."""
PathLists = list[list[EvidencePath]]
"""For each question its paths, best first."""
_HINT = "see `retrievers.protocols.Retriever` for what a search returns"


class TextEncoder(PassageEncoder, Protocol):
    """Encodes both sides, as `BiEncoder` does."""

    def encode_queries(self, queries: Sequence[Query]) -> Float32:
        """Vectors (n, D) float32 of questions, each with the passages of its earlier hops, in
        order.
        """


class PairScorer(Protocol):
    """Scores pairs of question and passage, such as a cross-encoder or a late-interaction model.

    Attributes:
        is_log_odds: whether a score is the log-odds that the passage is relevant.
    """

    is_log_odds: bool

    @property
    def name(self) -> str:
        """Folder or hub name."""

    def score(self, questions: Sequence[str], passages: Sequence[Passage]) -> Float32:
        """Scores (n,) of n pairs, larger is better, comparable within a question."""


class Retriever(ABC):
    """Finds passages for questions. A subclass needs `search` alone; the rest says what else it can do.

    Attributes:
        encoder: makes the vectors of questions and of texts that `Pipeline.embed` returns; None if
            the retriever searches without vectors.
        finds_paths: whether `search_paths` returns paths of several passages.
        absent_score: score of the passages that a list lacks although it is shorter than `top_k`,
            for hybrid retrieval: 0 for BM25, and for all that scores shared words, since such a
            passage shares none with the question. None: the list does not tell, as where an index
            of vectors looks at some of its passages alone; then they get the list's least score.
        scorer: the model that re-ranks its hits, which `Pipeline.relevance` asks; None if there is
            none.
    """

    encoder: TextEncoder | None = None
    scorer: PairScorer | None = None
    finds_paths: bool = False
    absent_score: float | None = None

    @property
    def identity(self) -> dict[str, object]:
        """Settings and checksums of models that tell this retriever from another, for reports."""
        return {"retriever": type(self).__name__}

    @abstractmethod
    def search(
        self,
        questions: Sequence[str],
        top_k: int,
        *,
        timer: Timer = None,
        selected: Selected = None,
    ) -> HitLists:
        """Best passages of each question, best first, ties by passage id.

        Args:
            top_k: most hits per question; there are fewer if fewer passages match or exist.
            timer: gets the time of each stage.
            selected: the passages that may be returned; None: all. It changes no score of a
                passage.

        Returns:
            B lists of hits in the order of the questions.
        """

    def search_paths(
        self,
        questions: Sequence[str],
        top_k: int,
        *,
        timer: Timer = None,
        selected: Selected = None,
    ) -> tuple[HitLists, PathLists]:
        """The result of `search`, and at most `top_k` paths of each question.

        A path is a sequence of passages that together answer a question. Only a retriever that
        `finds_paths` returns any.
        """
        hit_lists = self.search(questions, top_k, timer=timer, selected=selected)
        return hit_lists, [[] for _ in hit_lists]

    def with_index(self, index: Index) -> Retriever:
        """This retriever with its loaded models over another version of its index.

        Raises:
            ConfigError: the index lacks a part that the retriever needs.
            MismatchedArtifactError: the retriever belongs to one version of an index.
        """
        raise MismatchedArtifactError(
            f"a {type(self).__name__} belongs to one version of an index",
            hint="open the new version with its models, or define `with_index` for this retriever",
        )


def check_lists(
    questions: Sequence[str], hit_lists: HitLists, path_lists: PathLists, selected: Selected
) -> None:
    """Refuse what a retriever of one's own was not to return, before any text is read.

    Raises:
        RetrievalError: there are not as many lists as questions, or a hit is outside of the
            selection.
    """
    if not len(hit_lists) == len(path_lists) == len(questions):
        raise RetrievalError(
            f"{len(hit_lists)} lists of hits and {len(path_lists)} of paths for {len(questions)} "
            "questions, expected one each",
            hint=_HINT,
        )
    if selected is None:
        return
    hits = list(chain.from_iterable(hit_lists))
    for path in chain.from_iterable(path_lists):
        hits += path.hits
    if not all(selected.mask[hit.row] for hit in hits):
        raise RetrievalError("the retriever returned passages that were not selected", hint=_HINT)


def check_results(queries: Sequence[str], results: Sequence[SearchResult]) -> None:
    """Refuse what a retriever of one's own got wrong, before it is read or scored.

    Raises:
        RetrievalError: there is not one result per query, or a hit's score is no finite number, or
            its id is not that of the passage in its row.
    """
    if len(results) != len(queries):
        raise RetrievalError(
            f"{len(results)} results for {len(queries)} questions, expected one each",
            hint=_HINT,
        )
    for result in results:
        for hit, passage in result.passages:
            if hit.passage_id != passage.id:
                raise RetrievalError(
                    f"row {hit.row} holds the passage {passage.id!r}, but its hit has the id "
                    f"{hit.passage_id!r}",
                    hint=_HINT,
                )
            if not math.isfinite(hit.score):
                raise RetrievalError(
                    f"the score of passage {passage.id!r} is {hit.score}", hint=_HINT
                )
