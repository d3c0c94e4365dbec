"""Several indexes in one server, by name."""

from pathlib import Path

import pytest

from serve.app import create_app
from serve.settings import ServeSettings, hash_api_key
from tests.api.fakes import FakePipeline, running, settings

pytestmark = pytest.mark.anyio
QUESTION = "Where does the Danube rise?"
KEY = {"X-API-Key": "admin"}


class Opener:
    """Opens `wiki-1`, `wiki-2`, `news-1`, … by the name of the only index in its settings."""

    def __init__(self) -> None:
        self.opened: dict[str, list[FakePipeline]] = {"wiki": [], "news": []}

    def __call__(self, of_one: ServeSettings) -> FakePipeline:
        ((name, folder),) = of_one.index.items()
        assert folder == Path(f"folder/{name}")
        services = self.opened[name]
        services.append(FakePipeline(f"{name}-{len(services) + 1}"))
        return services[-1]


@pytest.fixture
async def opener():
    return Opener()


@pytest.fixture
async def client(opener, tmp_path):
    app = create_app(
        settings(
            index=("wiki=folder/wiki", "news=folder/news"),
            api_keys=(hash_api_key("admin"),),
            feedback_file=tmp_path / "feedback.jsonl",
        ),
        open_pipeline=opener,
    )
    async with running(app=app) as client:
        client.headers.update(KEY)
        yield client


async def test_a_request_names_the_index_and_the_first_is_the_default(client):
    for path in ("/v1/ask", "/v1/retrieve"):
        for given, version in ({}, "wiki-1"), ({"index": "wiki"}, "wiki-1"), ({"index": "news"}, "news-1"):
            body = (await client.post(path, json={"question": QUESTION, **given})).json()
            assert body["index_version"] == version, (path, given)
    assert (await client.get("/v1/passages/danube-1?index=news")).status_code == 200
    ready = (await client.get("/readyz")).json()
    assert ready["index_version"] == "wiki-1"
    assert ready["indexes"]["news"] == {"index_version": "news-1", "n_passages": 4}
    metrics = (await client.get("/metrics")).text
    for line in (
        'rag_index_info{index="wiki",version="wiki-1"} 1.0',
        'rag_index_info{index="news",version="news-1"} 1.0',
        'rag_questions_total{index="wiki",kind="ask"} 2.0',
        'rag_questions_total{index="news",kind="ask"} 1.0',
    ):
        assert line in metrics


async def test_an_unknown_name_is_answered_with_the_names_there_are(client):
    judged = {"question": "a", "answer": "b", "verdict": "wrong"}
    for method, path, body in (
        ("POST", "/v1/ask", {"question": QUESTION}),
        ("POST", "/v1/retrieve", {"question": QUESTION}),
        ("POST", "/v1/feedback", judged),
        ("POST", "/v1/admin/reload", {}),
        ("GET", "/v1/passages/danube-1?index=nope", None),
    ):
        sent = None if body is None else {**body, "index": "nope"}
        response = await client.request(method, path, json=sent)
        assert response.status_code == 404, path
        error = response.json()["error"]
        assert error["code"] == "index_not_found"
        assert "wiki, news" in error["hint"]
    unknown = await client.post("/v1/chat/completions", json={"model": "nope", "messages": [
        {"role": "user", "content": QUESTION}]})  # fmt: skip
    assert unknown.status_code == 404
    assert unknown.json()["error"]["hint"] == "the models here are wiki, news"


async def test_each_index_is_a_model(client):
    assert [model["id"] for model in (await client.get("/v1/models")).json()["data"]] == ["wiki", "news"]
    assert (await client.get("/v1/models/news")).json()["id"] == "news"
    links = {}
    for model in ("openqa-rag", "wiki", "news"):
        body = {"model": model, "messages": [{"role": "user", "content": QUESTION}]}
        reply = (await client.post("/v1/chat/completions", json=body)).json()
        assert reply["model"] == model
        links[model] = reply["sources"][0]["link"].removeprefix("http://test/v1/passages/")
    assert links == {"openqa-rag": "danube-1", "wiki": "danube-1", "news": "danube-1?index=news"}


async def test_each_index_is_replaced_by_itself(client, opener):
    reloaded = (await client.post("/v1/admin/reload", json={"index": "news"})).json()
    assert (reloaded["index_version"], reloaded["previous_index_version"]) == ("news-2", "news-1")
    assert [len(services) for services in opener.opened.values()] == [1, 2]
    assert [service.n_closed for service in opener.opened["news"]] == [1, 0]
    assert (await client.post("/v1/admin/reload")).json()["index_version"] == "wiki-2"
    metrics = (await client.get("/metrics")).text
    assert 'version="news-1"' not in metrics
    assert 'rag_index_info{index="news",version="news-2"} 1.0' in metrics
