"""Files of the corpus over HTTP: those that the index was made of, and nothing else of their
folder.
"""

from pathlib import Path
from typing import Any

import httpx
import pytest

import rag
from tests import document_makers as make
from tests.api.fakes import application, posted, refused, running
from tests.support.files import index_files, write_files

pytestmark = pytest.mark.anyio
Made = tuple[Path, Path]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder and its index; `later.txt` and `photo.jpg` are in the one and not in the other."""
    place = tmp_path_factory.mktemp("files")
    files = {
        "notes.md": "# Rivers\n\nThe *Danube* rises.\n",
        "sub/100% plan.html": "<h1>Plan</h1><p>Do it.</p><script>alert(1)</script>",
        "sheet.xlsx": make.workbook({"S": [["Week", "Room"], [2, 37]]}),
        "linked.txt": "Soon a link.",
        "gone.txt": "Soon gone.",
        "photo.jpg": b"\xff\xd8\xff",
    }
    folder, index = index_files(place, files)
    (place / "outside.txt").write_text("A secret.")
    (folder / "gone.txt").unlink()
    (folder / "linked.txt").unlink()
    (folder / "linked.txt").symlink_to(place / "outside.txt")
    (folder / "later.txt").write_text("Nobody indexed this.")
    return folder, index


def served(made: Made, **values: Any) -> Any:
    """A client of a server that shows the files of a folder."""
    folder, index = made
    return running(app=application(index, files=folder, **values))


async def first(client: httpx.AsyncClient, question: str) -> dict[str, Any]:
    """The location of the best passage."""
    result = await posted(client, "/v1/retrieve", question=question)
    return dict(result["hits"][0]["location"])


async def test_indexed_files_are_served_as_what_browsers_may_show(made):
    async with served(made) as client:
        assert (await client.get("/page.json")).json()["files"] is True
        text = await client.get("/v1/files/notes.md")
        assert (text.status_code, text.text) == (200, "# Rivers\n\nThe *Danube* rises.\n")
        assert text.headers["content-type"].startswith("text/plain")
        assert text.headers["x-content-type-options"] == "nosniff"
        reply = await client.get("/v1/files/notes.md", headers={"Range": "bytes=2-7"})
        assert (reply.status_code, reply.text) == (206, "Rivers")
        for part in ("bytes=99-", "lines=1-2", "bytes=a"):
            reply = await client.get("/v1/files/notes.md", headers={"Range": part})
            assert refused(reply) == (416, "range_not_satisfiable")
            assert reply.headers["content-range"] == "bytes */30"
        for tag, status in ((text.headers["etag"], 304), ('"other"', 200)):
            reply = await client.get("/v1/files/notes.md", headers={"If-None-Match": tag})
            assert (reply.status_code, bool(reply.content)) == (status, status == 200)
        page = await client.get("/v1/files/sub/100%25%20plan.html")
        assert "alert(1)" in page.text
        assert page.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
        sheet = await client.get("/v1/files/sheet.xlsx")
        assert sheet.headers["content-disposition"] == 'attachment; filename="sheet.xlsx"'
        path = (await first(client, "Danube"))["path"]
        assert (await client.get(f"/v1/files/{path}")).status_code == 200


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
    async with served(made) as client:
        reply = await client.get(f"http://test/v1/files/{path}")
        assert reply.status_code == 404, reply.text
        assert "secret" not in reply.text
        assert "Rivers" not in reply.text


async def test_a_file_that_was_sent_gives_no_way_to_one_of_its_name(made, tmp_path):
    folder, _ = made
    rag.index(folder / "notes.md", tmp_path / "index", retriever="bm25", threads=1)
    guide = "# Guide\n\nFirst.\n\n## Height\n\nTall.\n\n### Neck\n\nLong.\n\n## Food\n\nLeaves.\n"
    async with served((folder, tmp_path / "index")) as client:
        nobody = await client.get("/v1/files/notes.md", headers={"X-API-Key": ""})
        assert nobody.status_code == 401
        assert (await client.get("/v1/files/notes.md")).status_code == 200
        for name, sent, shown in (
            ("later.txt", "What I have.", "# later\n\nWhat I have.\n"),
            ("guide.md", guide, guide),
        ):
            files = {"f": (name, sent.encode())}
            reply = await client.post("/v1/documents?wait=true", files=files)
            assert reply.status_code == 200, reply.text
            assert (await client.get(f"/v1/files/{name}")).text == shown
        assert (await first(client, "What I have"))["path"] == "later.txt"


async def test_a_page_of_a_pdf_is_found_by_its_label(tmp_path):
    pages = [
        [
            (72, 750, 20, "B", name),
            *((72, 700 - 14 * line, 12, "F", f"All of {name}.") for line in range(9)),
        ]
        for name in ("Preface", "First chapter", "Second chapter")
    ]
    content = make.pdf(pages, labels="0<</S/r>>1<</S/D>>")
    folder = write_files(tmp_path / "folder", {".versions/a.pdf": content})
    (folder / "a b.pdf").symlink_to(".versions/a.pdf")
    made = index_files(tmp_path, {})
    async with served(made) as client:
        assert (await first(client, "second chapter"))["page"] == "2"
        reply = await client.get("/v1/files/a%20b.pdf?page=2")
        assert (reply.status_code, reply.headers["location"]) == (
            303,
            "./a%20b.pdf?number=3#page=3",
        )
        reply = await client.get("/v1/files/a%20b.pdf?page=ix")
        assert reply.headers["location"] == "./a%20b.pdf?number=1#page=1"
        whole = await client.get("/v1/files/a%20b.pdf")
        assert whole.headers["content-type"] == "application/pdf"


async def test_it_is_off_unless_there_is_a_folder():
    async with running() as client:
        assert refused(await client.get("/v1/files/notes.md")) == (403, "files_disabled")
