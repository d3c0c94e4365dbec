"""Keyword arguments of the package's calls, for editors and type checkers.

Each class has the fields of the configuration that it names, which explains and checks them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict

if TYPE_CHECKING:
    from rag.data.text import Profile
    from rag.opening import Precision, ReaderLike, VerifierLike
    from retrievers.hybrid import Fusion
    from retrievers.multihop import MultiHop
    from retrievers.protocols import Retriever, TextEncoder
    from retrievers.rerank import Rerank


class OpenOptions(TypedDict, total=False):
    """Fields of `rag.opening.OpenSettings`."""

    retriever: str | MultiHop | Retriever
    fusion: str | Fusion | None
    rerank: str | Rerank | None
    index_encoder: str | Path | TextEncoder | None
    reader: ReaderLike
    verifier: VerifierLike
    effort: Literal["full", "normal"] | None
    precision: Precision


class IndexOptions(TypedDict, total=False):
    """Fields of `CorpusOptions`, `EncoderOptions` and `BuildSettings`."""

    id_field: str | None
    title_field: str | None
    text_field: str | None
    metadata: list[str]
    exclude: list[str]
    max_bad_share: float
    document_timeout: float
    split: Literal["auto", "sections", "words100", "none"]
    words: int
    language: str
    max_tokens: int

    pooling: Literal["auto", "cls", "mean", "lasttoken"]
    normalize: bool | None
    max_length: int | None
    query_prefix: str | None
    passage_prefix: str | None
    layout: str | None

    index_type: str
    shard_rows: int
    k1: float
    b: float
    probes: int
    recall_target: float | None
    seed: int
    threads: int | None


class UpdateOptions(TypedDict, total=False):
    """Arguments of `rag.updates.IndexUpdater.follow`."""

    format: str
    max_bad_share: float
    max_deleted_share: float


class EvaluationOptions(OpenOptions, total=False):
    """Fields of `EvaluationSettings` but `read`, and those that open a pipeline."""

    profile: Profile
    ks: tuple[int, ...]
    batch_size: int
    limit: int | None
    sample: int | None
    gold: bool
    by: tuple[str, ...]
    seed: int


class ScoringOptions(EvaluationOptions, total=False):
    """Fields of `EvaluationSettings`, and those that open a pipeline."""

    read: int


class MiningOptions(TypedDict, total=False):
    """Fields of `retrievers.negatives.settings.MiningSettings`."""

    source: Literal["bm25", "dense", "both"]
    ranks: str
    per_question: int
    margin: float | None
    weak_positives: bool
    seed: int
