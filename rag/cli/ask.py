"""`rag ask`: one question, answers with evidence."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from rag.cli.options import (
    EffortSpec,
    EncoderSpec,
    FusionSpec,
    IndexDir,
    Precision,
    ReaderSpec,
    RerankSpec,
    RetrieverSpec,
)
from rag.cli.show import format_answer_set


def ask(
    questions: Annotated[list[str], typer.Argument(help="The question; several are answered in turn.")],
    index: IndexDir,
    top_k: Annotated[int, typer.Option(help="Passages to read.")] = 20,
    n_best: Annotated[int, typer.Option(help="Answers to show at most.")] = 3,
    retriever: RetrieverSpec = "auto",
    fusion: FusionSpec = None,
    rerank: RerankSpec = None,
    encoder: EncoderSpec = None,
    reader: ReaderSpec = None,
    effort: EffortSpec = None,
    precision: Precision = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a question.")] = False,
) -> None:
    """Ask a question; prints answers with title, highlighted evidence and confidence."""
    from rag.pipeline import Pipeline

    pipeline = Pipeline.open(
        index,
        retriever=retriever,
        fusion=fusion,
        rerank=rerank,
        encoder=encoder,
        reader=reader,
        precision=precision,
        effort=effort,
    )
    results = pipeline.ask(questions, top_k=top_k, n_best=n_best)
    for result in results:
        if as_json:
            typer.echo(json.dumps(result.to_json(), ensure_ascii=False))
        else:
            typer.echo(format_answer_set(result.to_json(), colour=sys.stdout.isatty()))
