"""`rag evaluate`: official figures with intervals, per-question records, predictions, a report page."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rag.cli.options import OPENING, QuestionFormat, adds_options, options_of
from rag.eval.settings import EvaluationSettings

if TYPE_CHECKING:
    from rag.eval.fact_tuning import FactTuning
    from rag.eval.fusion_tuning import FusionTuning


_SETTINGS = options_of(
    EvaluationSettings, "profile", "read", "limit", "sample", "oracle", "likelihood", "pages", "seed"
)


@adds_options("opening", OPENING)
@adds_options("settings", _SETTINGS)
def evaluate(
    questions: Annotated[
        str, typer.Option("--questions", "-q", help="Question file, or hf:owner/name[:config][:split].")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Result folder; an unfinished one is continued.")],
    opening: dict[str, Any],
    settings: dict[str, Any],
    index: Annotated[
        str | None,
        typer.Option("--index", "-i", help="Directory written by `rag index`; --read gold needs none."),
    ] = None,
    read_top_k: Annotated[
        int, typer.Option(min=0, help="Passages the reader sees; 0 evaluates retrieval only.")
    ] = 20,
    ks: Annotated[str, typer.Option(help="Cut-offs of the retrieval figures.")] = "1,5,20,100",
    format: QuestionFormat = "auto",
    split: Annotated[
        str | None, typer.Option(help="train, dev or test, if the file name does not say.")
    ] = None,
    train: Annotated[
        str | None, typer.Option(help="Training questions, to report what was seen before.")
    ] = None,
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
    tune_fusion: Annotated[
        bool, typer.Option("--tune-fusion", help="Only compare settings of --fusion, on training questions.")
    ] = False,
) -> None:
    """Evaluate an index and a reader on a question set."""
    from rag.config import load_config, parse_numbers
    from rag.core.errors import ConfigError
    from rag.eval import api

    settings |= {"ks": parse_numbers(ks, "--ks"), "read_top_k": max(read_top_k, 1)}
    opening |= {"format": format, "split": split}
    if read_top_k == 0:
        opening["reads"] = False
    if tune_facts or tune_fusion:
        if index is None:
            raise ConfigError("there is nothing to tune without an index", hint="give --index")
        checked = load_config(EvaluationSettings, overrides=settings)
        if tune_fusion:
            _show_fusion(api.choose_fusion(index, questions, out, settings=checked, **opening), out)
        else:
            found = api.choose_facts(
                index, questions, out, facts=facts, sentences=sentences, settings=checked, **opening
            )
            _show_facts(*found)
        return
    command = shlex.join(["rag", *sys.argv[1:]])
    try:
        made = api.evaluate(
            index, questions, out, train=train, facts=facts, sentences=sentences, command=command,
            **opening, **settings,
        )  # fmt: skip
    except KeyboardInterrupt:
        typer.echo(f"what was answered is kept in {out}: the same command goes on from there", err=True)
        raise
    typer.echo(str(made))
    typer.echo(f"figures, records, predictions and {api.REPORT_NAME} → {out}")


def _show_facts(tuning: FactTuning, path: Path) -> None:
    for name, (em, f1) in (("before", tuning.before), ("after", tuning.after), ("held out", tuning.held_out)):
        typer.echo(f"supporting facts, {name:<9} EM {100 * em:5.1f} %   F1 {100 * f1:5.1f} %")
    typer.echo(f"settings chosen on {tuning.n:,} questions → {path}")
    if sum(tuning.held_out) <= sum(tuning.before):
        typer.echo("on questions they were not chosen on they are no better than what the search began with:")
        typer.echo("  → keep the old settings, or tune on more questions")


def _show_fusion(tuning: FusionTuning, out: Path) -> None:
    right = "gold passage" if tuning.right == "gold" else "passage with an answer"
    typer.echo(f"first {right} of {tuning.n:,} questions, by {tuning.decided_by} and mrr [95 % interval]")
    names = list(tuning.rows[0].figures)
    typer.echo(f"{'fusion':<18}" + "".join(f"{name:>23}" for name in names) + "   p against the default")
    for row in tuning.rows:
        cells = (
            f"{100 * f.value:9.1f} [{100 * f.low:.1f}, {100 * f.high:.1f}]" for f in row.figures.values()
        )
        typer.echo(f"{row.name:<18}" + "".join(f"{cell:>23}" for cell in cells) + f"   {row.p_value:.2g}")
    if tuning.left_out:
        typer.echo(f"{tuning.left_out:,} questions are left out: nothing is known to judge them by")
    typer.echo("the first fusion can be given as --fusion, or in --rerank FOLDER,fusion=…, to ask, serve, …")
    typer.echo("an encoder that was trained on these very questions looks better here than it is")
    typer.echo(f"all figures → {out / 'fusion.json'}")
