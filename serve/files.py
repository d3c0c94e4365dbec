"""The files that an index was made of, to read on; off unless the server is given their folder."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from fastapi import APIRouter
from starlette.responses import FileResponse

from indexers.index import Index
from indexers.provenance import documents_of_index
from rag.core.errors import ArtifactError
from rag.data.documents.kinds import kind_by_name
from rag.data.documents.read import file_id
from serve.desk import Desk
from serve.errors import ApiError
from serve.routes import DeskOf, error_models

router = APIRouter()
_MOST_CACHED = 8
_TEXTS = ("markdown", "rst", "text", "csv", "python", "code", "notebook")
_NO_SCRIPTS = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"


@router.get(
    "/v1/files/{path:path}",
    tags=["documents"],
    summary="A file of the corpus",
    response_class=FileResponse,
    responses=error_models(401, 403, 404, 422, 500, 503),
)
async def file(path: str, desk: DeskOf, index: str | None = None) -> FileResponse:
    """The file that a passage's location names, where the server has its folder.

    PDF, HTML and text are shown by a browser, HTML without its scripts; other files are downloaded.
    """
    name = desk.index_name(index)
    folder = desk.settings.folder_of_files(name)
    if folder is None:
        raise ApiError(
            403, "files_disabled", "files are not served here",
            hint="set RAG_SERVE_FILES to the folder that was indexed",
        )  # fmt: skip
    found = await _find(desk, name, folder, path)
    if found is None:
        raise ApiError(
            404, "file_not_found", f"there is no file {path[:100]!r}", hint="it is gone, or was not indexed"
        )
    kind = kind_by_name(path)
    headers = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}
    if kind == "pdf":  # a sandbox would stop the browser's own viewer
        return FileResponse(found, media_type="application/pdf", headers=headers)
    headers["Content-Security-Policy"] = _NO_SCRIPTS
    if kind == "html":
        return FileResponse(found, media_type="text/html", headers=headers)
    if kind in _TEXTS:
        return FileResponse(found, media_type="text/plain", headers=headers)
    return FileResponse(found, media_type="application/octet-stream", headers=headers, filename=found.name)


async def _find(desk: Desk, name: str, folder: Path, path: str) -> Path | None:
    """The file, if the index was made of it and it lies in the folder, after all links are followed.

    A document that was sent has no file, though one of its name may lie there.
    """
    service = desk.require_ready(name)
    place = Path(desk.settings.indexes[name])
    id = file_id(path)
    try:
        if id not in await desk.in_thread(_ids_of_files, place, service.index_version):
            return None
    except ArtifactError:
        raise ApiError(
            500, "index_unusable", "the index cannot be read", hint="the server's log has the reason"
        ) from None
    first = await desk.passage(f"{id}-0", name)
    if first is None or first.get("location", {}).get("path") != path:
        return None
    return await desk.in_thread(_inside, folder, path)


@lru_cache(_MOST_CACHED)
def _ids_of_files(place: Path, version: str) -> frozenset[str]:
    """Ids of the documents of this version of an index that were not sent."""
    with Index.open(place, verify="none") as index:
        entries = documents_of_index(index).entries.values()
        return frozenset(one.id for one in entries if not one.sent)


def _inside(folder: Path, path: str) -> Path | None:
    try:
        found = (folder / path).resolve()
        is_inside = found.is_relative_to(folder.resolve())
        return found if is_inside and found.is_file() else None
    except (OSError, ValueError, RuntimeError):  # a name too long, a loop of links
        return None
