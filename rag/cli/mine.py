"""`rag mine`: training examples with hard negatives from an index."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rag.cli.options import EncoderSpec, IndexDir, QuestionFile, QuestionFormat


def mine(
    index: IndexDir,
    questions: QuestionFile,
    out: Annotated[Path, typer.Option("--out", "-o", help="DPR training JSON; a report goes beside it.")],
    source: Annotated[str, typer.Option(help="bm25, dense (the index's model) or both.")] = "bm25",
    model: EncoderSpec = None,
    depth: Annotated[str, typer.Option(help="Ranks to take candidates from, first:last.")] = "1:100",
    per_question: Annotated[int, typer.Option(help="Most negatives of a question.")] = 10,
    pick: Annotated[str, typer.Option(help="top: the best-ranked that pass; random: any of them.")] = "top",
    margin: Annotated[
        float | None,
        typer.Option(help="Keep passages the model scores below this share of the positive's score: 0.95."),
    ] = None,
    answer_filter: Annotated[
        bool, typer.Option("--answer-filter/--no-answer-filter", help="Drop passages that hold an answer.")
    ] = True,
    regex: Annotated[
        bool, typer.Option(help="Answers are regular expressions, whatever the file says.")
    ] = False,
    cross_encoder: Annotated[
        str | None, typer.Option(help="Folder or hub name: keeps only what it scores clearly irrelevant.")
    ] = None,
    keep_below: Annotated[float, typer.Option(help="… which is below this probability.")] = 0.1,
    cross_encoder_depth: Annotated[int, typer.Option(help="… of so many candidates of a question.")] = 40,
    gold: Annotated[
        str, typer.Option(help="given: a gold passage outside the corpus stays a positive; corpus: not.")
    ] = "given",
    weak_positives: Annotated[
        bool,
        typer.Option(
            "--weak-positives/--no-weak-positives",
            help="Without a gold passage take the best hit that holds an answer.",
        ),
    ] = True,
    merge: Annotated[
        Path | None, typer.Option(help="Another training file: write the union (second round).")
    ] = None,
    format: QuestionFormat = "auto",
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N questions.")] = None,
    sample: Annotated[
        int | None, typer.Option(min=1, help="Only N questions, drawn at random with --seed.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of --sample and --pick random.")] = 13,
) -> None:
    """Mine hard negatives; needs questions with gold passages, or with answers alone.

    A killed run goes on where it was when the same command is given again.
    """
    from rag.config import load_config
    from rag.core.log import setup_logging
    from retrievers.negatives.mine import mine as run
    from retrievers.negatives.settings import MiningSettings, parse_depth

    setup_logging("INFO")
    first, last = parse_depth(depth)
    given: dict[str, Any] = {
        "source": source, "first_rank": first, "last_rank": last, "per_question": per_question, "pick": pick,
        "margin": margin, "answer_filter": answer_filter, "regex": regex, "cross_encoder": cross_encoder,
        "keep_below": keep_below, "cross_encoder_depth": cross_encoder_depth,
        "gold": gold, "weak_positives": weak_positives, "seed": seed,
    }  # fmt: skip
    report = run(
        index, questions, out, load_config(MiningSettings, overrides=given),
        encoder=model, format=format, limit=limit, sample=sample, merge=merge,
    )  # fmt: skip
    typer.echo("\n".join(report.lines()) + f"\n→ {out}\ntrain with it: rag train dpr --train {out} …")
