"""Embeddings by an address, played by a local server that counts letters."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rag
from rag.core.errors import ConfigError, MismatchedArtifactError, RetrievalError
from rag.core.types import Passage, Query
from rag.data.files.rows import write_json_lines
from rag.pipeline import Pipeline
from retrievers.encoders.endpoint import EndpointEncoder
from retrievers.encoders.open import load_encoder, passage_budget
from tests.chat_server import Server
from tests.support.messages import refusal

TEXTS = [f"a text of the {word} kind" for word in ("first", "second", "third", "fourth", "fifth")]
Reply = Callable[[dict[str, Any]], tuple[int, bytes]]


def letters(text: str, dim: int = 26) -> list[float]:
    return [float(text.lower().count(chr(97 + number % 26))) + 0.1 for number in range(dim)]


def embeddings(vector: Callable[[str], list[float]] = letters) -> Reply:
    """Replies with vectors, the last text's first."""

    def reply(body: dict[str, Any]) -> tuple[int, bytes]:
        rows = [{"index": n, "embedding": vector(text)} for n, text in enumerate(body["input"])]
        return 200, json.dumps({"object": "list", "data": rows[::-1]}).encode()

    return reply


@pytest.fixture(autouse=True)
def replies_with_vectors(server: Server) -> None:
    server.replies = [embeddings()]


def unit(text: str) -> Any:
    vector = np.array(letters(text))
    return vector / np.linalg.norm(vector)


def test_texts_are_sent_in_batches_and_come_back_in_order(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAG_ENCODER_API_KEY", "sk-secret\n")
    options = {"query_prefix": "query: ", "passage_prefix": "passage: "}
    encoder = EndpointEncoder.load(f"{server.source},batch_size=2", **options)
    done: list[int] = []
    vectors = encoder.reporting(done.append).encode_passages(["T", *[""] * 4], TEXTS)
    expected = [unit(f"passage: {text}") for text in [f"T {TEXTS[0]}", *TEXTS[1:]]]
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    queries = encoder.encode_queries([Query("who?"), Query("who?", (Passage("1", "", "b"),))])
    np.testing.assert_allclose(queries, [unit("query: who?"), unit("query: who? b")], atol=1e-6)
    assert done == [2, 2, 1]
    assert {len(body["input"]) for body in server.requests} == {1, 2, 3}  # the probe is one
    assert {(body["model"], body["encoding_format"]) for body in server.requests} == {
        ("tiny", "float")
    }
    assert set(server.keys) == {"Bearer sk-secret"}
    raw = EndpointEncoder.load(server.source, normalize=False).encode_passages([""], ["b"])
    np.testing.assert_allclose(raw, [letters("b")], atol=1e-6)


def test_an_index_needs_nothing_but_the_server(server: Server, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    write_json_lines(corpus, [{"text": text} for text in TEXTS])
    rag.index(corpus, tmp_path / "index", encoder=f"{server.source},batch_size=2")
    with Pipeline.open(tmp_path / "index", reader=False, retriever="dense") as pipeline:
        assert pipeline.retrieve(TEXTS[3], 1)[0][1].text == TEXTS[3]
        stored = pipeline.index.encoder_identity
    assert stored is not None
    assert stored.name == server.source
    with refusal(ConfigError):
        rag.index(corpus, tmp_path / "tokens", encoder=server.source, index_type="plaid")
    moved = Server()
    moved.replies = [embeddings(lambda text: [number * 1.0001 for number in letters(text)])]
    with Pipeline.open(tmp_path / "index", reader=False, index_encoder=moved.source) as pipeline:
        assert pipeline.retrieve(TEXTS[2], 1)[0][1].text == TEXTS[2]
    moved.close()
    for changed in (lambda text: letters(text)[::-1], lambda text: letters(text, 30)):
        server.replies = [embeddings(changed)]
        with refusal(MismatchedArtifactError):
            Pipeline.open(tmp_path / "index", reader=False)
    with refusal(MismatchedArtifactError):
        Pipeline.open(tmp_path / "index", reader=False, index_encoder=f"{server.source}-two")


@pytest.mark.parametrize("changed", [lambda text: letters(text, 30), lambda text: unit(text[::2])])
def test_a_model_that_changes_during_a_build_stops_it_and_loses_nothing(
    server: Server, tmp_path: Path, changed: Callable[[str], Any]
) -> None:
    corpus = tmp_path / "corpus.jsonl"
    texts = [f"{TEXTS[n % 5]} {n}" for n in range(20)]
    write_json_lines(corpus, [{"text": text} for text in texts])
    counts = [0]

    def reply(body: dict[str, Any]) -> tuple[int, bytes]:
        counts[0] += len(body["input"]) - 1
        vector = letters if counts[0] <= 10 else lambda text: list(map(float, changed(text)))
        return embeddings(vector)(body)

    server.replies = [reply]
    source = f"{server.source},parallel=1"
    settings: Any = {"retriever": "dense", "shard_rows": 5, "threads": 1}
    with refusal(RetrievalError):
        rag.index(corpus, tmp_path / "index", encoder=source, **settings)
    server.replies = [embeddings()]
    server.requests.clear()
    rag.index(corpus, tmp_path / "index", encoder=source, **settings)
    # The probe alone, the shards that were missing, and then the queries that measure the index.
    sent = [body["input"][1:] for body in server.requests]
    assert sent[:3] == [[], texts[10:15], texts[15:]]


BAD_REPLIES = {
    "bad key": (401, b'{"error": {"message": "bad key"}}'),
    "unknown model": (404, b'{"error": {"message": "no model"}}'),
    "too long": (400, b'{"error": {"message": "too long"}}'),
    "failure of the server": (500, b"{}"),
    "no vectors": (200, b'{"data": []}'),
    "vector without numbers": (200, b'{"data": [{"index": 0, "embedding": []}]}'),
    "vector in base64": (200, b'{"data": [{"index": 0, "embedding": "AA"}]}'),
    "page of HTML": (200, b"<html>"),
    "NaN": embeddings(lambda text: [float("nan")] * 3),
}


@pytest.mark.parametrize("reply", BAD_REPLIES.values(), ids=BAD_REPLIES)
def test_bad_replies_are_clear_errors(server: Server, reply: Any) -> None:
    server.replies = [reply]
    with refusal(RetrievalError):
        load_encoder(f"{server.source},retries=0")


def test_a_failed_request_is_repeated(server: Server) -> None:
    server.replies = [(500, b"{}"), embeddings()]
    assert load_encoder(server.source).dim == 26


WRONG_SOURCES = {
    "no model": ("openai:http://h/v1", {}),
    "password in the address": ("openai:http://me:secret@h/v1#m", {}),
    "unknown setting": ("openai:http://h/v1#m,dim=3", {}),
    "pooling": ("openai:http://h/v1#m", {"pooling": "cls"}),
    "layout of pairs": ("openai:http://h/v1#m", {"layout": "pair"}),
}


@pytest.mark.parametrize(("source", "options"), WRONG_SOURCES.values(), ids=WRONG_SOURCES)
def test_wrong_sources_are_refused(source: str, options: dict[str, str]) -> None:
    with refusal(ConfigError) as caught:
        load_encoder(source, **options)
    assert "secret" not in str(caught.value)


def test_passages_are_measured_without_the_server() -> None:
    assert passage_budget("openai:http://nowhere/v1#m", passage_prefix="passage: ")[0] == 379
    assert passage_budget("openai:http://nowhere/v1#m", max_length=8192)[0] == 8189
