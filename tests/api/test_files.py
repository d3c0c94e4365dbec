"""Files of the corpus over HTTP: those that the index was made of, and nothing else of their
folder.
"""

from pathlib import Path

import pytest

import rag
from rag.pipeline import Pipeline
from serve.app import create_app
from serve.settings import ServeSettings, hash_api_key
from tests import document_makers as make
from tests.api.fakes import running, settings

pytestmark = pytest.mark.anyio
KEY = {"X-API-Key": "admin"}


def opened(given: ServeSettings) -> Pipeline:
    return Pipeline.open(given.index, retriever="bm25", reader=False)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder and its index; `later.txt` and `photo.jpg` are in the one and not in the other."""
    place = tmp_path_factory.mktemp("files")
    folder = place / "folder"
    (folder / "sub").mkdir(parents=True)
    (place / "outside.txt").write_text("A secret.")
    (folder / "notes.md").write_text("# Rivers\n\nThe *Danube* rises.\n")
    (folder / "sub" / "100% plan.html").write_text(
        "<h1>Plan</h1><p>Do it.</p><script>alert(1)</script>"
    )
    (folder / "sheet.xlsx").write_bytes(make.workbook({"S": [["Week", "Room"], [2, 37]]}))
    (folder / "linked.txt").write_text("Soon a link.")
    (folder / "gone.txt").write_text("Soon gone.")
    (folder / "photo.jpg").write_bytes(b"\xff\xd8\xff")
    rag.index(folder, place / "index", retriever="bm25", threads=1)
    (folder / "gone.txt").unlink()
    (folder / "linked.txt").unlink()
    (folder / "linked.txt").symlink_to(place / "outside.txt")
    (folder / "later.txt").write_text("Nobody indexed this.")
    return folder, place / "index"


def application(made: tuple[Path, Path], **values: object):
    folder, index = made
    return create_app(settings(index=index, files=folder, **values), open_pipeline=opened)


async def test_indexed_files_are_served_as_what_browsers_may_show(made):
    app = application(made)
    async with running(app=app) as client:
        assert (await client.get("/page.json")).json()["files"] is True
        text = await client.get("/v1/files/notes.md")
        assert (text.status_code, text.text) == (200, "# Rivers\n\nThe *Danube* rises.\n")
        assert text.headers["content-type"].startswith("text/plain")
        assert text.headers["x-content-type-options"] == "nosniff"
        page = await client.get("/v1/files/sub/100%25%20plan.html")
        assert "alert(1)" in page.text
        assert page.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
        sheet = await client.get("/v1/files/sheet.xlsx")
        assert sheet.headers["content-disposition"] == 'attachment; filename="sheet.xlsx"'
        found = (await client.post("/v1/retrieve", json={"question": "Danube"})).json()["hits"][0]
        assert (await client.get(f"/v1/files/{found['location']['path']}")).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "later.txt",
        "photo.jpg",
        "gone.txt",
        "linked.txt",
        "../outside.txt",
        "%2e%2e/outside.txt",
        "sub/%2e%2e/notes.md",
        "sub%2F..%2Fnotes.md",
        "/etc/passwd",
        "%2Fetc%2Fpasswd",
        "sub",
        "",
        "notes.md/",
        "notes.md%00",
        "NOTES.md",
        "a" * 5000,
    ],
)
async def test_nothing_else_is_served(made, path: str):
    app = application(made)
    async with running(app=app) as client:
        reply = await client.get(f"http://test/v1/files/{path}")
        assert reply.status_code == 404, reply.text
        assert "secret" not in reply.text
        assert "Rivers" not in reply.text


async def test_a_file_that_was_sent_gives_no_way_to_one_of_its_name(made, tmp_path):
    folder, _ = made
    index = tmp_path / "index"
    rag.index(folder / "notes.md", index, retriever="bm25", threads=1)
    app = application((folder, index), api_keys=(hash_api_key("admin"),))
    async with running(app=app) as client:
        assert (await client.get("/v1/files/notes.md")).status_code == 401
        assert (await client.get("/v1/files/notes.md", headers=KEY)).status_code == 200
        sent = await client.post(
            "/v1/documents?wait=true", files={"f": ("later.txt", b"What I have.")}, headers=KEY
        )
        assert sent.status_code == 200, sent.text
        hit = (
            await client.post("/v1/retrieve", json={"question": "What I have"}, headers=KEY)
        ).json()["hits"][0]
        assert hit["location"]["path"] == "later.txt"
        shown = await client.get("/v1/files/later.txt", headers=KEY)
        assert (shown.status_code, shown.text) == (200, "# later\n\nWhat I have.\n")
        text = (
            "# Guide\n\nFirst.\n\n## Height\n\nTall.\n\n### Neck\n\nLong.\n\n## Food\n\nLeaves.\n"
        )
        await client.post(
            "/v1/documents?wait=true", files={"f": ("guide.md", text.encode())}, headers=KEY
        )
        assert (await client.get("/v1/files/guide.md", headers=KEY)).text == text


async def test_a_page_of_a_pdf_is_found_by_its_label(tmp_path):
    folder, index = tmp_path / "folder", tmp_path / "index"
    folder.mkdir()
    pages = [
        [
            (72, 750, 20, "B", name),
            *((72, 700 - 14 * line, 12, "F", f"All of {name}.") for line in range(9)),
        ]
        for name in ("Preface", "First chapter", "Second chapter")
    ]
    (folder / "a b.pdf").write_bytes(make.pdf(pages, labels="0<</S/r>>1<</S/D>>"))
    rag.index(folder, index, retriever="bm25", threads=1)
    app = application((folder, index))
    async with running(app=app) as client:
        hit = (await client.post("/v1/retrieve", json={"question": "second chapter"})).json()[
            "hits"
        ][0]
        assert hit["location"]["page"] == "2"
        reply = await client.get("/v1/files/a%20b.pdf?page=2")
        assert (reply.status_code, reply.headers["location"]) == (303, "./a%20b.pdf#page=3")
        reply = await client.get("/v1/files/a%20b.pdf?page=ix")
        assert reply.headers["location"] == "./a%20b.pdf#page=1"
        whole = await client.get("/v1/files/a%20b.pdf")
        assert whole.headers["content-type"] == "application/pdf"


async def test_it_is_off_unless_there_is_a_folder():
    async with running() as client:
        reply = await client.get("/v1/files/notes.md")
        assert (reply.status_code, reply.json()["error"]["code"]) == (403, "files_disabled")
