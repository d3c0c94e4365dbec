"""What asks an index: one question, a file of questions, a server, tools for a language model."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Unpack

from cyclopts import Parameter
from cyclopts.types import PositiveInt
from cyclopts.validators import Number

from rag.cli.options import (
    OPENING,
    REPEATABLE,
    As,
    AsJson,
    Filter,
    Index,
    Limit,
    Out,
    Questions,
    Read,
    with_options,
    without,
)
from rag.cli.show import format_answer_set, format_verdict, say, shows_colours
from rag.core.errors import ConfigError
from rag.core.manifest import MANIFEST_NAME
from rag.core.types import Groups
from rag.options import OpenOptions

Port = Annotated[int, Parameter(validator=Number(gte=0, lte=65535))]


@with_options(OPENING)
def ask(
    questions: list[str],
    /,
    *,
    index: Index,
    read: Read = 20,
    filter: Filter = None,
    n_best: PositiveInt = 3,
    as_groups: As = None,
    as_json: AsJson = False,
    **opening: Unpack[OpenOptions],
) -> None:
    """Ask a question; prints answers with title, highlighted evidence and confidence.

    Args:
        questions: The question; several are answered in turn.
        n_best: Answers to show at most.
        as_json: Print one JSON object per question.
    """
    from rag.data.filters import parse_options
    from rag.data.records import check_questions

    # Refused before models are loaded.
    check_questions(questions, read, n_best)
    conditions = parse_options(filter or ())
    groups = None if as_groups is None else _groups_of(as_groups, [Path(index)])
    from rag.pipeline import Pipeline

    with Pipeline.open(index, **opening) as pipeline:
        asked = pipeline if groups is None else pipeline.for_groups(groups)
        # Each question by itself: its answer is shown at once, with its own time.
        for question in questions:
            answers = asked.ask(question, top_k=read, n_best=n_best, filter=conditions)
            result = answers.to_json()
            if as_json:
                say(json.dumps(result, ensure_ascii=False))
            else:
                say(format_answer_set(result, colour=shows_colours()))


def _groups_of(names: str, indexes: Iterable[Path]) -> Groups:
    """The groups of --as; says which of them no document is for, as a typing error."""
    from indexers.rights import read_rights
    from rag.data.metadata import groups_of_person

    groups = groups_of_person(names)
    # A missing index is told alone, by what opens it.
    folders = [index for index in indexes if (index / MANIFEST_NAME).is_file()]
    unknown = set(groups)
    for folder in folders:
        unknown -= read_rights(folder)[0].named()
    if folders and unknown:
        where = ", ".join(map(str, folders))
        say(
            f"no document of {where} is for {', '.join(sorted(unknown))}; `rag rights {folders[0]}` shows groups",
            err=True,
        )
    return groups


@with_options(without(OPENING, "effort"))
def verify(
    claims: list[str] | None = None,
    /,
    *,
    index: Index,
    text: Path | None = None,
    claim_file: Annotated[Path | None, Parameter(name="--claims")] = None,
    top_k: PositiveInt = 5,
    filter: Filter = None,
    as_json: AsJson = False,
    **opening: Unpack[OpenOptions],
) -> None:
    """Judge claims by what the index's passages say: supported, refuted, or not enough.

    Args:
        claims: A claim; several are judged in turn.
        text: Judge the sentences of this text file; one that hangs on the sentence before it is not
            judged.
        claim_file: Judge the claims of this file: JSON lines, or FEVER's, HoVer's, SciFact's or Fool
            Me Twice's published files.
        top_k: Passages to judge each claim by.
        as_json: Print one JSON object per claim.
    """
    from rag.data.claims import check_claims, read_claims, sentences_of_file
    from rag.data.filters import parse_options

    if sum(source is not None for source in (claims, text, claim_file)) != 1:
        what = "give claims, {text} or {claim_file}, and one of these alone"
        raise ConfigError(what, arguments=("text", "claim_file"))
    if text is not None:
        claims = sentences_of_file(text)
    elif claim_file is not None and claim_file.suffix == ".txt":
        problem = f"{{claim_file}}: {claim_file} is a text, expected JSON lines with a claim each"
        raise ConfigError(
            problem,
            hint="judge the sentences of a text with {text}",
            arguments=("claim_file", "text"),
        )
    elif claim_file is not None:
        claims = [claim.text for claim in read_claims(claim_file)]
    in_text = text is not None
    # Refused before models are loaded.
    checked = check_claims(claims or (), top_k, in_text=in_text)
    conditions = parse_options(filter or ())
    from rag.pipeline import Pipeline

    with Pipeline.open(index, reads=False, **opening) as pipeline:
        for claim in checked:
            [verdict] = pipeline.verify([claim], top_k, filter=conditions, in_text=in_text)
            result = verdict.to_json()
            if as_json:
                say(json.dumps(result, ensure_ascii=False))
            else:
                say(format_verdict(result, colour=shows_colours()))


@with_options(without(OPENING, "effort", "verifier"))
def retrieve(
    *,
    index: Index,
    questions: Questions,
    out: Out,
    top_k: PositiveInt = 100,
    limit: Limit = None,
    filter: Filter = None,
    **opening: Unpack[OpenOptions],
) -> None:
    """Search for many questions; writes DPR's results JSON, a TREC run, or MDR's paths, by
    extension. `rag ask` takes a question itself, and shows its passages.

    Args:
        out: *.json: DPR results; *.run or *.trec: a TREC run; *.jsonl: paths of multi-hop search.
        top_k: Hits per question.
    """
    from rag.commands import retrieve as search
    from rag.data.filters import parse_options

    conditions = parse_options(filter or ())
    count = search(index, questions, out, top_k=top_k, limit=limit, filter=conditions, **opening)
    say(f"{count:,} questions × top {top_k} → {out}")


@with_options(OPENING)
def serve(
    *,
    index: Annotated[Path | None, Parameter(alias="-i")] = None,
    shelf: Annotated[list[str] | None, REPEATABLE] = None,
    shelves: Path | None = None,
    host: str | None = None,
    port: Port | None = None,
    workers: PositiveInt | None = None,
    ray: str | None = None,
    as_groups: As = None,
    **opening: Unpack[OpenOptions],
) -> None:
    """Answer over HTTP. Variables set the rest (`rag docs serving`).

    Keys and files: RAG_SERVE_API_KEYS (none: open to all), RAG_SERVE_KEY_FILE (none),
    RAG_SERVE_FILES (none: no links to files), RAG_SERVE_FEEDBACK_FILE (none: no feedback),
    RAG_SERVE_EXAMPLE_QUESTIONS (none).

    Tokens and groups: RAG_SERVE_TOKEN_KEYS (none), RAG_SERVE_TOKEN_ISSUER (none),
    RAG_SERVE_TOKEN_AUDIENCE (none), RAG_SERVE_TOKEN_GROUPS (groups), RAG_SERVE_EDITORS (none),
    RAG_SERVE_AS_GROUPS (none).

    Limits: RAG_SERVE_QUEUE_SIZE (256), RAG_SERVE_BATCH_MAX_SIZE (16), RAG_SERVE_TIMEOUT_S (30),
    RAG_SERVE_DRAIN_TIMEOUT_S (30), RAG_SERVE_MAX_UPLOAD_BYTES (33554432), RAG_SERVE_CONVERSIONS (2),
    RAG_SERVE_OPEN_INDEXES (16; of shelves).

    Args:
        index: Folder of an index, or RAG_SERVE_INDEX.
        shelf: One of several indexes, as NAME=DIR; may be given several times.
        shelves: Folder whose folders are the indexes, which is followed.
        host: Address to listen on; default 127.0.0.1.
        port: Port to listen on; default 8000.
        workers: Processes that serve; they share the index's files. Default 1.
        ray: Search the vectors of a flat index on the Ray cluster at this address (HOST:PORT, or
            auto).
    """
    from serve.run import leave, run_server
    from serve.settings import load_settings

    options: dict[str, object] = {
        "index": index,
        "shelf": shelf,
        "shelves": shelves,
        "host": host,
        "port": port,
        "as_groups": as_groups,
        "workers": workers,
        "ray": ray,
    }
    given = {name: value for name, value in options.items() if value is not None}
    settings = load_settings(**given, **opening)
    if settings.as_groups:
        _groups_of(settings.as_groups, settings.named_folders().values())
    run_server(settings)
    leave()


@with_options(OPENING)
def mcp(
    *,
    index: Index,
    top_k: Annotated[int, Parameter(validator=Number(gte=1, lte=100))] = 10,
    http: bool = False,
    host: str = "127.0.0.1",
    port: Port = 8001,
    as_groups: As = "",
    **opening: Unpack[OpenOptions],
) -> None:
    """Serve an index to MCP clients, over standard input and output or HTTP.

    They read what everybody may read, or what --as says.

    Args:
        top_k: Results of a search.
        http: Serve streamable HTTP at /mcp instead of standard input and output.
        host: Address to listen on, with --http.
        port: Port to listen on, with --http.
    """
    from rag.integrations.mcp import create_mcp_server
    from rag.pipeline import Pipeline
    from serve.run import bind

    if http:
        # A port that is taken is told before models are loaded; 0 becomes a free one.
        with bind(host, port) as listener:
            port = listener.getsockname()[1]
    groups = _groups_of(as_groups or "", [Path(index)])
    with Pipeline.open(index, **opening) as pipeline:
        server = create_mcp_server(pipeline.for_groups(groups), top_k=top_k)
        if not http:
            say(
                "serving MCP over standard input and output; an MCP client starts this command",
                err=True,
            )
            server.run("stdio")
            return
        if host not in ("127.0.0.1", "localhost", "::1"):
            say(f"anyone who reaches {host}:{port} may ask: there are no keys here", err=True)
        say(f"serving MCP at http://{host}:{port}/mcp", err=True)
        server.run("streamable-http", host=host, port=port)
