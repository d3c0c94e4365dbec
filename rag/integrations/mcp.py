"""An MCP server over an index: tools `search`, `fetch`, `ask` and `verify`, and passages as
resources.

`search` and `fetch` have the shape that deep-research clients require: results with `id`, `title`
and `url`; documents with `id`, `title`, `text`, `url` and `metadata`.
Source: Model Context Protocol, revision 2025-06-18, and OpenAI's guide to MCP servers for deep
    research.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pydantic import BaseModel, Field, ValidationError

from rag import __version__
from rag.core.errors import RagError
from rag.core.optional import require
from rag.core.types import AnswerSet, Certainty, Evidence, Passage
from rag.core.wording import WITHHELD, WORDINGS
from rag.integrations import passage_metadata
from rag.pipeline import Pipeline

if TYPE_CHECKING:
    from mcp.server import MCPServer
    from mcp_types import CallToolResult, InputRequiredResult, ToolAnnotations

_INSTRUCTIONS = (
    "Search a corpus. `search` finds passages for a question in plain words, `fetch` returns one of them in "
    "full, `ask` reads the best passages and answers with evidence, or states that they hold no answer, and "
    "`verify` says whether passages support or refute a statement."
)
_SCHEME = "passage://"
_SNIPPET_CHARS = 300


class SearchResult(BaseModel):
    """A retrieved passage."""

    id: str
    title: str
    url: str
    text: str = Field(description="first characters of the passage")


class SearchResults(BaseModel):
    """Passages, best first."""

    results: list[SearchResult]


class Document(BaseModel):
    """A passage in full."""

    id: str
    title: str
    text: str
    url: str
    metadata: dict[str, Any]


class Answered(BaseModel):
    """The best answer; null where `certainty` is "none": the passages seem to hold no answer, or it
    is not sure enough for what is promised, which `note` says.

    It is null too where the question asks for yes or no and the reader cannot tell: the evidence
    bears on it.
    """

    question: str
    answer: str | None
    certainty: Certainty
    confidence: float | None = Field(description="probability that the best answer is right")
    no_answer_confidence: float = Field(description="probability that the passages hold no answer")
    best_guess: str | None = Field(description="best answer, given or not")
    evidence: Document | None
    note: str = ""
    promised: str = Field("", description="how many of the given answers are wrong at most")


class Judged(BaseModel):
    """Whether passages support or refute a claim, with the sentence that decides."""

    claim: str
    label: str = Field(
        description='"supported", "refuted", "not_enough", or "not_judged", of which `note` says why'
    )
    confidence: float = Field(description="probability that the label is right")
    sentence: str = Field(
        description='what decides, or of "not_enough" comes nearest; may be empty'
    )
    evidence: Document | None
    note: str
    promised: str = Field(description="how many of the given verdicts are wrong at most")


def create_mcp_server(pipeline: Pipeline, *, top_k: int = 10) -> MCPServer:
    """An MCP server that is not running yet.

    Args:
        pipeline: opened with a reader, for `ask`; its verifier is that of `verify`.
        top_k: results of `search`.

    Raises:
        MissingDependencyError: the package `mcp` is not installed.
    """
    require("mcp.server.mcpserver", extra="mcp")
    from mcp.server.mcpserver.exceptions import ResourceNotFoundError, ToolError
    from mcp.server.mcpserver.resources import ResourceSecurity
    from mcp_types import ToolAnnotations

    server = _wording_server()
    only_reads = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)

    @server.tool(annotations=only_reads)
    def search(query: str) -> SearchResults:
        """Find passages for a question or a few words, best first; `fetch` returns one in full."""
        found = pipeline.retrieve(query, top_k)
        return SearchResults(results=[_result(passage) for _, passage in found])

    @server.tool(annotations=only_reads)
    def fetch(id: str) -> Document:
        """One passage in full, by its id from `search`."""
        passage = pipeline.passage(id)
        if passage is None:
            raise ToolError(f"no passage has the id {id[:100]!r}; ids come from `search`")
        return _document(passage)

    _add_reading_tools(server, pipeline, only_reads)
    # Ids name rows of the index, no files: they may look like paths.
    any_id = ResourceSecurity(exempt_params={"passage_id"})

    @server.resource(f"{_SCHEME}{{passage_id}}", mime_type="text/plain", security=any_id)
    def passage(passage_id: str) -> str:
        """Title and text of a passage, by its id."""
        content = pipeline.passage(passage_id)
        if content is None:
            raise ResourceNotFoundError(f"no passage has the id {passage_id[:100]!r}")
        return f"{content.title}\n\n{content.text}" if content.title else content.text

    return server


def _add_reading_tools(server: MCPServer, pipeline: Pipeline, annotations: ToolAnnotations) -> None:
    """Add `ask` and `verify` to a server."""

    @server.tool(annotations=annotations)
    def ask(question: str) -> Answered:
        """Answer a question in a few words from the passages, with evidence and confidence."""
        result = pipeline.ask(question)
        evidence = result.best.evidence if result.best else None
        return _answered(result, _document_of(pipeline, evidence))

    @server.tool(annotations=annotations)
    def verify(claim: str) -> Judged:
        """Say whether the passages support or refute a statement, with the sentence that decides."""
        [verdict] = pipeline.verify([claim])
        evidence = verdict.evidence
        sentences = []
        if evidence is not None:
            sentences = [evidence.text[start:end] for start, end in evidence.supporting]
        promise = verdict.promise
        return Judged(
            claim=verdict.claim,
            label=verdict.label,
            confidence=verdict.confidence,
            sentence=" … ".join(sentences),
            evidence=_document_of(pipeline, evidence),
            note=verdict.notice,
            promised="" if promise is None else promise.in_words("verdicts"),
        )


def _result(passage: Passage) -> SearchResult:
    return SearchResult(
        id=passage.id,
        title=passage.title or passage.id,
        url=_link(passage),
        text=passage.text[:_SNIPPET_CHARS],
    )


def _wording_server() -> MCPServer:
    """A server without tools, which says what is wrong with a call in words."""
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError

    class Server(MCPServer):
        async def call_tool(
            self, name: str, arguments: dict[str, object], context: Any = None
        ) -> CallToolResult | InputRequiredResult:
            try:
                return await super().call_tool(name, arguments, context)
            except ToolError as error:
                cause = error.__cause__
                if isinstance(cause, RagError):
                    # The text of another exception is not for the model; these are written for it.
                    raise ToolError(f"Error executing tool {name}: {cause}") from cause
                if not isinstance(cause, ValidationError):
                    raise
                first = cause.errors()[0]
                wrong = f"{first['loc'][-1]!r} is {'missing' if first['type'] == 'missing' else 'no text'}"
                raise ToolError(f"{name}: {wrong}, expected text") from error

    return Server(
        "openqa-rag",
        title="Ask the corpus",
        instructions=_INSTRUCTIONS,
        version=__version__,
        log_level="WARNING",
    )


def _link(passage: Passage) -> str:
    """The web address that a passage comes from, or its address as a resource."""
    path = passage.location.path if passage.location else ""
    if path.startswith(("http://", "https://")):
        return path
    return _SCHEME + quote(passage.id, safe="")


def _document(passage: Passage) -> Document:
    return Document(
        id=passage.id,
        title=passage.title or passage.id,
        text=passage.text,
        url=_link(passage),
        metadata=passage_metadata(passage),
    )


def _document_of(pipeline: Pipeline, evidence: Evidence | None) -> Document | None:
    """The passage of an evidence in full, if it may be read."""
    passage = None if evidence is None else pipeline.passage(evidence.passage_id)
    return None if passage is None else _document(passage)


def _answered(result: AnswerSet, document: Document | None) -> Answered:
    """The reply of `ask`; `document` holds the evidence of the best answer."""
    best = result.best
    reason = WORDINGS[result.kind][result.certainty].reason
    guess = best.text if best and not reason else None
    promised = ""
    withheld = ""
    if result.promise is not None:
        promised = result.promise.in_words("answers")
        if best and not result.is_answered:
            withheld = WITHHELD
    notes = [
        reason and f"{reason}: the evidence bears on it",
        withheld,
        best.note if best else "",
        result.notice,
    ]
    return Answered(
        question=result.question,
        answer=guess if result.is_answered else None,
        certainty=result.certainty,
        confidence=best.confidence if best else None,
        no_answer_confidence=result.no_answer_confidence,
        best_guess=guess,
        evidence=document,
        note="; ".join(filter(None, notes)),
        promised=promised,
    )
