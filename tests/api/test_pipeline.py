"""The real pipeline behind the real server; only the models and the index on disk are stood in for."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from rag.core.types import Hit, Passage
from tests.api.fakes import PASSAGES, running
from tests.pipeline_parts import LastWordsReader, Store

pytestmark = pytest.mark.anyio


class Index:
    version, passages = "abc123", Store(PASSAGES)
    folders: tuple[str, ...] = ()

    def close(self) -> None:
        pass


class Retriever:
    def search(
        self, questions: Sequence[str], top_k: int, *, timer: Any = None, selected: Any = None
    ) -> list[list[Hit]]:
        with timer("search"):
            hits = [Hit(row, passage.id, 1.0 / (row + 1)) for row, passage in enumerate(PASSAGES)]
            return [hits[:top_k] for _ in questions]


async def test_reranking_shows_in_hits_evidence_timings_and_metrics():
    from rag.pipeline import Pipeline
    from retrievers.rerank import RerankingRetriever

    class Scorer:
        name = "backwards"

        def score(self, questions: Sequence[str], passages: Sequence[Passage]) -> Any:
            return np.arange(len(passages), dtype=np.float32)

    retriever = RerankingRetriever(Retriever(), Index.passages, Scorer(), depth=2)
    async with running(Pipeline(Index(), retriever, LastWordsReader())) as client:  # type: ignore[arg-type]
        found = (await client.post("/v1/retrieve", json={"question": "Where?", "top_k": 2})).json()
        asked = (await client.post("/v1/ask", json={"question": "Where?", "top_k": 2})).json()
        passage = (await client.get("/v1/passages/rhine-1")).json()
        metrics = (await client.get("/metrics")).text
    evidence = asked["answers"][0]["evidence"]
    assert evidence["text"][evidence["start"] : evidence["end"]] == asked["answers"][0]["text"]
    assert (asked["index_version"], passage["title"]) == ("abc123", "Rhine")
    assert [hit["first_stage"] for hit in found["hits"]] == [
        {"rank": 2, "score": 0.5},
        {"rank": 1, "score": 1.0},
    ]
    assert asked["answers"][0]["evidence"]["first_stage"]["rank"] == 2
    assert {"retrieve", "search", "rerank"} <= set(found["timings_ms"])
    assert "rerank" in asked["timings_ms"]
    assert 'rag_stage_seconds_count{stage="rerank"} 2.0' in metrics
