"""Settings of an index build, quick to import, so that a command's help can show them."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field, field_validator, model_validator

from indexers.presets import INDEX_KINDS, INDEX_TYPES, PLAID, IndexKind
from rag.config import DEFAULT_SEED, Config

VectorDtype = Literal["float16", "float32"]
Stage = Literal["passages", "embeddings", "dense", "tokens", "bm25"]
_FORMER_TYPES = {"fp16": "SQfp16", "sq8": "SQ8", "fastscan": "ivf", "ivfpq": "IVF4096,PQ64", "rabitq": "ivf"}
RECALL, HYBRID_RECALL = 0.98, 0.9
SHARD_ROWS = 16_384  # passages per shard
STAGES: tuple[Stage, ...] = get_args(Stage)  # each has a folder of its name


class BuildSettings(Config):
    """Settings of an index build; stored in the manifest.

    Attributes:
        retriever: what the index can be searched by: vectors, BM25, or both (hybrid).
        index_type: flat, hnsw, ivf or a string of FAISS' index_factory, see `rag docs indexing`; plaid is for
            an encoder with one vector per token (ColBERT).
        dtype: number type of the embeddings on disk; "auto" is float32 for `flat`, which searches them
            directly, else float16.
        token_bits: bits per component of a token vector, for `plaid`.
        shard_rows: passages per embedding shard; an interrupted build loses at most one shard.
        k1: term frequency saturation of BM25.
        b: length normalisation of BM25.
        probes: number of queries on which recall is measured.
        recall_target: minimum of recall@1, @10 and @100 for which a lossy type searches; by default
            0.98, and 0.9 for a hybrid, whose BM25 finds much of what the vectors miss.
        seed: random seed of sampling and clustering.
        threads: number of CPU threads for FAISS and Lucene; by default all cores.
        reproducible: build byte-identical indexes, at the price of a slower `hnsw` build.
    """

    retriever: IndexKind = "dense"
    index_type: str = "flat"
    token_bits: Literal[1, 2, 4] = 2
    dtype: Literal["auto", "float16", "float32"] = "auto"
    shard_rows: int = Field(default=SHARD_ROWS, ge=1)
    k1: float = Field(default=0.9, ge=0)
    b: float = Field(default=0.4, ge=0, le=1)
    probes: int = Field(default=256, ge=1)
    recall_target: float | None = Field(default=None, gt=0, le=1)
    seed: int = Field(default=DEFAULT_SEED, ge=0)
    threads: int | None = Field(default=None, ge=1)
    reproducible: bool = True
    java_heap_mib: int = Field(default=2048, ge=64)

    @field_validator("index_type")
    @classmethod
    def _check_type(cls, value: str) -> str:
        if value in (*INDEX_TYPES, PLAID):
            return value
        if not value[:1].isupper():  # as every string of FAISS begins
            hint = _FORMER_TYPES.get(value, "")
            raise ValueError(
                f"not {', '.join(INDEX_TYPES)}, {PLAID} or a string of FAISS' index_factory"
                + (f"; what was called {value} is {hint}" if hint else ", such as SQ8")
            )
        return value

    @model_validator(mode="after")
    def _check(self) -> BuildSettings:
        if self.index_type == "flat" and self.dtype == "float16":
            raise ValueError(
                "flat searches the embeddings directly and needs dtype float32; SQfp16 is half its size"
            )
        if self.index_type == PLAID and not self.has_tokens:
            raise ValueError(
                f"index_type plaid stores token vectors, which retriever {self.retriever} does not use"
            )
        if self.index_type == PLAID and self.dtype != "auto":
            raise ValueError(f"dtype ({self.dtype}) applies to embeddings; for plaid set token_bits")
        if self.index_type != PLAID and self.token_bits != 2:
            raise ValueError(
                f"token_bits ({self.token_bits}) applies to plaid alone, and index_type is {self.index_type}"
            )
        return self

    @property
    def stages(self) -> list[Stage]:
        """The stages of a build, in their order."""
        chosen = {
            "passages": True, "embeddings": self.has_dense, "dense": self.has_dense,
            "tokens": self.has_tokens, "bm25": self.has_bm25,
        }  # fmt: skip
        return [stage for stage in STAGES if chosen[stage]]

    @property
    def has_encoder(self) -> bool:
        """Whether passages are encoded."""
        return "dense" in INDEX_KINDS[self.retriever]

    @property
    def has_dense(self) -> bool:
        """Whether embeddings and FAISS are built."""
        return self.has_encoder and not self.has_tokens

    @property
    def has_tokens(self) -> bool:
        """Whether token vectors are built."""
        return self.has_encoder and self.index_type == PLAID

    @property
    def has_bm25(self) -> bool:
        """Whether Lucene is built."""
        return "bm25" in INDEX_KINDS[self.retriever]

    @property
    def tuned_recall(self) -> float:
        """The recall that "None" stands for."""
        if self.recall_target is not None:
            return self.recall_target
        return HYBRID_RECALL if self.retriever == "hybrid" and "IVF" in self.index_type.upper() else RECALL

    @property
    def stored_dtype(self) -> VectorDtype:
        """The dtype "auto" stands for."""
        if self.dtype == "auto":
            return "float32" if self.index_type == "flat" else "float16"
        return self.dtype
