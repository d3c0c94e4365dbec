"""Embeddings, through OpenAI's own client where it can be."""

import asyncio
import threading
from collections.abc import Iterator

import numpy as np
import openai
import pytest

from serve.app import create_app
from serve.settings import hash_api_key
from tests.api.fakes import FakePipeline, listening, running, settings, until

MODEL = "openqa-rag"


@pytest.fixture
def service() -> FakePipeline:
    return FakePipeline()


@pytest.fixture
def client(service: FakePipeline) -> Iterator[openai.OpenAI]:
    with listening(create_app(settings(api_keys=[hash_api_key("sesame")]), service)) as url:
        yield openai.OpenAI(base_url=f"{url}/v1", api_key="sesame", max_retries=0)


def test_vectors_of_questions_and_passages_in_both_encodings(client: openai.OpenAI) -> None:
    default = client.embeddings.create(model=MODEL, input=["a, b", "ccc"])  # the client asks for base64
    assert [one.embedding for one in default.data] == [
        [4.0, 0.0, np.float32(0.1)],
        [3.0, 0.0, np.float32(0.1)],
    ]
    assert (default.model, default.usage.prompt_tokens, default.usage.total_tokens) == (MODEL, 4, 4)
    query = client.embeddings.create(
        model=MODEL, input="a", encoding_format="float", dimensions=3, extra_body={"input_type": "query"}
    )
    assert [one.embedding for one in query.data] == [[1.0, 1.0, np.float32(0.1)]]


def test_another_model_and_paths_that_are_not_there(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.embeddings.create(model="text-embedding-3-small", input="a")
    assert unknown.value.code == "model_not_found"
    for call in (
        lambda: client.completions.create(model=MODEL, prompt="a"),
        lambda: client.responses.create(model=MODEL, input="a"),
    ):
        with pytest.raises(openai.NotFoundError) as missing:
            call()
    assert missing.value.status_code == 404


def test_an_encoder_of_questions_alone_says_so(service: FakePipeline, client: openai.OpenAI) -> None:
    service.n_sides = 1
    with pytest.raises(
        openai.UnprocessableEntityError, match="no vectors of input_type 'passage'"
    ) as refused:
        client.embeddings.create(model=MODEL, input="a")
    assert "/srv" not in refused.value.message
    assert client.embeddings.create(model=MODEL, input="a", extra_body={"input_type": "query"}).data


@pytest.mark.anyio
async def test_long_lists_leave_room_for_questions() -> None:
    gate = threading.Event()
    service = FakePipeline(gate=gate)
    async with running(service, batch_max_size=4, queue_size=8) as client:
        texts = [f"text {number}" for number in range(30)]
        whole = asyncio.create_task(client.post("/v1/embeddings", json={"input": texts}))
        await until(lambda: service.batches)
        asked = asyncio.create_task(client.post("/v1/ask", json={"question": "Where?"}))
        await until(lambda: client._transport.app.state.engine.batcher.depth == 1)  # type: ignore[attr-defined]
        gate.set()
        reply = (await whole).json()
        assert (await asked).status_code == 200
    assert [one["embedding"][0] for one in reply["data"]] == [len(text) for text in texts]
    assert service.batches[1] == ["Where?"]
    assert max(map(len, service.batches)) == 4


@pytest.mark.anyio
async def test_one_reply_never_mixes_the_encoders_of_two_indexes() -> None:
    gate = threading.Event()
    app = create_app(settings(batch_max_size=1), FakePipeline(gate=gate))
    async with running(app=app) as client:
        mixed = asyncio.create_task(client.post("/v1/embeddings", json={"input": ["a", "b"]}))
        await until(lambda: app.state.engine.holders[MODEL].current.batches)
        app.state.engine.holders[MODEL].swap(FakePipeline("v2"))
        gate.set()
        reply = await mixed
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "index_changed")
    assert reply.headers["retry-after"] == "1"
