"""`rag evaluate`: official figures with intervals, per-question records, predictions, a report page."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(add_completion=False)


@app.command()
def evaluate(
    index: Annotated[str, typer.Option("--index", "-i", help="Directory written by `rag index`.")],
    questions: Annotated[
        str, typer.Option("--questions", "-q", help="Question file, or hf:owner/name[:config][:split].")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Result folder; an unfinished one is continued.")],
    retriever: Annotated[str, typer.Option(help="auto, dense, bm25 or hybrid.")] = "auto",
    profile: Annotated[
        str, typer.Option(help="squad, nq_open, drqa, kilt, hotpot, trec_match or trec_search.")
    ] = "squad",
    read_top_k: Annotated[
        int, typer.Option(help="Passages the reader sees; 0 evaluates retrieval only.")
    ] = 20,
    ks: Annotated[str, typer.Option(help="Cut-offs of the retrieval figures.")] = "1,5,20,100",
    limit: Annotated[int | None, typer.Option(help="Only the first N questions.")] = None,
    format: Annotated[str, typer.Option(help="Format of --questions; auto looks at the file.")] = "auto",
    split: Annotated[
        str | None, typer.Option(help="train, dev or test, if the file name does not say.")
    ] = None,
    train: Annotated[
        str | None, typer.Option(help="Training questions, to report what was seen before.")
    ] = None,
    oracle: Annotated[
        bool, typer.Option(help="Also read the gold passages: which stage loses answers?")
    ] = False,
    encoder: Annotated[str | None, typer.Option(help="Folder of the index's encoder, if it moved.")] = None,
    reader: Annotated[str | None, typer.Option(help="Folder or hub name of a reader.")] = None,
    precision: Annotated[str, typer.Option(help="auto, fp32 or bf16.")] = "auto",
    seed: Annotated[int, typer.Option(help="Of the bootstrap.")] = 0,
) -> None:
    """Evaluate an index and a reader on a question set."""
    from rag.config import load_config
    from rag.data.questions import read_questions
    from rag.eval.breakdown import TrainingOverlap
    from rag.eval.compare import load_evaluation
    from rag.eval.report import write_report
    from rag.eval.report_labels import describe, main_figures, with_interval
    from rag.eval.runner import evaluate as run
    from rag.eval.settings import EvaluationSettings, QuestionSource
    from rag.eval.systems import RetrieveThenRead
    from rag.pipeline import Pipeline

    given: dict[str, Any] = {
        "profile": profile, "ks": _numbers(ks), "limit": limit, "oracle": oracle, "seed": seed,
        "read_top_k": max(read_top_k, 1),
    }  # fmt: skip
    settings = load_config(EvaluationSettings, overrides=given)
    pipeline = Pipeline.open(
        index,
        retriever=retriever,
        encoder=encoder,
        reader=False if read_top_k == 0 else reader,
        precision=precision,
    )
    system = RetrieveThenRead(pipeline.retrieve, pipeline.reader, pipeline.index_version, pipeline.identity)
    overlap = TrainingOverlap.from_training(read_questions(train)) if train else None
    metrics = run(
        system,
        read_questions(questions, format=format),
        out,
        settings,
        source=QuestionSource.of_file(questions, split=split, format=format),
        command=shlex.join(["rag", *sys.argv[1:]]),
        overlap=overlap,
        lookup=pipeline.passage,
    )
    write_report([load_evaluation(out)], out / "report.html")
    figures = metrics["figures"]
    for name in main_figures(figures, limit=12):
        typer.echo(f"{describe(name)[0]:<32} {with_interval(figures[name])}")
    typer.echo(f"figures, records, predictions and report.html → {out}")


def _numbers(text: str) -> list[int]:
    from rag.core.errors import ConfigError

    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ConfigError(f"{text!r} is not a list of numbers", hint="for example 1,5,20,100") from None
