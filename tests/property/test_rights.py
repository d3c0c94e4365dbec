"""Whoever asks sees what an index of the readable documents alone would show: every door of the
server, every retriever, with rights, people and calls drawn anew.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from mcp import Client
from starlette.testclient import TestClient

from indexers.documents import Put
from indexers.faiss_build import build_faiss
from indexers.faiss_index import open_dense
from indexers.index import Index
from indexers.index_writer import write_index
from indexers.protocols import Selection
from indexers.rights import Rights, change_rights
from indexers.settings import BuildSettings
from rag.core.errors import RetrievalError
from rag.core.types import Groups, Location, Passage
from rag.integrations.mcp import create_mcp_server
from rag.pipeline import Pipeline
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.first_stage import DenseRetriever, LateInteractionRetriever, SparseRetriever
from retrievers.hybrid import HybridRetriever
from retrievers.multihop import MultiHopRetriever
from retrievers.protocols import Retriever
from retrievers.rerank import RerankingRetriever
from serve.app import create_app
from serve.settings import ServeSettings, hash_api_key
from tests.pipeline_parts import LastWordsReader
from tests.support.messages import refusal
from tests.support.verifying import WordVerifier
from tests.unit.indexers.conftest import WordEncoder, clustered

WORDS = ["danube", "forest", "river", "black", "title", "text", "wrote", "rises"]
NUMBERS = range(24)
GROUPS = ("a", "b", "c")
SUBSETS = [frozenset(names) for names in ("", "a", "b", "c", "ab", "ac", "bc", "abc")]
KINDS = ("dense", "bm25", "hybrid", "multihop", "reranked", "colbert")
drawn_rights = st.lists(
    st.none() | st.frozensets(st.sampled_from(GROUPS)), min_size=len(NUMBERS), max_size=len(NUMBERS)
)
drawn_settings = settings(
    deadline=None,
    max_examples=6,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def document(number: int) -> Put:
    """Its every field has a word that no other document has."""
    draw = np.random.default_rng(number)
    mark = f"secret{number}x"
    location = Location(f"in{mark}/{mark}.md")
    metadata = ((f"field{mark}", f"value{mark}"), ("year", 2000 + number))
    passages = []
    for part in range(2):
        text = f"{' '.join(draw.choice(WORDS, 6))} {mark} part{part} ends here."
        passages.append(Passage(f"{mark}-{part}", f"{mark} title", text, location, metadata))
    return Put(location.path, "", passages)


class LengthScorer:
    """Scores longer passages higher."""

    name = "length"
    is_log_odds = False

    def score(self, questions: Any, passages: Any) -> Any:
        return np.array([len(passage.text) % 7 for passage in passages], np.float32)


@pytest.fixture(scope="module")
def places(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("rights")
    tiny.late_interaction(folder / "model", dim=16)
    puts = [document(number) for number in NUMBERS]
    whole = BuildSettings(retriever="hybrid")
    write_index(folder / "whole", puts, encoder=WordEncoder(), settings=whole)
    tokens = BuildSettings(retriever="dense", index_type="plaid")
    encoder = BiEncoder.load(folder / "model", precision="fp32")
    write_index(folder / "tokens", puts, encoder=encoder, settings=tokens)
    keys = [f"{hash_api_key('key ')}\n"]
    for subset in SUBSETS:
        name = hash_api_key(f"key {''.join(sorted(subset))}")
        keys += [f"{name} {group}\n" for group in sorted(subset)]
    (folder / "keys").write_text("".join(keys))
    files = folder / "files"
    for put in puts:
        (files / put.id).parent.mkdir(parents=True)
        (files / put.id).write_text(f"text of {put.id}")
    return {name: folder / name for name in ("whole", "tokens", "keys", "files", "model")}


def retriever_of(kind: str, index: Index, places: dict[str, Path]) -> Retriever:
    if index.tokens is not None:
        encoder = BiEncoder.load(places["model"], precision="fp32")
        return LateInteractionRetriever(index.tokens, index.passages, encoder)
    assert index.dense is not None
    dense = DenseRetriever(index.dense, index.passages, WordEncoder())
    if kind == "dense":
        return dense
    bm25 = SparseRetriever.of(index)
    hybrid = HybridRetriever([dense, bm25], index.passages)
    if kind == "multihop":
        return MultiHopRetriever(dense, index.passages, first=hybrid, beam=3)
    if kind == "reranked":
        return RerankingRetriever(hybrid, index.passages, LengthScorer(), depth=4)
    return {"bm25": bm25, "hybrid": hybrid}[kind]


def opened(kind: str, places: dict[str, Path]) -> Pipeline:
    index = Index.open(places["tokens" if kind == "colbert" else "whole"])
    retriever = retriever_of(kind, index, places)
    return Pipeline(index, retriever, LastWordsReader(), WordVerifier())


@pytest.fixture(scope="module", params=KINDS)
def server(
    request: pytest.FixtureRequest, places: dict[str, Path]
) -> Iterator[tuple[TestClient, Path]]:
    pipeline = opened(request.param, places)
    given = ServeSettings(
        index=pipeline.index.directory,
        key_file=places["keys"],
        files=places["files"],
        feedback_file=places["keys"].parent / "feedback.jsonl",
    )
    app = create_app(given, lambda _: pipeline, opens_first=True)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client, pipeline.index.directory


Call = tuple[str, str, Any]


def calls_about(mark: str) -> list[Call]:
    """Calls that name a document, all of which find nothing if there is none of this mark."""
    path = f"in{mark}/{mark}.md"
    ask = {"question": "rises", "filter": {"document": path}}
    judged = {"question": "rises", "answer": "x", "verdict": "right", "passage_id": f"{mark}-0"}
    return [
        ("GET", f"/v1/passages/{mark}-0", None),
        ("GET", f"/v1/passages/{mark}-1?around=2", None),
        ("GET", f"/v1/files/{path}", None),
        ("GET", f"/v1/documents?after={path}", None),
        ("POST", "/v1/feedback", judged),
        ("POST", "/v1/retrieve", ask),
        ("POST", "/v1/ask", ask),
        ("POST", "/v1/ask", {**ask, "filter": {f"field{mark}": f"value{mark}"}}),
        ("POST", "/v1/retrieve", {**ask, "filter": {f"field{mark}": {"gte": 3}}}),
        ("POST", "/v1/retrieve", {**ask, "filter": {"path": f"in{mark}/"}}),
        ("DELETE", f"/v1/documents/{path}", None),
        ("POST", "/v1/documents", {"documents": [{"id": path, "text": "x"}]}),
    ]


def searches(question: str) -> list[Call]:
    """Calls whose answers show passages that were found, or count some."""
    chat = {"messages": [{"role": "user", "content": question}]}
    return [
        ("POST", "/v1/ask", {"question": question, "top_k": 40, "n_best": 9}),
        ("POST", "/v1/ask", {"questions": [question, "river"], "filter": {"year": {"gte": 2004}}}),
        ("POST", "/v1/ask", {"question": question, "filter": {"nothing": 1}}),
        ("POST", "/v1/ask", {"question": question, "filter": {"year": {"gte": "x"}}}),
        ("POST", "/v1/retrieve", {"question": question, "top_k": 100}),
        ("POST", "/v1/retrieve", {"question": question, "filter": {"path": "in*"}}),
        ("POST", "/v1/verify", {"claim": f"The {question} rises here."}),
        ("POST", "/v1/chat/completions", chat),
        ("POST", "/v1/chat/completions", {**chat, "stream": True}),
        ("POST", "/retrieve", {"queries": [question, "text"], "topk": 60, "return_scores": True}),
        ("GET", "/v1/documents", None),
        ("GET", "/page.json", None),
        ("GET", "/readyz", None),
        ("GET", "/v1/models", None),
    ]


def state(groups: list[Groups | None], index: Path) -> None:
    stated = {document(number).id: names for number, names in enumerate(groups)}
    change_rights(index, lambda _: Rights().stating(stated))


def send(client: TestClient, call: Call, person: Groups | None) -> tuple[int, str]:
    method, path, body = call
    key = {} if person is None else {"X-API-Key": f"key {''.join(sorted(person))}"}
    reply = client.request(
        method, path, json=body, headers={**key, "X-Request-ID": "r"}, follow_redirects=False
    )
    return reply.status_code, reply.text


@drawn_settings
@given(drawn_rights, st.sampled_from(SUBSETS), st.sampled_from(NUMBERS), st.sampled_from(WORDS))
def test_nothing_of_a_forbidden_document_leaves_the_server(
    server: tuple[TestClient, Path],
    groups: list[Groups | None],
    person: Groups,
    number: int,
    word: str,
) -> None:
    client, index = server
    state(groups, index)
    readable = [n for n, names in enumerate(groups) if names is None or names & person]
    forbidden = [f"secret{n}x" for n in NUMBERS if n not in readable]
    for call in searches(word):
        status, body = send(client, call, person)
        assert not [mark for mark in forbidden if mark in body], (call, body)
        assert status in (200, 422), (call, body)
    listed, page, ready = (
        json.loads(send(client, ("GET", path, None), person)[1])
        for path in ("/v1/documents", "/page.json", "/readyz")
    )
    assert listed["total"] == len(listed["documents"]) == len(readable)
    assert page["n_passages"] == 2 * len(readable)
    assert ready["n_passages"] == 2 * groups.count(None)
    # What may not be read is as what is not there.
    if number not in readable:
        for call, missing in zip(
            calls_about(f"secret{number}x"), calls_about("secret77x"), strict=True
        ):
            told, of_missing = send(client, call, person), send(client, missing, person)
            if call[1] not in ("/v1/retrieve", "/v1/ask"):
                assert told[0] in (403, 404), call
            assert stable(told[1].replace(f"secret{number}x", "secret77x")) == stable(of_missing[1])
    # What may be read is there, and somebody unknown sees nothing.
    elif groups[number] is not None:
        assert send(client, calls_about(f"secret{number}x")[0], person)[0] == 200
    for call in searches(word)[:10]:
        assert send(client, call, None)[0] == 401
        assert send(client, call, frozenset({"nobody"}))[0] == 401


def stable(body: str) -> str:
    """The body without how long it took."""
    value = json.loads(body)
    if isinstance(value, dict):
        value.pop("timings_ms", None)
    return json.dumps(value)


@drawn_settings
@given(drawn_rights, st.sampled_from(SUBSETS), st.sampled_from(WORDS))
def test_searches_are_those_of_an_index_of_the_readable_documents(
    places: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
    groups: list[Groups | None],
    person: Groups,
    word: str,
) -> None:
    state(groups, places["whole"])
    readable = [n for n, names in enumerate(groups) if names is None or names & person]
    assume(readable)
    alone = tmp_path_factory.mktemp("alone")
    flat = BuildSettings(retriever="dense")
    puts = [document(number) for number in readable]
    write_index(alone, puts, encoder=WordEncoder(), settings=flat)
    with Index.open(alone) as index:
        oracle = Pipeline(index, retriever_of("dense", index, places), LastWordsReader())
        for question in (word, f"{word} river wrote"):
            dense = opened("dense", places).for_groups(person)
            found, expected = (
                [(hit.passage_id, hit.score) for hit, _ in pipeline.retrieve(question, 30)]
                for pipeline in (dense, oracle)
            )
            assert found == expected
            assert stripped(dense.ask(question)) == stripped(oracle.ask(question))
    # BM25 weighs words by the whole index, and finds the same passages.
    passages = [passage for put in puts for passage in put.passages]
    with_word = {p.id for p in passages if word in f"{p.title} {p.text}".split()}
    bm25 = opened("bm25", places).for_groups(person)
    assert {hit.passage_id for hit, _ in bm25.retrieve(word, 100)} == with_word


def stripped(answers: Any) -> dict[str, Any]:
    shown = answers.to_json()
    return {name: shown[name] for name in shown.keys() - {"timings_ms", "index_version"}}


@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_lossy_indexes_find_what_exact_search_finds(
    tmp_path: Path, kind: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in an index so large that readable rows are not compared one by one.
    monkeypatch.setattr("indexers.faiss_index._BRUTE_FORCE_ROWS", 0)
    monkeypatch.setattr("indexers.faiss_index._BRUTE_FORCE_SHARE", 1 << 40)
    vectors = clustered(6000, 32)

    class Given(WordEncoder):
        def encode_passages(self, titles: Any, texts: Any) -> Any:
            return vectors[[int(text) for text in texts]]

    passages = [Passage(str(n), "", str(n)) for n in range(6000)]
    write_index(
        tmp_path / "i", passages, encoder=Given(), settings=BuildSettings(retriever="dense")
    )
    embeddings = Index.open(tmp_path / "i").require_dense().embeddings
    draw = np.random.default_rng(1)
    # The index is tuned for questions of this kind.
    near = vectors[:200] + 0.1 * draw.standard_normal((200, 32)).astype(np.float32)
    info = build_faiss(embeddings, tmp_path / "f", index_type=kind, probes=near[:100])
    chosen = Selection(np.random.default_rng(0).random(6000) < share)
    queries = near[100:]
    exact = queries @ vectors.T
    exact[:, ~chosen.mask] = -np.inf
    best = np.argsort(-exact, axis=1)[:, :10]
    rows = open_dense(tmp_path / "f", embeddings, info).search(queries, 10, chosen)[1]
    recalls = [len(set(pair[0]) & set(pair[1])) / 10 for pair in zip(rows, best, strict=True)]
    assert np.mean(recalls) >= 0.98


def test_a_retriever_that_ignores_rights_is_refused(places: dict[str, Path]) -> None:
    state([frozenset({"a"})] * len(NUMBERS), places["whole"])
    index = Index.open(places["whole"])

    class Careless(DenseRetriever):
        def search(
            self, questions: Any, top_k: int, *, timer: Any = None, selected: Any = None
        ) -> Any:
            return super().search(questions, top_k)

    assert index.dense is not None
    careless = Careless(index.dense, index.passages, WordEncoder())
    pipeline = Pipeline(index, careless, LastWordsReader(), WordVerifier())
    person = pipeline.for_groups(frozenset({"b"}))
    doors: list[Callable[[], object]] = [
        lambda: person.retrieve("river"),
        lambda: person.ask("river"),
        lambda: person.verify(["The river rises here."]),
    ]
    for door in doors:
        with refusal(RetrievalError):
            door()
    assert pipeline.retrieve("river")


def test_tools_of_language_models_show_what_may_be_read(places: dict[str, Path]) -> None:
    state([frozenset({"a"}), *[frozenset({"b"})] * (len(NUMBERS) - 1)], places["whole"])
    person = opened("hybrid", places).for_groups(frozenset({"a"}))

    async def ask() -> str:
        async with Client(create_mcp_server(person)) as client:
            replies = [
                await client.call_tool("search", {"query": "river text"}),
                await client.call_tool("ask", {"question": "river text"}),
                await client.call_tool("fetch", {"id": "secret1x-0"}),
            ]
            return "".join(reply.model_dump_json() for reply in replies)

    shown = anyio.run(ask).replace("no passage has the id 'secret1x-0'", "")
    assert "secret0x" in shown
    assert "secret" not in shown.replace("secret0x", "")
