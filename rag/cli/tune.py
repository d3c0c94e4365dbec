"""`rag tune confidence`: fit a reader's confidence to a corpus."""

from pathlib import Path
from typing import Annotated, Any

import typer

from rag.cli.options import (
    DATA,
    OPENING,
    IndexDir,
    QuestionFile,
    QuestionFormat,
    Read,
    adds_options,
    options_of,
    out_option,
)
from rag.eval.settings import EvaluationSettings

app = typer.Typer(add_completion=False, no_args_is_help=True)


<<<<<<< HEAD
@app.callback()
def _root() -> None:
    """Fit the reader's confidence to a corpus."""
=======
@app.command()
@adds_options("opening", OPENING)
@adds_options("drawn", options_of(EvaluationSettings, "limit", "seed", panel=DATA))
def facts(
    index: IndexDir,
    questions: QuestionFile,
    out: Annotated[Path, out_option("Folder for facts.json, which --facts takes.")],
    drawn: dict[str, Any],
    opening: dict[str, Any],
    read: Read = 20,
    format: QuestionFormat = "auto",
    split: Split = None,
    facts: Facts = "auto",
    sentences: Sentences = None,
) -> None:
    """Choose the rule for supporting facts (HotpotQA), for `rag evaluate --facts`."""
    from rag.config import load_config
    from rag.eval.api import choose_facts

    tuning, path = choose_facts(
        index, questions, out, facts=facts, sentences=sentences, format=format, split=split,
        settings=load_config(EvaluationSettings, overrides={**drawn, "read": read}), **opening,
    )  # fmt: skip
    for name, (em, f1) in (("before", tuning.before), ("after", tuning.after), ("held out", tuning.held_out)):
        typer.echo(f"supporting facts, {name:<9} EM {100 * em:5.1f} %   F1 {100 * f1:5.1f} %")
    typer.echo(f"settings chosen on {tuning.n:,} questions → {path}")
    if sum(tuning.held_out) <= sum(tuning.before):
        typer.echo("on held-out questions they are no better than the settings that the search started from:")
        typer.echo("  → keep the old settings, or tune on more questions")


@app.command()
@adds_options("opening", _SEARCHING)
@adds_options("drawn", options_of(EvaluationSettings, "limit", "sample", "seed", panel=DATA))
def fusion(
    index: IndexDir,
    questions: QuestionFile,
    out: Annotated[Path, out_option("Folder for fusion.json.")],
    drawn: dict[str, Any],
    opening: dict[str, Any],
    ks: Annotated[str, option(help="Cut-offs of the figures.", panel="Figures")] = "1,5,20,100",
    format: QuestionFormat = "auto",
    split: Split = None,
) -> None:
    """Compare ways to fuse two lists of hits, for --fusion or --rerank FOLDER,fusion=…."""
    from rag.cli.options import parse_numbers
    from rag.config import load_config
    from rag.core.views import text_table
    from rag.eval.api import choose_fusion
    from rag.eval.fusion_tuning import CHANCE, MATCHED

    settings = load_config(EvaluationSettings, overrides={**drawn, "ks": parse_numbers(ks, "--ks")})
    tuning = choose_fusion(index, questions, out, format=format, split=split, settings=settings, **opening)
    right = "gold passage" if tuning.right == "gold" else "passage with an answer"
    typer.echo(f"first {right} of {tuning.n:,} questions, by {tuning.decided_by} and mrr [95 % interval]")
    names = list(tuning.rows[0].figures)
    rows = [
        (
            row.name + " (default)" * (row.name == tuning.default),
            *(f"{figure.times(100):.1f}" for figure in row.figures.values()),
            f"{row.p_value:.2g}",
        )
        for row in tuning.rows
    ]
    typer.echo("\n".join(text_table(("fusion", *names, "p against the default"), rows)))
    if tuning.left_out:
        typer.echo(f"{tuning.left_out:,} questions are left out: they have neither answers nor gold passages")
    best = tuning.rows[0]
    if best.name == tuning.default:
        typer.echo("the best is what is used without --fusion: leave it out")
    elif best.p_value > CHANCE:
        typer.echo(
            f"the first is better than the default by no more than chance (p {best.p_value:.2g}): keep that"
        )
    elif best.name.endswith(" alone"):
        typer.echo("one of the two searches is better without the other: choose it with --retriever")
    else:
        typer.echo(
            "the first fusion can be given as --fusion, or in --rerank FOLDER,fusion=…, to ask, serve, …"
        )
    if any(row.name.endswith(MATCHED) for row in tuning.rows):
        typer.echo("words are matched with the default fusion alone")
    typer.echo("an encoder that was trained on these very questions looks better here than it is")
    typer.echo(f"all figures → {out / 'fusion.json'}")
>>>>>>> e7c2c1e4 (One declaration of what opens a pipeline, for Python, commands, server and evaluation)


@app.command()
@adds_options("opening", OPENING)
@adds_options("drawn", options_of(EvaluationSettings, "limit", "sample", "seed", panel=DATA))
def confidence(
    index: IndexDir,
    questions: QuestionFile,
    out: Annotated[Path, out_option("Folder for the reader with its new confidence.")],
    drawn: dict[str, Any],
    opening: dict[str, Any],
    read: Read = 20,
    format: QuestionFormat = "auto",
) -> None:
    """Fit the reader's confidence to a corpus, from about 50 questions, some of which it does not answer."""
    from rag.config import load_config
    from rag.core.views import text_table
    from rag.eval.api import fit_confidence

    settings = load_config(EvaluationSettings, overrides={**drawn, "read": read})
    tuning = fit_confidence(index, questions, out, format=format, settings=settings, **opening)
    typer.echo(
        f"{tuning.n:,} questions, {tuning.unanswerable:,} of them without an answer in what was retrieved"
    )
    figures = {"before": tuning.before, "after, cross-validated": tuning.after}
    rows = [(name, f"{it.ece:.3f}", f"{it.hidden:.1%}", f"{it.refused:.1%}") for name, it in figures.items()]
    typer.echo("\n".join(text_table(("", "ECE", "right, hidden", "no answer, refused"), rows)))
    if not tuning.unanswerable:
        typer.echo('"no answer" stays as it was: give questions too that the documents do not answer')
    if tuning.after.ece > tuning.before.ece:
        typer.echo("the fit makes the confidence no better: keep the reader as it is, or give more questions")
    typer.echo(f"reader → {out}\nuse it: --reader {out}")
