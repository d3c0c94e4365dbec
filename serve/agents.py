"""Search for agents that learn by reinforcement, and scores of texts that a caller brings.

The shapes are those that clients of the field send: Search-R1's search server, `rerank` of Cohere
and Jina, `rerank` of TEI (Hugging Face's text-embeddings-inference).
"""

from operator import itemgetter
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Request
from pydantic import BaseModel, BeforeValidator, Field, Strict, ValidationError

from serve.chat import MODEL, shelf_of
from serve.errors import describe
from serve.jobs import Rerank, Retrieve
from serve.routes import TEXT, AppEngine, LongText, ShelfNames, Text
from serve.shelves import Scope

MAX_QUERIES = 4096  # a training step asks for all of its rollouts at once
MAX_DOCUMENTS = 1000
_TOP_K = 3  # of Search-R1's server

router = APIRouter(tags=["agents"])


class SearchRequest(BaseModel):
    """Queries of rollouts; fields beyond these are ignored."""

    queries: list[Annotated[str, Strict()]] = Field(
        max_length=MAX_QUERIES, examples=[["Where does the Danube rise?"]]
    )
    topk: int | None = Field(None, ge=1, le=100, description=f"passages for each query; {_TOP_K}")
    return_scores: bool = False
    shelf: ShelfNames = None


class Document(BaseModel):
    """A passage; the first line of `contents` is the title in quotes."""

    id: str
    contents: str


class ScoredDocument(BaseModel):
    """A passage with its score; larger is better."""

    document: Document
    score: float


class SearchOut(BaseModel):
    """The passages of each query, best first, in the order of the queries."""

    result: list[list[ScoredDocument | Document]]
    faults: dict[int, str] | None = Field(None, description="why queries were not searched for")


class TextDocument(BaseModel):
    """A text to score; other fields are ignored."""

    text: LongText


def _as_object(value: object) -> object:
    return {"text": value} if isinstance(value, str) else value


class RerankRequest(BaseModel):
    """A query, and the texts to put in order for it."""

    model: str = MODEL
    query: Text
    documents: list[Annotated[TextDocument, BeforeValidator(_as_object)]] = Field(
        min_length=1, max_length=MAX_DOCUMENTS, description='texts, or objects {"text": TEXT}'
    )
    top_n: int | None = Field(None, ge=1, description="most results; all by default")
    return_documents: bool = False


class RankedDocument(BaseModel):
    """The place of a text in the request, and its relevance: a probability, unless the re-ranker
    compares vectors of tokens, whose similarity it then is.
    """

    index: int
    relevance_score: float
    document: TextDocument | None = None


class RerankOut(BaseModel):
    """The texts, best first."""

    model: str
    results: list[RankedDocument]


class TeiRequest(BaseModel):
    """The same in TEI's words; fields beyond these are ignored."""

    query: Text
    texts: list[LongText] = Field(min_length=1, max_length=MAX_DOCUMENTS)
    raw_scores: bool = Field(False, description="log-odds in place of probabilities")
    return_text: bool = False


class TeiRank(BaseModel):
    """The place of a text in the request, and its score."""

    index: int
    score: float
    text: str | None = None


@router.post("/retrieve", response_model_exclude_none=True)
async def search(body: SearchRequest, request: Request, engine: AppEngine) -> SearchOut:
    """Passages for many queries, in the shape that Search-R1 and its followers ask for.

    A query that cannot be searched for (empty, longer than 1,000 characters) has an empty list, and
    `faults` says why: the others are answered. The same request has the same result to the bit.
    """
    scope = engine.scope(request, body.shelf)
    job = Retrieve(scope=scope, top_k=body.topk or _TOP_K, alone=request.state.request_id)
    good: dict[int, str] = {}
    faults: dict[int, str] = {}
    for number, query in enumerate(body.queries):
        try:
            good[number] = TEXT.validate_python(query)
        except ValidationError as error:
            faults[number] = describe(error.errors()[0])
    out = SearchOut(result=[[] for _ in body.queries], faults=faults or None)
    if not good:
        return out
    results = await engine.run(request, job, list(good.values()))
    for number, result in zip(good, results, strict=True):
        for hit, passage in result.value.passages:
            # Clients read the title from the first line.
            title = " ".join(passage.title.split())
            document = Document(id=passage.id, contents=f'"{title}"\n{passage.text}')
            scored = ScoredDocument(document=document, score=float(hit.score))
            out.result[number].append(scored if body.return_scores else document)
    return out


@router.post("/v1/rerank", response_model_exclude_none=True)
async def rerank(body: RerankRequest, request: Request, engine: AppEngine) -> RerankOut:
    """Order texts by their relevance to a query, as Cohere's and Jina's clients ask for it, by the
    re-ranker of the server or else by its reader.
    """
    scope = engine.scope(request, shelf_of(body.model, engine))
    texts = [document.text for document in body.documents]
    scores = await _scores(engine, request, scope, body.query, texts)
    results = []
    for index, _, relevance in scores[: body.top_n]:
        document = body.documents[index] if body.return_documents else None
        results.append(RankedDocument(index=index, relevance_score=relevance, document=document))
    return RerankOut(model=body.model, results=results)


@router.post("/rerank", response_model_exclude_none=True)
async def rerank_tei(body: TeiRequest, request: Request, engine: AppEngine) -> list[TeiRank]:
    """The same as `/v1/rerank`, as clients of TEI ask for it."""
    ranks = []
    scope = engine.scope(request)
    for index, raw, relevance in await _scores(engine, request, scope, body.query, body.texts):
        text = body.texts[index] if body.return_text else None
        score = raw if body.raw_scores else relevance
        ranks.append(TeiRank(index=index, score=score, text=text))
    return ranks


async def _scores(
    engine: AppEngine, request: Request, scope: Scope, query: str, texts: list[str]
) -> list[tuple[int, float, float]]:
    """Place, score and relevance of each text, best first, ties by place."""
    job = Rerank(scope=scope, question=query, alone=request.state.request_id)
    results = await engine.run(request, job, texts)
    scored = []
    for index, result in enumerate(results):
        score, is_log_odds = result.value
        relevance = score
        if is_log_odds:
            relevance = float(np.exp(-np.logaddexp(0.0, -score)))
        scored.append((index, score, relevance))
    return sorted(scored, key=itemgetter(1), reverse=True)
