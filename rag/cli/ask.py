"""What asks an index: one question, a file of questions, a server, tools for a language model."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from annotated_types import Ge, Le

from rag.cli.options import OPENING, Count, options_from, some
from rag.cli.show import format_answer_set
from rag.commands import retrieve as search
from rag.core.types import PolicyName

_SERVED = {name: (kind, None) for name, (kind, _) in OPENING.items()}  # None: what RAG_SERVE_… says
_RETRIEVING = {
    **some(options_from(search), "index", "questions", "out", "top_k", "limit"),
    **some(OPENING, without=("effort",)),
}
Port = Annotated[int, Ge(0), Le(65535)]


def ask(
    questions: list[str],
    /,
    index: str,
    read: Count = 20,
    filter: list[str] | None = None,
    n_best: Count = 3,
    policy: PolicyName = "once",
    as_json: bool = False,
    **opening: Annotated[Any, OPENING],
) -> None:
    """Ask a question; prints answers with title, highlighted evidence and confidence.

    Args:
        questions: The question; several are answered in turn.
        n_best: Answers to show at most.
        policy: Search once, or again as often as the language model that reads asks for it.
        as_json: Print one JSON object per question.
    """
    from rag.data.filters import parse_options
    from rag.data.records import check_questions

    check_questions(questions, read, n_best)  # before models are loaded
    chosen = parse_options(filter or ())
    from rag.pipeline import Pipeline
    from rag.policies import open_policy

    pipeline = Pipeline.open(index, **opening)
    chosen_policy = open_policy(policy, pipeline.reader)
    colour = sys.stdout.isatty()
    for question in questions:  # one by one: each is shown at once, with its own time
        answers = pipeline.ask(
            question, top_k=read, n_best=n_best, filter=chosen, policy=chosen_policy
        )
        result = answers.to_json()
        line = (
            json.dumps(result, ensure_ascii=False)
            if as_json
            else format_answer_set(result, colour=colour)
        )
        typer.echo(line)


def retrieve(filter: list[str] | None = None, **options: Annotated[Any, _RETRIEVING]) -> None:
    """Search for many questions; writes DPR's results JSON, a TREC run, or MDR's paths, by
    extension.
    """
    from rag.data.filters import parse_options

    count = search(filter=parse_options(filter or ()), **options)
    typer.echo(f"{count:,} questions × top {options['top_k']} → {options['out']}")


def serve(
    index: Path | None = None,
    host: str | None = None,
    port: Port | None = None,
    workers: Count | None = None,
    ray: str | None = None,
    **opening: Annotated[Any, _SERVED],
) -> None:
    """Answer over HTTP. Variables set the rest (`rag docs serving`).

    Keys and files: RAG_SERVE_API_KEYS (none: open to all), RAG_SERVE_FILES (none: no links to files),
    RAG_SERVE_FEEDBACK_FILE (none: no feedback), RAG_SERVE_EXAMPLE_QUESTIONS (none).

    Limits: RAG_SERVE_QUEUE_SIZE (256), RAG_SERVE_BATCH_MAX_SIZE (16), RAG_SERVE_TIMEOUT_S (30),
    RAG_SERVE_DRAIN_TIMEOUT_S (30), RAG_SERVE_MAX_UPLOAD_BYTES (33554432), RAG_SERVE_CONVERSIONS (2).

    Args:
        index: Folder of an index, or RAG_SERVE_INDEX.
        host: Address to listen on; default 127.0.0.1.
        port: Port to listen on; default 8000.
        workers: Processes that serve; they share the index's files. Default 1.
        ray: Search the vectors of a flat index on the Ray cluster at this address (HOST:PORT, or
            auto).
    """
    from serve.run import leave, run_server
    from serve.settings import load_settings

    own = {"index": index, "host": host, "port": port, "workers": workers, "ray": ray, **opening}
    run_server(load_settings(**{name: value for name, value in own.items() if value is not None}))
    leave()


def mcp(
    index: str,
    top_k: Annotated[int, Ge(1), Le(100)] = 10,
    http: bool = False,
    host: str = "127.0.0.1",
    port: Port = 8001,
    **opening: Annotated[Any, OPENING],
) -> None:
    """Serve an index to MCP clients, over standard input and output or HTTP.

    Args:
        top_k: Results of a search.
        http: Serve streamable HTTP at /mcp instead of standard input and output.
        host: Address to listen on, with --http.
        port: Port to listen on, with --http.
    """
    from rag.integrations.mcp import create_mcp_server
    from rag.pipeline import Pipeline

    server = create_mcp_server(Pipeline.open(index, **opening), top_k=top_k)
    if not http:
        typer.echo(
            "serving MCP over standard input and output; an MCP client starts this command",
            err=True,
        )
        server.run("stdio")
        return
    if host not in ("127.0.0.1", "localhost", "::1"):
        typer.echo(f"anyone who reaches {host}:{port} may ask: there are no keys here", err=True)
    typer.echo(f"serving MCP at http://{host}:{port}/mcp", err=True)
    sys.stderr.flush()
    server.run("streamable-http", host=host, port=port)
