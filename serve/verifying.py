"""The route that judges claims."""

from typing import Annotated, Self

from fastapi import APIRouter, Request
from pydantic import AfterValidator, Field, model_validator
from starlette.responses import JSONResponse, Response

from rag.core.types import Verdict
from rag.data.claims import MAX_CLAIM_CHARS, fault_of_length
from rag.data.filters import parse_filter
from rag.data.sentences import split_sentences
from serve.errors import invalid_request
from serve.jobs import Verify, served_json
from serve.responses import Several
from serve.routes import AppEngine, Asked, Stripped, check_text

MAX_CLAIMS = 64
_MAX_TEXT_CHARS = 20_000

router = APIRouter(tags=["claims"])


def _check_claim(text: str) -> str:
    fault = fault_of_length(check_text(text))
    if fault:
        raise ValueError(fault)
    return text


ClaimText = Annotated[
    Stripped,
    Field(max_length=MAX_CLAIM_CHARS),
    AfterValidator(_check_claim),
]
LongText = Annotated[Stripped, Field(max_length=_MAX_TEXT_CHARS), AfterValidator(check_text)]


class VerifyRequest(Asked):
    """One claim, several, or a text whose sentences are claims."""

    claim: ClaimText | None = Field(
        None, description="one claim", examples=["The Danube rises in the Black Forest."]
    )
    claims: list[ClaimText] | None = Field(None, min_length=1, max_length=MAX_CLAIMS)
    text: LongText | None = Field(
        None, description="a text, of which each sentence is judged that can stand alone"
    )
    top_k: int = Field(5, ge=1, le=20, strict=True, description="passages to judge a claim by")

    @model_validator(mode="after")
    def _has_one_form(self) -> Self:
        if [self.claim, self.claims, self.text].count(None) != 2:
            raise ValueError("give one of 'claim', 'claims' (a list) and 'text'")
        return self


@router.post(
    "/v1/verify",
    response_model=Verdict | Several[Verdict],
)
async def verify(body: VerifyRequest, request: Request, engine: AppEngine) -> Response:
    """Judge one claim, several, or the sentences of a text by the passages that are found for them.

    With `claim` the result is one object, else it is `{"results": [...]}`. A `label` is
    "supported", "refuted", "not_enough", or "not_judged", of which `notice` says why. `evidence` is
    the passage that decides, with offsets of the deciding sentence in `supporting`.
    """
    claims = body.claims or [body.claim or ""]
    if body.text is not None:
        claims = split_sentences(body.text)
    if len(claims) > MAX_CLAIMS:
        message = f"the text has {len(claims)} sentences, more than {MAX_CLAIMS}"
        raise invalid_request(message, "send it in parts")
    job = Verify(
        filter=parse_filter(body.filter),
        scope=engine.scope(request, body.shelf),
        top_k=body.top_k,
        in_text=body.text is not None,
    )
    results = [served_json(served) for served in await engine.run(request, job, claims)]
    return JSONResponse({"results": results} if body.claim is None else results[0])
