"""Vectors of texts, through OpenAI's own client."""

import asyncio
import threading

import numpy as np
import openai
import pytest

from tests.api.fakes import ADMIN, FakePipeline, ask, engine_of, running, serving, until

MODEL = "openqa-rag"


def test_vectors_of_questions_and_passages_in_both_encodings() -> None:
    pipeline = FakePipeline()
    with serving(pipeline, api_keys=ADMIN) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="admin", max_retries=0)
        default = client.embeddings.create(model=MODEL, input=["a, b", "ccc"])  # it asks for base64
        options = {"encoding_format": "float", "dimensions": 3, "input_type": "query"}
        query = client.embeddings.create(model=MODEL, input="a", extra_body=options)
        with pytest.raises(openai.NotFoundError, match="there is no model"):
            client.embeddings.create(model="text-embedding-3-small", input="a")
        pipeline.n_sides = 1
        unprocessable = openai.UnprocessableEntityError
        with pytest.raises(unprocessable, match="no vectors of the input_type") as refused:
            client.embeddings.create(model=MODEL, input="a")
    vectors = [each.embedding for each in default.data]
    assert vectors == [[4.0, 0.0, np.float32(0.1)], [3.0, 0.0, np.float32(0.1)]]
    assert (default.model, default.usage.prompt_tokens, default.usage.total_tokens) == (MODEL, 4, 4)
    assert [each.embedding for each in query.data] == [[1.0, 1.0, np.float32(0.1)]]
    assert "/srv" not in refused.value.message


@pytest.mark.anyio
async def test_long_lists_leave_room_for_questions() -> None:
    gate = threading.Event()
    service = FakePipeline(gate=gate)
    async with running(service, batch_max_size=4, queue_size=8) as client:
        texts = [f"text {number}" for number in range(30)]
        whole = asyncio.create_task(client.post("/v1/embeddings", json={"input": texts}))
        await until(lambda: service.batches)
        question = asyncio.create_task(ask(client, "Where?"))
        await until(lambda: len(engine_of(client).batcher.queue) == 1)
        gate.set()
        reply = (await whole).json()
        assert (await question).status_code == 200
    assert [each["embedding"][0] for each in reply["data"]] == [len(text) for text in texts]
    assert service.batches[1] == ["Where?"]
    assert max(map(len, service.batches)) == 4
