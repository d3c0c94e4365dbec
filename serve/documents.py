"""Documents over HTTP: send, delete and list them, show their files.

A change is accepted once it is on disk, and made together with others, see `serve.uploads`.
"""

import asyncio
import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path, PurePath
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

from fastapi import APIRouter, Depends, Query, Request
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    Json,
    StringConstraints,
    ValidationError,
    field_validator,
)
from starlette.datastructures import Headers, UploadFile
from starlette.responses import (
    FileResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
)
from starlette.staticfiles import NotModifiedResponse, StaticFiles
from starlette.types import Message, Receive, Send
from starlette.types import Scope as ASGIScope

from indexers.documents import DocumentEntry
from rag.core.types import Passage
from rag.data.corpus import fault_of
from rag.data.documents.pdf import number_of_page
from rag.data.documents.read import file_id
from rag.data.formats import kind_by_name
from rag.data.metadata import METADATA_HINT, metadata_of_fields
from rag.data.records import Document
from rag.pipeline import Pipeline
from serve.engine import Engine
from serve.errors import ApiError, describe, invalid_request, media_type_of
from serve.responses import Accepted, DeletedOut, DocumentId, DocumentOut, DocumentsOut
from serve.routes import AppEngine, ShelfName, base_url_of
from serve.shelves import Scope, Shelf
from serve.uploads import WAIT_S, Change, Version

Body = TypeVar("Body")
router = APIRouter(tags=["documents"])
_MOST_LISTED = 1000
_MOST_METADATA = 10_000  # characters as JSON: they are stored with every passage

_TEXTS = ("markdown", "rst", "asciidoc", "org", "latex", "text", "csv", "code", "ipynb")
# Media types of what a browser shows; all else is downloaded.
_SHOWN = {
    "pdf": "application/pdf",
    "html": "text/html",
    **dict.fromkeys(_TEXTS, "text/plain"),
}
_CONTROLS = re.compile(r"[\x00-\x1f\x7f]")
_CONDITIONS = StaticFiles()  # knows what requests may be conditional on
Name = Annotated[str, StringConstraints(strict=True)]
_NO_SCRIPTS = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"

_Wait = Annotated[bool, Query(description="answer once the change is made and searched")]
_WAITED = "With `wait=true`: the change is on disk and searched"
_ANY_FILE = {"*/*": {"schema": {"type": "string", "format": "binary"}}}


class _Described(BaseModel):
    model_config = ConfigDict(extra="forbid")

    metadata: dict[str, Any] = Field(
        {},
        description="fields that filters can name",
        examples=[{"year": 2020, "tags": ["guide", "linux"]}],
    )

    @field_validator("metadata")
    @classmethod
    def _can_be_compared(cls, value: dict[str, Any]) -> dict[str, Any]:
        metadata = dict(metadata_of_fields(value))
        size = len(json.dumps(metadata, ensure_ascii=False))
        if size > _MOST_METADATA:
            raise ValueError(
                f"{size:,} characters, at most {_MOST_METADATA:,} are stored with every passage"
            )
        return metadata


class DocumentIn(_Described):
    """A document to index; the one with its id is replaced."""

    id: Name
    title: Name = ""
    text: Name


class DocumentsRequest(BaseModel):
    """Documents to send."""

    model_config = ConfigDict(extra="forbid")

    documents: list[DocumentIn] = Field(min_length=1, max_length=1000)


class FilesRequest(_Described):
    """The fields of a form beside its files; `metadata` is a JSON object, for all of them."""

    metadata: Json[dict[str, Any]] = {}


_JSON = DocumentsRequest.model_json_schema()
_JSON["properties"]["documents"]["items"] = _JSON.pop("$defs")["DocumentIn"]
_FORM = FilesRequest.model_json_schema()
_FORM["properties"]["file"] = {"type": "string", "format": "binary"}
_BODIES = {"application/json": {"schema": _JSON}, "multipart/form-data": {"schema": _FORM}}


async def _scope(request: Request, engine: AppEngine, shelf: ShelfName = None) -> Scope:
    """What a request for documents may see; it is refused without API keys."""
    if not engine.settings.knows_people:
        message = (
            "documents cannot be read or changed over HTTP because this server has no API keys"
        )
        raise ApiError(403, "documents_disabled", message, hint="set RAG_SERVE_API_KEYS")
    return engine.scope(request, shelf)


class _File(FileResponse):
    """A file; a range that it does not have is an error in the server's shape."""

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        """Answer one ASGI request."""

        async def send_file(message: Message) -> None:
            if message.get("status") in (400, 416):
                asked = Headers(scope=scope)["range"][:100]
                size = self.headers["content-length"]
                text = f"the file has no range {asked!r}"
                hint = f"bytes=FIRST-LAST names a part of its {size} bytes"
                headers = {"Content-Range": f"bytes */{size}"}
                raise ApiError(416, "range_not_satisfiable", text, hint, headers)
            await send(message)

        await super().__call__(scope, receive, send_file)


ReadScope = Annotated[Scope, Depends(_scope)]


async def _edited(request: Request, engine: AppEngine, scope: ReadScope) -> Shelf:
    """The shelf whose documents an editor changes, if the server may write the index.

    Whoever changes documents learns which ids there are: where documents may be hidden from some,
    only editors may.
    """
    shelf = engine.shelf(scope)
    editors = engine.settings.editors
    if editors is None:
        everybody = await engine.read(replace(scope, groups=frozenset()), attrgetter("readable"))
        hides = everybody is not None
        is_editor = not hides and not engine.settings.knows_groups
    else:
        is_editor = editors in request.state.person.groups
    if not is_editor:
        message = "only people of the group that RAG_SERVE_EDITORS names may change documents here"
        raise ApiError(403, "no_editor", message, hint="nothing was changed")
    reason = await shelf.read_only()
    if reason:
        message = f"the index cannot be changed: {reason}"
        raise ApiError(409, "index_read_only", message, hint="nothing was changed")
    return shelf


EditedShelf = Annotated[Shelf, Depends(_edited)]


async def _accept(shelf: Shelf, change: Change) -> Version:
    """Put a change on disk; what became of it if a client waits for that."""
    version = await shelf.uploads.add(change)
    if change.until_s is None:
        return version
    ended = await _found(shelf, version.id, math.inf)
    if ended.error is not None:
        raise ended.error
    return ended


async def _found(shelf: Shelf, id: str, wait_s: float) -> Version:
    """What became of a change; one that has ended is searched."""
    version = await shelf.uploads.find(id, wait_s)
    if version is None:
        raise ApiError(404, "version_not_found", f"no change has the id {id[:100]!r}")
    if version.status != "waiting":
        # Another worker may have made it.
        await shelf.follow()
    return version


@router.post(
    "/v1/documents",
    status_code=202,
    response_model=Accepted,
    responses={200: {"model": DocumentsOut, "description": _WAITED}},
    openapi_extra={"requestBody": {"required": True, "content": _BODIES}},
)
async def send(
    request: Request,
    engine: AppEngine,
    scope: ReadScope,
    edited: EditedShelf,
    wait: _Wait = False,
) -> Response:
    """Documents as JSON, or files (PDF, Office, HTML, Markdown, …) as form fields of any name.

    The id of a file is its name; a document takes the place of the one with its id. `metadata` are
    fields that filters can name: text, numbers, true and false, or lists of these; in a form it is
    a field with a JSON object, for all of its files. The answer comes when the documents are on
    disk; some seconds later they are searched, as `address` tells. With `wait=true` the answer
    comes then. Sending the same again changes nothing. Of several files those that cannot be read
    are named (`unreadable`), the others added; `notes` says what conversion lost.
    """
    if media_type_of(request) == "multipart/form-data":
        documents, remarks = await _uploaded(request, engine)
    else:
        documents = await _listed(request)
        remarks = {}
    problem = _problem(documents)
    if problem:
        raise invalid_request(problem, "nothing was changed")
    version = await _accept(edited, Change(documents=tuple(documents), until_s=_until(wait)))
    if not wait:
        ids = [DocumentId(id=document.id) for document in documents]
        return _accepted(request, edited, version, documents=ids, **remarks)
    made = DocumentsOut(
        documents=version.documents,
        index_version=version.index_version,
        total=await engine.read(scope, _count),
        next=None,
        **remarks,
    )
    return _body(made)


def _count(pipeline: Pipeline) -> int:
    readable = pipeline.readable
    return len(pipeline.index.documents) if readable is None else int(readable.documents.sum())


def _body(
    model: BaseModel, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return JSONResponse(model.model_dump(exclude_unset=True), status, headers=headers)


def _until(wait: bool) -> float | None:
    return time.time() + WAIT_S if wait else None


def _accepted(request: Request, shelf: Shelf, version: Version, **reply: Any) -> Response:
    """The answer for a change that is on disk, with the address where its end is told."""
    address = f"/v1/versions/{version.id}"
    if shelf.name:
        address += f"?shelf={quote(shelf.name)}"
    accepted = Accepted(id=version.id, status="waiting", address=address, **reply)
    # With the path below which a proxy serves this.
    return _body(accepted, 202, {"Location": base_url_of(request) + address.removeprefix("/")})


@router.get("/v1/versions/{id}", response_model_exclude_defaults=True)
async def version(
    id: str, edited: EditedShelf, wait_s: Annotated[float, Query(ge=0, le=60)] = 0.0
) -> Version:
    """What became of a change that was accepted: it is waiting, made and searched, or failed.

    With `wait_s`, the answer waits for the end up to so many seconds. A document that could not be
    added stands in `failed`, with the reason. The last thousand changes are known.
    """
    return await _found(edited, id, wait_s)


def _problem(documents: Sequence[Document]) -> str:
    """The problem of the first document that cannot be indexed; "" if all can."""
    seen = set[str]()
    for number, document in enumerate(documents):
        fault = fault_of(document, seen)
        if fault is not None:
            return f"documents.{number}: {fault.reason} ({fault.detail})"
        # No path of a URL could name it.
        if _CONTROLS.search(document.id):
            return f"documents.{number}: control character (id {document.id!r})"
    return ""


async def _listed(request: Request) -> list[Document]:
    if media_type_of(request) != "application/json":
        message = "the body is neither JSON nor form data"
        hint = "send Content-Type: application/json, or upload with curl -F file=@guide.pdf"
        raise ApiError(415, "unsupported_media_type", message, hint)
    body = validated(DocumentsRequest.model_validate_json, await request.body())
    return [
        Document(sent.id, sent.title, sent.text, metadata=tuple(sent.metadata.items()))
        for sent in body.documents
    ]


async def _uploaded(request: Request, engine: Engine) -> tuple[list[Document], dict[str, Any]]:
    async with request.form(max_files=100, max_part_size=engine.settings.max_upload_bytes) as form:
        fields = [(name, value) for name, value in form.multi_items() if isinstance(value, str)]
        if len(dict(fields)) < len(fields):
            raise invalid_request("a field of the form is given twice", "give metadata once")
        body = validated(FilesRequest.model_validate, dict(fields))
        contents = []
        for _, file in form.multi_items():
            if isinstance(file, UploadFile) and file.filename:
                name = Path(file.filename.replace("%22", '"')).name
                contents.append((name, await file.read()))
        if not contents:
            raise invalid_request("the form has no file", "curl -F file=@guide.pdf")
    converting = engine.conversions.convert(request.state.person.name, contents)
    documents, remarks = await engine.while_connected(request, converting, limit_s=None)
    described = []
    for document in documents:
        metadata = {**dict(document.metadata), **body.metadata}
        described.append(replace(document, metadata=tuple(metadata.items())))
    return described, {kind: lines for kind, lines in remarks.items() if lines}


def validated(validate: Callable[[Any], Body], value: Any) -> Body:
    """The body that a model's function makes of a value.

    Raises:
        ApiError: 422; the message names the first field that is wrong, by its row, and what is
            expected.
    """
    try:
        return validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        hint = METADATA_HINT if "metadata" in first["loc"] else "nothing was changed"
        raise invalid_request(describe(first), hint) from None


@router.get("/v1/documents", response_model_exclude_unset=True)
async def listing(
    engine: AppEngine,
    scope: ReadScope,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=_MOST_LISTED)] = 100,
) -> DocumentsOut:
    """Ids and numbers of passages, in the order of the index, `limit` of them after the document
    `after`.

    `next` is null at the end.
    """
    try:
        # One more than is shown tells whether others follow.
        version, total, page = await engine.read(scope, _page, after, limit + 1)
    except KeyError:
        message = f"no document has the id {str(after)[:100]!r}"
        raise ApiError(404, "document_not_found", message) from None
    entries = page[:limit]
    documents = [
        DocumentOut(id=entry.id, passages=len(entry.rows), sent=entry.sent) for entry in entries
    ]
    return DocumentsOut(
        documents=documents,
        index_version=version,
        total=total,
        next=entries[-1].id if len(page) > limit else None,
    )


def _page(
    pipeline: Pipeline, after: str | None, limit: int
) -> tuple[str, int, list[DocumentEntry]]:
    """The version of the index, the number of documents in it, and those after `after`."""
    documents = pipeline.index.documents
    readable = pipeline.readable
    visible = None if readable is None else readable.documents
    return pipeline.index_version, _count(pipeline), documents.page(after, limit, visible)


@router.delete(
    "/v1/documents/{document_id:path}",
    status_code=202,
    response_model=Accepted,
    responses={200: {"model": DeletedOut, "description": _WAITED}},
)
async def delete(
    document_id: str, request: Request, edited: EditedShelf, wait: _Wait = False
) -> Response:
    """Delete a document's passages from the index; it is accepted and made as one that is sent.

    If there is no such document, `deleted` is false: also for a request that is repeated because
    its answer was lost, if the first has deleted it. In both cases the document is gone.
    """
    version = await _accept(edited, Change(deleted=(document_id,), until_s=_until(wait)))
    if not wait:
        return _accepted(request, edited, version)
    is_deleted = version.deleted[document_id]
    return _body(
        DeletedOut(id=document_id, deleted=is_deleted, index_version=version.index_version)
    )


@router.get(
    "/v1/files/{path:path}",
    response_class=FileResponse,
    responses={
        200: {"content": _ANY_FILE},
        206: {"content": _ANY_FILE, "description": "The part that the header Range names"},
        303: {"description": "To the page of a PDF"},
        304: {"description": "The file is still what `If-None-Match` names"},
    },
)
async def file(
    path: str, request: Request, engine: AppEngine, page: str = "", number: int | None = None
) -> Response:
    """The file that a passage's location names, where the server has its folder.

    PDF, HTML and text are shown by a browser, HTML without its scripts; other files are downloaded.
    `page` is the label of a page of a PDF: the answer redirects to it, and tells scripts its
    `number`. Of a document that was sent, the text is shown.
    """
    folder = engine.settings.files
    if folder is None:
        hint = "set RAG_SERVE_FILES to the folder that was indexed"
        raise ApiError(403, "files_disabled", "files are not served here", hint=hint)
    scope = engine.scope(request)
    is_sent, passages = await engine.read(scope, _indexed, path)
    if passages:
        engine.audit(request, scope, [passage.id for passage in passages])
    if is_sent:
        return PlainTextResponse(_text_of(passages))
    file = await asyncio.to_thread(_inside, folder, path) if passages else None
    if file is None:
        hint = "it is gone, or was not indexed"
        raise ApiError(404, "file_not_found", f"there is no file {path[:100]!r}", hint=hint)
    kind = kind_by_name(path)
    if kind == "pdf" and page:
        number = await asyncio.to_thread(number_of_page, file, page)
        # Relative, for proxies that serve this below another path; a script that fetches the file
        # sees the number in the query, and no fragment.
        address = f"./{quote(PurePath(path).name)}?number={number}#page={number}"
        return RedirectResponse(address, 303)
    headers = dict[str, str]()
    if kind != "pdf":  # a sandbox would stop the browser's own viewer
        headers["Content-Security-Policy"] = _NO_SCRIPTS
    media_type = _SHOWN.get(kind or "")
    status = await asyncio.to_thread(file.stat)
    response = _File(
        file,
        headers=headers,
        media_type=media_type or "application/octet-stream",
        filename=None if media_type else file.name,
        stat_result=status,
    )
    if _CONDITIONS.is_not_modified(response.headers, request.headers):
        return NotModifiedResponse(response.headers)
    return response


def _indexed(pipeline: Pipeline, path: str) -> tuple[bool, list[Passage]]:
    """Whether the document that the index made of this file came over HTTP, and its passages; [] if
    none.
    """
    entry = pipeline.index.documents.find(file_id(path))
    if entry is None or not entry.rows:
        return False, []
    readable = pipeline.readable
    may_read = readable is None or readable.rows.mask[entry.rows.start]
    passages = pipeline.index.passages.get_many(entry.rows)
    location = passages[0].location
    # A record may have the id of a file.
    is_it = location is not None and location.path == path
    return (entry.sent, passages) if is_it and may_read else (False, [])


def _text_of(passages: Sequence[Passage]) -> str:
    """The text of a document, as Markdown with its headings."""
    parts = list[str]()
    above = tuple[str, ...]()
    for passage in passages:
        headings: tuple[str, ...] = (passage.title,)
        if passage.location and passage.location.headings:
            headings = passage.location.headings
        for level, heading in enumerate(headings, start=1):
            if above[:level] != headings[:level]:
                parts.append(f"{'#' * level} {heading}")
        parts.append(passage.text)
        above = headings
    return "\n\n".join(parts) + "\n"


def _inside(folder: Path, path: str) -> Path | None:
    try:
        file = (folder / path).resolve()
        return file if file.is_relative_to(folder.resolve()) and file.is_file() else None
    except (OSError, ValueError, RuntimeError):  # a name too long, a loop of links
        return None
