"""Search for agents, and scores of texts, by the clients of the field."""

import json
from typing import Any

import pytest

from tests.api.fakes import PASSAGES, FakePipeline, posted, running

pytestmark = pytest.mark.anyio
QUERY = "Where does the Danube rise?"


def search_r1_payload(queries: list[str], topk: int = 3) -> dict[str, Any]:
    """What `_batch_search` of Search-R1's search_r1/llm_agent/generation.py sends.

    Source: github.com/PeterGriffinJin/Search-R1, commit a14dc3a4ffc6fe88c1e95038d9738e21ba3f7a06.
    """
    return {"queries": queries, "topk": topk, "return_scores": True}


def search_r1_text(retrieval_result: list[dict[str, Any]]) -> str:
    """What its `_passages2string`, of the same commit, shows the agent."""
    format_reference = ""
    for idx, doc_item in enumerate(retrieval_result):
        content = doc_item["document"]["contents"]
        title = content.split("\n")[0]
        text = "\n".join(content.split("\n")[1:])
        format_reference += f"Doc {idx + 1}(Title: {title}) {text}\n"
    return format_reference


async def test_search_r1_reads_titles_and_texts(client):
    body = await posted(client, "/retrieve", **search_r1_payload([QUERY], 2))
    bare = await posted(client, "/retrieve", queries=[QUERY], topk=2)
    none = await posted(client, "/retrieve", **search_r1_payload([]))
    default = await posted(client, "/retrieve", queries=[QUERY], topk=None)
    assert list(body) == ["result"]
    (hits,) = body["result"]
    assert [list(hit) for hit in hits] == [["document", "score"]] * 2
    assert hits[0]["score"] >= hits[1]["score"]
    first = PASSAGES[0]
    assert search_r1_text(hits).startswith(f'Doc 1(Title: "{first.title}") {first.text}\nDoc 2(')
    assert bare == {"result": [[hit["document"] for hit in hits]]}
    assert bare["result"][0][0]["id"] == first.id
    assert none == {"result": []}
    assert len(default["result"][0]) == 3


async def test_many_queries_are_answered_in_order_and_alike_whoever_else_asks():
    service = FakePipeline()
    queries = [f"{passage.text} {number}" for number in range(128) for passage in PASSAGES]
    async with running(service, queue_size=64, batch_max_size=48) as client:
        replies = [await client.post("/retrieve", json=search_r1_payload(queries, 1))]
        batches = [len(batch) for batch in service.batches]
        replies.append(await client.post("/retrieve", json=search_r1_payload(queries, 1)))
    ids = [hits[0]["document"]["id"] for hits in replies[0].json()["result"]]
    assert len(queries) == 512
    assert ids == [passage.id for _ in range(128) for passage in PASSAGES]
    assert batches == [48] * 10 + [32]
    assert replies[0].content == replies[1].content


async def test_a_query_that_cannot_be_searched_for_leaves_the_others_their_hits(client):
    queries = [QUERY, " ", "a\0b", "\ud800", "w" * 1001, "Rhine"]
    content = json.dumps(search_r1_payload(queries))
    headers = {"Content-Type": "application/json"}
    body = (await client.post("/retrieve", content=content, headers=headers)).json()
    assert [len(hits) for hits in body["result"]] == [3, 0, 0, 0, 0, 3]
    assert list(body["faults"]) == ["1", "2", "3", "4"]
    assert body["faults"]["1"] == "string should have at least 1 character"
    assert body["faults"]["4"] == "string should have at most 1000 characters"


async def test_texts_are_put_in_order_for_clients_of_cohere_jina_and_tei(client):
    documents = ["ab", {"text": "abcdef", "title": "T"}, "cd", "abcd"]
    tei = {"query": QUERY, "texts": ["ab", "abcdef", "cd", "abcd"]}
    cohere = {"query": QUERY, "documents": documents, "top_n": 3, "return_documents": True}
    whole = await posted(client, "/v1/rerank", **cohere)
    ranks = (await client.post("/rerank", json=tei)).json()
    options = {"raw_scores": True, "return_text": True}
    raw = (await client.post("/rerank", json={**tei, **options})).json()
    results = whole["results"]
    shown = [(result["index"], result["document"]["text"]) for result in results]
    assert shown == [(1, "abcdef"), (3, "abcd"), (0, "ab")]
    expected = [0.952574, 0.880797, 0.731059]  # of the log-odds 3, 2 and 1
    assert [result["relevance_score"] for result in results] == pytest.approx(expected, abs=1e-6)
    assert [rank["index"] for rank in ranks] == [1, 3, 0, 2]
    assert list(ranks[0]) == ["index", "score"]
    assert raw[0] == {"index": 1, "score": 3.0, "text": "abcdef"}


async def test_similarities_of_token_vectors_are_no_probabilities():
    service = FakePipeline()
    service.scores_log_odds = False
    body = {"query": QUERY, "documents": ["abcdef"]}
    async with running(service) as client:
        reply = await client.post("/v1/rerank", json=body)
        service.scores_log_odds = None
        refused = await client.post("/v1/rerank", json=body)
    assert reply.json()["results"] == [{"index": 0, "relevance_score": 3.0}]
    assert refused.status_code == 422
    assert "/srv" not in refused.text
    assert "no model that scores texts" in refused.json()["error"]["message"]
