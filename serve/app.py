"""Assemble the application: middleware, routes, page and life span."""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route

from rag import __version__
from serve import chat, documents, embeddings, feedback
from serve import files as served_files
from serve.engine import Engine
from serve.errors import add_error_handlers, is_openai_path
from serve.middleware import RequestContext
from serve.routes import TAGS, router
from serve.schemas import add_limits
from serve.security import ApiKeys, BodyLimit
from serve.service import AnswerService, OpenService, open_pipeline
from serve.settings import ServeSettings
from serve.siblings import Siblings

_WEB = Path(__file__).parent / "web"
_PAGE_FILES = {
    "/": ("index.html", "text/html"),
    "/docs": ("docs.html", "text/html"),
    "/static/style.css": ("style.css", "text/css"),
    "/static/app.js": ("app.js", "text/javascript"),
    "/static/text.js": ("text.js", "text/javascript"),
    "/static/docs.js": ("docs.js", "text/javascript"),
    "/static/icon.svg": ("icon.svg", "image/svg+xml"),
    "/static/swagger-ui.css": ("swagger-ui.css", "text/css"),
    "/static/swagger-ui-bundle.js": ("swagger-ui-bundle.js", "text/javascript"),
}
_ROUTERS = (router, chat.router, embeddings.router, feedback.router, documents.router, served_files.router)


def create_app(
    settings: ServeSettings,
    service: AnswerService | None = None,
    *,
    open_service: OpenService = open_pipeline,
    on_load_error: Callable[[Exception], None] | None = None,
    siblings: Siblings | None = None,
    opens_first: bool = False,
) -> FastAPI:
    """The server as an ASGI application; its life span can be run once.

    Args:
        service: an open service of the default index; without it that is opened on a thread at start, as the
            others are, and `/readyz` answers 503 until that is done.
        open_service: opens one index of those in the settings, at start and at each reload.
        on_load_error: called on the event loop if the index cannot be opened at start.
        siblings: the server's other processes.
        opens_first: whether no connection is accepted before the index is open.

    Example:
        >>> app = create_app(ServeSettings())
        >>> "/v1/ask" in app.openapi()["paths"]
        True
    """
    engine = Engine(settings, open_service, service, siblings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        engine.batcher.start()

        async def load() -> None:
            await engine.load()
            if engine.load_error is not None and on_load_error is not None:
                on_load_error(engine.load_error)

        tasks = [asyncio.create_task(load(), name="rag-load")]
        tasks.append(asyncio.create_task(engine.follow_updates(), name="rag-follow-updates"))
        if opens_first:
            await tasks[0]
        control = await engine.listen_to_siblings()
        try:
            yield
        finally:
            if control is not None:
                control.close()
            for task in tasks:
                task.cancel()
            await engine.close()

    app = FastAPI(
        title="Open-domain question answering",
        version=__version__,
        description="Ask a corpus; get an answer, its evidence in the text, and a calibrated confidence.",
        docs_url=None,
        redoc_url=None,
        openapi_tags=TAGS,
        lifespan=lifespan,
        middleware=_layers(settings, engine),
    )
    app.state.engine = engine
    for one in _ROUTERS:
        app.include_router(one)
    app.router.routes.extend(_page_routes(settings))
    add_error_handlers(app)
    app.openapi = lambda: _openapi(app, settings)  # type: ignore[method-assign]
    return app


def _layers(settings: ServeSettings, engine: Engine) -> list[Middleware]:
    """Outermost first."""
    cors = functools.partial(
        CORSMiddleware,
        allow_origins=settings.cors_origins,
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=["*"],  # OpenAI's clients in a browser send a dozen of their own
        expose_headers=["X-Request-ID", "Retry-After"],
    )
    return [
        Middleware(
            RequestContext,
            metrics=engine.metrics,
            routes=[route for one in _ROUTERS for route in one.routes],
            inner=cors if settings.cors_origins else None,
        ),
        Middleware(ApiKeys, key_hashes=settings.api_keys, metrics=engine.metrics),
        Middleware(
            BodyLimit,
            max_body_bytes=settings.max_body_bytes,
            max_upload_bytes=settings.max_upload_bytes,
            timeout_s=settings.timeout_s,
            metrics=engine.metrics,
        ),
    ]


def _page_routes(settings: ServeSettings) -> list[BaseRoute]:
    """Routes of the page, of the API's description, their files, and the settings that the page shows."""
    swagger = files("fastapi_offline") / "static"  # Swagger UI without its content delivery network

    async def page_file(request: Request) -> Response:
        name, media_type = _PAGE_FILES[request.url.path]
        folder = Path(str(swagger)) if name.startswith("swagger") else _WEB
        return FileResponse(folder / name, media_type=media_type, headers={"Cache-Control": "no-cache"})

    async def page_settings(request: Request) -> Response:
        engine: Engine = request.app.state.engine
        services = {name: holder.current for name, holder in engine.holders.items()}
        return JSONResponse(
            {
                "examples": settings.example_questions,
                "feedback": settings.feedback_file is not None,
                "max_question_chars": settings.max_question_chars,
                "needs_key": bool(settings.api_keys),
                "indexes": [
                    {
                        "name": name,
                        "n_passages": service.n_passages if service is not None else None,
                        "files": settings.folder_of_files(name) is not None,
                        # names of files are for those with a key
                        "folders": service.folders if service is not None and not settings.api_keys else [],
                    }
                    for name, service in services.items()
                ],
            }
        )

    routes: list[BaseRoute] = [
        Route(path, page_file, methods=["GET"], include_in_schema=False) for path in _PAGE_FILES
    ]
    routes.append(Route("/page.json", page_settings, methods=["GET"], include_in_schema=False))
    return routes


def _openapi(app: FastAPI, settings: ServeSettings) -> dict[str, Any]:
    if app.openapi_schema is None:
        schema = FastAPI.openapi(app)
        add_limits(schema, settings)
        schema["servers"] = [{"url": "./"}]  # beside this description, also behind a proxy
        for path, operations in schema["paths"].items():
            if is_openai_path(path):  # an invalid request is answered with 400 there
                for operation in operations.values():
                    operation["responses"].pop("422", None)
        if settings.api_keys:
            schema["components"]["securitySchemes"] = {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            }
            for path, operations in schema["paths"].items():
                if path.startswith("/v1/"):
                    for operation in operations.values():
                        operation["security"] = [{"bearer": []}, {"header": []}]
        app.openapi_schema = schema
    return app.openapi_schema
