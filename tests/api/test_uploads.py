"""Changes that are accepted: on disk before the answer, made together, finished after a restart."""

import asyncio
import errno
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from indexers.index import Index
from indexers.index_writer import write_index
from indexers.settings import BuildSettings
from rag.core.files import directory_lock
from rag.data.records import CorpusOptions
from serve import uploads
from serve.uploads import Change, Version
from tests.api.fakes import running
from tests.api.test_documents import DOCUMENTS, KEY, application

pytestmark = pytest.mark.anyio


@pytest.fixture
def index(tmp_path: Path) -> Path:
    settings = BuildSettings(retriever="bm25", threads=1, java_heap_mib=256)
    source = {"options": CorpusOptions(split="none").model_dump()}
    return write_index(tmp_path / "i", DOCUMENTS, settings=settings, source=source).directory


async def accept(client: httpx.AsyncClient, *documents: dict[str, Any]) -> str:
    body = {"documents": [{"text": "words", **document} for document in documents]}
    reply = await client.post("/v1/documents", json=body, headers=KEY)
    assert reply.status_code == 202, reply.text
    assert reply.json()["status"] == "waiting"
    assert reply.headers["Location"] == reply.json()["address"]
    return str(reply.json()["address"])


async def ended(client: httpx.AsyncClient, address: str) -> dict[str, Any]:
    reply = await client.get(address, params={"wait_s": 60}, headers=KEY)
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


async def test_changes_that_come_together_make_one_version(index: Path) -> None:
    long = "x" * 400_000
    async with running(app=application(index)) as client:
        addresses = [await accept(client, {"id": f"n{n}", "text": f"number{n}"}) for n in range(5)]
        addresses.append(await accept(client, {"id": "n0", "text": "later"}))
        mixed = await accept(client, {"id": "good"}, {"id": "long", "text": long})
        gone = (await client.delete("/v1/documents/n1", headers=KEY)).json()["address"]
        nothing = (await client.delete("/v1/documents/nothing", headers=KEY)).json()["address"]
        waited = await client.post(
            "/v1/documents?wait=true", headers=KEY, json={"documents": [{"id": "w", "text": "w"}]}
        )
        versions = [await ended(client, address) for address in addresses]
        assert {version["status"] for version in versions} == {"made"}
        assert {version["index_version"] for version in versions} == {
            waited.json()["index_version"]
        }
        assert versions[0]["documents"] == [{"id": "n0", "passages": 1, "sent": True}]
        version = await ended(client, mixed)
        assert [document["id"] for document in version["documents"]] == ["good"]
        assert [failed["id"] for failed in version["failed"]] == ["long"]
        assert (await ended(client, gone))["deleted"] == {"n1": True}
        assert (await ended(client, nothing))["deleted"] == {"nothing": False}
        unknown = await client.get("/v1/versions/nothing", headers=KEY)
        assert unknown.status_code == 404
        assert (await client.get(mixed)).status_code == 401
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
        assert (await client.get(address, headers=KEY)).json()["status"] == "waiting"
    write_index(index, None, settings=BuildSettings(retriever="bm25"))  # its files are not foreign
    async with running(app=application(index)) as client:
        assert (await ended(client, address))["documents"][0]["id"] == "n"
        found = await client.post("/v1/retrieve", json={"question": "number"}, headers=KEY)
        assert [hit["passage_id"] for hit in found.json()["hits"]] == ["n"]


async def test_a_change_that_cannot_be_made_costs_no_other(index: Path) -> None:
    async with running(app=application(index)) as client:
        gone = []
        for id in ("a", "b"):
            reply = await client.delete(f"/v1/documents/{id}", headers=KEY)
            gone.append(reply.json()["address"])
        first, last = [await ended(client, address) for address in gone]
        assert first["status"] == "made"
        assert (last["status"], last["error"]["code"]) == ("failed", "not_possible")
    assert len(Index.open(index).documents) == 1


async def test_a_queue_has_an_end_and_a_full_disk_is_said(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    body = {"documents": [{"id": "x", "text": "word"}]}
    async with running(app=application(index)) as client:
        monkeypatch.setattr("rag.core.files.fsync_tree", full)
        reply = await client.post("/v1/documents", json=body, headers=KEY)
        assert (reply.status_code, reply.json()["error"]["code"]) == (507, "disk_full")
        monkeypatch.undo()
        monkeypatch.setattr(uploads, "_MOST_WAITING", 0)
        reply = await client.post("/v1/documents", json=body, headers=KEY)
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "overloaded")
        assert reply.headers["retry-after"] == "10"
    assert not list((index / "uploads").glob("*.json"))


async def test_only_those_that_wait_give_up(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While another process writes the index, a change waits; a client that waits is told."""
    monkeypatch.setattr("serve.documents.WAIT_S", 0.1)
    async with running(app=application(index)) as client:
        with directory_lock(index):
            address = await accept(client, {"id": "patient"})
            reply = await client.delete("/v1/documents/a?wait=true", headers=KEY)
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "index_busy")
        assert (await ended(client, address))["status"] == "made"
        assert Index.open(index).documents.find("a") is not None


def test_a_change_on_disk_is_the_one_that_was_sent(tmp_path: Path) -> None:
    from rag.data.documents.read import Converter
    from rag.data.records import Document

    path = tmp_path / "guide.md"
    path.write_text(
        "---\nyear: 2020\nshare: 1.0\ntags: [a, b]\n---\n# Guide\n\nText.\n\n- one\n- two\n"
    )
    document = Converter().convert(str(path), path.name, 30.0, 512)
    assert isinstance(document, Document)
    change = Change(documents=(document,), deleted=("x",), until_s=1.5)
    assert Change.model_validate_json(change.model_dump_json()) == change
    version = Version(id="1", status="made", deleted={"x": True})
    assert json.loads(version.model_dump_json(exclude_defaults=True)) == {
        "id": "1",
        "status": "made",
        "deleted": {"x": True},
    }


async def test_many_at_once_are_all_made(index: Path) -> None:
    async with running(app=application(index)) as client:
        addresses = await asyncio.gather(
            *(accept(client, {"id": f"n{n}", "text": f"number{n}"}) for n in range(40))
        )
        versions = await asyncio.gather(*(ended(client, address) for address in addresses))
        assert len({version["index_version"] for version in versions}) == 1
