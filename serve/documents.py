"""Documents over HTTP: send, delete, list. Each answer comes when the change is on disk and in use."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field, StrictStr, ValidationError
from starlette.datastructures import UploadFile
from starlette.responses import JSONResponse, Response

from indexers.index import Index
from indexers.provenance import documents_of_index
from rag.core.errors import ArtifactError
from rag.core.types import Metadata
from rag.data.corpus import IdSet, fault_of
from rag.data.files.fields import METADATA_HINT, metadata_of_fields
from rag.data.files.sources import ReadOptions
from rag.data.records import Document
from serve.document_writer import DocumentWriter
from serve.engine import Engine
from serve.errors import ApiError, invalid_request, unreadable
from serve.routes import AppEngine, error_models
from serve.uploads import documents_of_uploads

router = APIRouter()
_MOST_LISTED = 1000
_MOST_METADATA = 10_000  # characters as JSON: they are stored with every passage
_TEXT = {"type": "string"}
_VALUES = [{"type": kind} for kind in ("string", "number", "boolean")]
_METADATA = {
    "type": "object",
    "description": "fields that filters can name; in a form, for all of its files",
    "additionalProperties": {"anyOf": [*_VALUES, {"type": "array", "items": {"anyOf": _VALUES}}]},
    "example": {"year": 2020, "tags": ["guide", "linux"]},
}
_BODIES = {  # the two forms of a request that sends documents
    "application/json": {
        "schema": {
            "type": "object",
            "required": ["documents"],
            "properties": {
                "index": _TEXT,
                "documents": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["id", "text"],
                        "properties": {"id": _TEXT, "title": _TEXT, "text": _TEXT, "metadata": _METADATA},
                    },
                },
            },
        }
    },
    "multipart/form-data": {
        "schema": {
            "type": "object",
            "properties": {
                "file": {"type": "string", "format": "binary"},
                "index": _TEXT,
                "metadata": _METADATA,
            },
        }
    },
}


class DocumentIn(BaseModel):
    """A document to index; the one with its id is replaced."""

    model_config = ConfigDict(extra="forbid")

    id: StrictStr
    title: StrictStr = ""
    text: StrictStr
    metadata: dict[str, Any] = {}


class DocumentsRequest(BaseModel):
    """Documents to send."""

    model_config = ConfigDict(extra="forbid")

    documents: list[DocumentIn] = Field(min_length=1, max_length=1000)
    index: StrictStr | None = None


class DocumentOut(BaseModel):
    """A document of an index; `sent` says whether it came over HTTP."""

    id: str
    passages: int
    sent: bool


class DocumentsOut(BaseModel):
    """Documents, the version of the index that has them, and how many it has in all.

    `next` is the value of `after` for the documents that follow; null at the end.
    """

    documents: list[DocumentOut]
    index_version: str
    total: int
    next: str | None = None


class DeletedOut(BaseModel):
    """Whether there was such a document, and the version of the index without it."""

    id: str
    deleted: bool
    index_version: str


def _writer(engine: Engine, index: str | None) -> DocumentWriter:
    """The writer of an index, on a server with API keys."""
    if not engine.settings.api_keys:
        raise ApiError(
            403,
            "documents_disabled",
            "documents cannot be read or changed over HTTP because this server has no API keys",
            hint="set RAG_SERVE_API_KEYS",
        )
    name = engine.index_name(index)
    engine.require_ready(name)
    writers: dict[str, DocumentWriter] = engine.writers
    return writers.setdefault(name, DocumentWriter(engine, name))


@router.post(
    "/v1/documents",
    tags=["documents"],
    summary="Add or replace documents",
    response_model=DocumentsOut,
    responses=error_models(400, 401, 403, 404, 408, 409, 413, 415, 422, 500, 503),
    openapi_extra={"requestBody": {"required": True, "content": _BODIES}},
)
async def send(request: Request, engine: AppEngine) -> Response:
    """Documents as JSON, or files (PDF, Office, HTML, Markdown, …) as form fields of any name.

    The id of a file is its name; a document takes the place of the one with its id. `metadata` are fields
    that filters can name: text, numbers, true and false, or lists of these; in a form it is a field with a
    JSON object, for all of its files. The answer comes when the documents are on disk and searched. Sending
    the same again changes nothing.
    """
    _writer(engine, None)  # refused before anything is read
    if request.headers.get("content-type", "").startswith("multipart/form-data"):
        index, documents = await _uploaded(request, engine)
    else:
        index, documents = await _listed(request)
    writer = _writer(engine, index)
    if problem := _problem(documents):
        raise invalid_request(problem, "nothing was changed")
    version, _ = await writer.write(documents, [])
    return JSONResponse(await _stored_response(writer, version, [one.id for one in documents]))


def _problem(documents: Sequence[Document]) -> str:
    """The problem of the first document that cannot be indexed; "" if all can."""
    seen = IdSet()
    for number, document in enumerate(documents):
        fault = fault_of(document, ReadOptions(), seen)
        if fault is not None:
            return f"documents.{number}: {fault.reason} ({fault.detail})"
        if any(char < " " or char == "\x7f" for char in document.id):  # no path of a URL could name it
            return f"documents.{number}: control character (id {document.id!r})"
    return ""


async def _listed(request: Request) -> tuple[str | None, list[Document]]:
    if not request.headers.get("content-type", "").startswith("application/json"):
        raise ApiError(
            415, "unsupported_media_type", "the body is neither JSON nor form data",
            hint="send Content-Type: application/json, or upload with curl -F file=@guide.pdf",
        )  # fmt: skip
    try:
        body = DocumentsRequest.model_validate_json(await request.body())
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        raise invalid_request(f"{where}: {first['msg']}") from None
    return body.index, [
        Document(
            one.id, one.title, one.text, metadata=_metadata(one.metadata, f"documents.{number}.metadata")
        )
        for number, one in enumerate(body.documents)
    ]


def _metadata(given: Any, where: str) -> Metadata:
    """The metadata of a document, from the value of this field of the request."""
    if not isinstance(given, dict):
        raise invalid_request(f"{where}: not a JSON object", METADATA_HINT)
    try:
        metadata = metadata_of_fields(given)
    except ValueError as error:
        raise invalid_request(f"{where}: {error}", METADATA_HINT) from None
    if (size := len(json.dumps(dict(metadata), ensure_ascii=False))) > _MOST_METADATA:
        raise invalid_request(
            f"{where}: {size:,} characters, at most {_MOST_METADATA:,} are stored with every passage",
            "put the rest into the text",
        )
    return metadata


async def _uploaded(request: Request, engine: Engine) -> tuple[str | None, list[Document]]:
    async with request.form(max_files=100, max_part_size=engine.settings.max_upload_bytes) as form:
        texts = [(name, value) for name, value in form.multi_items() if isinstance(value, str)]
        named = dict(texts)
        if unknown := next((name for name, _ in texts if name not in ("index", "metadata")), None):
            raise invalid_request(
                f"{unknown[:40]!r} is not a known field of the form", "there are index, metadata and files"
            )
        if len(named) < len(texts):
            raise invalid_request("a field of the form is given twice", "give index and metadata once")
        metadata = _metadata(_json_or_none(named.get("metadata", "{}")), "metadata")
        files = [value for _, value in form.multi_items() if isinstance(value, UploadFile) and value.filename]
        if not files:
            raise invalid_request("the form has no file", "curl -F file=@guide.pdf")
        contents = [(Path(str(one.filename)).name, await one.read()) for one in files]
    found = await engine.in_thread(documents_of_uploads, contents)
    return named.get("index"), [replace(one, metadata=metadata) for one in found]


def _json_or_none(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


async def _stored_response(writer: DocumentWriter, version: str, ids: Sequence[str]) -> dict[str, Any]:
    documents, _, total = await writer.engine.in_thread(_entries, writer.place)
    shown = [documents[id] for id in ids if id in documents]
    return {"documents": shown, "index_version": version, "total": total, "next": None}


def _entries(place: Path) -> tuple[dict[str, dict[str, Any]], str, int]:
    """The documents of an index by id, its version, their number."""
    with Index.open(place, verify="none") as index:
        entries = documents_of_index(index).entries.values()
        shown = {one.id: {"id": one.id, "passages": one.passages, "sent": one.sent} for one in entries}
        return shown, index.version, len(shown)


@router.get(
    "/v1/documents",
    tags=["documents"],
    summary="List the documents",
    response_model=DocumentsOut,
    responses=error_models(401, 403, 404, 422, 500, 503),
)
async def listing(
    engine: AppEngine,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=_MOST_LISTED)] = 100,
    index: str | None = None,
) -> Response:
    """Ids and numbers of passages, in the order of the index, `limit` of them after the document `after`."""
    writer = _writer(engine, index)
    try:
        documents, version, total = await engine.in_thread(_entries, writer.place)
    except ArtifactError as error:
        raise unreadable(error) from None
    ids = list(documents)
    if after is not None and after not in documents:
        raise ApiError(404, "document_not_found", f"no document has the id {after[:100]!r}")
    start = 0 if after is None else ids.index(after) + 1
    chosen = ids[start : start + limit]
    following = chosen[-1] if start + limit < total else None
    listed = [documents[id] for id in chosen]
    return JSONResponse({"documents": listed, "index_version": version, "total": total, "next": following})


@router.delete(
    "/v1/documents/{document_id:path}",
    tags=["documents"],
    summary="Delete a document",
    response_model=DeletedOut,
    responses=error_models(401, 403, 404, 409, 422, 500, 503),
)
async def delete(document_id: str, engine: AppEngine, index: str | None = None) -> Response:
    """Delete a document's passages from the index; if there is no such document, `deleted` is false."""
    version, known = await _writer(engine, index).write([], [document_id])
    return JSONResponse({"id": document_id, "deleted": document_id in known, "index_version": version})
