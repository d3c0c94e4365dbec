"""`rag evaluate`: official figures with intervals, per-question records, predictions, a report page."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from rag.cli.compare import comparison_table
from rag.cli.options import (
    DATA,
    OPENING,
    READING,
    SEARCH,
    QuestionFormat,
    adds_options,
    option,
    options_of,
    out_option,
)
from rag.eval.settings import EvaluationSettings

_OPENING = {name: setting for name, setting in OPENING.items() if name != "fusion"}


@adds_options("opening", _OPENING)
@adds_options("figures", options_of(EvaluationSettings, "profile", "seed", "batch_size", panel="Figures"))
@adds_options("reading", options_of(EvaluationSettings, "gold", "likelihood", panel=READING))
@adds_options("drawn", options_of(EvaluationSettings, "limit", "sample", panel=DATA))
def evaluate(
    *,
    index: Annotated[
        str | None,
        option(*("--index", "-i"), help="Directory written by `rag index`; --gold needs none.", panel=DATA),
    ] = None,
    questions: Annotated[
        str | None,
        option(
            *("--questions", "-q"),
            help="JSONL, CSV, SQuAD, NQ, DPR, HotpotQA …, or hf:owner/name[:config][:split], irds:name.",
            panel=DATA,
        ),
    ] = None,
    dataset: Annotated[
        str | None,
        option(
            help="irds:NAME, such as irds:beir/scifact/test: its corpus is indexed where that is missing (in "
            "--index, or beside --out), and its questions are searched for.",
            panel=DATA,
        ),
    ] = None,
    format: QuestionFormat = "auto",
    split: Annotated[
        Literal["train", "dev", "test"] | None,
        option(help="Split of the data set, if the file name does not contain it.", panel=DATA),
    ] = None,
    run: Annotated[
        str | None,
        option(help="Score these search results instead: a TREC run, or DPR's JSON.", panel=DATA),
    ] = None,
    drawn: dict[str, Any],
    opening: dict[str, Any],
    fusion: Annotated[
        list[str] | None,
        option(
            help='Of hybrid retrieval: "std:1,0.6", "rrf60:1,1", …; several are compared.',
            panel=SEARCH,
        ),
    ] = None,
    read: Annotated[
        int, option(min=0, help="Passages the reader sees; 0 evaluates retrieval only.", panel=READING)
    ] = 20,
    reading: dict[str, Any],
    figures: dict[str, Any],
    ks: Annotated[str, option(help="Cut-offs of the retrieval figures.", panel="Figures")] = "1,5,20,100",
    by: Annotated[
        str | None,
        option(help="Fields of the questions to break the figures down by: kind,format.", panel="Figures"),
    ] = None,
    out: Annotated[Path, out_option("Result folder; an unfinished one is continued.")],
) -> None:
    """Evaluate an index and a reader on a question set."""
    from rag.cli.options import parse_numbers
    from rag.core.errors import ConfigError
    from rag.eval import api

    if (questions is None) is (dataset is None):
        raise ConfigError("give --questions, or --dataset and no --questions")
    if dataset is not None:
        index = str(index_dataset(dataset, index or f"{out}.index", str(opening["retriever"])))
        questions, read = dataset, 0
    settings: dict[str, Any] = {
        **drawn,
        **reading,
        **figures,
        "ks": parse_numbers(ks, "--ks"),
        "read": max(read, 1),
    }
    settings["by"] = tuple(name for part in (by or "").split(",") if (name := part.strip()))
    if read == 0:
        opening["reads"] = False
    command = shlex.join(["rag", *sys.argv[1:]])
    settings |= {**opening, "format": format, "split": split, "run": run, "command": command}
    if fusion and len(fusion) > 1:
        evaluations, compared = api.evaluate_fusions(index, questions, out, fusion, **settings)
        for evaluation in evaluations:
            typer.echo(f"{evaluation.name}\n{evaluation}\n")
        typer.echo(comparison_table(compared))
    else:
        typer.echo(str(api.evaluate(index, questions, out, fusion=fusion[0] if fusion else None, **settings)))
    typer.echo(f"figures, records, predictions and {api.REPORT_NAME} → {out}")


def index_dataset(name: str, place: str, retriever: str) -> Path:
    """Index the corpus of a data set, a document a passage, as far as this is not done."""
    from rag.commands import index
    from rag.data.files.named import corpus_of

    kind: Any = retriever.partition(":")[0]
    kind = kind if kind in ("bm25", "dense") else "hybrid"
    return index(corpus_of(name), place, retriever=kind, split="none")
