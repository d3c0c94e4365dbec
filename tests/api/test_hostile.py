"""Hostile values in every field of every route, over a real index: refused or answered, never a 5xx."""

import json
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from serve.app import create_app
from serve.shelves import open_pipeline
from tests.api.fakes import ADMIN, found, running, settings
from tests.support.files import index_files
from tests.support.verifying import WordVerifier

pytestmark = pytest.mark.anyio
JSON = {"Content-Type": "application/json"}


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


# name: a value as JSON writes it.
VALUES = {
    "NUL": r'"\u0000"',
    "NUL within": r'"who\u0000 wrote Faust?"',
    "half a pair": r'"\ud800"',
    "half within": r'"who \udfff wrote Faust?"',
    "reversed pair": r'"\ude00\ud83d"',
    "noncharacter": r'"\uffff\ufdd0"',
    "controls": r'"\u0001\u0007\u001b[31m\u007f"',
    "direction": r'"\u202egnp.exe\u2066"',
    "long": json.dumps("wrote " * 150),
    "long word": json.dumps("w" * 1000),
    "operators": json.dumps('Faust AND (title:"x* OR ~ ^2 [a TO b} \\'),
    "path": json.dumps("../../../../etc/passwd"),
    "huge": "9" * 4000,
    "huger": "9" * 5000,
    "minus huge": "-1e308",
    "infinite": "1e999",
    "NaN": "NaN",
    "tiny": "1e-999",
    "null": "null",
    "true": "true",
    "list": '["a", {"b": ["c\\u0000"]}]',
    "nested": nested(200),
    "nested deeply": nested(900),
    "nested more deeply": nested(20_000),
    "object": '{"\\u0000": {"\\ud800": 1}}',
}
HOLE = '"<hole>"'


def chat(*contents: Any, role: str = "user", **fields: Any) -> tuple[str, dict[str, Any]]:
    """A chat whose first and every second message is of the user."""
    roles = (role, "assistant", "user")
    turns = [{"role": who, "content": text} for who, text in zip(roles, contents, strict=False)]
    return "/v1/chat/completions", {**fields, "messages": turns}


# name: route, and a body in which a value takes the place of the hole.
BODIES = {
    "ask": ("/v1/ask", {"question": "<hole>"}),
    "ask several": ("/v1/ask", {"questions": ["Who wrote Faust?", "<hole>"]}),
    "ask top_k": ("/v1/ask", {"question": "Who?", "top_k": "<hole>"}),
    "ask n_best": ("/v1/ask", {"question": "Who?", "n_best": "<hole>"}),
    "retrieve": ("/v1/retrieve", {"question": "<hole>"}),
    "retrieve several": ("/v1/retrieve", {"questions": ["Who wrote Faust?", "<hole>"]}),
    "filter": ("/v1/retrieve", {"question": "Faust", "filter": "<hole>"}),
    "filter by path": ("/v1/ask", {"question": "Faust", "filter": {"path": "<hole>"}}),
    "filter by paths": ("/v1/ask", {"question": "Faust", "filter": {"path": ["<hole>"]}}),
    "filter by document": ("/v1/ask", {"question": "Faust", "filter": {"document": "<hole>"}}),
    "filter by field": ("/v1/ask", {"question": "Faust", "filter": {"year": "<hole>"}}),
    "filter by bound": ("/v1/ask", {"question": "Faust", "filter": {"year": {"gte": "<hole>"}}}),
    "verify": ("/v1/verify", {"claim": "<hole>"}),
    "verify several": ("/v1/verify", {"claims": ["Goethe wrote Faust.", "<hole>"]}),
    "verify text": ("/v1/verify", {"text": "<hole>"}),
    "verify top_k": ("/v1/verify", {"claim": "Goethe wrote Faust.", "top_k": "<hole>"}),
    "verify filter": ("/v1/verify", {"claim": "Goethe wrote Faust.", "filter": "<hole>"}),
    "chat": chat("<hole>"),
    "chat of parts": chat([{"type": "text", "text": "<hole>"}]),
    "chat after": chat("<hole>", "<hole>", "And when?"),
    "chat understood": chat("Who?", "Question as understood: a\0b \ud800", "<hole>"),
    "chat role": chat("Who?", role="<hole>"),
    "chat model": chat("Who?", model="<hole>"),
    "chat filter": chat("Who?", filter="<hole>"),
    "chat field": chat("Who?", user="<hole>"),
    "chat stream": chat("Who?", stream="<hole>"),
    "embeddings": ("/v1/embeddings", {"input": "<hole>"}),
    "embeddings of several": ("/v1/embeddings", {"input": ["a", "<hole>"]}),
    "embeddings of questions": ("/v1/embeddings", {"input": "<hole>", "input_type": "query"}),
    "embeddings model": ("/v1/embeddings", {"input": "a", "model": "<hole>"}),
    "dimensions": ("/v1/embeddings", {"input": "a", "dimensions": "<hole>"}),
    "feedback": ("/v1/feedback", {"question": "<hole>", "answer": "a", "verdict": "right"}),
    "feedback answer": ("/v1/feedback", {"question": "Q", "answer": "<hole>", "verdict": "right"}),
    "feedback passage": (
        "/v1/feedback",
        {"question": "Q", "answer": "a", "verdict": "right", "passage_id": "<hole>"},
    ),
    "feedback better": (
        "/v1/feedback",
        {"question": "Q", "answer": "a", "verdict": "wrong", "better_answer": "<hole>"},
    ),
    "agents": ("/retrieve", {"queries": ["Who wrote Faust?", "<hole>"]}),
    "agents queries": ("/retrieve", {"queries": "<hole>"}),
    "rerank": ("/v1/rerank", {"query": "<hole>", "documents": ["a"]}),
    "rerank texts": ("/v1/rerank", {"query": "Who?", "documents": ["a", "<hole>"]}),
    "rerank objects": ("/v1/rerank", {"query": "Who?", "documents": [{"text": "<hole>"}]}),
    "rerank top_n": ("/v1/rerank", {"top_n": "<hole>", "query": "Who?", "documents": ["a"]}),
    "TEI texts": ("/rerank", {"query": "Who?", "texts": ["a", "<hole>"]}),
    "whole": ("/v1/ask", "<hole>"),
    "whole chat": ("/v1/chat/completions", "<hole>"),
    "whole embeddings": ("/v1/embeddings", "<hole>"),
    "whole agents": ("/retrieve", "<hole>"),
    "whole rerank": ("/v1/rerank", "<hole>"),
    "whole feedback": ("/v1/feedback", "<hole>"),
    "whole documents": ("/v1/documents", "<hole>"),
}
DOCUMENT_FIELDS = ("id", "title", "text", "metadata", "year")
PARTS = ("%00", "a%00b", "%ED%A0%80", "%FF%FE", "..%2F..%2Fetc%2Fpasswd", "%252e%252e", "w" * 6000,
         "%E2%80%AE", "%0A%0D", "a" * 300 + ".md", "faust.md/", "%F0%9F%98%80", "*", "faust.md-0%00")  # fmt: skip
PATHS = ("/v1/passages/{}", "/v1/files/{}", "/v1/models/{}", "/v1/documents?after={}", "/v1/versions/{}",
         "/v1/passages/faust.md-0?around={}", "/v1/files/faust.md?page={}", "/v1/documents?limit={}",
         "/static/{}", "/{}", "/v1/{}")  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder and its index, whose passages have a path, a year and vectors."""
    files = {"faust.md": "# Faust\n\nGoethe wrote Faust in 1808.\n"}
    return index_files(tmp_path_factory.mktemp("hostile"), files, retriever="hybrid")


@pytest.fixture
async def client(made: tuple[Path, Path], tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    folder, index = made
    given = settings(
        index=index,
        files=folder,
        feedback_file=tmp_path / "feedback.jsonl",
        api_keys=ADMIN,
        verifier=WordVerifier(),
    )

    async with running(app=create_app(given, open_pipeline)) as started:
        yield started


@pytest.fixture(autouse=True)
def no_errors(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No request makes the server log an error."""
    yield
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []


async def outcomes(client: httpx.AsyncClient, requests: dict[str, Any]) -> dict[str, str]:
    """What went wrong, by the names of the requests: a 5xx, or an error of another shape."""
    faults = {}
    for name, (method, path, options) in requests.items():
        response = await client.request(method, path, **options)
        has_shape = response.status_code < 400 or "error" in response.json()
        if response.status_code >= 500 or not has_shape:
            faults[name] = f"{response.status_code} {response.text[:200]}"
    return faults


async def test_no_value_breaks_a_route(client: httpx.AsyncClient) -> None:
    requests = {}
    for field, (path, body) in BODIES.items():
        template = json.dumps(body)
        for name, value in VALUES.items():
            content = template.replace(HOLE, value).encode()
            options = {"content": content, "headers": JSON}
            requests[f"{field}: {name}"] = ("POST", path, options)
    assert await outcomes(client, requests) == {}
    assert (await client.get("/readyz")).status_code == 200


async def test_no_path_breaks_a_route(client: httpx.AsyncClient) -> None:
    requests: dict[str, Any] = {
        f"{path}: {part[:40]}": ("GET", path.format(part), {}) for path in PATHS for part in PARTS
    }
    requests |= {part[:40]: ("DELETE", f"/v1/documents/{part}?wait=true", {}) for part in PARTS}
    assert await outcomes(client, requests) == {}


async def test_no_document_breaks_the_index(client: httpx.AsyncClient) -> None:
    requests = {}
    for field in DOCUMENT_FIELDS:
        for name, value in VALUES.items():
            document: dict[str, Any] = {"id": "d", "title": "T", "text": "Text.", "metadata": {}}
            holder = document["metadata"] if field == "year" else document
            holder[field] = "<hole>"
            content = json.dumps({"documents": [document]}).replace(HOLE, value).encode()
            options = {"content": content, "headers": JSON}
            requests[f"{field}: {name}"] = ("POST", "/v1/documents?wait=true", options)
    assert await outcomes(client, requests) == {}
    for document in (await client.get("/v1/documents")).json()["documents"]:
        await found(client, "Text", filter={"document": document["id"]})


@pytest.mark.parametrize(
    "name",
    [b"a\0.md", b"\xff.md", b"\xed\xa0\x80.md", b"..", b"../../x.md", b"", b"a" * 300, b"a\tb.md",
     b"C:\\x.md", b"\xe2\x80\xae.md", b"x.md/", b"-rf.md", b"%00.md", b"CON", b"\"\".md"],
)  # fmt: skip
async def test_no_file_name_breaks_an_upload(client: httpx.AsyncClient, name: bytes) -> None:
    head = b'--%s\r\nContent-Disposition: form-data; name="file"; filename="%s"\r\n\r\n'
    body = head % (b"hostile", name) + b"# Title\n\nText.\r\n--hostile--\r\n"
    headers = {"Content-Type": "multipart/form-data; boundary=hostile"}
    sent = ("POST", "/v1/documents?wait=true", {"content": body, "headers": headers})
    assert await outcomes(client, {repr(name): sent}) == {}
