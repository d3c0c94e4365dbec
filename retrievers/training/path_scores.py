"""Validation of multi-hop training: held-out questions, searched as with a finished encoder."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from indexers.protocols import VectorIndex
from rag.core.arrays import Float32, Int64
from rag.core.types import Passage
from rag.data.examples import Example
from retrievers.dense import DenseRetriever
from retrievers.examples.hops import order_of
from retrievers.multihop import MultiHopRetriever
from retrievers.protocols import Passages
from retrievers.training.bi_encoder import BiEncoderModel
from retrievers.training.validation import ModelEncoder

_QUESTIONS = 64
_PATHS = 10


class PathScores:
    """Scores a model on held-out questions.

    Args:
        examples: from `hop_examples`; the first hop of each question names the passages it needs.
        most: maximum number of questions.
        index: vectors and passages to search; None takes the passages of the examples, encoded each time.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        *,
        most: int,
        index: tuple[VectorIndex, Passages] | None = None,
    ) -> None:
        firsts = [example for example in examples if order_of(example.id)[1:] == (0, 0)]
        hops: dict[str, int] = {}
        for example in examples:
            hops[order_of(example.id)[0]] = len(example.context) + 1
        self.examples = firsts[:most]
        self._hops = [hops[order_of(example.id)[0]] for example in self.examples]
        self._index = index
        self._pool = list(
            dict.fromkeys(candidate.passage for example in self.examples for candidate in example.candidates)
        )

    def __call__(self, model: BiEncoderModel) -> dict[str, float]:
        """{"path1", "path10"} in percent; of alternatives any one is right."""
        encoder = ModelEncoder(model)
        store: Any = _Pool(self._pool, encoder) if self._index is None else self._index[1]
        dense = DenseRetriever(store if self._index is None else self._index[0], store, encoder)
        ranks: list[int] = []
        for hops in sorted(set(self._hops)):
            chosen = [e for e, n in zip(self.examples, self._hops, strict=True) if n == hops]
            searcher = MultiHopRetriever(dense, store, hops=hops)
            for start in range(0, len(chosen), _QUESTIONS):
                block = chosen[start : start + _QUESTIONS]
                found = searcher.search_both([e.question for e in block], _PATHS)[1]
                ranks += [
                    _rank(example, paths, store, hops) for example, paths in zip(block, found, strict=True)
                ]
        return {f"path{k}": 100.0 * sum(rank <= k for rank in ranks) / len(ranks) for k in (1, _PATHS)}


class _Pool:
    """Some passages and their vectors, searched by brute force."""

    def __init__(self, passages: Sequence[Passage], encoder: ModelEncoder) -> None:
        self._passages = passages
        self._vectors = encoder.encode_passages([p.title for p in passages], [p.text for p in passages])
        self.dim = self._vectors.shape[1]

    def __len__(self) -> int:
        return len(self._passages)

    def ids(self, rows: Sequence[int] | Int64) -> list[str]:
        return [str(row) for row in rows]

    def get_many(self, rows: Sequence[int]) -> list[Passage]:
        return [self._passages[row] for row in rows]

    def search(self, queries: Float32, top_k: int, selected: object = None) -> tuple[Float32, Int64]:
        scores = queries @ self._vectors.T
        rows = np.argsort(-scores, axis=1, kind="stable")[:, :top_k]
        return np.take_along_axis(scores, rows, axis=1), rows.astype(np.int64)


def _rank(example: Example, paths: Any, store: Any, hops: int) -> int:
    """1-based rank of the first path that is right; beyond all if there is none."""
    wanted = {(passage.title, passage.text) for passage in example.positives}
    for rank, path in enumerate(paths, 1):
        found = {(p.title, p.text) for p in store.get_many([hit.row for hit in path.hits])}
        if found <= wanted if hops == 1 else found == wanted:
            return rank
    return len(paths) + _PATHS + 1
