"""Options that several commands take, and commands whose options are known only when they are made."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from retrievers.open import kind_names

REQUIRED = inspect.Parameter.empty

RetrieverSpec = Annotated[
    str, typer.Option(help=f"{kind_names()}; options follow a colon, as in hybrid:depth=500.")
]
FusionSpec = Annotated[
    str | None, typer.Option(help='Of hybrid retrieval: "std:DENSE,BM25", "minmax:…", "raw:…" or "rrf60:…".')
]
RerankSpec = Annotated[
    str | None, typer.Option(help="ColBERT or cross-encoder folder that re-ranks; FOLDER,depth=100.")
]
EncoderSpec = Annotated[str | None, typer.Option(help="Folder of the index's encoder, if it moved.")]
ReaderSpec = Annotated[
    str | None, typer.Option(help="Folder or hub name of a reader; default: the shipped one.")
]
EffortSpec = Annotated[
    str | None, typer.Option(help="How much is read: full, or another of the reader's own efforts.")
]
Precision = Annotated[str, typer.Option(help="auto, fp32 or bf16.")]
IndexKindSpec = Annotated[str, typer.Option(help="What can be searched: dense, bm25 or hybrid (both).")]
IndexDir = Annotated[str, typer.Option("--index", "-i", help="Directory written by `rag index`.")]
QuestionFile = Annotated[
    str, typer.Option("--questions", "-q", help="JSONL, CSV, SQuAD, NQ, DPR, HotpotQA … (.gz too).")
]
QuestionFormat = Annotated[str, typer.Option(help="Format of --questions; auto looks at the file.")]
CorpusFormat = Annotated[str, typer.Option(help="Corpus format; auto looks at names and first bytes.")]
PassageIds = Annotated[str, typer.Option(help="document (doc-0, doc-1, …) or integer (1, 2, …).")]
Words = Annotated[int, typer.Option(help="Words a passage, for --split words100.")]
Wrap = Annotated[bool, typer.Option(help="Fill the last passage with the document's first words.")]
MaxBadShare = Annotated[float, typer.Option(help="Highest tolerated share of bad records.")]
IndexTypeSpec = Annotated[
    str, typer.Option(help="flat, fp16, sq8, hnsw, ivf, ivfpq, rabitq; plaid for ColBERT.")
]
TokenBits = Annotated[int, typer.Option(help="Bits a number of a token's vector: 1, 2 or 4 (plaid).")]
StoredDtype = Annotated[str, typer.Option(help="Embeddings on disk: auto, float16 or float32.")]


def command_with(
    options: Mapping[str, tuple[Any, Any]], run: Callable[..., None], *, like: Callable[..., Any], help: str
) -> Callable[..., None]:
    """`run` as a command named like `like`, whose options are given as name → (annotation, default)."""

    def command(**given: Any) -> None:
        run(**given)

    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
            for name, (kind, default) in options.items()
        ]
    )
    command.__name__, command.__doc__, command.__annotations__ = like.__name__, help, {}
    return command


def parameters_of(function: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
    """Name → (annotation, default) of a function's parameters."""
    found = inspect.signature(function, eval_str=True).parameters
    return {name: (parameter.annotation, parameter.default) for name, parameter in found.items()}
