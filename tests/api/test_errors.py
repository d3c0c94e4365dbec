"""Every way a request can be wrong, and that the answer is one JSON shape that tells nothing
internal.
"""

import asyncio
import gzip
import json
import logging
import re
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import httpx
import pytest

from rag.core.errors import (
    ArtifactError,
    ConfigError,
    DataError,
    QuestionError,
    ReaderError,
    RetrievalError,
)
from rag.data.filters import FilterError
from serve.app import create_app
from serve.metrics import ServerMetrics
from serve.middleware import Gate
from serve.settings import ServeSettings, hash_api_key, load_settings
from tests.api.fakes import FOLDERS, FakePipeline, ask, engine_of, running, settings, until
from tests.support.messages import refusal

pytestmark = pytest.mark.anyio
LARGEST = 256 * 1024  # body, in bytes
USER = {"role": "user", "content": "Who?"}
JUDGED = {"question": "Where?", "answer": "there", "verdict": "right"}


def check(response: httpx.Response, status: int, code: str) -> dict[str, str]:
    """The error, after checking status and shape."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert list(body) == ["error"]
    error = body["error"]
    assert list(error) == ["code", "message", "hint", "request_id", "type", "param"]
    assert error["code"] == code
    assert error["message"]
    assert error["request_id"] == response.headers["x-request-id"]
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["cache-control"] == "no-store"
    return error


BAD_REQUESTS = [  # path, body, words of the message
    ("/v1/ask", {}, "either 'question'"),
    ("/v1/ask", {"question": "a", "questions": ["b"]}, "either 'question'"),
    ("/v1/ask", {"questions": ["a", " "]}, "questions.1: string should have at least 1 character"),
    ("/v1/ask", {"questions": ["a"] * 33}, "questions: list should have at most 32 items, not 33"),
    ("/v1/ask", {"question": "é" * 1001}, "question: string should have at most 1000 characters"),
    (
        "/v1/ask",
        {"question": "a", "top_k": 101},
        "top_k: input should be less than or equal to 100",
    ),
    ("/v1/ask", {"question": "a", "top_k": True}, "top_k: input should be a valid integer"),
    ("/v1/ask", {"question": "a", "topk": 5}, "'topk' is not a known field"),
    ("/v1/ask", {"question": "half \ud83d"}, "unicode"),
    ("/v1/ask", [1, 2], "not a JSON object"),
    ("/v1/ask", {"question": "a", "filter": {"path": 3}}, "gives 'path' the value 3"),
    ("/v1/ask", {"question": "a", "shelf": []}, "shelf: give the name of a shelf, or a list of"),
    ("/v1/ask", {"question": "a", "shelf": ["x", 3]}, "shelf: give the name of a shelf, or a list"),
    ("/v1/ask?top_k=3", {"question": "a"}, "'top_k' in the URL is not read"),
    ("/retrieve?topk=3&shelf=x", {"queries": ["a"]}, "'shelf, topk' in the URL is not read"),
    ("/v1/chat/completions?stream=true", {"messages": [USER]}, "'stream' in the URL is not read"),
    ("/v1/feedback", {**JUDGED, "better_answer": "x"}, "a right answer has no 'better_answer'"),
    (
        "/v1/feedback",
        {**JUDGED, "question": "a\0b"},
        "question: is not valid Unicode, or has a NUL character",
    ),
    ("/v1/retrieve", {"question": "who\0?"}, "has a NUL character"),
    ("/v1/embeddings", {"input": "\0"}, "has a NUL character"),
    ("/v1/embeddings", {"input": ["a", " "]}, "input.1: is empty"),
    ("/v1/embeddings", {"input": [[1, 2]]}, "input: token ids, expected texts"),
    ("/v1/embeddings", {"input": "a", "dimensions": 2}, "dimensions is 2, the vectors have 3"),
    ("/retrieve", {"queries": ["a"] * 4097}, "queries: list should have at most 4096 items"),
    ("/retrieve", {"queries": ["a"], "topk": 0}, "topk: input should be greater than or equal"),
    ("/v1/rerank", {"query": "a", "documents": ["b", " "]}, "documents.1.text: is empty"),
    ("/v1/rerank", {"query": "a", "documents": [3]}, "documents.0: "),
    ("/rerank", {"query": "a", "texts": ["b", "\0"]}, "texts.1: is not valid Unicode"),
    (
        "/v1/chat/completions",
        {"messages": [USER | {"content": "a" * 1001}]},
        "at most 1000 characters",
    ),
    ("/v1/chat/completions", {"messages": [USER | {"role": "system"}]}, "no message of the user"),
    (
        "/v1/chat/completions",
        {"messages": [USER | {"content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "a part of the question has the type 'image_url', expected 'text'",
    ),
    (
        "/v1/chat/completions",
        {"messages": [USER], "filter": {"path": 3}},
        "gives 'path' the value 3",
    ),
]


@pytest.mark.parametrize(("path", "body", "words"), BAD_REQUESTS)
async def test_a_bad_request_is_explained(client, path, body, words):
    response = await client.post(
        path, content=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )
    error = check(response, 422, "invalid_request")
    assert words in error["message"]


@pytest.mark.parametrize(
    ("path", "known"),
    [
        ("/v1/passages/danube-1?arround=2", "known here: around, shelf"),
        ("/v1/documents?offset=2", "known here: after, limit, shelf"),
        ("/v1/files/a.pdf?pages=2", "known here: number, page"),
        ("/v1/models?limit=2", "known here: nothing"),
        ("/v1/models?full=1", "known here: nothing"),
    ],
)
async def test_an_unknown_parameter_is_told_the_known_ones(client, path, known):
    error = check(await client.get(path), 422, "invalid_request")
    assert error["hint"].startswith(known)


@pytest.mark.parametrize(
    ("content", "media_type", "status", "code"),
    [
        (b'{"question": "a"', "application/json", 422, "invalid_request"),
        (b"\xff\xfe\x00", "application/json", 400, "bad_request"),
        (b"[" * 50_000, "application/json", 400, "bad_request"),
        (b'{"question": "a"}', "text/plain", 415, "unsupported_media_type"),
        (b'{"question": "a"}', None, 415, "unsupported_media_type"),
        (b'{"question": "a"}', "Application/JSON; charset=utf-8", 200, ""),
    ],
)
async def test_bodies_that_are_not_json(client, content, media_type, status, code):
    headers = {"Content-Type": media_type} if media_type else {}
    reply = await client.post("/v1/ask", content=content, headers=headers)
    if code:
        check(reply, status, code)
    assert reply.status_code == status


async def test_an_encoded_body_is_refused_with_a_reason(client):
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    body = gzip.compress(b'{"question": "a"}')
    reply = await client.post("/v1/ask", content=body, headers=headers)
    assert "'gzip'" in check(reply, 415, "unsupported_media_type")["message"]
    assert reply.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/ask", "POST"),
        ("PUT", "/v1/documents", "GET, HEAD, POST"),
        ("DELETE", "/", "GET, HEAD"),
        ("POST", "/static/app.js", "GET, HEAD"),
        ("HEAD", "/v1/ask", "POST"),
    ],
)
async def test_a_refused_method_is_told_all_others(client, method, path, allowed):
    reply = await client.request(method, path)
    assert (reply.status_code, reply.headers["allow"]) == (405, allowed)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/page.json",
        "/openapi.json",
        "/static/app.js",
        "/metrics",
        "/readyz",
        "/v1/models",
        "/x",
    ],
)
async def test_what_answers_get_answers_head(client, path):
    got, head = [await client.request(method, path) for method in ("GET", "HEAD")]
    assert (head.status_code, head.content) == (got.status_code, b"")
    assert head.headers["content-type"] == got.headers["content-type"]
    if tag := got.headers.get("etag"):
        known = await client.get(path, headers={"If-None-Match": tag})
        assert known.status_code == 304


async def test_unknown_paths_methods_passages_and_shelves(client):
    check(await client.post("/v2/ask", json={}), 404, "not_found")
    check(await client.get("/redoc"), 404, "not_found")
    for path in ("/v1/ask/", "/docs/", "/static"):
        check(await client.get(path), 404, "not_found")
    check(await client.get("/v1/ask"), 405, "method_not_allowed")
    check(await ask(client, shelf="x"), 404, "shelf_not_found")
    error = check(await client.get("/v1/passages/%F0%9F%98%80"), 404, "passage_not_found")
    assert "😀" in error["message"]


async def rejected(client: httpx.AsyncClient) -> dict[str, int]:
    """How many requests were refused, by the reason."""
    figures = (await client.get("/metrics")).text
    pairs = re.findall(r'rag_rejected_total{reason="(\w+)"} (\d+)', figures)
    return {reason: int(count) for reason, count in pairs}


async def pieces(n: int, size_bytes: int = LARGEST // 10) -> AsyncIterator[bytes]:
    for _ in range(n):
        yield b" " * size_bytes


async def test_large_bodies_are_refused_declared_or_chunked(client):
    for content in (b" " * (LARGEST + 1), pieces(11)):
        check(await client.post("/v1/ask", content=content), 413, "body_too_large")
    just_fits = b'{"question": "a"}'.ljust(LARGEST)
    headers = {"Content-Type": "application/json"}
    assert (await client.post("/v1/ask", content=just_fits, headers=headers)).status_code == 200
    assert await rejected(client) == {"body_too_large": 2}


async def test_slow_bodies_are_refused():
    app = create_app(settings(timeout_s=0.05), lambda _: FakePipeline())

    async def slow() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(30)

    async with running(app=app) as client:
        check(await client.post("/v1/ask", content=slow()), 408, "request_timeout")


@pytest.mark.parametrize("route", ["/v1/ask", "/v1/retrieve"])
@pytest.mark.parametrize(
    ("reason", "status", "code"),
    [
        (ReaderError("http://secret:1/v1 cannot be reached"), 502, "reader_failed"),
        (RetrievalError("secret.faiss: row 9 is not there"), 500, "retrieval_failed"),
        (DataError("row 7 of secret is damaged"), 500, "internal_error"),
        (ConfigError("secret has no such side"), 500, "internal_error"),
        (ValueError("secret"), 500, "internal_error"),
        (QuestionError("the question is none"), 422, "invalid_request"),
        (FilterError("{filter} is none", arguments=["filter"]), 422, "invalid_request"),
    ],
)
async def test_failures_are_told_apart_and_logged_alone(route, reason, status, code, caplog):
    class Failing(FakePipeline):
        def _begin(self, questions: Any) -> None:
            raise reason

    async with running(Failing()) as client:
        headers = {"X-Request-ID": "r-8"}
        response = await client.post(route, json={"question": "a"}, headers=headers)
        error = check(response, status, code)
        is_counted = code in ("reader_failed", "retrieval_failed")
        assert await rejected(client) == ({code: 1} if is_counted else {})
        figures = (await client.get("/metrics")).text
        assert f'route="{route}",status="{status}"}} 1.0' in figures
    assert "secret" not in response.text
    logged = [record for record in caplog.records if record.levelno == logging.ERROR]
    if status == 422:
        spelled = reason.message.replace("filter=", '"filter"')
        assert (logged, error["message"]) == ([], spelled)
    else:
        (record,) = logged
        assert (record.request_id, record.exc_info[1]) == ("r-8", reason)


async def test_a_question_that_could_not_be_read_fails_alone():
    class Partly(FakePipeline):
        def ask_many(self, questions: Any, **given: Any) -> Any:
            read = super().ask_many(questions, **given)
            return [
                replace(item, failure="secret: HTTP 500") if "bad" in item.question else item
                for item in read
            ]

    service = Partly()
    async with running(service) as client:
        asked = [ask(client, text) for text in ("good", "bad", "fine")]
        responses = await asyncio.gather(*asked)
    assert [response.status_code for response in responses] == [200, 502, 200]
    check(responses[1], 502, "reader_failed")
    assert "secret" not in responses[1].text
    assert "failure" not in responses[0].text
    assert sum(map(len, service.batches)) == 3  # nothing is asked again


async def test_too_slow_answers_end_with_504():
    gate = threading.Event()
    async with running(FakePipeline(gate=gate), timeout_s=0.05) as client:
        check(await ask(client), 504, "timeout")
        gate.set()
        await until(lambda: len(engine_of(client).batcher.queue) == 0)
        assert await rejected(client) == {"timeout": 1}


async def test_not_ready_while_loading():
    release = threading.Event()

    def open_slowly(_: ServeSettings) -> FakePipeline:
        assert release.wait(10)
        return FakePipeline("late")

    app = create_app(settings(), open_pipeline=open_slowly)
    async with running(app=app, waits=False) as client:
        assert (await client.get("/healthz")).status_code == 200
        for response in (
            await client.get("/readyz"),
            await ask(client),
            await client.get("/v1/passages/x"),
        ):
            check(response, 503, "not_ready")
            assert int(response.headers["retry-after"]) >= 1
        assert "n_passages" not in (await client.get("/page.json")).json()
        release.set()
        await until(lambda: app.state.engine.state == "ready")
        assert (await client.get("/readyz")).json()["index_version"] == "late"


async def test_an_index_that_cannot_be_opened_is_reported_to_the_runner_not_the_client(caplog):
    caplog.set_level(logging.ERROR)
    seen: list[Exception] = []

    def fail(_: ServeSettings) -> FakePipeline:
        raise ArtifactError("/srv/index/x.faiss is truncated")

    app = create_app(settings(), open_pipeline=fail, on_load_error=seen.append)
    async with running(app=app) as client:
        await until(lambda: seen)
        error = check(await client.get("/readyz"), 503, "load_failed")
    assert "faiss" not in str(error)
    assert isinstance(seen[0], ArtifactError)
    assert "truncated" in caplog.text


class TestKeys:
    hashes = (hash_api_key("one"), hash_api_key("two"), hash_api_key("voilà🔑"))

    async def test_a_key_is_needed_for_what_is_searched_or_read(self):
        async with running(api_keys=self.hashes) as client:
            missing = await ask(client)
            check(missing, 401, "unauthorized")
            assert missing.headers["www-authenticate"] == "Bearer"
            for path in ("/v1/passages/danube-1", "/v1/files/a", "/v1/anything"):
                check(await client.get(path), 401, "unauthorized")
            for path in ("/retrieve", "/retrieve/", "/rerank", "/v1/rerank"):
                check(await client.post(path, json={}), 401, "unauthorized")
            for path in ("/", "/healthz", "/readyz", "/metrics", "/openapi.json"):
                assert (await client.get(path)).status_code == 200
            assert (await client.get("/page.json")).json()["needs_key"] is True
            assert await rejected(client) == {"unauthorized": 8}

    async def test_the_page_shows_names_of_folders_to_those_with_a_key_alone(self):
        async with running(api_keys=self.hashes) as client:
            for key, folders in (("", []), ("three", []), ("two", [*FOLDERS])):
                reply = await client.get("/page.json", headers={"X-API-Key": key})
                assert reply.json().get("folders", []) == folders

    @pytest.mark.parametrize(
        ("headers", "key"),
        [
            ({"Authorization": "Bearer one"}, "1"),
            ({"X-API-Key": "voilà🔑".encode()}, "3"),
            ({"Authorization": "Bearer voilà".encode() + "🔑".encode()}, "3"),
            ({"Authorization": "Bearer three"}, None),
            ({"Authorization": "Basic one"}, None),
            ({"X-API-Key": ""}, None),
            ({"X-API-Key": hash_api_key("one")}, None),
            ({"X-API-Key": "é".encode("latin-1")}, None),
        ],
    )
    async def test_accepted_or_refused(self, headers, key, caplog):
        caplog.set_level(logging.INFO, logger="serve.access")
        async with running(api_keys=self.hashes) as client:
            reply = await ask(client, headers=headers)
        if key is None:
            check(reply, 401, "unauthorized")
        assert (reply.status_code == 200) == (key is not None)
        (record,) = [record for record in caplog.records if record.name == "serve.access"]
        assert getattr(record, "key", None) == key


class TestSettings:
    def test_environment(self, monkeypatch):
        monkeypatch.setenv("RAG_SERVE_PORT", "9001")
        monkeypatch.setenv(
            "RAG_SERVE_API_KEYS", f"{'a' * 64}  -, {'B' * 64}"
        )  # as sha256sum prints it
        monkeypatch.setenv("RAG_SERVE_EXAMPLE_QUESTIONS", "Who, when? | Why?")
        got = load_settings(queue_size=50)
        assert (got.port, got.queue_size) == (9001, 50)
        assert got.api_keys == ("a" * 64, "b" * 64)
        assert got.example_questions == ("Who, when?", "Why?")

    MISTAKES: ClassVar = {
        "unknown setting": {"prot": 1},
        "key that is no checksum": {"api_keys": "plain"},
        "no time": {"timeout_s": 0},
        "endless time": {"timeout_s": "inf"},
        "endless drain": {"drain_timeout_s": "inf"},
        "unknown fusion": {"fusion": "best"},
        "absent folder of files": {"files": "/none"},
        "absent folder of feedback": {"feedback_file": "/none/f.jsonl"},
        "too many conversions": {"conversions": 5},
        "two shelves of a name": {"shelf": ("a=x", "a=y")},
        "shelf without a folder": {"shelf": ("a",)},
        "shelf and index": {"shelf": ("a=x",), "index": "i"},
        "files of shelves": {"shelf": ("a=x",), "files": "."},
        "keys without an issuer": {"token_keys": "x"},
        "issuer without keys": {"token_issuer": "x", "token_audience": "x"},
        "group of everybody": {"as_groups": "*"},
        "editors of no group": {"editors": " "},
    }

    @pytest.mark.parametrize("values", MISTAKES.values(), ids=MISTAKES)
    def test_mistakes_are_named(self, values):
        with refusal(ConfigError):
            load_settings(**values)

    def test_the_group_of_editors_is_one_as_people_have_it(self):
        assert load_settings(editors=" hr ").editors == "hr"
        assert load_settings(editors="CN=hr,OU=groups").editors == "CN=hr,OU=groups"

    @pytest.mark.parametrize("value", ["", " , "])
    def test_keys_that_are_none_do_not_open_the_server(self, monkeypatch, value):
        monkeypatch.setenv("RAG_SERVE_API_KEYS", value)
        with refusal(ConfigError):
            load_settings()


def test_an_unknown_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "RAG_SERVE_API_KEY", hash_api_key("secret")
    )  # and nobody would be asked for a key
    with refusal(ConfigError):
        load_settings()


async def test_a_request_that_is_cancelled_after_its_response_began_is_not_taken_for_complete():
    sent = asyncio.Queue[Any]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise asyncio.CancelledError

    gate = Gate(app, settings(), ServerMetrics(), routes=())
    application = SimpleNamespace(routes=())
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "app": application}
    with pytest.raises(asyncio.CancelledError):
        await gate(scope, sent.get, sent.put)
    assert sent.qsize() == 1
