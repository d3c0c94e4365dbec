"""A deterministic stand-in for the pipeline, and ways to run an application around it."""

import asyncio
import re
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import uvicorn
from fastapi import FastAPI

from indexers.settings import BuildSettings
from rag.core.errors import ArtifactError, ConfigError
from rag.core.files import atomic_write_json
from rag.core.log import Timer
from rag.core.manifest import MANIFEST_NAME
from rag.core.types import Answer, AnswerSet, Evidence, Hit, Passage, Promise, SearchResult, Verdict
from rag.data.claims import why_not_judged
from rag.pipeline import Pipeline
from readers.protocols import Reader, ReadRequest
from serve.app import create_app
from serve.connections import Connections
from serve.run import bind
from serve.settings import ServeSettings, hash_api_key
from tests.support.described import check_described
from tests.support.verifying import WordVerifier

EVIL = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"

FOLDERS = ("guide/", "guide/setup/")
PASSAGES = (
    Passage(
        "danube-1",
        "Danube",
        "The Danube rises in the Black Forest of Germany, where two small rivers meet at Donaueschingen. It "
        "flows through ten countries, more than any other river, before it reaches the Black Sea.",
    ),
    Passage(
        "rhine-1",
        "Rhine",
        "The Rhine begins in the Swiss Alps and flows north to the North Sea. For a part of its way it runs "
        "along the western edge of the Black Forest.",
    ),
    Passage(
        "emoji-1",
        "Emoji 😀",
        "A 😀 grinning face, a 👩‍🔬 scientist and 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 letters come before the word mañana, which follows "
        "𝄞 the clef.",
    ),
    Passage(
        "evil/1", f"Markup {EVIL}", f"Some pages hold {EVIL} as text, and {EVIL} must stay text."
    ),
)

# question → answers as (passage id, text of the span, confidence), and the confidence that there is
# none
KNOWN: dict[str, tuple[list[tuple[str, str, float]], float]] = {
    "Where does the Danube rise?": (
        [
            ("danube-1", "the Black Forest", 0.93),
            ("danube-1", "Donaueschingen", 0.41),
            ("rhine-1", "the Swiss Alps", 0.07),
        ],
        0.03,
    ),
    "Which word follows the letters?": (
        [("emoji-1", "mañana", 0.74), ("emoji-1", "𝄞 the clef", 0.2)],
        0.1,
    ),
    "What must stay text?": ([("evil/1", EVIL, 0.6)], 0.2),
    "Who invented the telephone?": ([("rhine-1", "the western edge", 0.06)], 0.88),
    "Is there anything at all?": ([], 0.99),
    "Where rises what is longer than the Rhine?": ([("danube-1", "the Black Forest", 0.8)], 0.1),
    "Does the Danube cross borders?": ([("danube-1", "yes, ten", 0.8)], 0.1),  # stands nowhere
}
BEARING = "Does the Rhine reach the sea?"  # the reader cannot tell yes from no
KNOWN[BEARING] = ([("rhine-1", PASSAGES[1].text.split(". ")[0] + ".", 0.6)], 0.2)
PROMISE = Promise(0.1, 0.95, coverage=0.61, n=150, threshold=0.7, max_false_answers=0.2)
PROMISED = ("Who surely met there?", "Who perhaps met there?")
PROMISED_CLAIM = "The Rhine begins in the Swiss Alps."
KNOWN[PROMISED[0]] = ([("danube-1", "two small rivers", 0.8)], 0.6)
KNOWN[PROMISED[1]] = ([("danube-1", "two small rivers", 0.69)], 0.1)
COMPARED = "Which is longer, the Rhine or the Danube?"
KNOWN[COMPARED] = ([("danube-1", "The Danube", 0.8)], 0.1)
PATHS = {
    "Where rises what is longer than the Rhine?": ("rhine-1", "danube-1"),
    COMPARED: ("rhine-1", "danube-1"),
}


def words_of(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


class FakeIndex:
    """Counts how often it was closed."""

    n_closed = 0
    passages = PASSAGES

    def close(self) -> None:
        self.n_closed += 1

    def around(self, passage_id: str, count: int) -> tuple[list[Passage], list[Passage]]:
        at = next(n for n, passage in enumerate(PASSAGES) if passage.id == passage_id)
        return list(PASSAGES[max(0, at - count) : at]), list(PASSAGES[at + 1 : at + 1 + count])


class UnaskedReader(Reader):
    """What a pipeline of fakes says of its reader, which it never asks."""

    name = "/srv/reader"

    def read(self, requests: Sequence[ReadRequest], n_best: int = 5) -> list[AnswerSet]:
        raise AssertionError("a fake answers by itself")


class FakePipeline:
    """Answers what it knows; everything else with the first words of the passage that shares most
    words.

    Args:
        version: the index version it claims.
        delay_s: time each batch takes.
        poison: questions that make the whole batch raise.
        gate: if given, each batch waits until it is set.
    """

    def __init__(
        self,
        version: str = "v1",
        *,
        delay_s: float = 0.0,
        poison: Sequence[str] = (),
        gate: threading.Event | None = None,
    ) -> None:
        self.index_version = version
        self.filters: list[Any] = []
        self.contexts: list[str] = []
        self.delay_s = delay_s
        self.poison = set(poison)
        self.gate = gate
        self.batches: list[list[str]] = []
        self.parameters: list[tuple[int, int]] = []
        self.threads: set[int] = set()
        self.started = threading.Event()
        self.index = FakeIndex()
        self.folders = list(FOLDERS)
        self.n_sides = 2  # of its encoder
        self.scores_log_odds: bool | None = True  # None: it has no scorer
        self.verifier: WordVerifier | None = WordVerifier()
        self.reader = UnaskedReader()

    readable = None
    n_passages = len(PASSAGES)

    def for_groups(self, groups: Any) -> "FakePipeline":
        return self

    def _begin(self, questions: Sequence[str]) -> None:
        assert self.index.n_closed == 0, "used after it was closed"
        self.batches.append(list(questions))
        self.threads.add(threading.get_ident())
        self.started.set()
        if self.gate is not None:
            assert self.gate.wait(60)
        time.sleep(self.delay_s)
        if bad := self.poison.intersection(questions):
            raise ValueError(f"secret detail about {bad}")

    def _ranked(self, question: str) -> list[tuple[Hit, Passage]]:
        words = words_of(question)
        pairs = []
        for row, passage in enumerate(PASSAGES):
            n_shared = len(words & words_of(passage.text))
            pairs.append((Hit(row, passage.id, float(n_shared)), passage))
        return sorted(pairs, key=lambda pair: Hit.sort_key(pair[0]))

    def ask_many(
        self,
        questions: Sequence[str],
        *,
        top_k: int,
        n_best: int,
        filter: Any = None,
        context: str = "",
        on_text: Any = None,
    ) -> list[AnswerSet]:
        self._begin(questions)
        self.contexts.append(context)
        self.parameters.append((top_k, n_best))
        self.filters.append(filter)
        return [self._answer(question, n_best) for question in questions]

    def _answer(self, question: str, n_best: int) -> AnswerSet:
        ranked = self._ranked(question)
        top = ranked[0][1]
        spans, no_answer = KNOWN.get(question, ([(top.id, top.text.split(",")[0], 0.5)], 0.2))
        answers = []
        for passage_id, span, confidence in spans[:n_best]:
            hit, passage = next(pair for pair in ranked if pair[1].id == passage_id)
            start = passage.text.find(span)
            place = None if start < 0 else (start, start + len(span))
            evidence = Evidence.of(passage, hit.score, place)
            path = self._path(question, evidence, ranked)
            answers.append(Answer(span, 10.0 * confidence, confidence, evidence, path))
        timings_ms = {"search": 1.25, "read": 20.5, "total": 21.75}
        result = AnswerSet(question, tuple(answers), no_answer, self.index_version, timings_ms)
        if question in PROMISED:
            return replace(result, promise=PROMISE)
        return replace(result, kind="passage") if question == BEARING else result

    def _path(
        self, question: str, own: Evidence, ranked: list[tuple[Hit, Passage]]
    ) -> tuple[Evidence, ...]:
        steps = []
        for passage_id in PATHS.get(question, ()):
            hit, passage = next(pair for pair in ranked if pair[1].id == passage_id)
            step = Evidence.of(passage, hit.score)
            if passage_id == own.passage_id:
                step = own
            lit = ((0, passage.text.index(". ") + 1),)
            asked = f"How long is the {passage.title}?" if question == COMPARED else ""
            steps.append(replace(step, supporting=lit, question=asked))
        return tuple(steps)

    def close(self) -> None:
        self.index.close()

    def ask(self, question: str) -> AnswerSet:
        return self.ask_many([question], top_k=20, n_best=5)[0]

    def search(
        self, queries: Sequence[str], top_k: int, *, filter: Any = None, timer: Timer = None
    ) -> list[SearchResult]:
        self._begin(queries)
        return [SearchResult(query, self._ranked(query)[:top_k]) for query in queries]

    def verify(
        self, claims: Sequence[str], top_k: int = 5, *, filter: Any = None, in_text: bool = False
    ) -> list[Verdict]:
        self._begin(claims)
        if self.verifier is None:
            raise ArtifactError("there is no verifier in /srv/verifier")
        found = [SearchResult(claim, self._ranked(claim)[:top_k]) for claim in claims]
        timings_ms = {"retrieve": 1.25, "judge": 8.5, "total": 9.75}
        verdicts = []
        for claim, verdict in zip(claims, self.verifier.judge_found(found), strict=True):
            notice = why_not_judged(claim, in_text=in_text)
            if notice:
                verdict = Verdict(claim, "not_judged", notice=notice)
            if claim == PROMISED_CLAIM:
                verdict = replace(verdict, promise=replace(PROMISE, max_false_answers=None))
            verdicts.append(
                replace(verdict, index_version=self.index_version, timings_ms=timings_ms)
            )
        return verdicts

    def embed(self, texts: Sequence[str], side: str) -> Any:
        self._begin(texts)
        if side == "passage" and self.n_sides == 1:
            raise ConfigError("/srv/reader encodes questions alone")
        return np.array([[len(text), float(side == "query"), 0.1] for text in texts], np.float32)

    @property
    def scorer(self) -> Any:
        if self.scores_log_odds is None:
            raise ConfigError("/srv/reader cannot re-rank passages")
        return SimpleNamespace(is_log_odds=self.scores_log_odds)

    def relevance(self, question: str, texts: Sequence[str]) -> Any:
        """Half a point for each letter of a text."""
        self._begin(texts)
        return np.array([len(text) / 2 for text in texts], np.float32)

    def passage(self, passage_id: str) -> Passage | None:
        assert self.index.n_closed == 0, "used after it was closed"
        return next((passage for passage in PASSAGES if passage.id == passage_id), None)


def empty_index(place: Path) -> Path:
    """A folder with the manifest of an index, for servers whose pipeline is a stand-in."""
    atomic_write_json(
        place / MANIFEST_NAME, {"format_version": 4, "kind": "index", "version": "v1"}
    )
    return place


KEY = {"X-API-Key": "admin"}  # which clients send
ADMIN = (hash_api_key("admin"),)
BM25 = BuildSettings(retriever="bm25", threads=1)


def settings(**values: Any) -> ServeSettings:
    return ServeSettings(**{"timeout_s": 30.0, "drain_timeout_s": 30.0, **values})


def opened(given: ServeSettings) -> Pipeline:
    return Pipeline.open(given.index, retriever="bm25", reader=False)


def application(index: Path, **values: Any) -> FastAPI:
    """A server of an index that is searched by BM25, which asks for the key."""
    given = settings(**{"index": index, "api_keys": ADMIN, **values})
    return create_app(given, open_pipeline=opened)


def refused(reply: httpx.Response) -> tuple[int, str]:
    """Status and code of an error."""
    return reply.status_code, reply.json()["error"]["code"]


async def ask(
    client: httpx.AsyncClient, question: str = "a", headers: Any = None, **more: Any
) -> httpx.Response:
    """The reply to a question."""
    body = {"question": question, **more}
    return await client.post("/v1/ask", json=body, headers=headers)


async def posted(client: httpx.AsyncClient, path: str, **body: Any) -> dict[str, Any]:
    """What is answered to a body that is accepted."""
    reply = await client.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


async def found(client: httpx.AsyncClient, question: str, **more: Any) -> list[str]:
    """The ids of the passages for a question."""
    result = await posted(client, "/v1/retrieve", question=question, **more)
    return [hit["passage_id"] for hit in result["hits"]]


@asynccontextmanager
async def running(
    pipeline: Any = None, app: FastAPI | None = None, *, waits: bool = True, **values: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an application in this event loop, within its life span; waits until the index is
    open. Each body that the client gets has to be what OpenAPI describes.
    """
    if app is None:
        pipeline = pipeline or FakePipeline()
        app = create_app(settings(**values), lambda _: pipeline)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    client = httpx.AsyncClient(
        transport=transport,
        base_url="http://test",
        timeout=60,
        headers=KEY,
        event_hooks={"response": [check_described]},
    )
    async with app.router.lifespan_context(app), client:
        if waits:
            await until(lambda: app.state.engine.state != "loading", 120)
        yield client


def engine_of(client: httpx.AsyncClient) -> Any:
    """The engine of the server that `running` has started."""
    return client._transport.app.state.engine


async def until(condition: Any, timeout_s: float = 30.0) -> None:
    """Wait until `condition()` holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.002)


@contextmanager
def serving(pipeline: Any = None, **values: Any) -> Iterator[str]:
    """The address of a server of a pipeline."""
    served = pipeline or FakePipeline()
    with listening(create_app(settings(**values), lambda _: served)) as address:
        yield address


@contextmanager
def listening(app: FastAPI) -> Iterator[str]:
    """Run the application on a real port in a thread; yields its address."""
    connections = Connections()
    config = uvicorn.Config(
        connections.tracked(app), http=connections.protocol, log_config=None, access_log=False
    )
    server = uvicorn.Server(config)
    listener = bind("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    engine = getattr(app.state, "engine", None)
    while not server.started or (engine is not None and engine.state == "loading"):
        assert time.monotonic() < deadline, "it did not start"
        time.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)
        listener.close()
        assert not thread.is_alive()
