"""Serve the files that an index was built from; off unless the server is given their folder."""

from pathlib import Path
from urllib.parse import quote

from fastapi import APIRouter
from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse, Response

from indexers.documents import DocumentEntry
from rag.data.documents.kinds import kind_by_name
from rag.data.documents.pdf import number_of_page
from rag.data.documents.read import file_id
from serve.documents import documents_of
from serve.engine import Engine
from serve.errors import ApiError
from serve.routes import AppEngine

router = APIRouter()
_HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}
_TEXTS = (
    "markdown", "rst", "asciidoc", "org", "latex", "text", "subtitles", "csv", "python", "code", "notebook",
)  # fmt: skip
_NO_SCRIPTS = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"


@router.get("/v1/files/{path:path}", tags=["documents"], response_class=FileResponse)
async def file(path: str, engine: AppEngine, index: str | None = None, page: str = "") -> Response:
    """The file that a passage's location names, where the server has its folder.

    PDF, HTML and text are shown by a browser, HTML without its scripts; other files are downloaded. `page`
    is the label of a page of a PDF: the answer redirects to it. Of a document that was sent,
    the text is shown.
    """
    name = engine.index_name(index)
    folder = engine.settings.folder_of_files(name)
    if folder is None:
        raise ApiError(
            403, "files_disabled", "files are not served here",
            hint="set RAG_SERVE_FILES to the folder that was indexed",
        )  # fmt: skip
    document = await _document(engine, name, path)
    if document is not None and document.sent:
        return PlainTextResponse(await _text(engine, name, document), headers=_HEADERS)
    place = None if document is None else await engine.in_thread(_inside, folder, path)
    if place is None:
        raise ApiError(
            404, "file_not_found", f"there is no file {path[:100]!r}", hint="it is gone, or was not indexed"
        )
    kind = kind_by_name(path)
    if kind == "pdf" and page:
        number = await engine.in_thread(number_of_page, place, page)
        query = f"?index={quote(index)}" if index else ""
        # relative, for proxies that serve this below another path
        return RedirectResponse(f"./{quote(path.rsplit('/', 1)[-1])}{query}#page={number}", 303)
    if kind == "pdf":  # a sandbox would stop the browser's own viewer
        return FileResponse(place, media_type="application/pdf", headers=_HEADERS)
    media_type = "text/html" if kind == "html" else "text/plain" if kind in _TEXTS else None
    return FileResponse(
        place,
        media_type=media_type or "application/octet-stream",
        headers={**_HEADERS, "Content-Security-Policy": _NO_SCRIPTS},
        filename=None if media_type else place.name,
    )


async def _document(engine: Engine, name: str, path: str) -> DocumentEntry | None:
    """The document that the index made of this file, or None."""
    entry = (await documents_of(engine, name)).get(file_id(path))
    first = None if entry is None else await engine.passage(f"{entry.id}-0", name)
    return entry if first is not None and first.get("location", {}).get("path") == path else None


async def _text(engine: Engine, name: str, document: DocumentEntry) -> str:
    """The passages of a document, each under its title where that is another than before."""
    first = await engine.passage(f"{document.id}-0", name, around=document.passages)
    lines, title = [], ""
    for passage in [first, *first["after"]] if first else []:
        if passage["title"] != title:
            lines.append(f"# {passage['title']}")
        lines.append(passage["text"])
        title = passage["title"]
    return "\n\n".join(lines) + "\n"


def _inside(folder: Path, path: str) -> Path | None:
    try:
        place = (folder / path).resolve()
        return place if place.is_relative_to(folder.resolve()) and place.is_file() else None
    except (OSError, ValueError, RuntimeError):  # a name too long, a loop of links
        return None
