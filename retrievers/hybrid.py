"""Hybrid retrieval: several ranked lists become one, by reciprocal-rank fusion or weighted sums."""

from __future__ import annotations

import heapq
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from rag.core.arrays import Float64
from rag.core.errors import ConfigError
from rag.core.log import Timer, stage
from rag.core.types import Hit
from retrievers.protocols import HitLists, PairScorer, Retriever, Selected

if TYPE_CHECKING:
    from indexers.index import Index
    from indexers.passages import PassageStore

# First hits whose words are matched; those behind them hardly ever reach the first 20.
_MATCH_DEPTH = 60
_EXPONENT = 1.5
_NUMBER = r"\d+(?:\.\d+)?"
_SPEC = re.compile(
    rf"(?:rrf(?P<k>{_NUMBER})?|(?P<name>zscore|minmax|std|raw)):(?P<weights>{_NUMBER}(?:,{_NUMBER})*)"
)


@dataclass(frozen=True, slots=True)
class Fusion:
    """A method of fusing several ranked lists.

    Reciprocal-rank fusion ("rrf"): S(p) = Σ_l w_l / (k + rank_l(p)), ranks from 1, equal scores
    with the best rank among them; a list without p adds 0.

    The others are weighted sums: S(p) = Σ_l w_l · s_l(p). Where list l has no p, s_l(p) is
    `Retriever.absent_score` if l is shorter than asked for, so that nothing is missing in it, and the
    least score in l if it is full or that score is not known. "raw" takes the scores as they are.
    The other methods scale a list first, and a short list as if it were filled up with the absent
    score: "minmax" to 0…1; "std" the first list alone to mean 0 and deviation 1; "zscore" every
    list so, z_l(p), and then

        S(p) = g⁻¹(Σ_l w_l · g(z_l(p))), g(z) = sign(z) |z|^1.5

    so that a passage far above all others in a list, such as the only passage with a part number,
    outweighs the small differences among the hits of another list.

    No method puts p before q if every list scores p at most as high as q and a list with a weight
    scores p lower.

    Source: Cormack, Clarke and Büttcher, "Reciprocal Rank Fusion outperforms Condorcet and
        individual Rank Learning Methods", SIGIR 2009 (k = 60); the minimum rule is that of
        pyserini's hybrid searcher.

    Example:
        >>> dense = [Hit(0, "a", 0.9), Hit(1, "b", 0.5)]
        >>> bm25 = [Hit(1, "b", 12.0), Hit(2, "c", 3.0)]
        >>> [hit.passage_id for hit in Fusion().fuse([[dense], [bm25]], top_k=2)[0]]
        ['b', 'a']
    """

    method: str = "rrf"
    weights: tuple[float, ...] = (1.0, 1.0)
    k: float = 60.0

    @classmethod
    def parse(cls, spec: str) -> Fusion:
        """Read "zscore:1,0.7", "minmax:0.7,0.3", "raw:1,0.02" or "rrf60:1,1": the method, then the
        lists' weights; the number after "rrf" is k.

        Example:
            >>> Fusion.parse("rrf20:1,0.5")
            Fusion(method='rrf', weights=(1.0, 0.5), k=20.0)
        """
        parts = _SPEC.fullmatch(spec.replace(" ", ""))
        if parts is None:
            raise ConfigError(
                f"fusion is {spec!r}, expected a method and its weights, dense first",
                hint='for example "zscore:1,0.7", "minmax:0.7,0.3", "raw:1,0.02" or "rrf60:1,1"',
            )
        weights = tuple(float(part) for part in parts["weights"].split(","))
        return cls(parts["name"] or "rrf", weights, float(parts["k"] or 60))

    def __str__(self) -> str:
        """The form that `parse` reads."""
        name = f"rrf{_digits(self.k)}" if self.method == "rrf" else self.method
        return f"{name}:{','.join(map(_digits, self.weights))}"

    def fuse(
        self,
        lists: Sequence[Sequence[Sequence[Hit]]],
        top_k: int,
        *,
        depth: int = 0,
        absent_scores: Sequence[float | None] | None = None,
    ) -> list[list[Hit]]:
        """Fuse the lists of several retrievers.

        Args:
            lists: for each retriever the hits of each question, best first.
            top_k: most hits per question.
            depth: hits that every retriever was asked for; a list with fewer is complete.
            absent_scores: `Retriever.absent_score` of each retriever; if None, no score is known.
        """
        scores = absent_scores or [None] * len(lists)
        questions = zip(*lists, strict=True)
        return [self._fuse_question(hit_lists, top_k, depth, scores) for hit_lists in questions]

    def _fuse_question(
        self,
        hit_lists: Sequence[Sequence[Hit]],
        top_k: int,
        depth: int,
        absent_scores: Sequence[float | None],
    ) -> list[Hit]:
        distinct: dict[int, Hit] = {}
        for hits in hit_lists:
            for hit in hits:
                distinct.setdefault(hit.row, hit)
        if not distinct or top_k < 1:
            return []
        positions = {row: position for position, row in enumerate(distinct)}
        totals = np.zeros(len(distinct))  # (U,) one per distinct passage
        for number, hits in enumerate(hit_lists):
            if hits:
                scores = np.array([hit.score for hit in hits], np.float64)
                hit_scores, absent_score = self._values(
                    scores, depth, absent_scores[number], is_first=number == 0
                )
                list_scores = np.full(len(distinct), absent_score)
                list_scores[[positions[hit.row] for hit in hits]] = hit_scores
                totals += self.weights[number] * list_scores
        if self.method == "zscore":
            totals = _power(totals, 1 / _EXPONENT)
        pairs = zip(distinct.values(), totals.tolist(), strict=True)
        fused = [Hit(hit.row, hit.passage_id, total) for hit, total in pairs]
        return heapq.nsmallest(top_k, fused, key=Hit.sort_key)

    def _values(
        self, scores: Float64, depth: int, absent: float | None, *, is_first: bool
    ) -> tuple[Float64, float]:
        """Scores (n,) of a list's hits on the scale of the method, and that of what it lacks.

        Args:
            scores: (n,) as retrieved, best first.
            depth: hits that the list was asked for.
            absent: `Retriever.absent_score` of the list's retriever.
        """
        if self.method == "rrf":
            ranks = 1 + np.searchsorted(-scores, -scores)
            return 1 / (self.k + ranks), 0.0
        least = float(scores.min())
        # A short list is filled up with the absent score; a full one may lack a passage that would be
        # its next hit.
        padded = scores
        if absent is not None:
            n_missing = max(depth - len(scores), 0)
            padded = np.append(scores, np.full(n_missing, min(absent, least)))
        values = self._scaled(padded, is_first=is_first)
        return values[: len(scores)], float(values.min())

    def _scaled(self, scores: Float64, *, is_first: bool) -> Float64:
        if self.method == "zscore":
            return _power(_standardized(scores), _EXPONENT)
        if self.method == "std" and is_first:
            return _standardized(scores)
        if self.method != "minmax":
            return scores
        spread = scores.max() - scores.min()
        return (scores - scores.min()) / spread if spread > 0 else np.ones_like(scores)


def _standardized(scores: Float64) -> Float64:
    """Scores of mean 0 and deviation 1; zeros if all are equal."""
    deviation = scores.std()
    if scores.max() == scores.min() or deviation == 0:
        return np.zeros_like(scores)
    return (scores - scores.mean()) / deviation


def _power(values: Float64, exponent: float) -> Float64:
    return np.asarray(np.sign(values) * np.abs(values) ** exponent, np.float64)


def _digits(number: float) -> str:
    return np.format_float_positional(number, trim="-")  # all of them, without an exponent


def default_fusion(*, is_static: bool = False) -> Fusion:
    """Standard scores, with 0.7 for BM25 beside 1 for vectors.

    Chosen on 600 training questions each of SQuAD, NQ, HotpotQA, WebQuestions and CuratedTREC, and
    on the questions of `rag bench codes` that may be read.

    Args:
        is_static: the dense vectors are those of a static encoder: BM25 weighs 1.4.
    """
    return Fusion("zscore", (1.0, 1.4 if is_static else 0.7))


@dataclass(eq=False)
class HybridRetriever(Retriever):
    """Fuses the lists of its members.

    Attributes:
        members: retrievers over these passages, usually dense and sparse; each declares the score
            of what its lists lack.
        fusion: the method, with weights in the order of `members`.
        depth: hits taken from each member; never fewer than `top_k`, and no more than `passages`.
        matching: a scorer of the words of the first 60 hits' passages (of `top_k` if more are
            wanted), whose scores are added to the fused ones; None: the fused scores decide alone.
    """

    members: Sequence[Retriever]
    passages: PassageStore
    _: KW_ONLY
    fusion: Fusion = field(default_factory=default_fusion)
    depth: int = 200
    matching: PairScorer | None = None

    def __post_init__(self) -> None:
        self.encoder = next((member.encoder for member in self.members if member.encoder), None)
        self._pool = ThreadPoolExecutor(
            max(len(self.members) - 1, 1), thread_name_prefix="rag-search"
        )
        if len(self.members) != len(self.fusion.weights):
            raise ConfigError(
                f"{len(self.members)} retrievers, but {len(self.fusion.weights)} weights ({self.fusion})",
                hint="give one weight per retriever, dense first",
            )

    @property
    def identity(self) -> dict[str, object]:
        """The retriever with its fusion, and whether words of the best hits are matched."""
        matching = {} if self.matching is None else {"matching": True}
        return {**super().identity, "fusion": str(self.fusion), **matching}

    def with_index(self, index: Index) -> HybridRetriever:
        """See `Retriever.with_index`."""
        members = [member.with_index(index) for member in self.members]
        return replace(self, members=members, passages=index.passages)

    def search(
        self,
        questions: Sequence[str],
        top_k: int,
        *,
        timer: Timer = None,
        selected: Selected = None,
    ) -> HitLists:
        """Best passages of each question; see `Retriever.search`. The members search side by
        side.
        """
        # A list cannot lack passages that nobody may find.
        count = len(self.passages) if selected is None else len(selected)
        depth = max(1, min(max(self.depth, top_k), count))

        def search(member: Retriever) -> HitLists:
            return member.search(questions, depth, timer=timer, selected=selected)

        others = [self._pool.submit(search, member) for member in self.members[1:]]
        try:
            first = search(self.members[0])
        finally:
            # No search goes on behind the end of this one, even after an error.
            wait(others)
        lists = [first, *(other.result() for other in others)]
        n_fused = top_k if self.matching is None else max(top_k, _MATCH_DEPTH)
        absent_scores = [member.absent_score for member in self.members]
        with stage(timer, "fuse"):
            fused = self.fusion.fuse(lists, n_fused, depth=depth, absent_scores=absent_scores)
        if self.matching is None:
            return fused
        with stage(timer, "match"):
            pairs = zip(questions, fused, strict=True)
            return [self._match(self.matching, *pair)[:top_k] for pair in pairs]

    def _match(self, scorer: PairScorer, question: str, hits: Sequence[Hit]) -> list[Hit]:
        """The hits with the scores of their words added, best first."""
        passages = self.passages.get_many([hit.row for hit in hits])
        word_scores = scorer.score([question] * len(hits), passages).tolist()
        pairs = zip(hits, word_scores, strict=True)
        matched = [replace(hit, score=hit.score + word_score) for hit, word_score in pairs]
        return sorted(matched, key=Hit.sort_key)
