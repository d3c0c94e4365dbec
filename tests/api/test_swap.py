"""Swapping an index for another under traffic."""

import asyncio
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

import rag
from indexers.index import Index
from indexers.index_writer import write_index
from indexers.rights import change_rights
from rag.core.errors import ArtifactError, ResourceError
from rag.core.manifest import MANIFEST_NAME, index_version
from rag.core.types import Passage
from serve.app import create_app
from serve.settings import ServeSettings
from serve.shelves import Shelf, open_pipeline
from tests.api.fakes import (
    BM25,
    FakeIndex,
    FakePipeline,
    application,
    ask,
    empty_index,
    engine_of,
    found,
    running,
    settings,
    until,
)
from tests.support.files import change_json, index_files

pytestmark = pytest.mark.anyio


class Opener:
    """Opens v1, v2, …; can be told to fail."""

    def __init__(self) -> None:
        self.indexes: list[FakeIndex] = []
        self.fails = False
        self.gate: threading.Event | None = None

    def __call__(self, _: ServeSettings) -> FakePipeline:
        if self.fails:
            raise ArtifactError("index/manifest.json is damaged")
        version = f"v{len(self.indexes) + 1}"
        pipeline = FakePipeline(version, delay_s=0.002, gate=self.gate)
        pipeline.itself = pipeline  # as networks and their parts refer to one another
        self.indexes.append(pipeline.index)
        return pipeline


async def test_a_swap_under_load_loses_nothing_and_uses_no_closed_index():
    opener = Opener()
    app = create_app(settings(), open_pipeline=opener)
    async with running(app=app) as client:
        versions: list[str] = []
        is_over = False

        async def ask_on() -> None:
            while not is_over:
                response = await ask(client)
                assert response.status_code == 200, response.text
                versions.append(response.json()["index_version"])

        clients = [asyncio.create_task(ask_on()) for _ in range(4)]
        for number in (2, 3):
            seen = len(versions)
            await until(lambda seen=seen: len(versions) > seen + 4)
            await app.state.engine.reload()
            assert (await client.get("/readyz")).json()["index_version"] == f"v{number}"
        await until(lambda: "v3" in versions)
        is_over = True
        await asyncio.gather(*clients)
        metrics = (await client.get("/metrics")).text
    assert set(versions) == {"v1", "v2", "v3"}
    assert 'rag_index_info{version="v3"} 1.0' in metrics
    assert 'version="v1"' not in metrics
    assert [index.n_closed for index in opener.indexes] == [1, 1, 1]


async def test_a_replaced_index_is_closed_with_the_last_request_that_uses_it():
    opener = Opener()
    opener.gate = threading.Event()
    app = create_app(settings(), open_pipeline=opener)
    async with running(app=app) as client:
        pipeline = app.state.engine.shelves[""].pipeline
        asked = asyncio.create_task(ask(client))
        await until(pipeline.started.is_set)
        await app.state.engine.reload()
        assert opener.indexes[0].n_closed == 0
        opener.gate.set()
        assert (await asked).json()["index_version"] == "v1"
        await until(lambda: opener.indexes[0].n_closed == 1)
        await app.state.engine.reload()  # nobody uses the second one
        assert [index.n_closed for index in opener.indexes] == [1, 1, 0]


async def test_an_index_that_cannot_be_opened_again_stays_in_use(caplog, monkeypatch, tmp_path):
    monkeypatch.setattr("serve.engine.FOLLOW_S", 0.001)
    (tmp_path / "manifest.json").mkdir()  # a file that cannot be read
    opener = Opener()
    app = create_app(settings(index=tmp_path), open_pipeline=opener)
    async with running(app=app) as client:
        opener.fails = True
        await app.state.engine.reload()
        assert (await client.get("/readyz")).json()["index_version"] == "v1"
        assert opener.indexes[0].n_closed == 0
        await until(lambda: "holds no readable index" in caplog.text)
        await asyncio.sleep(0.05)
    assert caplog.text.count("could not be opened; the one in use stays") == 1
    assert caplog.text.count("holds no readable index; the one in use stays") == 1  # it is gone


async def test_an_update_that_lacked_memory_is_opened_at_the_next_look(
    caplog, monkeypatch, tmp_path
):
    monkeypatch.setattr("serve.engine.FOLLOW_S", 0.001)
    failures = [ResourceError("no memory")]

    def open_one(given: ServeSettings) -> FakePipeline:
        version = index_version(given.index)
        if version == "v2" and failures:
            raise failures.pop()
        return FakePipeline(version)

    app = create_app(settings(index=empty_index(tmp_path)), open_pipeline=open_one)
    monkeypatch.setattr("serve.shelves.open_sharing_models", lambda given, _: open_one(given))
    async with running(app=app):
        change_json(tmp_path / MANIFEST_NAME, version="v2")
        shelf = app.state.engine.shelves[""]
        await until(lambda: shelf.in_use == "v2")
    assert not failures


async def test_updates_are_followed_after_a_look_that_failed(caplog, monkeypatch, tmp_path):
    monkeypatch.setattr("serve.engine.FOLLOW_S", 0.001)
    opener = Opener()
    app = create_app(settings(index=empty_index(tmp_path)), open_pipeline=opener)
    monkeypatch.setattr("serve.shelves.open_sharing_models", lambda given, _: opener(given))
    faults = [RuntimeError("a bug")]
    replace = Shelf.replace

    def flawed(shelf: Shelf, anew: bool = False) -> bool:
        if faults:
            raise faults.pop()
        return replace(shelf, anew)

    monkeypatch.setattr(Shelf, "replace", flawed)
    change_json(tmp_path / MANIFEST_NAME, version="v2")
    async with running(app=app):
        await until(lambda: app.state.engine.shelves[""].in_use == "v2")
    assert "a bug" in caplog.text


SECRET = Passage("a-0", "", "secret words", metadata=(("year", 2020),))
OPEN = Passage("b-0", "", "open words")


def build(place: Path, *passages: Passage) -> Path:
    return write_index(place, passages, settings=BM25).directory


def point(link: Path, target: Path) -> None:
    link.unlink(missing_ok=True)
    link.symlink_to(target)


async def test_a_copy_at_another_place_has_the_rights_of_that_place(monkeypatch, tmp_path):
    monkeypatch.setattr("serve.engine.FOLLOW_S", 0.01)
    link = tmp_path / "link"
    point(link, build(tmp_path / "one", SECRET, OPEN))
    async with running(app=application(link)) as client:
        assert await found(client, "words") == ["a-0", "b-0"]
        shutil.copytree(tmp_path / "one", tmp_path / "two")
        point(link, tmp_path / "two")
        loads = engine_of(client).metrics.index_loads
        await until(lambda: loads._value.get() == 2)
        shutil.rmtree(tmp_path / "one")
        change_rights(link, lambda rights: rights.stating({"a-0": ["staff"]}))
        assert await found(client, "words") == ["b-0"]


async def test_another_working_directory_changes_no_index(caplog, monkeypatch, tmp_path):
    _, place = index_files(tmp_path, {"rivers.md": "The Danube rises."})
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(place.parent)
    named = settings(index=place.name, retriever="bm25")
    async with running(app=create_app(named, open_pipeline)) as client:
        shelves = engine_of(client).shelves
        await shelves.look()
        monkeypatch.chdir(elsewhere)
        await shelves.look()
        await shelves.reload()
        assert (await ask(client)).status_code == 200
    assert "the one in use stays" not in caplog.text


async def test_an_index_is_filtered_while_its_link_leads_to_one_that_cannot_be_opened(
    caplog, monkeypatch, tmp_path
):
    monkeypatch.setattr("serve.engine.FOLLOW_S", 0.01)
    link = tmp_path / "link"
    point(link, build(tmp_path / "one", SECRET, OPEN))
    other = build(tmp_path / "two", OPEN)
    with Index.open(other) as index:
        (index.passages.directory / "passages.arrow").write_bytes(b"damaged")
    async with running(app=application(link)) as client:
        point(link, other)
        await until(lambda: "the one in use stays" in caplog.text)
        assert await found(client, "words", filter={"year": 2020}) == ["a-0"]


class Cluster:
    """Stands in for the search of an index on a cluster, and counts its searches."""

    def __init__(self, index: Index) -> None:
        self.whole = index.dense
        self.dim = index.require_dense().vectors.dim
        self.n_searches = 0
        self.is_closed = False

    def __len__(self) -> int:
        return len(self.whole)

    def search(self, *given: Any) -> Any:
        assert not self.is_closed
        self.n_searches += 1
        return self.whole.search(*given)

    def close(self) -> None:
        self.is_closed = True


async def test_an_update_is_searched_on_the_cluster_too(monkeypatch, tmp_path: Path):
    clusters: list[Cluster] = []

    def opened(directory: Path, address: str) -> Index:
        assert address == "head:6379"
        index = Index.open(directory)
        index.dense = Cluster(index)
        clusters.append(index.dense)
        return index

    monkeypatch.setattr("rag.scale.search.open_sharded", opened)
    monkeypatch.setattr("serve.engine.FOLLOW_S", 0.01)
    files = {"danube.md": "The Danube rises in the Black Forest."}
    folder, place = index_files(tmp_path, files, retriever="dense", index_type="flat")
    given = settings(index=place, ray="head:6379", reader=None)
    app = create_app(given, open_pipeline)
    async with running(app=app) as client:
        assert clusters[0].n_searches > 0
        (folder / "elbe.md").write_text("The Elbe rises in the Giant Mountains.")
        rag.update(place, folder)
        await until(lambda: len(clusters) == 2 and clusters[0].is_closed)
        found = await client.post("/v1/retrieve", json={"question": "Where does the Elbe rise?"})
        assert found.json()["hits"][0]["passage_id"] == "elbe.md-0"
        assert clusters[1].n_searches > 0
    assert clusters[1].is_closed
