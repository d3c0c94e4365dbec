"""Several indexes in one server: opened when asked, shared models, followed, asked together."""

import asyncio
import errno
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi import FastAPI

from indexers.documents import Put
from indexers.index_writer import Content, write_index
from indexers.rights import change_rights
from rag.core.errors import ArtifactError, ConfigError, RagError
from rag.core.files import atomic_write_json
from rag.core.manifest import MANIFEST_NAME, RIGHTS_DIR, VERDICT_PROMISE_NAME
from rag.core.types import FirstStage, Hit, Passage, SearchResult
from rag.data.records import CorpusOptions
from rag.pipeline import Pipeline
from rag.promises import StoredPromise
from retrievers.encoders.endpoint import EncoderUnavailableError
from serve.app import create_app
from serve.settings import ServeSettings
from serve.shelves import Shelf
from serve.together import Together, fuse_by_rank
from tests.api import fakes
from tests.api.fakes import (
    ADMIN,
    BM25,
    engine_of,
    opened,
    posted,
    refused,
    running,
    settings,
    until,
)
from tests.support.messages import refusal
from tests.support.verifying import WordVerifier

pytestmark = pytest.mark.anyio
RIVERS = ("Danube", "Rhine", "Elbe")


def build(folder: Path, name: str, *more: str) -> Path:
    """An index about a river, with the passage `shared`, which all shelves have."""
    puts = [Put(name, "", [Passage(f"{name}-0", name, f"The {name} is a river.")])]
    puts.append(Put("shared", "", [Passage("shared", "", f"Water of the {name}.")]))
    for number, text in enumerate(more):
        puts.append(Put(f"m{number}", "", [Passage(f"m{number}-0", "", text)]))
    source = {"options": CorpusOptions(split="none").model_dump()}
    content = Content(puts, source)
    return write_index(folder / name, content, settings=BM25, overwrite=True).directory


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    for name in RIVERS:
        build(folder, name)
    return folder


@pytest.fixture
def folder(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of shelves, which servers look at often."""
    monkeypatch.setattr("serve.engine.FOLLOW_S", 0.02)
    return Path(shutil.copytree(built, tmp_path / "shelves"))


def application(
    folder: Path, open_pipeline: Callable[[ServeSettings], Pipeline] = opened, **more: Any
) -> FastAPI:
    return create_app(settings(shelves=folder, **more), open_pipeline=open_pipeline)


async def ask(client: httpx.AsyncClient, question: str, **more: Any) -> dict[str, Any]:
    return await posted(client, "/v1/retrieve", question=question, **more)


async def found(client: httpx.AsyncClient, question: str, **more: Any) -> list[tuple[str, str]]:
    """Shelf and id of each passage."""
    hits = (await ask(client, question, **more))["hits"]
    return [(hit["shelf"], hit["passage_id"]) for hit in hits]


async def test_names_and_faults_of_shelves_are_told_to_people_with_a_key_alone(
    folder: Path,
) -> None:
    atomic_write_json(folder / "Elbe" / MANIFEST_NAME, {"format_version": 99})
    async with running(app=application(folder, api_keys=ADMIN)) as client:
        await ask(client, "river", shelf="Rhine")
        for key, names in (("admin", {*RIVERS}), ("wrong", set()), ("", set())):
            headers = {"X-API-Key": key}
            shown = await client.get("/readyz", headers=headers)
            metrics = await client.get("/metrics", headers=headers)
            assert (shown.status_code, shown.json()["status"]) == (200, "ready")
            assert {name for name in RIVERS if name in shown.text} == names
            assert ("Rhine" in metrics.text) == (key == "admin")
            assert 'rag_questions_total{kind="retrieve"} 1.0' in metrics.text
        engine_of(client).state = "loading"
        assert (await client.get("/readyz", headers={"X-API-Key": ""})).status_code == 503


async def answered(client: httpx.AsyncClient, *shelf: str) -> tuple[int, str]:
    asked = {"question": "river", "shelf": shelf}
    return refused(await client.post("/v1/retrieve", json=asked))


async def test_a_request_asks_one_shelf_several_or_all(folder: Path) -> None:
    async with running(app=application(folder)) as client:
        assert await found(client, "river", shelf="Rhine") == [("Rhine", "Rhine-0")]
        two = await found(client, "river", shelf=["Rhine", "Danube"])
        assert set(dict(two)) == {"Danube", "Rhine"}
        everything = [(name, id) for name in RIVERS for id in (f"{name}-0", "shared")]
        assert sorted(await found(client, "river water")) == sorted(everything)
        assert "unavailable" not in await ask(client, "river water")
        passage = await client.get("/v1/passages/shared", params={"shelf": "Elbe"})
        assert (passage.json()["text"], passage.json()["shelf"]) == ("Water of the Elbe.", "Elbe")
        models = (await client.get("/v1/models")).json()["data"]
        names = ["openqa-rag", *(f"openqa-rag/{name}" for name in sorted(RIVERS))]
        assert [model["id"] for model in models] == names
        assert (await client.get("/v1/models/openqa-rag/Elbe")).json()["id"] == "openqa-rag/Elbe"
        ready = (await client.get("/readyz")).json()
        counts = {name: shelf["n_passages"] for name, shelf in ready["shelves"].items()}
        assert counts == dict.fromkeys(RIVERS, 2)
        metrics = (await client.get("/metrics")).text
        assert 'rag_shelf_questions_total{kind="retrieve",shelf="Rhine"} 4.0' in metrics
        assert 'rag_shelf_passages{shelf="Elbe"} 2.0' in metrics


async def test_a_promise_about_verdicts_is_of_one_shelf(folder: Path) -> None:
    stored = StoredPromise.of(fakes.PROMISE, np.ones(1), {})
    for name in RIVERS:
        stored.write(folder / name / VERDICT_PROMISE_NAME)

    def verifying(given: ServeSettings) -> Pipeline:
        return Pipeline.open(given.index, retriever="bm25", reads=False, verifier=WordVerifier())

    async with running(app=application(folder, verifying)) as client:
        claim = "The Rhine is a river."
        one = await posted(client, "/v1/verify", claim=claim, shelf="Elbe")
        # The promise of a shelf that is open is not read again.
        (folder / "Elbe" / VERDICT_PROMISE_NAME).write_text("nonsense")
        several = await posted(client, "/v1/verify", claim=claim, shelf=["Rhine", "Elbe"])
    assert one["notice"].startswith("no error rate is promised")
    assert "notice" not in several


@pytest.mark.parametrize(
    ("call", "status", "code"),
    [
        (("POST", "/v1/retrieve", {"question": "a", "shelf": "Oder"}), 404, "shelf_not_found"),
        (("POST", "/v1/retrieve", {"question": "a", "shelf": []}), 422, "invalid_request"),
        (("POST", "/v1/ask", {"question": "a", "shelf": ["Elbe", "Oder"]}), 404, "shelf_not_found"),
        (("GET", "/v1/passages/shared", None), 422, "invalid_request"),
        (("GET", "/v1/documents", None), 422, "invalid_request"),
        (("GET", "/v1/models/openqa-rag/Oder", None), 404, "model_not_found"),
        (("POST", "/v1/embeddings", {"input": "a"}), 422, "invalid_request"),
    ],
)
async def test_a_request_that_names_no_shelf_of_the_server_is_told(
    folder: Path, call: tuple[str, str, Any], status: int, code: str
) -> None:
    method, path, body = call
    async with running(app=application(folder, api_keys=ADMIN)) as client:
        assert refused(await client.request(method, path, json=body)) == (status, code)


async def test_new_shelves_are_taken_up_changed_ones_swapped_and_gone_ones_let_go(
    folder: Path, tmp_path: Path
) -> None:
    app = application(folder)
    async with running(app=app) as client:
        assert await found(client, "okapi", shelf="Elbe") == []
        build(folder, "Elbe", "An okapi.")
        build(tmp_path, "Oder")
        os.rename(tmp_path / "Oder", folder / "Oder")
        shelves = app.state.engine.shelves
        await until(lambda: "Oder" in [shelf.name for shelf in shelves])
        assert await found(client, "river", shelf="Oder") == [("Oder", "Oder-0")]
        await until(lambda: shelves["Elbe"].n_passages == 3)
        await until(lambda: shelves["Elbe"].in_use == shelves["Elbe"].version)
        assert await found(client, "okapi", shelf="Elbe") == [("Elbe", "m0-0")]
        shutil.rmtree(folder / "Rhine")
        await until(lambda: "Rhine" not in [shelf.name for shelf in shelves])
        assert await answered(client, "Rhine") == (404, "shelf_not_found")
        assert set(dict(await found(client, "river"))) == {"Danube", "Elbe", "Oder"}


async def test_a_broken_shelf_is_named_and_the_others_are_served(folder: Path) -> None:
    atomic_write_json(folder / "Elbe" / MANIFEST_NAME, {"format_version": 99})
    (folder / "notes").mkdir()  # no index
    async with running(app=application(folder)) as client:
        ready = await client.get("/readyz")
        assert (ready.status_code, sorted(ready.json()["shelves"])) == (200, ["Danube", "Rhine"])
        assert "format version 99" in ready.json()["unavailable"]["Elbe"]
        reply = await client.post("/v1/retrieve", json={"question": "a", "shelf": "Elbe"})
        assert refused(reply) == (503, "shelf_unavailable")
        assert str(folder) not in reply.text
        assert set(dict(await found(client, "river"))) == {"Danube", "Rhine"}
        assert (await ask(client, "river"))["unavailable"] == ["Elbe"]
        assert await answered(client, "Rhine", "Elbe") == (503, "shelf_unavailable")
        build(folder, "Elbe")
        await until(lambda: engine_of(client).shelves["Elbe"].fault == "")
        assert await found(client, "river", shelf="Elbe") == [("Elbe", "Elbe-0")]


async def test_a_shelf_that_cannot_be_looked_at_keeps_no_other_from_being_followed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    look = Shelf.look

    def flawed(shelf: Shelf) -> None:
        if shelf.name == "Danube":
            raise RuntimeError("a bug")
        look(shelf)

    monkeypatch.setattr(Shelf, "look", flawed)
    async with running(app=application(folder)) as client:
        build(folder, "Rhine", "Barges carry coal.")
        await until(lambda: engine_of(client).shelves["Rhine"].n_passages == 3)
    assert "updates of the shelf Danube could not be looked for" in caplog.text


async def test_a_shelf_that_was_mended_is_opened_after_a_reload(folder: Path) -> None:
    (damaged,) = folder.glob("Elbe/data-*/passages/passages.arrow")
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-1] + b"x")
    async with running(app=application(folder)) as client:
        # The first look at a shelf forgets what was known against it.
        await asyncio.sleep(0.2)
        assert await answered(client, "Elbe") == (503, "shelf_unavailable")
        damaged.write_bytes(content)
        await engine_of(client).reload()
        assert await found(client, "river", shelf="Elbe") == [("Elbe", "Elbe-0")]


def lack_of_files() -> ArtifactError:
    error = ArtifactError("passages.arrow is damaged")
    error.__cause__ = OSError(errno.EMFILE, "Too many open files")
    return error


@pytest.mark.parametrize("failure", [EncoderUnavailableError("away"), lack_of_files()])
async def test_a_shelf_that_lacked_its_encoder_or_files_is_opened_when_it_is_asked_again(
    folder: Path, failure: RagError, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first look at a shelf forgets what was known against it.
    monkeypatch.setattr("serve.engine.FOLLOW_S", 600.0)
    failures = [failure]

    def flaky(given: ServeSettings) -> Pipeline:
        if failures:
            raise failures.pop()
        return opened(given)

    async with running(app=application(folder, flaky)) as client:
        assert await found(client, "river", shelf="Danube") == [("Danube", "Danube-0")]
    assert not failures


async def test_answers_from_several_shelves_name_the_versions_that_were_searched(
    folder: Path,
) -> None:
    def reading(given: ServeSettings) -> Pipeline:
        return Pipeline.open(given.index, retriever="bm25")

    async with running(app=application(folder, reading)) as client:
        answer = await posted(client, "/v1/ask", question="What is the Elbe?")
        assert answer["index_version"] == (await ask(client, "What is the Elbe?"))["index_version"]
        part = await posted(client, "/v1/ask", question="What is it?", shelf=["Elbe", "Rhine"])
        assert part["index_version"] != answer["index_version"]
        filter = {"document": "nothing"}
        none = await posted(client, "/v1/ask", question="What is the Elbe?", filter=filter)
        assert none["notice"] == "no passage that meets the filter has a word of it"


async def test_rights_hold_on_each_of_several_shelves(folder: Path) -> None:
    change_rights(folder / "Elbe", lambda rights: rights.stating({"Elbe": ["staff"]}))
    async with running(app=application(folder)) as client:
        assert ("Elbe", "Elbe-0") not in await found(client, "river water")
        assert await found(client, "river water", shelf="Elbe") == [("Elbe", "shared")]
        (folder / "Elbe" / RIGHTS_DIR / "rights.jsonl").write_text("nonsense")
        assert set(dict(await found(client, "river water"))) == {"Danube", "Rhine"}
        assert (await ask(client, "river water"))["unavailable"] == ["Elbe"]
        assert (await answered(client, "Elbe", "Rhine"))[0] == 503


async def test_a_shelf_that_vanishes_while_it_is_searched_finishes(folder: Path) -> None:
    app = application(folder)
    async with running(app=app) as client:
        shelf = app.state.engine.shelves["Rhine"]
        with shelf.lease() as pipeline:
            shutil.rmtree(folder / "Rhine")
            await until(lambda: shelf.pipeline is None)
            assert len(pipeline.retrieve("river")) == 1
        with refusal(ConfigError):
            pipeline.retrieve("river")
        assert await found(client, "river", shelf="Elbe") == [("Elbe", "Elbe-0")]


def held(folder: Path) -> set[str]:
    """Names of the shelves of which this process has files open or mapped."""
    paths = Path("/proc/self/maps").read_text().splitlines()
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            paths.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return {name for name in RIVERS if any(f"{folder / name}/" in path for path in paths)}


async def test_those_used_least_recently_are_closed_and_opened_again(folder: Path) -> None:
    opening = count()

    def counted(given: ServeSettings) -> Pipeline:
        next(opening)
        return opened(given)

    app = application(folder, counted, open_indexes=2)
    async with running(app=app) as client:
        shelves = app.state.engine.shelves

        def are_open() -> set[str]:
            return {shelf.name for shelf in shelves if shelf.in_use}

        assert are_open() == {"Danube"}
        for name, expected in (
            ("Elbe", {"Danube", "Elbe"}),
            ("Danube", {"Danube", "Elbe"}),
            ("Rhine", {"Danube", "Rhine"}),
            ("Elbe", {"Elbe", "Rhine"}),
        ):
            assert await found(client, "river", shelf=name) == [(name, f"{name}-0")]
            assert are_open() == expected
            # A look for updates opens files for a moment.
            await until(lambda: held(folder) == are_open())
        for _ in range(3):
            assert len(await found(client, "river")) == 3
            assert len(are_open()) == 2
        # One index brought the models for all.
        assert next(opening) == 1
        with shelves["Danube"].lease() as first, shelves["Elbe"].lease() as second:
            assert first._lock is second._lock


async def test_many_ask_shelves_of_which_two_are_open(folder: Path) -> None:
    async with running(app=application(folder, open_indexes=1)) as client:

        async def ask(number: int) -> None:
            name = RIVERS[number % 3]
            assert await found(client, "river", shelf=name) == [(name, f"{name}-0")]

        await asyncio.gather(*(ask(number) for number in range(60)))


async def test_a_question_and_the_closing_of_a_replaced_index_do_not_wait_for_each_other(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closing = threading.Event()
    stuck = list[str]()
    close = Pipeline.close
    search = Together._search

    def close_replaced(pipeline: Pipeline) -> None:
        if threading.current_thread().name.startswith("rag-open"):
            closing.set()
            if not pipeline._lock.acquire(timeout=60):
                stuck.append(pipeline.shelf)
                return
            pipeline._lock.release()
        close(pipeline)

    def search_then(together: Together, *given: Any) -> list[SearchResult]:
        # The question has the models. Now a shelf is replaced, is closed by the search of others,
        # and then opened again.
        if not closing.is_set():
            build(folder, "Rhine", "Barges carry coal.")
            assert closing.wait(60)
        return search(together, *given)

    async with running(app=application(folder, open_indexes=2, timeout_s=300)) as client:
        await found(client, "river", shelf="Rhine")
        monkeypatch.setattr(Pipeline, "close", close_replaced)
        monkeypatch.setattr(Together, "_search", search_then)
        assert ("Rhine", "m0-0") in await found(client, "Barges")
    assert stuck == []


async def test_documents_go_to_a_shelf(folder: Path) -> None:
    async with running(app=application(folder, api_keys=ADMIN)) as client:
        body = {"documents": [{"id": "zebra", "text": "The zebra drinks."}]}
        for name in ("Elbe", "Rhine"):  # Elbe is closed
            sent = await posted(client, f"/v1/documents?wait=true&shelf={name}", **body)
            assert sent["total"] == 3
        assert set(dict(await found(client, "zebra"))) == {"Elbe", "Rhine"}
        gone = await client.delete("/v1/documents/zebra?shelf=Elbe")
        address = gone.json()["address"]
        assert address.endswith("?shelf=Elbe")
        ended = await client.get(f"{address}&wait_s=30")
        assert ended.json()["deleted"] == {"zebra": True}
        listed = await client.get("/v1/documents?shelf=Rhine")
        assert [each["id"] for each in listed.json()["documents"]] == ["Rhine", "shared", "zebra"]


@pytest.mark.parametrize("n_shelves", [2, 5])
def test_passages_are_fused_by_rank(n_shelves: int) -> None:
    """Against all passages sorted by rank, then score, then shelf."""
    results = []
    expected = []
    for shelf in range(n_shelves):
        pairs = []
        for rank in range(1, 4 + shelf):
            score = float(10 - rank + (7 * shelf) % 3)
            passage = Passage(f"{rank}", "", "text", shelf=f"s{shelf}")
            pairs.append((Hit(rank, passage.id, score), passage))
            expected.append((rank, -score, shelf))
        results.append(SearchResult("q", pairs))
    fused = fuse_by_rank(results, 7).passages
    assert [(int(p.id), p.shelf) for _, p in fused] == [
        (rank, f"s{shelf}") for rank, _, shelf in sorted(expected)[:7]
    ]
    scores = [hit.score for hit, _ in fused]
    assert scores == sorted(scores, reverse=True)
    assert [hit.first_stage for hit, _ in fused] == [
        FirstStage(rank, -score) for rank, score, _ in sorted(expected)[:7]
    ]
    # Of a shelf that re-ranks it is the stage before.
    hit = Hit(0, "1", 9.0, FirstStage(7, 0.5))
    [(fused_hit, _)] = fuse_by_rank([SearchResult("q", [(hit, passage)])], 1).passages
    assert (fused_hit.score, fused_hit.first_stage) == (1 / 61, FirstStage(7, 0.5))
