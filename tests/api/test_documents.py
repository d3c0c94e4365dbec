"""Documents over HTTP: durable before the answer, made together, one writer at a time."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from mcp import Client

import rag
from indexers.documents import Put
from indexers.index import Index
from indexers.index_writer import Content, update_index, write_index
from rag.core.files import directory_lock
from rag.core.types import Evidence, Passage
from rag.data.records import CorpusOptions
from rag.integrations.mcp import _link, create_mcp_server
from serve import documents
from serve.chat import _source
from serve.errors import ApiError
from tests.api.fakes import BM25, application, found, opened, refused, running, settings, until
from tests.support.files import index_files
from tests.support.messages import refusal

pytestmark = pytest.mark.anyio
SEND = "/v1/documents?wait=true"
DOCUMENTS = [
    Put("a", "", [Passage("a-0", "Danube", "The danube rises.")]),
    Put("b", "", [Passage("b-0", "Rhine", "The rhine ends.")]),
]


def build(folder: Path, split: str) -> Path:
    source = {"options": CorpusOptions(split=split).model_dump()}
    return write_index(folder, Content(DOCUMENTS, source), settings=BM25).directory


@pytest.fixture
def index(tmp_path: Path) -> Path:
    return build(tmp_path / "i", "words100")


@pytest.fixture
async def client(index: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with running(app=application(index)) as started:
        yield started


async def send(client: httpx.AsyncClient, *sent: dict[str, Any]) -> httpx.Response:
    return await client.post(SEND, json={"documents": [{"text": "words", **it} for it in sent]})


async def upload(
    client: httpx.AsyncClient, *files: tuple[str, bytes], **fields: Any
) -> httpx.Response:
    return await client.post(SEND, files=[("file", file) for file in files], data=fields)


async def delete(client: httpx.AsyncClient, id: str) -> httpx.Response:
    return await client.delete(f"/v1/documents/{quote(id)}?wait=true")


async def listed(client: httpx.AsyncClient, **values: Any) -> list[str]:
    page = (await client.get("/v1/documents", params=values)).json()
    return [document["id"] for document in page["documents"]]


async def test_documents_are_searched_when_the_answer_comes(index: Path) -> None:
    app = application(index)
    zebra = {"id": "zebra", "text": "The zebra grazes."}
    async with running(app=app) as client:
        anybody = await client.post(SEND, json={}, headers={"X-API-Key": ""})
        assert refused(anybody) == (401, "unauthorized")
        first = (await send(client, zebra, {"id": "b", "text": "The elbe."})).json()
        assert first["documents"][0] == {"id": "zebra", "passages": 1, "sent": True}
        assert await found(client, "zebra") == ["zebra-0"]
        assert await found(client, "rhine") == []
        version = first["index_version"]
        assert Index.open(index, verify="deep").version == version
        assert (await send(client, zebra)).json()["index_version"] == version
        in_use = app.state.engine.shelves[""].pipeline
        app.state.engine.shelves[""].replace()
        assert app.state.engine.shelves[""].pipeline is in_use  # this version is not opened again
        guide = ("My guide.md", b"# Guide\n\nThe giraffe is tall.")
        uploaded = await upload(client, guide)
        assert uploaded.json()["documents"][0]["id"] == "My guide.md", uploaded.text
        assert await found(client, "giraffe") == ["My guide.md-0"]
        page = (await client.get("/v1/documents?limit=2")).json()
        assert ([item["id"] for item in page["documents"]], page["total"]) == (["a", "b"], 4)
        assert await listed(client, after=page["next"]) == ["zebra", "My guide.md"]
        assert (await delete(client, "zebra")).json()["deleted"]
        assert await found(client, "zebra") == []
        assert not (await delete(client, "zebra")).json()["deleted"]


async def test_what_cannot_be_indexed_is_refused_and_changes_nothing(
    client: httpx.AsyncClient, index: Path
) -> None:
    before = (index / "manifest.json").read_bytes()
    good = {"id": "x", "text": "word"}
    wrong: list[tuple[list[Any], str]] = [
        ([], "documents: list should have at least 1 item"),
        ([{"title": "x"}], "documents.0.id: field required"),
        ([{**good, "text": " "}], "documents.0"),
        ([good, good], "documents.1"),
        ([{**good, "id": ""}], "documents.0"),
        ([{**good, "id": "a\nb"}], "documents.0: control character"),
        ([good, {"id": "y", "text": 3}], "documents.1.text: input should be a valid string"),
    ]
    for sent, message in wrong:
        reply = await send(client, *sent)
        assert refused(reply) == (422, "invalid_request")
        assert reply.json()["error"]["message"].startswith(message)
    broken = ("a.pdf", b"%PDF-1.4")
    assert refused(await upload(client, broken)) == (422, "unreadable_file")
    for kind in ("", "application/jsonx", "text/plain"):
        reply = await client.post(SEND, content=b"x", headers={"Content-Type": kind})
        assert reply.status_code == 415
    for kind in ("Application/JSON; charset=utf-8", "Multipart/Form-Data; boundary=x"):
        reply = await client.post(SEND, content=b"--x--", headers={"Content-Type": kind})
        assert reply.status_code == 422
    assert (await client.get("/v1/documents?after=nothing")).status_code == 404
    assert (index / "manifest.json").read_bytes() == before
    both = (await upload(client, broken, ("g.md", b"A gnu."))).json()
    assert [document["id"] for document in both["documents"]] == ["g.md"]
    assert both["unreadable"][0].startswith("a.pdf: ")
    assert "notes" not in both
    old = await upload(client, ("o.txt", b"Caf\xe9 du port."))
    assert old.json()["notes"] == ["o.txt: read as Windows-1252"]
    for id in ("o.txt", "g.md", "nothing", "a"):
        assert (await delete(client, id)).status_code == 200
    assert refused(await delete(client, "b")) == (409, "not_possible")


async def test_a_server_without_keys_shows_no_documents(index: Path) -> None:
    async with running(app=application(index, api_keys=())) as client:
        assert refused(await client.get("/v1/documents")) == (403, "documents_disabled")


@pytest.mark.parametrize(
    "name",
    [
        "Employee Handbook 2026.md",
        "Größe 100%.md",
        "a%20b.md",
        "🚀 plan #1?.md",
        'sub folder/it\'s {y}; a+b & "c".md',
    ],
)
async def test_the_name_of_a_file_is_its_id_on_every_route(tmp_path: Path, name: str) -> None:
    texts = {name: "The giraffe is tall.", "other.md": "The rhine ends."}
    files = {file: f"# Guide\n\n{text}\n" for file, text in texts.items()}
    folder, index = index_files(tmp_path, files)
    async with running(app=application(index, files=folder)) as client:
        assert set(await listed(client)) == {name, "other.md"}
        for chosen in ({"document": name}, {"path": name}):
            assert await found(client, "giraffe", filter=chosen) == [f"{name}-0"]
        passage = (await client.get(f"/v1/passages/{quote(name)}-0")).json()
        assert passage["text"] == "The giraffe is tall."
        assert passage["location"]["path"] == name
        link = _source(1, Evidence(f"{name}-0", "", "", 0, 0, 0.0), "http://test/").link
        assert (await client.get(link)).json() == passage
        file = await client.get(f"/v1/files/{quote(name)}")
        assert file.text == "# Guide\n\nThe giraffe is tall.\n"
        assert set(await listed(client, after=name)) <= {"other.md"}
        with opened(settings(index=index)) as pipeline:
            async with Client(create_mcp_server(pipeline)) as mcp:
                uri = _link(pipeline.passage(f"{name}-0"))
                (content,) = (await mcp.read_resource(uri)).contents
                assert content.text == "Guide\n\nThe giraffe is tall."
        gnu = (name.rpartition("/")[2], b"# Guide\n\nA gnu.")
        assert (await upload(client, gnu)).status_code == 200
        deleted = (await delete(client, name)).json()
        assert (deleted["deleted"], deleted["id"]) == (True, name)


async def test_documents_have_metadata_that_filters_name(client: httpx.AsyncClient) -> None:
    zebra = {"id": "z", "text": "The zebra.", "metadata": {"year": 2020, "tags": ["a", "b"]}}
    other = {"id": "y", "text": "A zebra.", "metadata": {"year": 2021, "by": None}}

    async def chosen(**fields: object) -> list[str]:
        return await found(client, "zebra", filter=fields)

    assert (await send(client, zebra, other)).status_code == 200
    assert (await chosen(tags="b"), await chosen(year={"gte": 2021})) == (["z-0"], ["y-0"])
    shown = (await client.get("/v1/passages/z-0")).json()
    assert shown["metadata"] == {"year": 2020, "tags": ["a", "b"]}
    front = ("front.md", b"---\nowner: Ann\nyear: 2019\n---\nThe zebra of Ann.")
    assert (await upload(client, front, metadata='{"year": 2018}')).status_code == 200
    assert await chosen(owner="Ann", year=2018) == ["front.md-0"]  # what the form says wins
    await send(client, {**zebra, "metadata": {"year": 1999}})
    assert await chosen(year=1999) == ["z-0"]
    unknown = {"question": "zebra", "filter": {"onwer": "en"}}
    reply = await client.post("/v1/retrieve", json=unknown)
    assert refused(reply) == (422, "invalid_request")
    assert "(fields: path, document, year, owner)" in reply.json()["error"]["message"]


ODD_METADATA = {
    "mapping": '{"year": {"a": 1}}',
    "NaN": '{"year": NaN}',
    "name of a path": '{"path": "x"}',
    "empty name": '{"": 1}',
    "long": '{"text": "%s"}' % ("x" * 10_000),
    "list": "[1]",
}


@pytest.mark.parametrize("metadata", ODD_METADATA.values(), ids=ODD_METADATA)
def test_metadata_that_filters_cannot_compare_is_refused_by_name(metadata: str) -> None:
    body = f'{{"documents": [{{"id": "x", "text": "word", "metadata": {metadata}}}]}}'
    with refusal(ApiError):
        documents.validated(documents.DocumentsRequest.model_validate_json, body)
    with refusal(ApiError):
        documents.validated(documents.FilesRequest.model_validate, {"metadata": metadata})


async def test_a_format_whose_package_is_missing_is_the_servers_fault(
    client: httpx.AsyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "selectolax.py").write_text("raise ImportError('not there')")
    monkeypatch.syspath_prepend(tmp_path)
    reply = await upload(client, ("a.html", b"<html><body><p>Text.</p></body></html>"))
    assert refused(reply) == (501, "missing_package")
    assert "openqa-rag[docs]" in reply.json()["error"]["hint"]


async def test_two_writers_lose_nothing(index: Path) -> None:
    """The server waits while a command writes, and both find what the other wrote."""
    app = application(index)
    async with running(app=app) as client:

        def hold() -> None:
            with directory_lock(index):
                is_held.set()
                # Longer than a writer waits for the lock, so that the server tries again.
                time.sleep(3.0)

        is_held = threading.Event()
        holder = threading.Thread(target=hold)
        holder.start()
        assert is_held.wait(30)
        sending = [send(client, {"id": f"n{n}", "text": f"number{n}"}) for n in range(5)]
        assert [reply.status_code for reply in await asyncio.gather(*sending)] == [200] * 5
        holder.join()
        put = Put("command", "", [Passage("command-0", "", "okapi")])
        report = await asyncio.to_thread(
            update_index, index, lambda stored: [*stored, put], lambda identity: None
        )
        assert report.kept == 7
        await until(lambda: app.state.engine.shelves[""].in_use == report.version, 120)
        assert set(await found(client, "okapi number3")) == {"command-0", "n3-0"}


async def test_the_folder_decides_about_its_documents_and_the_sender_about_those_sent(
    tmp_path: Path,
) -> None:
    files = {name: f"# {name}\n\nThe text of {name}.\n" for name in ("kept.md", "gone.md")}
    folder, index = index_files(tmp_path, files)
    async with running(app=application(index)) as client:
        await send(client, {"id": "sent"}, {"id": "sent-gone"})
        for name in ("kept.md", "gone.md", "sent-gone"):
            assert (await delete(client, name)).json()["deleted"] is True
        assert await listed(client) == ["sent"]
    (folder / "gone.md").unlink()  # its file, too
    rag.update(index, folder)
    async with running(app=application(index)) as client:
        assert set(await listed(client)) == {"sent", "kept.md"}


async def test_forms_and_names_that_cannot_be_used_are_refused(client: httpx.AsyncClient) -> None:
    words = ("a.md", b"words")
    wrong: list[tuple[tuple[str, bytes], dict[str, Any], str]] = [
        (words, {"metdata": "{}"}, "'metdata' is not a known field"),
        (words, {"metadata": "{"}, "metadata is not valid JSON (EOF"),
        (words, {"metadata": ["{}", "{}"]}, "a field of the form is given twice"),
        (words, {"metadata": '{"a": "\\ud800"}'}, "metadata"),
        *(((name, b"text"), {}, "") for name in ("..", ".", "x" * 300 + ".txt")),
    ]
    for file, fields, message in wrong:
        reply = await upload(client, file, **fields)
        assert refused(reply) == (422, "invalid_request")
        assert reply.json()["error"]["message"].startswith(message)
    reply = await upload(client, ('a "b".md', b"words"))
    assert reply.json()["documents"][0]["id"] == 'a "b".md'
    reply = await upload(client, *((f"{n}.txt", b"text") for n in range(101)))
    assert reply.status_code == 400
    assert "100" in reply.json()["error"]["message"]


async def test_a_passage_too_long_to_read_is_refused_or_cut(tmp_path: Path, index: Path) -> None:
    text = "The capital of Zembla is Onhava. data:image/png;base64," + "QUJD" * 60_000
    for folder, status in ((build(tmp_path / "whole", "none"), 422), (index, 200)):
        async with running(app=application(folder)) as client:
            assert (await send(client, {"id": "long", "text": text})).status_code == status
    with Index.open(index) as opened_index:
        lengths = [len(passage.text) for passage in opened_index.passages.get_many(range(2, 5))]
    assert max(lengths) < 5_000


async def test_an_index_that_may_not_be_written_says_so(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set[int]()

    def refuse(*_: Any) -> bool:
        threads.add(threading.get_ident())
        return False

    monkeypatch.setattr("serve.shelves.os.access", refuse)
    reason = "its folder is read-only for this server"
    async with running(app=application(index)) as client:
        for path in ("/readyz", "/page.json"):
            assert (await client.get(path)).json()["read_only"] == reason
        for reply in (await delete(client, "a"), await upload(client, ("a.md", b"words"))):
            assert refused(reply) == (409, "index_read_only")
            assert reason in reply.json()["error"]["message"]
    assert threading.get_ident() not in threads  # a disk that hangs would stop the event loop
