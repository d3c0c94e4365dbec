"""What teaches beside `rag train`: mining, scores, rounds, adaptation, confidence."""

from pathlib import Path
from typing import Annotated, Literal, Unpack

from cyclopts import Parameter
from cyclopts.types import PositiveInt

from rag.cli.options import (
    OPENING,
    Assignments,
    Index,
    Limit,
    Out,
    Preset,
    Questions,
    Read,
    options_of,
    with_options,
    without,
)
from rag.cli.show import say
from rag.config import DEFAULT_SEED, load_config, parse_overrides
from rag.core.errors import ConfigError
from rag.eval.settings import EvaluationSettings
from rag.opening import Precision
from rag.options import MiningOptions, OpenOptions
from rag.rounds.config import RoundsConfig, RoundsOptions, SignalName
from retrievers.negatives.settings import MiningSettings

Recipe = Literal["distill", "colbert"]
_ROUNDS = without(
    options_of(RoundsConfig, panel="Rounds"),
    "out",
    "index",
    "questions",
    "method",
)
# Settings of rounds that only one recipe reads.
_READ_BY: dict[str, Recipe] = {
    "reader": "distill",
    "signal": "distill",
    "positives": "colbert",
    "negatives": "colbert",
}
Sample = Annotated[PositiveInt | None, Parameter(help="A random sample of so many.")]


class _MineOptions(MiningOptions, total=False):
    index_encoder: str


@with_options(
    {"index_encoder": OPENING["index_encoder"]},
    options_of(MiningSettings, panel="Selection"),
)
def mine(
    *,
    index: Index,
    questions: Questions,
    out: Out,
    merge: Path | None = None,
    limit: Limit = None,
    sample: Sample = None,
    **settings: Unpack[_MineOptions],
) -> None:
    """Mine hard negatives; needs questions with gold passages, or with answers alone.

    Run the same command again to continue a killed run where it stopped.

    Args:
        out: DPR training JSON; a report goes beside it.
        merge: Training file of an earlier round, to be merged with the result.
    """
    from retrievers.negatives.mine import mine as run

    report = run(index, questions, out, merge=merge, limit=limit, sample=sample, **settings)
    counts = sorted(report["counts"].items())
    say(", ".join(f"{name} {count:,}" for name, count in counts))
    say(f"→ {out}\ntrain: rag train dpr --config dpr-small --index {index} --train {out} --out run")


def score(
    *,
    examples: Annotated[Path, Parameter(alias="-e")],
    out: Out,
    signal: SignalName = "span-likelihood",
    reader: str | None = None,
    precision: Precision = "auto",
) -> None:
    """Score each question's passages with a reader; `rag train distill` learns from the scores.

    Run the same command again to continue a killed run where it stopped.

    Args:
        examples: Results of `rag retrieve`, `rag mine`'s or FiD's file.
        out: File for the examples with scores as targets; a report is written beside it.
        signal: attention (generative readers); likelihood (these and language models);
            span-likelihood (extractive); relevance (cross-encoder).
        reader: Reader or cross-encoder; default: the reader in the package.
        precision: Number format in which it computes.
    """
    from rag.rounds.examples import open_judge, score_examples

    report = score_examples(examples, out, open_judge(reader, signal, precision=precision))
    counts = ", ".join(f"{name} {count:,}" for name, count in report["counts"].items())
    say(f"{signal} of {report['reader']['name']}: {counts}")
    say(f"→ {out}\ntrain with it: rag train distill --config distill-small --train {out} --out run")


@with_options(_ROUNDS)
def rounds(
    *,
    recipe: Recipe,
    index: Index,
    questions: Questions,
    out: Out,
    config: Preset = None,
    set_: Assignments = None,
    **settings: Unpack[RoundsOptions],
) -> None:
    """Teach a retriever in rounds of searching, labelling and training.

    Questions and answers are enough. --config and --set are those of `rag train distill` or
    `colbert`. A killed run goes on behind what is finished when the same command is given again.

    Args:
        recipe: distill: a dense retriever learns a reader's scores (DKRR and its kin); colbert: a
            ColBERT model learns which passages hold an answer.
        out: Folder of the run; an unfinished one is resumed.
    """
    from rag.commands import train_rounds

    for name, reading in _READ_BY.items():
        if name in settings and reading != recipe:
            raise ConfigError(
                f"{{{name}}} is not read by the recipe {recipe}",
                hint=f"leave it out, or choose {reading}",
                arguments=(name,),
            )
    rows = train_rounds(
        recipe,
        index,
        questions,
        out,
        config=config,
        training=parse_overrides(set_ or []),
        **settings,
    )
    for row in rows:
        parts = [f"{name} {figure:.1f}" for name, figure in row["figures"].items()]
        parts += [f"{name}: {fact}" for name, fact in row["facts"].items()]
        say(f"round {row['round']}: {', '.join(parts)}")
    say(f"→ {out / 'rounds.json'} names the best round's encoder")


def adapt(
    *,
    index: Index,
    config: Preset = None,
    set_: Assignments = None,
    out: Out,
    questions: PositiveInt = 2000,
    seed: int = DEFAULT_SEED,
) -> None:
    """Adapt an index's encoder to its corpus without labelled questions.

    Questions are made from the index's passages by rules, and the encoder learns from all of them.
    A killed run goes on where it stopped when the same command is given again.

    Args:
        out: Folder of the run; an unfinished one is resumed.
        questions: Number of questions that are made, at least 50.
        seed: Random seed of passages, questions and their wording.
    """
    from rag.adaptation.adapt import adapt as run

    training = parse_overrides(set_ or [])
    finished = run(index, out, config=config, training=training, questions=questions, seed=seed)
    say(f"questions → {out / 'questions.json'}")
    say(f"encoder → {finished}\nuse it: rag index … --encoder {finished}")


def questions(
    *,
    index: Index,
    writer: str,
    out: Out,
    count: PositiveInt = 200,
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
    say(f"{kept[1]:,} questions kept")
    for reason, number in rejected:
        say(f"{number:,} rejected: {reason}")
    say(f"→ {out}\nuse it: rag evaluate --index {index} --questions {out} --out results")


@with_options(OPENING)
def tune(
    what: Literal["confidence"],
    /,
    *,
    index: Index,
    questions: Questions,
    out: Out,
    read: Read = 20,
    limit: Limit = None,
    sample: Sample = None,
    seed: int = DEFAULT_SEED,
    **opening: Unpack[OpenOptions],
) -> None:
    """Fit the reader's confidence to a corpus, from about 50 questions, some of which it does not
    answer.

    Args:
        what: What is fitted.
        out: Folder for the reader with its new confidence.
        seed: Random seed of the sample.
    """
    from rag.eval.confidence_tuning import fit_confidence

    drawn = {"limit": limit, "sample": sample, "seed": seed, "read": read}
    evaluation = load_config(EvaluationSettings, overrides=drawn)
    tuning = fit_confidence(index, questions, out, settings=evaluation, **opening)
    say(f"{tuning.n:,} questions, {tuning.unanswerable:,} without an answer in what was retrieved")
    say(f"ECE before {tuning.ece_before:.3f}, after (cross-validated) {tuning.ece_after:.3f}")
    if not tuning.unanswerable:
        say('"no answer" stays as it was: give questions too that the documents do not answer')
    say(f"reader → {out}\nuse it: --reader {out}")
