"""Embeddings as OpenAI's clients expect them: the vectors of the index's encoder."""

import base64
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, StrictStr, field_validator
from starlette.responses import JSONResponse, Response

from rag.core.arrays import Float32
from rag.core.unicode import is_unicode
from rag.data.text import simple_tokenize
from serve.chat import MODEL, index_of
from serve.engine import Job
from serve.errors import ApiError, invalid_request
from serve.routes import AppEngine

router = APIRouter()
_MOST_TEXTS = 2048  # as OpenAI's


class EmbeddingsRequest(BaseModel):
    """Texts to encode; `input_type` is not of OpenAI's protocol."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"model": MODEL, "input": ["Where does the Danube rise?"], "input_type": "query"}]
        }
    )

    model: str = MODEL
    input: StrictStr | list[StrictStr] = Field(description=f"a text, or a list of at most {_MOST_TEXTS}")
    encoding_format: Literal["float", "base64"] = Field(
        "float", description="numbers, or the bytes of little-endian float32"
    )
    input_type: Literal["query", "passage"] = Field(
        "passage", description="which side of the encoder: questions or passages (without titles)"
    )
    dimensions: int | None = Field(
        None, description="size of the vectors; only the encoder's own is accepted"
    )

    @field_validator("input", mode="before")
    @classmethod
    def _is_text(cls, value: object) -> object:
        if isinstance(value, list) and any(isinstance(item, int | list) for item in value):
            raise ValueError(
                "token ids, expected texts (OpenAIEmbeddings of LangChain: check_embedding_ctx_length=False)"
            )
        return value


@router.post("/v1/embeddings", tags=["chat"])
async def embeddings(body: EmbeddingsRequest, request: Request, engine: AppEngine) -> Response:
    """The vectors that the index's encoder makes; their inner product with those of passages is the score.

    `usage` counts words and punctuation marks, as in chats.
    """
    index = index_of(body.model, engine)
    texts = _checked([body.input] if isinstance(body.input, str) else body.input)
    encoded = await engine.run(request, Job("embed", index, side=body.input_type), texts)
    if len({result["index_version"] for result in encoded}) > 1:  # perhaps with another encoder
        raise ApiError(
            503, "index_changed", "the index was replaced while its encoder was used", hint="try again",
            headers={"Retry-After": "1"},
        )  # fmt: skip
    vectors = np.stack([result["vector"] for result in encoded])  # (n, D)
    if body.dimensions not in (None, vectors.shape[1]):
        raise invalid_request(
            f"dimensions is {body.dimensions}, the vectors have {vectors.shape[1]}", "leave it out"
        )
    return await engine.in_thread(_response, body, texts, vectors)


def _checked(texts: list[str]) -> list[str]:
    if not 0 < len(texts) <= _MOST_TEXTS:
        raise invalid_request(f"input holds {len(texts)} texts, expected 1 to {_MOST_TEXTS}")
    for number, text in enumerate(texts):
        if not text.strip():
            raise invalid_request(f"input.{number} is empty", "leave it out")
        if not is_unicode(text):
            raise invalid_request(f"input.{number} holds half of a surrogate pair", "send valid Unicode")
    return texts


def _response(body: EmbeddingsRequest, texts: Sequence[str], vectors: Float32) -> JSONResponse:
    shown: list[Any] = vectors.tolist()
    if body.encoding_format == "base64":
        shown = [base64.b64encode(vector.astype("<f4").tobytes()).decode() for vector in vectors]
    n_tokens = sum(len(simple_tokenize(text)) for text in texts)
    return JSONResponse(
        {
            "object": "list",
            "data": [{"object": "embedding", "index": n, "embedding": each} for n, each in enumerate(shown)],
            "model": body.model,
            "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
        }
    )
