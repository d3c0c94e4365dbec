"""Changes that are accepted: on disk before the answer, made together, finished after a restart."""

import asyncio
import errno
import json
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from indexers.index import Index
from indexers.index_writer import write_index
from indexers.settings import BuildSettings
from rag.core.files import directory_lock
from rag.data.documents.read import Converter
from rag.data.records import Document
from rag.pipeline import Pipeline
from rag.updates import IndexUpdater
from serve import shelves, uploads
from serve.uploads import Change, Version
from tests.api.fakes import application, found, refused, running, until
from tests.api.test_documents import build, delete, send
from tests.chat_server import Server
from tests.support.files import index_files
from tests.unit.retrievers.encoders.test_endpoint import embeddings

pytestmark = pytest.mark.anyio


@pytest.fixture
def index(tmp_path: Path) -> Path:
    return build(tmp_path / "i", "none")


@pytest.fixture
async def client(index: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with running(app=application(index)) as started:
        yield started


async def accept(client: httpx.AsyncClient, *documents: dict[str, Any]) -> str:
    body = {"documents": [{"text": "words", **document} for document in documents]}
    reply = await client.post("/v1/documents", json=body)
    assert reply.status_code == 202, reply.text
    assert reply.json()["status"] == "waiting"
    assert reply.headers["Location"] == f"http://test{reply.json()['address']}"
    return str(reply.json()["address"])


async def accept_deletion(client: httpx.AsyncClient, id: str) -> str:
    return str((await client.delete(f"/v1/documents/{id}")).json()["address"])


async def ended(client: httpx.AsyncClient, address: str) -> dict[str, Any]:
    reply = await client.get(address, params={"wait_s": 60})
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


async def test_changes_that_come_together_make_one_version(
    client: httpx.AsyncClient, index: Path
) -> None:
    addresses = [await accept(client, {"id": f"n{n}", "text": f"number{n}"}) for n in range(5)]
    addresses.append(await accept(client, {"id": "n0", "text": "later"}))
    mixed = await accept(client, {"id": "good"}, {"id": "long", "text": "x" * 400_000})
    gone = await accept_deletion(client, "n1")
    nothing = await accept_deletion(client, "nothing")
    waited = (await send(client, {"id": "w"})).json()
    versions = [await ended(client, address) for address in addresses]
    assert {version["status"] for version in versions} == {"made"}
    assert {version["index_version"] for version in versions} == {waited["index_version"]}
    assert versions[0]["documents"] == [{"id": "n0", "passages": 1, "sent": True}]
    version = await ended(client, mixed)
    assert [document["id"] for document in version["documents"]] == ["good"]
    assert [failed["id"] for failed in version["failed"]] == ["long"]
    assert (await ended(client, gone))["deleted"] == {"n1": True}
    assert (await ended(client, nothing))["deleted"] == {"nothing": False}
    unknown = await client.get("/v1/versions/nothing")
    assert refused(unknown) == (404, "version_not_found")
    assert (await client.get(mixed, headers={"X-API-Key": ""})).status_code == 401
    with Index.open(index, verify="deep") as opened:
        texts = {passage.id: passage.text for passage in opened.passages}
    assert texts.keys() == {"a-0", "b-0", "n0", "n2", "n3", "n4", "good", "w"}
    assert texts["n0"] == "later"


async def test_what_waits_is_made_after_a_restart(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "COLLECT_S", 600.0)
    monkeypatch.setattr(uploads, "_LOOK_S", 600.0)
    async with running(app=application(index)) as client:
        address = await accept(client, {"id": "n", "text": "number"})
        assert (await client.get(address)).json()["status"] == "waiting"
    write_index(index, None, settings=BuildSettings(retriever="bm25"))  # its files are not foreign
    async with running(app=application(index)) as client:
        assert (await ended(client, address))["documents"][0]["id"] == "n"
        assert await found(client, "number") == ["n"]


async def test_a_change_that_cannot_be_made_costs_no_other(
    client: httpx.AsyncClient, index: Path
) -> None:
    gone = [await accept_deletion(client, id) for id in ("a", "b")]
    first, last = [await ended(client, address) for address in gone]
    assert first["status"] == "made"
    assert (last["status"], last["error"]["code"]) == ("failed", "not_possible")
    assert len(Index.open(index).documents) == 1


async def test_a_queue_has_an_end_and_a_full_disk_is_said_at_once(
    client: httpx.AsyncClient,
    index: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("rag.core.files.fsync_tree", full)
    began = time.monotonic()
    reply = await send(client, {"id": "x"})
    assert time.monotonic() - began < uploads.WAIT_S / 2
    assert refused(reply) == (507, "disk_full")
    assert str(index) not in reply.text
    assert "the disk is full: could not write" in caplog.text
    monkeypatch.undo()
    monkeypatch.setattr(uploads, "_MOST_WAITING", 0)
    reply = await send(client, {"id": "x"})
    assert refused(reply) == (503, "overloaded")
    assert reply.headers["retry-after"] == "10"
    monkeypatch.undo()
    assert (await send(client, {"id": "x"})).status_code == 200
    assert not list((index / "uploads").glob("*.json"))


async def test_only_those_that_wait_give_up(
    client: httpx.AsyncClient, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another process writes the index, a change waits; a client that waits is told."""
    monkeypatch.setattr("serve.documents.WAIT_S", 0.1)
    with directory_lock(index):
        address = await accept(client, {"id": "patient"})
        assert refused(await delete(client, "a")) == (503, "index_busy")
    assert (await ended(client, address))["status"] == "made"
    assert Index.open(index).documents.find("a") is not None


async def test_a_change_waits_while_the_encoder_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "COLLECT_S", 0.0)
    monkeypatch.setattr(uploads, "_LOOK_S", 0.1)
    server = Server()
    server.replies = [embeddings()]
    source = f"{server.source},retries=0"
    _, index = index_files(
        tmp_path, {"a.md": "The danube rises."}, encoder=source, retriever="hybrid"
    )
    async with running(app=application(index, index_encoder=source)) as client:
        server.replies = [(503, b"{}")]
        address = await accept(client, {"id": "n", "text": "number"})
        server.requests.clear()
        await until(lambda: len(server.requests) >= 2)
        assert (await client.get(address)).json()["status"] == "waiting"
        server.replies = [embeddings()]
        assert (await ended(client, address))["status"] == "made"
        server.replies = [(400, b"{}")]
        address = await accept(client, {"id": "refused", "text": "other"})
        assert (await ended(client, address))["status"] == "failed"
    server.close()


async def test_whoever_waits_for_a_version_keeps_nobody_from_reading(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, gate = threading.Event(), threading.Event()
    open_sharing = shelves.open_sharing_models

    def slow(*given: Any) -> Pipeline:
        begun.set()
        assert gate.wait(60)
        return open_sharing(*given)

    monkeypatch.setattr(shelves, "open_sharing_models", slow)
    address = await accept(client, {"id": "n"})
    await until(begun.is_set)
    asked = [asyncio.create_task(client.get(address)) for _ in range(64)]
    try:
        async with asyncio.timeout(30):
            # The first of these may come before those that wait.
            for _ in range(5):
                assert (await client.get("/v1/passages/b-0")).status_code == 200
    finally:
        gate.set()
    replies = await asyncio.gather(*asked)
    assert {reply.json()["status"] for reply in replies} == {"made"}


async def test_what_was_deleted_does_not_stay_on_the_disk(
    client: httpx.AsyncClient, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "_LOOK_S", 0.05)
    assert (await delete(client, "a")).status_code == 200
    await until(lambda: len(list(index.glob("data-*"))) == 1)
    assert await found(client, "rhine") == ["b-0"]


async def test_a_damaged_change_holds_up_no_other(client: httpx.AsyncClient, index: Path) -> None:
    (index / "uploads").mkdir()
    (index / "uploads" / f"{0:020d}-00000000.json").write_text("{")
    assert (await send(client, {"id": "x"})).status_code == 200


async def test_those_that_wait_are_told_of_an_error_of_any_kind(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise PermissionError(".rights.lock")

    monkeypatch.setattr("serve.documents.WAIT_S", 0.0)
    monkeypatch.setattr(IndexUpdater, "change", fail)
    assert refused(await send(client, {"id": "x"})) == (500, "index_unusable")


def test_a_change_on_disk_is_the_one_that_was_sent(tmp_path: Path) -> None:
    path = tmp_path / "guide.md"
    path.write_text(
        "---\nyear: 2020\nshare: 1.0\ntags: [a, b]\n---\n# Guide\n\nText.\n\n- one\n- two\n"
    )
    document = Converter().convert(str(path), path.name, 30.0, 512)
    assert isinstance(document, Document)
    change = Change(documents=(document,), deleted=("x",), until_s=1.5)
    assert Change.model_validate_json(change.model_dump_json()) == change
    version = Version(id="1", status="made", deleted={"x": True})
    made = {"id": "1", "status": "made", "deleted": {"x": True}}
    assert json.loads(version.model_dump_json(exclude_defaults=True)) == made
