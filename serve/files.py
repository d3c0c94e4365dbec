"""Serve the files that an index was built from; off unless the server is given their folder."""

from functools import lru_cache
from pathlib import Path
from urllib.parse import quote

from fastapi import APIRouter
from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse, Response

from indexers.documents import DocumentEntry
from indexers.index import Index
from indexers.provenance import documents_of_index
from rag.core.errors import ArtifactError
from rag.data.documents.kinds import kind_by_name
from rag.data.documents.pdf import number_of_page
from rag.data.documents.read import file_id
from serve.documents import unreadable
from serve.engine import Engine
from serve.errors import ApiError
from serve.routes import AppEngine, error_models

router = APIRouter()
_MOST_CACHED = 8
_HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}
_TEXTS = (
    "markdown", "rst", "asciidoc", "org", "latex", "text", "subtitles", "csv", "python", "code", "notebook",
)  # fmt: skip
_NO_SCRIPTS = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"


@router.get(
    "/v1/files/{path:path}",
    tags=["documents"],
    summary="A file of the corpus",
    response_class=FileResponse,
    responses=error_models(401, 403, 404, 422, 500, 503),
)
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
    found = None if document is None else await engine.in_thread(_inside, folder, path)
    if found is None:
        raise ApiError(
            404, "file_not_found", f"there is no file {path[:100]!r}", hint="it is gone, or was not indexed"
        )
    headers = dict(_HEADERS)
    kind = kind_by_name(path)
    if kind == "pdf":  # a sandbox would stop the browser's own viewer
        if page:
            number = await engine.in_thread(number_of_page, found, page)
            query = f"?index={quote(index)}" if index else ""
            # relative, for proxies that serve this below another path
            return RedirectResponse(f"./{quote(path.rsplit('/', 1)[-1])}{query}#page={number}", 303)
        return FileResponse(found, media_type="application/pdf", headers=headers)
    headers["Content-Security-Policy"] = _NO_SCRIPTS
    if kind == "html":
        return FileResponse(found, media_type="text/html", headers=headers)
    if kind in _TEXTS:
        return FileResponse(found, media_type="text/plain", headers=headers)
    return FileResponse(found, media_type="application/octet-stream", headers=headers, filename=found.name)


async def _document(engine: Engine, name: str, path: str) -> DocumentEntry | None:
    """The document that the index made of this file, or None."""
    pipeline = engine.require_ready(name)
    place = Path(engine.settings.indexes[name])
    try:
        entries = await engine.in_thread(_documents, place, pipeline.index_version)
    except ArtifactError as error:
        raise unreadable(error) from None
    entry = entries.get(file_id(path))
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


@lru_cache(_MOST_CACHED)
def _documents(place: Path, version: str) -> dict[str, DocumentEntry]:
    """The documents of this version of an index by their ids."""
    with Index.open(place, verify="none") as index:
        return dict(documents_of_index(index).entries)


def _inside(folder: Path, path: str) -> Path | None:
    try:
        found = (folder / path).resolve()
        is_inside = found.is_relative_to(folder.resolve())
        return found if is_inside and found.is_file() else None
    except (OSError, ValueError, RuntimeError):  # a name too long, a loop of links
        return None
