"""Claims over HTTP: verdicts with their sentences, and what is refused."""

from typing import Any

import httpx
import pytest

from tests.api.fakes import FakePipeline, posted, refused, running

pytestmark = pytest.mark.anyio
CLAIM = "The Danube rises in the Black Forest of Germany."
FALSE = "The Rhine never begins in the Swiss Alps."


async def test_claims_texts_and_their_forms(client: httpx.AsyncClient) -> None:
    verdict = await posted(client, "/v1/verify", claim=CLAIM, top_k=2)
    several = await posted(client, "/v1/verify", claims=[FALSE, "Is it long?"])
    text = f"{CLAIM} However, it is long. Is it deep?"
    sentences = await posted(client, "/v1/verify", text=text)
    figures = (await client.get("/metrics")).text
    assert verdict["label"] == "supported"
    assert verdict["index_version"] == "v1"
    assert {"queue", "retrieve", "judge", "total"} <= set(verdict["timings_ms"])
    start, end = verdict["evidence"]["supporting"][0]
    assert verdict["evidence"]["text"][start:end].startswith("The Danube rises in the Black Forest")
    assert len(verdict["path"]) == 2
    refuted, question = several["results"]
    assert refuted["label"] == "refuted"
    assert question["label"] == "not_judged"
    assert question["notice"] == "a question is no claim"
    labels = [each["label"] for each in sentences["results"]]
    assert labels == ["supported", "not_judged", "not_judged"]
    assert 'rag_questions_total{kind="verify"} 6.0' in figures


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "give one of 'claim', 'claims' (a list) and 'text'"),
        ({"claim": CLAIM, "text": CLAIM}, "give one of"),
        ({"claim": " "}, "claim"),
        ({"claim": "so " * 201}, "has 201 words, more than 200"),
        ({"claims": []}, "at least 1"),
        ({"claims": [CLAIM] * 65}, "at most 64"),
        ({"text": f"{CLAIM} " * 65}, "the text has 65 sentences, more than 64"),
        ({"claim": CLAIM, "top_k": 21}, "less than or equal to 20"),
        ({"claim": CLAIM, "n_best": 3}, "n_best"),
        ({"claim": CLAIM, "filter": {"path": {}}}, "path"),
    ],
)
async def test_bad_requests_are_refused(
    client: httpx.AsyncClient, body: dict[str, Any], words: str
) -> None:
    reply = await client.post("/v1/verify", json=body)
    assert reply.status_code == 422
    assert words in str(reply.json()["error"])


async def test_a_server_without_verifier_says_so() -> None:
    pipeline = FakePipeline()
    pipeline.verifier = None
    async with running(pipeline) as client:
        reply = await client.post("/v1/verify", json={"claim": CLAIM})
    assert refused(reply) == (501, "no_verifier")
    assert "/srv" not in reply.text
