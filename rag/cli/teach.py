"""What teaches beside `rag train`: mining, scores, rounds, adaptation, confidence."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from rag.cli.options import DATA, OPENING, Count, options_from, options_of, some
from rag.commands import train_rounds
from rag.config import DEFAULT_SEED, load_config, parse_overrides
from rag.eval.settings import EvaluationSettings
from rag.rounds.config import RoundsConfig, SignalName
from retrievers.negatives.settings import MiningSettings

_DRAWN = options_of(EvaluationSettings, "limit", "sample", "seed", panel=DATA)
_MINING = {
    **some(OPENING, "index_encoder"),
    **options_of(MiningSettings, panel="Selection"),
    **some(_DRAWN, "limit", "sample"),
}
_ROUNDS = {
    **some(options_from(train_rounds), "recipe", "index", "questions", "config", "out"),
    **some(
        options_of(RoundsConfig, panel="Rounds"), without=("out", "index", "questions", "method")
    ),
}
_READ_BY = {
    "reader": "distill",
    "signal": "distill",
    "positives": "colbert",
    "negatives": "colbert",
}


def mine(
    index: str,
    questions: str,
    out: Path,
    merge: Path | None = None,
    **settings: Annotated[Any, _MINING],
) -> None:
    """Mine hard negatives; needs questions with gold passages, or with answers alone.

    Run the same command again to continue a killed run where it stopped.

    Args:
        out: DPR training JSON; a report goes beside it.
        merge: Training file of an earlier round, to be merged with the result.
    """
    from retrievers.negatives.mine import mine as run

    report = run(index, questions, out, merge=merge, **settings)
    typer.echo(", ".join(f"{name} {count:,}" for name, count in sorted(report["counts"].items())))
    typer.echo(
        f"→ {out}\ntrain: rag train dpr --config dpr-small --index {index} --train {out} --out run"
    )


def score(
    examples: Path,
    out: Path,
    signal: SignalName = "span-likelihood",
    reader: str | None = None,
    **models: Annotated[Any, some(OPENING, "precision")],
) -> None:
    """Score each question's passages with a reader; `rag train distill` learns from the scores.

    Run the same command again to continue a killed run where it stopped.

    Args:
        examples: Results of `rag retrieve`, `rag mine`'s or FiD's file.
        out: File for the examples with scores as targets; a report is written beside it.
        signal: attention (generative readers); likelihood (these and language models);
            span-likelihood (extractive); relevance (cross-encoder).
        reader: Reader or cross-encoder; default: the reader in the package.
    """
    from rag.rounds.examples import open_judge, score_examples

    report = score_examples(examples, out, open_judge(reader, signal, **models))
    counts = ", ".join(f"{name} {count:,}" for name, count in report["counts"].items())
    typer.echo(f"{signal} of {report['reader']['name']}: {counts}")
    typer.echo(
        f"→ {out}\ntrain with it: rag train distill --config distill-small --train {out} --out run"
    )


def rounds(set_: list[str] | None = None, **settings: Annotated[Any, _ROUNDS]) -> None:
    """Teach a retriever in rounds of searching, labelling and training.

    Questions and answers are enough. --config and --set are those of `rag train distill` or
    `colbert`. A killed run goes on behind what is finished when the same command is given again.
    """
    from rag.core.errors import ConfigError

    recipe, out = settings["recipe"], Path(settings["out"])
    for name, method in _READ_BY.items():
        if method != recipe and settings[name] != _ROUNDS[name][1]:
            raise ConfigError(f"--{name} is not read with --recipe {recipe}")
    for row in train_rounds(training=parse_overrides(set_ or []), **settings):
        parts = [f"{name} {figure:.1f}" for name, figure in row["figures"].items()]
        parts += [f"{name}: {fact}" for name, fact in row["facts"].items()]
        typer.echo(f"round {row['round']}: {', '.join(parts)}")
    typer.echo(f"→ {out / 'rounds.json'} names the best round's encoder")


def adapt(
    *,
    index: str,
    config: str | None = None,
    set_: list[str] | None = None,
    out: Path,
    questions: Count = 2000,
    seed: int = DEFAULT_SEED,
) -> None:
    """Adapt an index's encoder to its corpus without labelled questions.

    Questions are made from the index's passages by rules, and the encoder learns from all of them.
    A killed run goes on where it stopped when the same command is given again.

    Args:
        config: Settings of the training, a file or preset; default: retriever-adapt.
        out: Folder of the run; an unfinished one is resumed.
        questions: Number of questions that are made, at least 50.
        seed: Random seed of passages, questions and their wording.
    """
    from rag.adaptation.adapt import adapt as run

    training = parse_overrides(set_ or [])
    finished = run(index, out, config=config, training=training, questions=questions, seed=seed)
    typer.echo(f"questions → {out / 'questions.json'}")
    typer.echo(f"encoder → {finished}\nuse it: rag index … --encoder {finished}")


def questions(
    *,
    index: str,
    writer: str,
    out: Path,
    count: Count = 200,
    answers: Literal["writer", "rules"] = "writer",
    held_out: str | None = None,
    reader: str | None = None,
    pause: Path | None = None,
    seed: int = DEFAULT_SEED,
) -> None:
    """Have a language model write questions for an index's passages, as people would ask them.

    A question is kept if its answer stands in the passage, if it is in other words, if a search
    finds the passage, and if a reader that is given the passage answers the same. A killed run goes
    on where it stopped when the same command is given again.

    Args:
        writer: Language model, as openai:BASE_URL#MODEL.
        out: JSONL file that grows by a question at a time; what is rejected goes to
            OUT.writing/rejected.jsonl.
        count: Number of questions to keep.
        answers: Who chooses what is asked for: the writer, or rules whose clumsy questions it says
            in better words (quicker, for small models).
        held_out: Index of documents that --index does not hold: a fifth of the questions is about
            these, and has no answer.
        reader: Takes the second look; default: the reader in the package.
        pause: While this file exists, nothing is sent to the model.
        seed: Random seed of passages and kinds of questions.
    """
    from rag.adaptation.writing import write_questions

    figures = write_questions(
        index,
        writer,
        out,
        count=count,
        answers=answers,
        held_out=held_out,
        reader=reader,
        pause=pause,
        seed=seed,
    )
    kept, *rejected = figures.items()
    typer.echo(f"{kept[1]:,} questions kept")
    for reason, number in rejected:
        typer.echo(f"{number:,} rejected: {reason}")
    typer.echo(f"→ {out}\nuse it: rag evaluate --index {index} --questions {out} --out results")


def tune(
    what: Literal["confidence"],
    /,
    index: str,
    questions: str,
    out: Path,
    read: Count = 20,
    **settings: Annotated[Any, {**_DRAWN, **OPENING}],
) -> None:
    """Fit the reader's confidence to a corpus, from about 50 questions, some of which it does not
    answer.

    Args:
        what: What is fitted.
        out: Folder for the reader with its new confidence.
    """
    from rag.eval.confidence_tuning import fit_confidence

    drawn = load_config(
        EvaluationSettings, overrides={n: settings.pop(n) for n in _DRAWN} | {"read": read}
    )
    tuning = fit_confidence(index, questions, out, settings=drawn, **settings)
    typer.echo(
        f"{tuning.n:,} questions, {tuning.unanswerable:,} without an answer in what was retrieved"
    )
    typer.echo(
        f"ECE before {tuning.ece_before:.3f}, after (cross-validated) {tuning.ece_after:.3f}"
    )
    if not tuning.unanswerable:
        typer.echo(
            '"no answer" stays as it was: give questions too that the documents do not answer'
        )
    typer.echo(f"reader → {out}\nuse it: --reader {out}")
