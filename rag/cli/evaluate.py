"""`rag evaluate`: official figures with intervals, per-question records, predictions, a report page."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from rag.cli.options import EncoderSpec, FusionSpec, Precision, ReaderSpec, RetrieverSpec

app = typer.Typer(add_completion=False)


@app.command()
def evaluate(
    index: Annotated[str, typer.Option("--index", "-i", help="Directory written by `rag index`.")],
    questions: Annotated[
        str, typer.Option("--questions", "-q", help="Question file, or hf:owner/name[:config][:split].")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Result folder; an unfinished one is continued.")],
    retriever: RetrieverSpec = "auto",
    fusion: FusionSpec = None,
    profile: Annotated[
        str, typer.Option(help="squad, nq_open, drqa, kilt, hotpot, trec_match or trec_search.")
    ] = "squad",
    read_top_k: Annotated[
        int, typer.Option(help="Passages the reader sees; 0 evaluates retrieval only.")
    ] = 20,
    ks: Annotated[str, typer.Option(help="Cut-offs of the retrieval figures.")] = "1,5,20,100",
    limit: Annotated[int | None, typer.Option(help="Only the first N questions.")] = None,
    sample: Annotated[int | None, typer.Option(help="Only N questions, drawn at random with --seed.")] = None,
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
    facts: Annotated[
        str, typer.Option(help="Supporting facts (profile hotpot): auto, off, or a file of --tune-facts.")
    ] = "auto",
    sentences: Annotated[
        str | None,
        typer.Option(help="Corpus the index was built from, for exact sentence numbers of supporting facts."),
    ] = None,
    tune_facts: Annotated[
        bool, typer.Option("--tune-facts", help="Only choose settings for --facts, on training questions.")
    ] = False,
    pages: Annotated[
        str,
        typer.Option(help="KILT's page of a passage: document (ids PAGE-n), passage (its id) or title."),
    ] = "document",
    encoder: EncoderSpec = None,
    reader: ReaderSpec = None,
    precision: Precision = "auto",
    seed: Annotated[int, typer.Option(help="Of the sample and the bootstrap.")] = 0,
) -> None:
    """Evaluate an index and a reader on a question set."""
    from rag.config import load_config, parse_numbers
    from rag.core.errors import ConfigError
    from rag.data.questions import read_questions
    from rag.eval.breakdown import TrainingOverlap
    from rag.eval.compare import load_evaluation
    from rag.eval.facts import BOUNDARIES, open_finder
    from rag.eval.guard import check_selection_split
    from rag.eval.report import write_report
    from rag.eval.report_labels import describe, main_figures, with_interval
    from rag.eval.resolve import GoldResolver
    from rag.eval.runner import evaluate as run
    from rag.eval.settings import EvaluationSettings, QuestionSource
    from rag.eval.systems import RetrieveThenRead
    from rag.pipeline import Pipeline

    given: dict[str, Any] = {
        "profile": profile, "ks": parse_numbers(ks, "--ks"), "limit": limit, "sample": sample,
        "oracle": oracle, "seed": seed, "read_top_k": max(read_top_k, 1), "pages": pages,
    }  # fmt: skip
    settings = load_config(EvaluationSettings, overrides=given)
    with_facts = tune_facts or (profile == "hotpot" and read_top_k > 0)
    finder = open_finder(facts, sentences, read_top_k=settings.read_top_k) if with_facts else None
    source = QuestionSource.of_file(questions, split=split, format=format)
    if tune_facts:
        if finder is None or read_top_k == 0:
            raise ConfigError(
                "--tune-facts needs a reader and facts", hint="leave out --facts off and --read-top-k 0"
            )
        check_selection_split(source.path, source.split)
    pipeline = Pipeline.open(
        index,
        retriever=retriever,
        fusion=fusion,
        encoder=encoder,
        reader=False if read_top_k == 0 else reader,
        precision=precision,
    )
    identity = {**pipeline.identity, **({"facts": finder.identity} if finder is not None else {})}
    system = RetrieveThenRead(pipeline.retrieve, pipeline.reader, pipeline.index_version, identity)
    asked = read_questions(questions, format=format)
    if tune_facts and finder is not None:
        _tune(system, asked, finder, settings, source, out)
        return
    resolver = GoldResolver(pipeline.index.passages)
    overlap = TrainingOverlap.from_training(read_questions(train)) if train else None
    metrics = run(
        system,
        map(resolver, asked),
        out,
        settings,
        source=source,
        command=shlex.join(["rag", *sys.argv[1:]]),
        overlap=overlap,
        lookup=pipeline.passage,
        facts=finder,
    )
    write_report([load_evaluation(out)], out / "report.html")
    figures = metrics["figures"]
    for name in main_figures(figures, limit=12):
        typer.echo(f"{describe(name)[0]:<32} {with_interval(figures[name])}")
    if finder is not None and (guessed := finder.boundaries["rule"]):
        total = finder.boundaries.total()
        typer.echo(f"sentences of {guessed:,} of {total:,} supporting passages were cut {BOUNDARIES['rule']}")
        typer.echo("  → give the corpus with --sentences")
    if note := resolver.describe():
        typer.echo(note)
    typer.echo(f"figures, records, predictions and report.html → {out}")


def _tune(system: Any, questions: Any, finder: Any, settings: Any, source: Any, out: Path) -> None:
    from rag.eval.fact_tuning import collect_examples, tune_facts, write_tuning

    tuning = tune_facts(
        collect_examples(system, questions, finder, settings), finder.settings, seed=settings.seed
    )
    path = write_tuning(tuning, out, source, system.identity)
    for name, (em, f1) in (("before", tuning.before), ("after", tuning.after), ("held out", tuning.held_out)):
        typer.echo(f"supporting facts, {name:<9} EM {100 * em:5.1f} %   F1 {100 * f1:5.1f} %")
    typer.echo(f"settings chosen on {tuning.n:,} questions → {path}")
    if sum(tuning.held_out) <= sum(tuning.before):
        typer.echo("on questions they were not chosen on they are no better than what the search began with:")
        typer.echo("  → keep the old settings, or tune on more questions")
