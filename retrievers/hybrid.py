"""Hybrid retrieval: the fused lists of several retrievers."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace

from rag.core.errors import ConfigError
from rag.core.log import Timer, stage
from rag.core.types import Hit
from retrievers.fusion import Fusion
from retrievers.protocols import HitLists, PairScorer, Passages, Retriever, Selected

DEFAULT_DEPTH = 200
_MATCHED = 60  # first hits whose words are matched; those behind them hardly ever reach the first 20


def default_fusion(*, is_static: bool = False) -> Fusion:
    """Dense scores in standard deviations of the question's list, and 0.6 of BM25's as they are.

    Chosen on 600 training questions each of SQuAD, NQ, HotpotQA, WebQuestions and CuratedTREC.

    Args:
        is_static: the dense vectors are those of a static encoder: BM25 weighs 1.5, as chosen on 1,200
            training questions of NQ, WebQuestions and CuratedTREC.
    """
    return Fusion("std", (1.0, 1.5 if is_static else 0.6))


class HybridRetriever:
    """Fuses the lists of its members.

    Args:
        members: retrievers over these passages, usually dense and sparse.
        fusion: the method, with weights in the order of `members`; `default_fusion` if None.
        depth: hits taken from each member; never fewer than `top_k`, and no more than `passages`.
        matching: a scorer of the words of the first 60 hits' passages (of `top_k` if more are wanted), whose
            scores are added to the fused ones; None: the fused scores decide alone.
    """

    def __init__(
        self, members: Sequence[Retriever], passages: Passages, *, fusion: Fusion | None = None,
        depth: int = DEFAULT_DEPTH, matching: PairScorer | None = None,
    ) -> None:  # fmt: skip
        self.members = tuple(members)
        self.fusion = default_fusion() if fusion is None else fusion
        self.depth, self.passages, self.matching = depth, passages, matching
        self._pool = ThreadPoolExecutor(max(len(self.members) - 1, 1), thread_name_prefix="rag-search")
        if len(self.members) != len(self.fusion.weights):
            raise ConfigError(
                f"{len(self.members)} retrievers, but {len(self.fusion.weights)} weights ({self.fusion})",
                hint="give one weight per retriever, dense first",
            )

    def search(
        self, questions: Sequence[str], top_k: int, *, timer: Timer = None, selected: Selected = None
    ) -> HitLists:
        """Best passages of each question; see `Retriever.search`. The members search side by side."""
        depth = max(1, min(max(self.depth, top_k), len(self.passages)))

        def search(member: Retriever) -> HitLists:
            return member.search(questions, depth, timer=timer, selected=selected)

        others = [self._pool.submit(search, member) for member in self.members[1:]]
        try:
            first = search(self.members[0])
        finally:
            wait(others)
        lists = [first, *(other.result() for other in others)]
        with stage(timer, "fuse"):
            fused = self.fusion.fuse(lists, top_k if self.matching is None else max(top_k, _MATCHED))
        if self.matching is None:
            return fused
        with stage(timer, "match"):
            return [
                self._matched(question, hits)[:top_k] for question, hits in zip(questions, fused, strict=True)
            ]

    def _matched(self, question: str, hits: Sequence[Hit]) -> list[Hit]:
        assert self.matching is not None
        passages = self.passages.get_many([hit.row for hit in hits])
        added = self.matching.score([question] * len(hits), passages).tolist()
        return sorted(
            (replace(hit, score=hit.score + more) for hit, more in zip(hits, added, strict=True)),
            key=Hit.sort_key,
        )
