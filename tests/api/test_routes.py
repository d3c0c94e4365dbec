"""What the routes answer when all is well: shapes, defaults, metrics, description, page."""

import json
import logging
import re

import pytest
from fastapi.openapi.models import OpenAPI
from pydantic import TypeAdapter

from rag.core.types import AnswerSet, FirstStage, Hit
from serve.jobs import hit_json
from tests.api.fakes import PASSAGES, FakePipeline, ask, posted, running

pytestmark = pytest.mark.anyio
QUESTION = "Where does the Danube rise?"
ANSWERS = TypeAdapter(AnswerSet)


async def test_one_question_has_exactly_the_public_shape(client):
    body = await posted(client, "/v1/ask", question=f"  {QUESTION} ")
    fields = {"question", "answers", "no_answer_confidence", "index_version", "timings_ms"}
    assert body.keys() == fields | {"certainty"}
    assert (body["question"], body["certainty"]) == (QUESTION, "likely")
    answer = body["answers"][0]
    assert list(answer) == ["text", "score", "confidence", "evidence"]
    evidence = answer["evidence"]
    assert list(evidence) == ["passage_id", "title", "text", "start", "end", "score"]
    assert answer["text"] == "the Black Forest"
    assert evidence["text"][evidence["start"] : evidence["end"]] == answer["text"]
    assert body["no_answer_confidence"] == 0.03
    assert body["index_version"] == "v1"
    assert list(body["timings_ms"]) == ["queue", "search", "read", "total"]
    assert all(isinstance(value, float) for value in body["timings_ms"].values())
    ANSWERS.validate_json(json.dumps(body), strict=True)


async def test_several_questions_are_answered_in_order():
    questions = ["Who invented the telephone?", QUESTION, QUESTION]
    service = FakePipeline()
    async with running(service) as client:
        body = await posted(client, "/v1/ask", questions=questions, n_best=1)
        one = await posted(client, "/v1/ask", questions=[QUESTION])
    assert list(body) == ["results"]
    assert [result["question"] for result in body["results"]] == questions
    assert [len(result["answers"]) for result in body["results"]] == [1, 1, 1]
    assert len(one["results"]) == 1
    assert service.batches[0] == questions


async def test_retrieve(client):
    one = await posted(client, "/v1/retrieve", question="the Danube", top_k=2)
    many = await posted(client, "/v1/retrieve", questions=["the Danube", "Rhine"])
    assert list(one) == ["question", "hits", "index_version", "timings_ms"]
    assert list(one["hits"][0]) == ["passage_id", "title", "text", "score"]
    assert one["hits"][0]["passage_id"] == "danube-1"
    assert len(one["hits"]) == 2
    assert [len(result["hits"]) for result in many["results"]] == [4, 4]
    assert one["hits"][0]["score"] >= one["hits"][1]["score"]


async def test_a_passage_with_its_neighbours(client):
    body = (await client.get("/v1/passages/rhine-1?around=1")).json()
    refused = await client.get("/v1/passages/rhine-1?around=99")
    ids = [[passage["passage_id"] for passage in body[side]] for side in ("before", "after")]
    assert ids == [["danube-1"], ["emoji-1"]]
    assert refused.status_code == 422


async def test_health_and_readiness(client):
    assert (await client.get("/healthz")).json() == {"status": "alive"}
    ready = await client.get("/readyz")
    assert ready.json() == {"status": "ready", "index_version": "v1", "n_passages": 4}


async def test_metrics_tell_requests_stages_batches_and_the_index(client):
    for question in (QUESTION, "Who invented the telephone?"):
        await ask(client, question)
    await client.get("/v1/passages/nothing")
    for path in ("/no/such/path", "/?q=a", "/static/app.js", "/v1/files/a/b.pdf"):
        await client.get(path)
    await client.post("/v1/ask", content=b" " * 300_000)
    await client.get("/v1/ask")
    response = await client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    text = response.text
    for line in (
        'rag_requests_total{method="POST",route="/v1/ask",status="200"} 2.0',
        'rag_requests_total{method="GET",route="/v1/passages/{passage_id:path}",status="404"} 1.0',
        'rag_requests_total{method="GET",route="unmatched",status="404"} 1.0',
        'rag_requests_total{method="GET",route="/",status="200"} 1.0',
        'rag_requests_total{method="GET",route="/static",status="200"} 1.0',
        'rag_requests_total{method="GET",route="/v1/files/{path:path}",status="403"} 1.0',
        'rag_requests_total{method="POST",route="/v1/ask",status="413"} 1.0',
        'rag_requests_total{method="GET",route="/v1/ask",status="405"} 1.0',
        'rag_request_seconds_count{route="/v1/ask"} 4.0',
        'rag_stage_seconds_count{stage="queue"} 2.0',
        'rag_stage_seconds_count{stage="read"} 2.0',
        "rag_batch_size_count 2.0",
        "rag_requests_in_flight 1.0",
        'rag_index_info{version="v1"} 1.0',
        'rag_questions_total{kind="ask"} 2.0',
        "rag_no_answers_total 1.0",
    ):
        assert line in text, line


def test_a_hit_that_was_re_ranked_has_its_first_stage():
    shown = hit_json(Hit(0, "danube-1", 2.0, FirstStage(2, 0.5)), PASSAGES[0])
    assert (shown["passage_id"], shown["score"]) == ("danube-1", 2.0)
    assert shown["first_stage"] == {"rank": 2, "score": 0.5}


async def test_request_ids_are_kept_if_valid_and_made_if_not(client):
    kept = await client.get("/healthz", headers={"X-Request-ID": "abc-1.2_Z"})
    made = [
        (await client.get("/healthz", headers={"X-Request-ID": bad})).headers["x-request-id"]
        for bad in ("", "a b", "x" * 65, "<script>")
    ]
    assert kept.headers["x-request-id"] == "abc-1.2_Z"
    assert all(re.fullmatch("[0-9a-f]{32}", request_id) for request_id in made)
    assert len(set(made)) == len(made)


async def test_the_access_log_has_fields_and_no_question(client, caplog):
    caplog.set_level(logging.INFO, logger="serve.access")
    await ask(client, QUESTION, headers={"X-Request-ID": "r1"})
    record = next(record for record in caplog.records if record.name == "serve.access")
    logged = (record.request_id, record.method, record.route, record.status)
    assert logged == ("r1", "POST", "/v1/ask", 200)
    assert record.n_questions == 1
    assert record.index_version == "v1"
    assert record.duration_ms >= record.queue_ms >= 0
    assert "Danube" not in json.dumps(record.__dict__, default=str)


async def test_openapi_is_valid_and_describes_requests_answers_and_errors():
    async with running(api_keys="0" * 64) as client:
        schema = (await client.get("/openapi.json")).json()
    OpenAPI.model_validate(schema)
    models = schema["components"]["schemas"]
    fields = {*AnswerSet.__dataclass_fields__, "certainty", "unavailable"}
    assert set(models["AnswerSetOut"]["properties"]) == fields
    for operations in schema["paths"].values():
        for operation in operations.values():
            responses = operation["responses"]
            error = responses.pop("default")["content"]["application/json"]["schema"]
            assert error == {"$ref": "#/components/schemas/ErrorOut"}
            assert responses
            for response in responses.values():
                assert all(content["schema"] for content in response.get("content", {}).values())
    assert schema["paths"]["/v1/ask"]["post"]["security"]
    assert "security" not in schema["paths"]["/healthz"]["get"]


async def test_the_page_and_its_files_are_served_with_security_headers():
    async with running(example_questions=("Why?",)) as client:
        page = await client.get("/?q=Why")
        for path, media_type in (("app.js", "text/javascript"), ("icon.svg", "image/svg+xml")):
            file = await client.get(f"/static/{path}")
            assert file.status_code == 200
            assert file.headers["content-type"].startswith(media_type)
        for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static/", "/static/x"):
            assert (await client.get(path)).status_code == 404
        about = (await client.get("/page.json")).json()
    assert "<h1>" in page.text
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert not re.search("unsafe|http", policy)
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["referrer-policy"] == "no-referrer"
    assert page.headers["cache-control"] == "no-cache"
    assert about == {
        "examples": ["Why?"],
        "needs_key": False,
        "n_passages": 4,
        "files": False,
        "feedback": False,
        "folders": ["guide/", "guide/setup/"],
        "read_only": "",
    }
