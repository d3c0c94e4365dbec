"""Sparse retrieval: BM25 over the Lucene index."""

from collections.abc import Sequence

import numpy as np

from indexers.lucene import LuceneIndex
from rag.core.log import Timer, stage
from rag.core.types import Hit
from retrievers.protocols import HitLists, Passages, Selected


class SparseRetriever:
    """BM25 behind the retriever protocol."""

    def __init__(self, terms: LuceneIndex, passages: Passages) -> None:
        self.terms, self.passages = terms, passages

    def search(
        self, questions: Sequence[str], top_k: int, *, timer: Timer = None, selected: Selected = None
    ) -> HitLists:
        """Best passages of each question; see `Retriever.search`."""
        if not questions:
            return []
        with stage(timer, "search_bm25"):
            results = self.terms.search(questions, top_k, selected)
            rows = np.fromiter((row for pairs in results for row, _ in pairs), dtype=np.int64)
            ids = iter(self.passages.ids(rows))
            return [
                sorted((Hit(int(row), next(ids), float(score)) for row, score in pairs), key=Hit.sort_key)
                for pairs in results
            ]
