"""Documents over HTTP: durable before the answer, made together, one writer at a time."""

import asyncio
import errno
import re
import threading
import time
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from mcp import Client

import rag
from indexers.documents import Put
from indexers.index import Index
from indexers.index_writer import update_index, write_index
from indexers.settings import BuildSettings
from rag.core.files import directory_lock
from rag.core.types import Passage
from rag.data.records import CorpusOptions
from rag.integrations.mcp import _link, create_mcp_server
from rag.pipeline import Pipeline
from serve import documents, uploads
from serve.app import create_app
from serve.chat import _source
from serve.errors import ApiError
from serve.settings import ServeSettings, hash_api_key
from tests.api.fakes import running, settings, until

pytestmark = pytest.mark.anyio
KEY = {"X-API-Key": "admin"}
SEND = "/v1/documents?wait=true"
DOCUMENTS = [
    Put("a", "", [Passage("a-0", "Danube", "The danube rises.")]),
    Put("b", "", [Passage("b-0", "Rhine", "The rhine ends.")]),
]
PASSAGE = {"title": "", "text": "", "start": 0, "end": 0, "score": 0.0}


def opened(given: ServeSettings) -> Pipeline:
    return Pipeline.open(given.index, retriever="bm25", reader=False)


@pytest.fixture
def index(tmp_path: Path) -> Path:
    chosen = BuildSettings(retriever="bm25", threads=1, java_heap_mib=256)
    source = {"options": CorpusOptions(split="words100").model_dump()}
    return write_index(tmp_path / "i", DOCUMENTS, settings=chosen, source=source).directory


def application(index: Path, **values: object):
    given = settings(index=index, api_keys=(hash_api_key("admin"),), **values)
    return create_app(given, open_pipeline=opened)


async def test_documents_are_searched_when_the_answer_comes(index: Path) -> None:
    app = application(index)
    async with running(app=app) as client:

        async def found(question: str) -> list[str]:
            reply = await client.post("/v1/retrieve", json={"question": question}, headers=KEY)
            return [hit["passage_id"] for hit in reply.json()["hits"]]

        sent = {
            "documents": [
                {"id": "zebra", "text": "The zebra grazes."},
                {"id": "b", "text": "The elbe."},
            ]
        }
        assert (await client.post(SEND, json=sent)).status_code == 401
        first = await client.post(SEND, json=sent, headers=KEY)
        assert first.status_code == 200, first.text
        assert first.json()["documents"][0] == {"id": "zebra", "passages": 1, "sent": True}
        assert await found("zebra") == ["zebra-0"]
        assert await found("rhine") == []
        version = first.json()["index_version"]
        assert Index.open(index, verify="deep").version == version
        again = await client.post(SEND, json=sent, headers=KEY)
        assert again.json()["index_version"] == version
        in_use = app.state.engine.shelves[""].pipeline
        app.state.engine.shelves[""].replace()
        assert app.state.engine.shelves[""].pipeline is in_use  # this version is not opened again
        file = {"file": ("My guide.md", b"# Guide\n\nThe giraffe is tall.", "text/markdown")}
        uploaded = await client.post(SEND, files=file, headers=KEY)
        assert uploaded.json()["documents"][0]["id"] == "My guide.md", uploaded.text
        assert await found("giraffe") == ["My guide.md-0"]
        page = (await client.get("/v1/documents?limit=2", headers=KEY)).json()
        assert ([item["id"] for item in page["documents"]], page["total"]) == (["a", "b"], 4)
        rest = await client.get("/v1/documents", params={"after": page["next"]}, headers=KEY)
        assert [item["id"] for item in rest.json()["documents"]] == ["zebra", "My guide.md"]
        deleted = (await client.delete("/v1/documents/zebra?wait=true", headers=KEY)).json()
        assert deleted["deleted"]
        assert await found("zebra") == []
        twice = (await client.delete("/v1/documents/zebra?wait=true", headers=KEY)).json()
        assert not twice["deleted"]


async def test_what_cannot_be_indexed_is_refused_and_changes_nothing(index: Path) -> None:
    app = application(index)
    before = (index / "manifest.json").read_bytes()
    async with running(app=app) as client:
        good = {"id": "x", "text": "word"}
        for documents in (
            [],
            [{"id": "x"}],
            [{**good, "text": " "}],
            [good, good],
            [{**good, "id": ""}],
        ):
            reply = await client.post(SEND, json={"documents": documents}, headers=KEY)
            assert (reply.status_code, reply.json()["error"]["code"]) == (422, "invalid_request")
        sent = {"documents": [good, {"id": "y", "text": 3}]}
        reply = await client.post(SEND, json=sent, headers=KEY)
        assert (
            reply.json()["error"]["message"] == "documents.1.text: input should be a valid string"
        )
        broken = ("file", ("a.pdf", b"%PDF-1.4"))
        reply = await client.post(SEND, files=[broken], headers=KEY)
        assert reply.json()["error"]["code"] == "unreadable_file"
        both = await client.post(SEND, files=[broken, ("file", ("g.md", b"A gnu."))], headers=KEY)
        assert [document["id"] for document in both.json()["documents"]] == ["g.md"]
        assert both.json()["unreadable"][0].startswith("a.pdf: ")
        assert "notes" not in both.json()
        old = await client.post(SEND, files=[("file", ("o.txt", b"Caf\xe9 du port."))], headers=KEY)
        assert old.json()["notes"] == ["o.txt: read as Windows-1252"]
        assert (
            await client.delete("/v1/documents/o.txt?wait=true", headers=KEY)
        ).status_code == 200
        assert (await client.delete("/v1/documents/g.md?wait=true", headers=KEY)).status_code == 200
        assert (await client.post(SEND, content=b"x", headers=KEY)).status_code == 415
        assert (await client.get("/v1/documents?after=nothing", headers=KEY)).status_code == 404
        statuses = [
            (await client.delete(f"/v1/documents/{id}?wait=true", headers=KEY)).status_code
            for id in ("nothing", "a")
        ]
        last = await client.delete("/v1/documents/b?wait=true", headers=KEY)
        assert (statuses, last.status_code, last.json()["error"]["code"]) == (
            [200, 200],
            409,
            "not_possible",
        )
    assert (index / "manifest.json").read_bytes() != before
    async with running(app=create_app(settings(index=index), open_pipeline=opened)) as client:
        reply = await client.get("/v1/documents")
        assert (reply.status_code, reply.json()["error"]["code"]) == (403, "documents_disabled")


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
    folder = tmp_path / "folder"
    for file, text in ((name, "The giraffe is tall."), ("other.md", "The rhine ends.")):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(f"# Guide\n\n{text}\n")
    rag.index(folder, tmp_path / "index", retriever="bm25", threads=1)
    in_url = quote(name)
    async with running(app=application(tmp_path / "index", files=folder)) as client:
        listed = (await client.get("/v1/documents", headers=KEY)).json()["documents"]
        assert {item["id"] for item in listed} == {name, "other.md"}
        for chosen in ({"document": name}, {"path": name}):
            wanted = {"question": "giraffe", "filter": chosen}
            hits = (await client.post("/v1/retrieve", json=wanted, headers=KEY)).json()["hits"]
            assert [hit["passage_id"] for hit in hits] == [f"{name}-0"]
            assert hits[0]["location"]["path"] == name
        passage = await client.get(f"/v1/passages/{in_url}-0", headers=KEY)
        assert passage.json()["text"] == "The giraffe is tall."
        link = _source(1, {**PASSAGE, "passage_id": f"{name}-0"}, "http://test/").link
        assert (await client.get(link, headers=KEY)).json() == passage.json()
        file = await client.get(f"/v1/files/{in_url}", headers=KEY)
        assert file.text == "# Guide\n\nThe giraffe is tall.\n"
        after = await client.get("/v1/documents", params={"after": name}, headers=KEY)
        assert after.status_code == 200
        with Pipeline.open(tmp_path / "index", retriever="bm25", reader=False) as pipeline:
            async with Client(create_mcp_server(pipeline)) as mcp:
                uri = _link(pipeline.passage(f"{name}-0"))
                (content,) = (await mcp.read_resource(uri)).contents
                assert content.text == "Guide\n\nThe giraffe is tall."
        sent = {"file": (name.rpartition("/")[2], b"# Guide\n\nA gnu.")}
        assert (await client.post(SEND, files=sent, headers=KEY)).status_code == 200
        deleted = await client.delete(f"/v1/documents/{in_url}?wait=true", headers=KEY)
        assert deleted.json()["deleted"], deleted.text
        assert deleted.json()["id"] == name


async def test_documents_have_metadata_that_filters_name(index: Path) -> None:
    app = application(index)
    async with running(app=app) as client:

        async def found(**chosen: object) -> list[str]:
            wanted = {"question": "zebra", "filter": chosen}
            hits = (await client.post("/v1/retrieve", json=wanted, headers=KEY)).json()["hits"]
            return [hit["passage_id"] for hit in hits]

        zebra = {
            "id": "z",
            "text": "The zebra.",
            "metadata": {"year": 2020, "tags": ["a", "b"], "by": None},
        }
        other = {"id": "y", "text": "A zebra.", "metadata": {"year": 2021}}
        sent = await client.post(SEND, json={"documents": [zebra, other]}, headers=KEY)
        assert sent.status_code == 200, sent.text
        assert (await found(tags="b"), await found(year={"gte": 2021})) == (["z-0"], ["y-0"])
        shown = (await client.get("/v1/passages/z-0", headers=KEY)).json()
        assert shown["metadata"] == {"year": 2020, "tags": ["a", "b"]}
        front = b"---\nowner: Ann\nyear: 2019\n---\nThe zebra of Ann."
        sent = await client.post(
            SEND,
            files={"f": ("front.md", front)},
            data={"metadata": '{"year": 2018}'},
            headers=KEY,
        )
        assert sent.status_code == 200, sent.text
        assert await found(owner="Ann", year=2018) == ["front.md-0"]  # what the form says wins
        changed = {"documents": [{**zebra, "metadata": {"year": 1999}}]}
        await client.post(SEND, json=changed, headers=KEY)
        assert await found(year=1999) == ["z-0"]
        file = {"file": ("a.md", b"Zebra crossing.")}
        data = {"metadata": '{"lang": "en"}'}
        sent = await client.post(SEND, files=file, data=data, headers=KEY)
        assert (sent.status_code, await found(lang="en")) == (200, ["a.md-0"]), sent.text
        unknown = {"question": "zebra", "filter": {"lnag": "en"}}
        reply = await client.post("/v1/retrieve", json=unknown, headers=KEY)
        assert reply.status_code == 422
        assert "(fields: path, document, year, owner, lang)" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ('{"year": {"a": 1}}', "'year': found dict"),
        ('{"year": NaN}', "'year': found float nan"),
        ('{"path": "x"}', "a metadata field cannot be called 'path'"),
        ('{"": 1}', "a metadata field cannot be called ''"),
        ('{"text": "%s"}' % ("x" * 10_000), "10,012 characters, at most 10,000"),
        ("[1]", ""),
    ],
)
def test_metadata_that_filters_cannot_compare_is_refused_by_name(
    metadata: str, message: str
) -> None:
    body = f'{{"documents": [{{"id": "x", "text": "word", "metadata": {metadata}}}]}}'
    with pytest.raises(ApiError, match=re.escape(f"documents.0.metadata: {message}")):
        documents.validated(documents.DocumentsRequest.model_validate_json, body)
    with pytest.raises(ApiError, match=re.escape(f"metadata: {message}")):
        documents.validated(documents.FilesRequest.model_validate, {"metadata": metadata})


async def test_a_format_whose_package_is_missing_is_the_servers_fault(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "selectolax.py").write_text("raise ImportError('not there')")
    monkeypatch.syspath_prepend(tmp_path)
    app = application(index)
    async with running(app=app) as client:
        page = ("a.html", b"<html><body><p>Text.</p></body></html>")
        reply = await client.post(SEND, files={"file": page}, headers=KEY)
    assert (reply.status_code, reply.json()["error"]["code"]) == (501, "missing_package")
    assert "openqa-rag[docs]" in reply.json()["error"]["hint"]


async def test_two_writers_lose_nothing(index: Path) -> None:
    """The server waits while a command writes, and both find what the other wrote."""
    app = application(index)
    async with running(app=app) as client:

        def hold() -> None:
            with directory_lock(index):
                is_held.set()
                time.sleep(1.0)

        is_held = threading.Event()
        holder = threading.Thread(target=hold)
        holder.start()
        assert is_held.wait(30)
        texts = [{"id": f"n{n}", "text": f"number{n}"} for n in range(5)]
        replies = await asyncio.gather(
            *(client.post(SEND, json={"documents": [item]}, headers=KEY) for item in texts)
        )
        holder.join()
        assert [reply.status_code for reply in replies] == [200] * 5
        put = Put("command", "", [Passage("command-0", "", "okapi")])
        report = await asyncio.to_thread(
            update_index, index, lambda stored: [*stored, put], lambda identity: None
        )
        assert report.kept == 7
        await until(
            lambda: app.state.engine.shelves[""].pipeline.index_version == report.version, 120
        )
        reply = await client.post("/v1/retrieve", json={"question": "okapi number3"}, headers=KEY)
        assert {hit["passage_id"] for hit in reply.json()["hits"]} == {"command-0", "n3-0"}


async def test_a_full_disk_is_named_at_once(
    index: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("rag.core.files.fsync_tree", full)
    async with running(app=application(index)) as client:
        sent = {"documents": [{"id": "new", "text": "A new document."}]}
        started = time.monotonic()
        reply = await client.post(SEND, json=sent, headers=KEY)
        assert time.monotonic() - started < uploads.WAIT_S / 2
        assert (reply.status_code, reply.json()["error"]["code"]) == (507, "disk_full")
        assert "nothing was changed" in reply.json()["error"]["hint"]
        assert str(index) not in reply.text
        assert "the disk is full: could not write" in caplog.text
        monkeypatch.undo()
        assert (await client.post(SEND, json=sent, headers=KEY)).status_code == 200


async def test_the_folder_decides_about_its_documents_and_the_sender_about_those_sent(
    tmp_path: Path,
) -> None:
    folder, place = tmp_path / "folder", tmp_path / "index"
    folder.mkdir()
    for name in ("kept.md", "gone.md"):
        (folder / name).write_text(f"# {name}\n\nThe text of {name}.\n")
    rag.index(folder, place, retriever="bm25", threads=1)

    async def listed(client: httpx.AsyncClient) -> set[str]:
        found = (await client.get("/v1/documents", headers=KEY)).json()["documents"]
        return {document["id"] for document in found}

    async with running(app=application(place)) as client:
        sent = {"documents": [{"id": name, "text": "Sent."} for name in ("sent", "sent-gone")]}
        await client.post(SEND, json=sent, headers=KEY)
        for name in ("kept.md", "gone.md", "sent-gone"):
            reply = await client.delete(f"/v1/documents/{name}?wait=true", headers=KEY)
            assert reply.json()["deleted"] is True
        assert await listed(client) == {"sent"}
    (folder / "gone.md").unlink()  # its file, too
    rag.update(place, folder)
    async with running(app=application(place)) as client:
        assert await listed(client) == {"sent", "kept.md"}


async def test_forms_and_names_that_cannot_be_used_are_refused(index: Path) -> None:
    app = application(index)
    async with running(app=app) as client:
        for data, message in (
            ({"metdata": "{}"}, "'metdata' is not a known field"),
            ({"metadata": "{"}, "metadata is not valid JSON (EOF"),
            ({"metadata": ["{}", "{}"]}, "a field of the form is given twice"),
            ({"metadata": '{"a": "\\ud800"}'}, "metadata"),
        ):
            sent = {"files": {"file": ("a.md", b"words")}, "data": data}
            reply = await client.post(SEND, headers=KEY, **sent)
            assert (reply.status_code, reply.json()["error"]["code"]) == (422, "invalid_request")
            assert reply.json()["error"]["message"].startswith(message)
        for name in ("..", ".", "x" * 300 + ".txt"):
            reply = await client.post(SEND, files={"file": (name, b"hello text")}, headers=KEY)
            assert (reply.status_code, reply.json()["error"]["code"]) == (422, "invalid_request"), (
                name
            )
        reply = await client.post(SEND, files={"file": ('a "b".md', b"words")}, headers=KEY)
        assert reply.json()["documents"][0]["id"] == 'a "b".md'
        sent = {"documents": [{"id": "a\nb", "text": "word"}]}
        reply = await client.post(SEND, json=sent, headers=KEY)
        assert "control character" in reply.json()["error"]["message"]
        many = [("file", (f"{n}.txt", b"text")) for n in range(101)]
        reply = await client.post(SEND, files=many, headers=KEY)
        assert reply.status_code == 400
        assert "100" in reply.json()["error"]["message"]


async def test_a_passage_too_long_to_read_is_refused_or_cut(tmp_path: Path, index: Path) -> None:
    text = "The capital of Zembla is Onhava. data:image/png;base64," + "QUJD" * 60_000
    whole = BuildSettings(retriever="bm25", threads=1, java_heap_mib=256)
    kept = write_index(
        tmp_path / "w",
        DOCUMENTS,
        settings=whole,
        source={"options": CorpusOptions(split="none").model_dump()},
    ).directory
    for place, status in ((kept, 422), (index, 200)):
        app = application(place)
        async with running(app=app) as client:
            sent = {"documents": [{"id": "long", "text": text}]}
            reply = await client.post(SEND, json=sent, headers=KEY)
            assert reply.status_code == status, reply.text
    with Index.open(index) as opened_index:
        lengths = [len(passage.text) for passage in opened_index.passages.get_many(range(2, 5))]
    assert max(lengths) < 5_000


async def test_an_index_that_may_not_be_written_says_so(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve.shelves.os.access", lambda *_: False)
    app = application(index)
    async with running(app=app) as client:
        reason = "its folder is read-only for this server"
        assert (await client.get("/readyz")).json()["read_only"] == reason
        assert (await client.get("/page.json")).json()["read_only"] == reason
        for reply in (
            await client.delete("/v1/documents/a?wait=true", headers=KEY),
            await client.post(SEND, files={"file": ("a.md", b"words")}, headers=KEY),
        ):
            assert (reply.status_code, reply.json()["error"]["code"]) == (409, "index_read_only")
            assert reason in reply.json()["error"]["message"]
