"""What opens a pipeline: quick to import, so that a command's help can show it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, field_validator

from rag.core.errors import ConfigError


class OpenSettings(BaseModel):
    """What opens a pipeline, declared once for `Pipeline.open`, the commands and the server.

    `retriever`, `index_encoder` and `reader` also take objects: a `retrievers.protocols.Retriever`, a
    `TextEncoder` with an identity and a `readers.protocols.Reader`. The encoder must have the weights that
    the index names.

    Attributes:
        retriever: auto, dense, colbert, bm25, hybrid or multihop; options follow a colon, as in
            multihop:beam=10.
        fusion: how hybrid retrieval fuses its lists: "std:DENSE,BM25", "minmax:…", "raw:…", "rrf60:…".
        rerank: what re-ranks the first hits: "reader", or a ColBERT or cross-encoder folder;
            FOLDER,depth=100,fusion=std:1,0.5.
        index_encoder: folder or hub name of the index's encoder, if it has moved.
        reader: folder or hub name of a reader; the one in the package by default.
        effort: how much an extractive reader reads: full, normal.
        precision: number format in which the models compute.

    Raises:
        ConfigError: there is no such retriever, fusion or re-ranker.

    Example:
        >>> OpenSettings(retriever="multihop:beam=10", fusion="minmax:0.7,0.3").reader is None
        True
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    retriever: Any = "auto"
    fusion: str | None = None
    rerank: str | None = None
    index_encoder: Any = None
    reader: Any = None
    effort: Literal["full", "normal"] | None = None
    precision: Literal["auto", "fp32", "bf16"] = "auto"

    @field_validator("retriever", "fusion", "rerank", mode="before")
    @classmethod
    def _check_spec(cls, value: Any, info: Any) -> Any:
        if info.field_name == "retriever" and not isinstance(value, str):
            from retrievers.protocols import Retriever

            if not isinstance(value, Retriever):
                raise ConfigError(
                    f"retriever is {value!r:.40}, expected a name or a Retriever", hint="for example hybrid"
                )
        elif info.field_name == "retriever":
            from retrievers.open import parse_kind

            parse_kind(value)
        elif info.field_name == "fusion" and value is not None:
            from retrievers.fusion import Fusion

            return str(Fusion.parse(str(value)))
        elif value is not None:
            from retrievers.rerank import parse_rerank

            parse_rerank(str(value))
        return value
