"""Multi-hop retrieval: every hop searches with the question and the passages of the hops before it.

A path of passages p1 … pn scores Σ_t ⟨E(q, p1 … p(t−1)), E(pt)⟩: the query of the first hop is the
question, that of every later hop the question with the passages so far. A beam of paths is kept
between hops.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from rag.config import Config
from rag.core.log import Timer, stage
from rag.core.types import EvidencePath, Hit, Query
from retrievers.first_stage import DenseRetriever
from retrievers.protocols import HitLists, PathLists, Retriever, Selected

if TYPE_CHECKING:
    from indexers.index import Index
    from indexers.passages import PassageStore


class MultiHop(Config):
    """Multi-hop retrieval, on the command line `--retriever multihop:beam=10,first=hybrid`.

    Attributes:
        hops: largest number of passages in a path.
        beam: paths that are kept and continued after each hop.
        first: retriever of the first passage: dense, or BM25 too.
    """

    hops: int = Field(default=2, ge=1, le=8)
    beam: int = Field(default=5, ge=1, le=1000)
    first: Literal["dense", "hybrid"] = "dense"

    def __str__(self) -> str:
        """The form that `retrievers.open.parse_kind` reads.

        >>> str(MultiHop(beam=10))
        'multihop:hops=2,beam=10,first=dense'
        """
        return "multihop:" + ",".join(f"{name}={value}" for name, value in self)


@dataclass(eq=False)
class MultiHopRetriever(Retriever):
    """Searches paths over any vector index.

    Attributes:
        dense: dense retriever over the index.
        first: retriever of the first passages; None: `dense`. Its n-th hit gets the score of the
            n-th hit of `dense`, because scores of different kinds cannot be added.
        hops, beam: see `MultiHop`.

    Source: Xiong et al. 2021, "Answering Complex Open-Domain Questions with Multi-Hop Dense
        Retrieval".

    Note:
        Unlike in the published code a path holds no passage twice, two orders of the same passages
        are one path (the better order), and there may be any number of hops.
    """

    dense: DenseRetriever
    passages: PassageStore
    _: KW_ONLY
    first: Retriever | None = None
    hops: int = 2
    beam: int = 5

    finds_paths = True

    def __post_init__(self) -> None:
        self.encoder = self.dense.encoder

    @property
    def identity(self) -> dict[str, object]:
        """The retriever with its hops and beam, and with what finds the first passages."""
        first = self.first or self.dense
        return {**super().identity, "hops": self.hops, "beam": self.beam, "first": first.identity}

    def search(
        self,
        questions: Sequence[str],
        top_k: int,
        *,
        timer: Timer = None,
        selected: Selected = None,
    ) -> HitLists:
        """The list of passages of `search_paths`; see `Retriever.search`."""
        return self.search_paths(questions, top_k, timer=timer, selected=selected)[0]

    def search_paths(
        self,
        questions: Sequence[str],
        top_k: int,
        *,
        timer: Timer = None,
        selected: Selected = None,
    ) -> tuple[HitLists, PathLists]:
        """For each question a list of passages, and at most `top_k` paths, best first and of equal
        length.

        The list has the passages of the best paths, then the other hits of the first hop. All
        passages of a path come together, with its score. With a selection, every passage of a path
        belongs to it.
        """
        if not questions:
            return [], []
        width = max(top_k, self.beam)
        with stage(timer, "hop_1"):
            first = self._first_hop(questions, width, selected)
        paths = dict(enumerate(map(_paths_of_one, first)))
        growing = [number for number, begun in paths.items() if begun]
        for hop in range(1, self.hops):
            if not growing:
                break
            with stage(timer, f"hop_{hop + 1}"):
                beams: list[tuple[int, EvidencePath]] = []
                for number in growing:
                    beams += [(number, path) for path in paths[number][: self.beam]]
                longer = self._continued(questions, beams, self.beam + hop, selected)
            growing = list(longer)  # the others have no further passage in the corpus
            for number in growing:
                paths[number] = _best(longer[number], width)
        hits = [hits_of_paths(paths[number], first[number], top_k) for number in paths]
        return hits, [found[:top_k] for found in paths.values()]

    def with_index(self, index: Index) -> MultiHopRetriever:
        """See `Retriever.with_index`."""
        first = None if self.first is None else self.first.with_index(index)
        return replace(
            self, dense=self.dense.with_index(index), passages=index.passages, first=first
        )

    def _first_hop(self, questions: Sequence[str], top_k: int, selected: Selected) -> HitLists:
        dense = self._search(list(map(Query, questions)), top_k, selected)
        if self.first is None:
            return dense
        hit_lists = self.first.search(questions, top_k, selected=selected)
        return [_with_scores(*pair) for pair in zip(hit_lists, dense, strict=True)]

    def _continued(
        self,
        questions: Sequence[str],
        beams: Sequence[tuple[int, EvidencePath]],
        top_k: int,
        selected: Selected,
    ) -> dict[int, list[EvidencePath]]:
        """Paths with one passage more, by the number of their question, from some of the paths so
        far.
        """
        rows: set[int] = set()
        for _, path in beams:
            rows.update(hit.row for hit in path.hits)
        texts = dict(zip(rows, self.passages.get_many(list(rows)), strict=True))
        queries = []
        for number, path in beams:
            context = [texts[hit.row] for hit in path.hits]
            queries.append(Query(questions[number], tuple(context)))
        hit_lists = self._search(queries, top_k, selected)
        longer: dict[int, list[EvidencePath]] = {}
        for (number, path), hits in zip(beams, hit_lists, strict=True):
            extended = _extend(path, hits, self.beam)
            if extended:
                longer.setdefault(number, []).extend(extended)
        return longer

    def _search(self, queries: Sequence[Query], top_k: int, selected: Selected) -> HitLists:
        vectors = self.dense.encoder.encode_queries(queries)
        return self.dense.search_vectors(vectors, top_k, selected)


def hits_of_paths(paths: Iterable[EvidencePath], rest: Iterable[Hit], top_k: int) -> list[Hit]:
    """The passages of paths as one list, for users of lists: no passage twice, scores never rise.

    Within a path, the passage that the question alone ranks highest comes first: it is the right
    one for questions that need only one.

    Example:
        >>> a, b, c = (Hit(row, name, 0.5) for row, name in enumerate("abc"))
        >>> hits = hits_of_paths([EvidencePath((b, a), 1.0)], [a, c], top_k=5)
        >>> [(hit.passage_id, hit.score) for hit in hits]
        [('a', 1.0), ('b', 1.0), ('c', 0.5)]
    """
    first = list(rest)
    rank_alone = {hit.row: rank for rank, hit in enumerate(first)}
    hits: dict[int, Hit] = {}
    lowest = math.inf
    for path in (*paths, *_paths_of_one(first)):
        for hit in sorted(path.hits, key=lambda hit: rank_alone.get(hit.row, len(first))):
            if len(hits) == top_k:
                return list(hits.values())
            if hit.row not in hits:
                lowest = min(path.score, lowest)
                hits[hit.row] = replace(hit, score=lowest)
    return list(hits.values())


def _paths_of_one(hits: Iterable[Hit]) -> list[EvidencePath]:
    """Each hit as a path of its own."""
    return [EvidencePath((hit,), hit.score) for hit in hits]


def _with_scores(hits: Iterable[Hit], scored: Iterable[Hit]) -> list[Hit]:
    """Hits with the scores of others, place by place; those without another are left out."""
    pairs = zip(hits, scored, strict=False)
    return [replace(hit, score=other.score) for hit, other in pairs]


def _extend(path: EvidencePath, hits: Iterable[Hit], most: int) -> list[EvidencePath]:
    rows = {hit.row for hit in path.hits}
    new = [hit for hit in hits if hit.row not in rows][:most]
    return [EvidencePath((*path.hits, hit), path.score + hit.score) for hit in new]


def _best(paths: Sequence[EvidencePath], most: int) -> list[EvidencePath]:
    """The best paths, best first, ties by passage ids; of paths with equal passages only the best
    order.
    """

    def rank(path: EvidencePath) -> tuple[float, list[str]]:
        return -path.score, [hit.passage_id for hit in path.hits]

    distinct: dict[frozenset[int], EvidencePath] = {}
    for path in sorted(paths, key=rank):
        distinct.setdefault(frozenset(hit.row for hit in path.hits), path)
    return list(distinct.values())[:most]
