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


async def test_ask_retrieve_and_look_up_through_the_pipeline():
    from rag.pipeline import Pipeline

    pipeline = Pipeline(Index(), Retriever(), LastWordsReader())  # type: ignore[arg-type]
    async with running(pipeline) as client:
        ready = (await client.get("/readyz")).json()
        asked = (await client.post("/v1/ask", json={"questions": ["Where?", "Whence?"], "top_k": 2})).json()
        found = (await client.post("/v1/retrieve", json={"question": "Where?", "top_k": 3})).json()
        passage = (await client.get("/v1/passages/rhine-1")).json()
        missing = await client.get("/v1/passages/nothing")
        metrics = (await client.get("/metrics")).text
    assert ready == {"status": "ready", "index_version": "abc123", "n_passages": 4}
    first = asked["results"][0]
    evidence = first["answers"][0]["evidence"]
    assert evidence["text"][evidence["start"] : evidence["end"]] == "Black Sea"
    assert evidence["passage_id"] == "danube-1"
    assert first["index_version"] == "abc123"
    assert {"queue", "search", "read", "total"} <= set(first["timings_ms"])
    assert [hit["passage_id"] for hit in found["hits"]] == ["danube-1", "rhine-1", "emoji-1"]
    assert passage["title"] == "Rhine"
    assert missing.status_code == 404
    assert 'rag_stage_seconds_count{stage="read"} 1.0' in metrics


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
        metrics = (await client.get("/metrics")).text
    assert [hit["first_stage"] for hit in found["hits"]] == [
        {"rank": 2, "score": 0.5},
        {"rank": 1, "score": 1.0},
    ]
    assert asked["answers"][0]["evidence"]["first_stage"]["rank"] == 2
    assert {"retrieve", "search", "rerank"} <= set(found["timings_ms"])
    assert "rerank" in asked["timings_ms"]
    assert 'rag_stage_seconds_count{stage="rerank"} 2.0' in metrics
