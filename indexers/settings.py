"""Settings of an index build, quick to import, so that a command's help can show them."""

from __future__ import annotations

from typing import ClassVar, Literal, get_args

from pydantic import Field, field_validator, model_validator

from rag.config import DEFAULT_SEED, Config

# The parts that an index can have beside its passages, by the name of the retriever setting.
Part = Literal["dense", "tokens", "bm25"]
PARTS: tuple[Part, ...] = get_args(Part)
IndexKind = Literal["dense", "bm25", "hybrid"]
INDEX_KINDS: dict[IndexKind, tuple[Part, ...]] = {
    "dense": ("dense",),
    "bm25": ("bm25",),
    "hybrid": ("dense", "bm25"),
}
INDEX_TYPES = ("flat", "hnsw", "ivf")
PLAID = "plaid"  # one vector per token: the part "tokens" takes the place of "dense"
VectorDtype = Literal["float16", "float32"]
StageName = Literal["passages", "embeddings", "dense", "tokens", "bm25"]
STAGES: tuple[StageName, ...] = get_args(StageName)  # each has a folder of its name
RECALL = 0.98
HYBRID_RECALL = 0.9
# Passages per shard: on two slow cores a shard takes some two minutes, and on a fast machine files
# stay few.
SHARD_ROWS = 4_096


class BuildSettings(Config):
    """Settings of an index build; stored in the manifest, except those of the machine.

    Attributes:
        retriever: what the index can be searched by: vectors, BM25, or both (hybrid).
        index_type: flat, hnsw, ivf or a string of FAISS' index_factory, see `rag docs indexing`;
            plaid is for an encoder with one vector per token (ColBERT).
        shard_rows: passages per embedding shard; an interrupted build loses at most one shard.
        k1: term frequency saturation of BM25.
        b: length normalisation of BM25.
        probes: number of queries on which recall is measured.
        recall_target: minimum of recall@1, @10 and @100 for which a lossy type searches, above 0; by
            default 0.98, and 0.9 for a hybrid, whose BM25 finds much of what the vectors miss.
        seed: random seed of sampling and clustering.
        threads: number of CPU threads for FAISS and Lucene; by default all cores.

    """

    free: ClassVar[frozenset[str]] = frozenset({"threads"})

    retriever: IndexKind = "dense"
    index_type: str = "flat"
    shard_rows: int = Field(default=SHARD_ROWS, ge=1)
    k1: float = Field(default=0.9, ge=0)
    b: float = Field(default=0.4, ge=0, le=1)
    probes: int = Field(default=256, ge=1)
    recall_target: float | None = Field(default=None, gt=0, le=1)
    seed: int = Field(default=DEFAULT_SEED, ge=0)
    threads: int | None = Field(default=None, ge=1)

    @field_validator("index_type")
    @classmethod
    def _check_type(cls, value: str) -> str:
        # Every string of FAISS begins with a capital letter.
        if value not in (*INDEX_TYPES, PLAID) and not value[:1].isupper():
            names = ", ".join((*INDEX_TYPES, PLAID))
            raise ValueError(f"not {names} or a string of FAISS' index_factory, such as SQ8")
        return value

    @model_validator(mode="after")
    def _check(self) -> BuildSettings:
        if self.index_type == PLAID and not self.has_encoder:
            raise ValueError(
                f"index_type plaid stores token vectors, which retriever {self.retriever} does not use"
            )
        return self

    @property
    def stages(self) -> list[StageName]:
        """The stages of a build, in their order."""
        stages: list[StageName] = ["passages"]
        if self.has_tokens:
            stages.append("tokens")
        elif self.has_encoder:
            stages += ["embeddings", "dense"]
        if "bm25" in INDEX_KINDS[self.retriever]:
            stages.append("bm25")
        return stages

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
    def tuned_recall(self) -> float:
        """The recall that a lossy type searches for."""
        if self.recall_target is not None:
            return self.recall_target
        is_helped = self.retriever == "hybrid" and "IVF" in self.index_type.upper()
        return HYBRID_RECALL if is_helped else RECALL

    @property
    def stored_dtype(self) -> VectorDtype:
        """Number type of the embeddings on disk: `flat` searches them directly."""
        return "float32" if self.index_type == "flat" else "float16"
