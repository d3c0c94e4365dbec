"""Assemble the application: middleware, routes, page and life span."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from fastapi import Depends, FastAPI
from fastapi.security import APIKeyHeader, HTTPBearer
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from rag import __version__
from serve import agents, chat, documents, verifying
from serve.engine import Engine
from serve.errors import ErrorOut, add_error_handlers
from serve.identity import Person
from serve.middleware import Gate
from serve.routes import check_query, operation, router
from serve.settings import ServeSettings
from serve.shelves import OpenPipeline, open_pipeline

RUN_PREFIX = "rag-serve-"  # of temporary folders of servers
_WEB = Path(__file__).parent / "web"
_PAGES = {"/": "index.html", "/docs": "docs.html"}
_API_KEY = APIKeyHeader(name="X-API-Key", auto_error=False)
_LOCKED = (router, chat.router, documents.router, agents.router, verifying.router)


def create_app(
    settings: ServeSettings,
    open_pipeline: OpenPipeline = open_pipeline,
    *,
    on_load_error: Callable[[Exception], object] = lambda error: None,
    opens_first: bool = False,
    folder: Path | None = None,
) -> FastAPI:
    """The server as an ASGI application; its life span can be run once.

    Args:
        open_pipeline: opens the index in the settings, on a thread, at start and at each reload;
            `/readyz` answers 503 until that is done.
        on_load_error: called on the event loop if the index cannot be opened at start.
        opens_first: whether no connection is accepted before the index is open.
        folder: what all workers of the server share; a temporary one by default.

    Example:
        >>> app = create_app(ServeSettings())
        >>> "/v1/ask" in app.openapi()["paths"]
        True
    """
    temporary = ExitStack()
    if folder is None:
        folder = Path(temporary.enter_context(tempfile.TemporaryDirectory(prefix=RUN_PREFIX)))
    engine = Engine(settings, open_pipeline, folder)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        engine.batcher.start()
        tasks = [
            asyncio.create_task(work)
            for work in (engine.load(on_load_error), engine.follow_updates())
        ]
        if opens_first:
            await tasks[0]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await engine.close()
            temporary.close()

    api_routes = [route for part in (operation, *_LOCKED) for route in part.routes]
    dependencies = [Depends(check_query)]
    if settings.knows_people:
        # For the description: the gate checks them.
        dependencies += [Depends(HTTPBearer(auto_error=False)), Depends(_API_KEY)]
    app = FastAPI(
        title="Open-domain question answering",
        version=__version__,
        description="Ask a corpus; get an answer, its evidence in the text, and a calibrated confidence.",
        docs_url=None,
        redoc_url=None,
        # Behind a proxy it would lead to another path, and perhaps from https to http.
        redirect_slashes=False,
        servers=[{"url": "./"}],  # beside this description, also behind a proxy
        responses={"default": {"model": ErrorOut, "description": "An error; its code says which"}},
        lifespan=lifespan,
        middleware=[Middleware(Gate, settings=settings, metrics=engine.metrics, routes=api_routes)],
    )
    app.state.engine = engine
    app.include_router(operation)
    for part in _LOCKED:
        app.include_router(part, dependencies=dependencies)
    app.router.routes.extend(_page_routes())
    add_error_handlers(app, engine.metrics.rejected)
    return app


def _page_routes() -> list[BaseRoute]:
    """Routes of the page, of the API's description, their files, and the settings that the page
    shows.
    """

    # Swagger UI without its content delivery network.
    static = StaticFiles(directory=_WEB, packages=[("fastapi_offline", "static")])

    async def page(request: Request) -> Response:
        return await static.get_response(_PAGES[request.url.path], request.scope)

    async def page_settings(request: Request) -> Response:
        engine: Engine = request.app.state.engine
        return JSONResponse(await _shown(engine, request.state.person))

    pages = [Route(path, page) for path in _PAGES]
    return [*pages, Route("/page.json", page_settings), Mount("/static", static)]


async def _shown(engine: Engine, person: Person) -> dict[str, object]:
    """What the page shows a person; names of files and shelves are for those with a key."""
    settings = engine.settings
    shelves = list(engine.shelves)
    state: dict[str, object] = {
        "examples": settings.example_questions,
        "needs_key": settings.knows_people,
        "files": settings.files is not None,
        "feedback": settings.feedback_file is not None,
    }
    if settings.has_shelves:
        n_passages = sum(shelf.n_passages for shelf in shelves)
        names = [shelf.name for shelf in shelves if person.name]
        return {**state, "n_passages": n_passages, "shelves": names}
    state["read_only"] = await shelves[0].read_only()
    if shelves[0].pipeline is not None:
        readable = shelves[0].pipeline.for_groups(person.groups)
        state["n_passages"] = await asyncio.to_thread(lambda: readable.n_passages)
        if person.name:
            state["folders"] = await asyncio.to_thread(lambda: readable.folders)
    return state
