"""Documents over HTTP: send, delete, list. Each answer comes when the change is on disk and in use.

Changes that arrive while an update is being written are written together by the next one. An index has one
writer: while a command updates it, requests wait for its lock.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field, StrictStr, ValidationError
from starlette.datastructures import UploadFile
from starlette.responses import JSONResponse, Response

from indexers.changes import Known, Put, sent_changes
from indexers.documents import record_digest
from indexers.index import Index
from indexers.protocols import EncoderIdentity, PassageEncoder
from indexers.provenance import documents_of_index, split_of_index
from indexers.update import merge_segments, update_index
from rag.core.errors import ArtifactError, ConfigError, DataError, RagError, ResourceError
from rag.core.log import get_logger
from rag.core.types import Passage
from rag.data.corpus import IdSet, fault_of
from rag.data.files.sources import ReadOptions
from rag.data.records import Document
from rag.data.split import split_documents
from readers.protocols import check_lengths
from serve.desk import Desk
from serve.errors import ApiError, invalid_request, unreadable
from serve.routes import DeskOf, error_models
from serve.uploads import documents_of_uploads

log = get_logger(__name__)
router = APIRouter()
_LOCK_WAIT_S, _RETRY_S, _MOST_LISTED = 30.0, 0.5, 1000


_TEXT = {"type": "string"}
_BODIES = {  # of a request that sends documents, which may have either form
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
                        "properties": {"id": _TEXT, "title": _TEXT, "text": _TEXT},
                    },
                },
            },
        }
    },
    "multipart/form-data": {
        "schema": {"type": "object", "properties": {"file": {"type": "string", "format": "binary"}}}
    },
}


class DocumentIn(BaseModel):
    """A document to index; the one with its id is replaced."""

    model_config = ConfigDict(extra="forbid")

    id: StrictStr
    title: StrictStr = ""
    text: StrictStr


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


@dataclass(slots=True)
class _Write:
    """One request's documents, cut into passages, or the id to delete; `known` says whether it was there."""

    puts: list[Put]
    deleted: list[str]
    done: asyncio.Future[str]
    known: set[str] = field(default_factory=set)


class DocumentWriter:
    """Writes the documents that are sent for one index, one update at a time."""

    def __init__(self, desk: Desk, name: str) -> None:
        self.desk, self.name, self.place = desk, name, Path(desk.settings.indexes[name])
        self._waiting: list[_Write] = []
        self._task: asyncio.Task[None] | None = None
        self._encoder: tuple[EncoderIdentity, PassageEncoder] | None = None
        self._cut: tuple[Any, Callable[[Document], list[Passage]]] | None = None

    async def write(self, documents: Sequence[Document], deleted: Sequence[str]) -> tuple[str, set[str]]:
        """The version of the index with these changes, and which of the ids it had before.

        Raises:
            ApiError: the change cannot be made, or another writer holds the index for too long.
        """
        try:
            puts = await self.desk.in_thread(self._puts, documents)
        except RagError as error:
            raise _refusal(error) from None
        write = _Write(puts, list(deleted), asyncio.get_running_loop().create_future())
        self._waiting.append(write)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work(), name=f"rag-documents-{self.name}")
        return await asyncio.shield(write.done), write.known

    async def _work(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            if not await self._attempt(batch) and len(batch) > 1:
                for write in batch:  # one of them cannot be made: each by itself
                    await self._attempt([write])
        try:  # what fails here is tried again after the next change
            if await self.desk.in_thread(merge_segments, self.place, self._open_encoder):
                await self.desk.refresh(self.name)
        except RagError as error:
            log.warning("segments were not merged: %s", error)
        except Exception:  # those who wait must not wait for ever
            log.exception("segments were not merged", extra={"index": self.name})
        if self._waiting:  # what came in the meantime
            await self._work()

    async def _attempt(self, batch: list[_Write]) -> bool:
        try:
            version = await self._update(batch)
        except RagError as error:
            if len(batch) == 1:
                batch[0].done.set_exception(_refusal(error))
            return False
        except Exception:
            log.exception("documents could not be written", extra={"index": self.name})
            failed = ApiError(500, "internal_error", "the server failed to write the documents")
            for write in batch:
                write.done.set_exception(failed)
            return True
        for write in batch:
            write.done.set_result(version)
        return True

    async def _update(self, batch: list[_Write]) -> str:
        deadline = asyncio.get_running_loop().time() + _LOCK_WAIT_S
        while True:
            try:
                version = await self.desk.in_thread(self._write_batch, batch)
                break
            except ResourceError:
                if asyncio.get_running_loop().time() > deadline:
                    raise
            await asyncio.sleep(_RETRY_S)
        await self.desk.refresh(self.name)
        return version

    def _write_batch(self, batch: list[_Write]) -> str:
        puts: dict[str, Put] = {}
        deleted: dict[str, None] = {}
        for write in batch:  # the later request counts
            for id in write.deleted:
                puts.pop(id, None)
                deleted[id] = None
            for put in write.puts:
                deleted.pop(put.id, None)
                puts[put.id] = put

        def changes(known: Known) -> Any:
            ids = set(known)
            for write in batch:
                write.known = ids & {*write.deleted, *(put.id for put in write.puts)}
                ids = (ids - set(write.deleted)) | {put.id for put in write.puts}
            return sent_changes(puts.values(), deleted, known)

        return update_index(self.place, changes, self._open_encoder, merge=False).version

    def _open_encoder(self, identity: EncoderIdentity) -> PassageEncoder:
        """An encoder of its own: that of the questions works on another thread."""
        from retrievers.encoders.open import load_like

        if self._encoder is None or self._encoder[0] != identity:  # a reload may bring another index
            settings = self.desk.settings
            opened = load_like(identity, settings.index_encoder, precision=settings.precision)
            self._encoder = identity, opened
        return self._encoder[1]

    def _puts(self, documents: Sequence[Document]) -> list[Put]:
        if not documents:
            return []
        cut = self._open_cut()
        puts = [Put(one.id, record_digest(one), cut(one), sent=True) for one in documents]
        try:
            check_lengths(passage for put in puts for passage in put.passages)
        except DataError as error:
            hint = "split the document; this index keeps each as one passage. Nothing was changed"
            raise invalid_request(error.message, hint) from None
        return puts

    def _open_cut(self) -> Callable[[Document], list[Passage]]:
        """How the index that is in place now cuts documents into passages."""
        from retrievers.encoders.open import passage_budget

        with Index.open(self.place, verify="none") as index:
            identity = index.encoder_identity
        key = identity, split_of_index(self.place)
        if self._cut is None or self._cut[0] != key:
            name, length = (identity.name, identity.max_length) if identity else (None, None)
            budget, count = passage_budget(self.desk.settings.index_encoder or name, length)
            split = split_of_index(self.place, budget)
            self._cut = key, lambda one: list(split_documents([one], split, count))
        return self._cut[1]


def _refusal(error: RagError) -> ApiError:
    """The answer for a change that cannot be made."""
    if isinstance(error, ResourceError):
        log.error("documents could not be written: %s", error)
        return ApiError(
            503, "index_busy", "the index is being written by another process, or the disk is full",
            hint="try again in a moment; nothing was changed", headers={"Retry-After": "10"},
        )  # fmt: skip
    if isinstance(error, DataError | ConfigError):
        return ApiError(409, "not_possible", error.message, hint="nothing was changed")
    log.error("documents could not be written: %s", error)
    return ApiError(
        500, "index_unusable", "the index cannot be updated", hint="the server's log has the reason"
    )


def _writer(desk: Desk, index: str | None) -> DocumentWriter:
    """The writer of an index, on a server with API keys."""
    if not desk.settings.api_keys:
        raise ApiError(
            403,
            "documents_disabled",
            "documents cannot be read or changed over HTTP because this server has no API keys",
            hint="set RAG_SERVE_API_KEYS",
        )
    name = desk.index_name(index)
    desk.require_ready(name)
    writers: dict[str, DocumentWriter] = desk.writers
    return writers.setdefault(name, DocumentWriter(desk, name))


@router.post(
    "/v1/documents",
    tags=["documents"],
    summary="Add or replace documents",
    response_model=DocumentsOut,
    responses=error_models(400, 401, 403, 404, 408, 409, 413, 415, 422, 500, 503),
    openapi_extra={"requestBody": {"required": True, "content": _BODIES}},
)
async def send(request: Request, desk: DeskOf) -> Response:
    """Documents as JSON, or files (PDF, Office, HTML, Markdown, …) as form fields of any name.

    The id of a file is its name; a document takes the place of the one with its id. The answer comes when the
    documents are on disk and searched. Sending the same again changes nothing.
    """
    _writer(desk, None)  # refused before anything is read
    if request.headers.get("content-type", "").startswith("multipart/form-data"):
        index, documents = await _uploaded(request, desk)
    else:
        index, documents = await _listed(request)
    writer = _writer(desk, index)
    if problem := _problem(documents):
        raise invalid_request(problem, "nothing was changed")
    version, _ = await writer.write(documents, [])
    return JSONResponse(await _shown(writer, version, [one.id for one in documents]))


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
    return body.index, [Document(one.id, one.title, one.text) for one in body.documents]


async def _uploaded(request: Request, desk: Desk) -> tuple[str | None, list[Document]]:
    async with request.form(max_files=100, max_part_size=desk.settings.max_upload_bytes) as form:
        index = form.get("index")
        files = [value for _, value in form.multi_items() if isinstance(value, UploadFile) and value.filename]
        if not files:
            raise invalid_request("the form has no file", "curl -F file=@guide.pdf")
        contents = [(Path(str(one.filename)).name, await one.read()) for one in files]
    found = await desk.in_thread(documents_of_uploads, contents)
    return (index if isinstance(index, str) else None), found


async def _shown(writer: DocumentWriter, version: str, ids: Sequence[str]) -> dict[str, Any]:
    documents, _, total = await writer.desk.in_thread(_entries, writer.place)
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
    desk: DeskOf,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=_MOST_LISTED)] = 100,
    index: str | None = None,
) -> Response:
    """Ids and numbers of passages, in the order of the index, `limit` of them after the document `after`."""
    writer = _writer(desk, index)
    try:
        documents, version, total = await desk.in_thread(_entries, writer.place)
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
async def delete(document_id: str, desk: DeskOf, index: str | None = None) -> Response:
    """Delete a document's passages from the index; if there is no such document, `deleted` is false."""
    version, known = await _writer(desk, index).write([], [document_id])
    return JSONResponse({"id": document_id, "deleted": document_id in known, "index_version": version})
