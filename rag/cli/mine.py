"""`rag mine`: training examples with hard negatives from an index."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rag.cli.options import EncoderSpec, IndexDir, QuestionFile, QuestionFormat, adds_options, options_of
from retrievers.negatives.settings import MiningSettings, parse_depth

_SETTINGS = options_of(
    MiningSettings,
    *("source", "hops", "per_question", "pick", "margin", "answer_filter", "regex", "cross_encoder"),
    *("keep_below", "cross_encoder_depth", "gold", "weak_positives", "seed"),
)


@adds_options("settings", _SETTINGS)
def mine(
    index: IndexDir,
    questions: QuestionFile,
    out: Annotated[Path, typer.Option("--out", "-o", help="DPR training JSON; a report goes beside it.")],
    settings: dict[str, Any],
    model: EncoderSpec = None,
    depth: Annotated[str, typer.Option(help="Ranks to take candidates from, first:last.")] = "1:100",
    merge: Annotated[
        Path | None, typer.Option(help="Another training file: write the union (second round).")
    ] = None,
    format: QuestionFormat = "auto",
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N questions.")] = None,
    sample: Annotated[
        int | None, typer.Option(min=1, help="Only N questions, drawn at random with --seed.")
    ] = None,
) -> None:
    """Mine hard negatives; needs questions with gold passages, or with answers alone.

    A killed run goes on where it was when the same command is given again.
    """
    from rag.config import load_config
    from rag.core.log import setup_logging
    from retrievers.negatives.mine import mine as run

    setup_logging("INFO")
    settings["first_rank"], settings["last_rank"] = parse_depth(depth)
    report = run(
        index, questions, out, load_config(MiningSettings, overrides=settings),
        encoder=model, format=format, limit=limit, sample=sample, merge=merge,
    )  # fmt: skip
    typer.echo(
        "\n".join(report.lines())
        + f"\n→ {out}\ntrain with it: rag train {'mdr' if settings.get('hops') else 'dpr'} --train {out} …"
    )
