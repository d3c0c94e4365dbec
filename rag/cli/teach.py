"""What teaches beside `rag train`: mining, scores, rounds, adaptation, confidence."""

from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Unpack

from cyclopts import Parameter
from cyclopts.types import PositiveInt
from cyclopts.validators import Number

from rag.cli.options import (
    OPENING,
    Assignments,
    Index,
    Limit,
    Out,
    Preset,
    Questions,
    options_of,
    with_options,
    without,
)
from rag.cli.show import say
from rag.config import DEFAULT_SEED, load_config, parse_overrides
from rag.core.errors import ConfigError
from rag.core.files import check_target
from rag.eval.settings import EvaluationSettings
from rag.opening import Precision
from rag.options import MiningOptions, OpenOptions
from rag.rounds.config import RoundsConfig, RoundsOptions, SignalName
from retrievers.negatives.settings import MiningSettings

if TYPE_CHECKING:
    from rag.core.types import Given, Promise
    from rag.metrics.selective import Limits

Recipe = Literal["distill", "colbert"]
_ROUNDS = without(options_of(RoundsConfig, panel="Rounds"), "out", "index", "questions", "method")
# Settings of rounds that only one recipe reads.
_RECIPE_OF: dict[str, Recipe] = {
    "reader": "distill",
    "signal": "distill",
    "positives": "colbert",
    "negatives": "colbert",
}
# What a promise does not cover.
_NOT_COVERED = {
    "answers": "ask for more than a short answer",
    "verdicts": "have no label, or are no claims",
}
_BETWEEN_0_AND_1 = Number(gt=0, lt=1)
Share = Annotated[float | None, Parameter(validator=_BETWEEN_0_AND_1)]
Sample = Annotated[PositiveInt | None, Parameter(help="A random sample of so many.")]


class _MineOptions(MiningOptions, total=False):
    index_encoder: str


@with_options(
    {"index_encoder": OPENING["index_encoder"]}, options_of(MiningSettings, panel="Selection")
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
        merge: Training file of an earlier round, or with negatives of its own, to be merged with the
            result.
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
    from rag.rounds.examples import score_examples
    from rag.rounds.judges import open_judge

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

    for name, only_recipe in _RECIPE_OF.items():
        if name in settings and only_recipe != recipe:
            raise ConfigError(
                f"{{{name}}} is not read by the recipe {recipe}",
                hint=f"leave it out, or choose {only_recipe}",
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
        seed=seed,
    )
    say(f"{figures['kept']:,} questions kept")
    for reason, number in figures.items():
        if reason != "kept":
            say(f"{number:,} rejected: {reason}")
    say(f"→ {out}\nuse it: rag evaluate --index {index} --questions {out} --out results")


@with_options(OPENING)
def tune(
    what: Literal["confidence", "verdicts"],
    /,
    *,
    index: Index,
    questions: Annotated[Questions, Parameter(alias=("-q", "--claims"))],
    out: Annotated[Path | None, Parameter(alias="-o")] = None,
    max_error: Share = None,
    confidence: Annotated[float, Parameter(validator=_BETWEEN_0_AND_1)] = 0.95,
    max_false_answers: Share = None,
    read: Annotated[PositiveInt | None, Parameter(alias="--top-k")] = None,
    limit: Limit = None,
    sample: Sample = None,
    seed: int = DEFAULT_SEED,
    **opening: Unpack[OpenOptions],
) -> None:
    """Fit the reader's confidence to a corpus, from about 50 questions, some of which it does not
    answer.

    With --max-error also choose the confidence below which no answer is given, so that an error
    rate can be promised. The promise is stored in the folder of the index. A quarter of the
    questions then fits the confidence, the others choose the threshold; without --out the
    confidence stays as it is, and all do.

    `rag tune verdicts` promises an error rate of verdicts on claims, from a file of labelled claims
    (--claims) in place of questions.

    Args:
        what: What is fitted.
        out: Folder for the reader with its new confidence.
        max_error: Promise that at most this share of the given answers is wrong, such as 0.1.
        confidence: Probability that the promise holds, over the draw of the questions.
        max_false_answers: Promise also that at most this share of the questions without an answer
            gets one.
        read: Passages to read for each question (default 20), or to judge each claim by (5).
        seed: Random seed of the sample and of the split.
    """
    from rag.metrics.selective import Limits

    limits = None
    if max_error is not None:
        limits = Limits(max_error, confidence, max_false_answers)
    _check_tuning(what, out, max_error, max_false_answers)
    if out is not None:
        check_target(out, folder=True, is_new=True)
    default_read = {"confidence": 20, "verdicts": 5}[what]
    evaluation = load_config(
        EvaluationSettings,
        overrides={"limit": limit, "sample": sample, "seed": seed, "read": read or default_read},
    )
    if what == "verdicts":
        assert limits is not None  # else refused above
        _promise_verdicts(index, questions, limits, evaluation, opening)
        return
    _tune_answers(index, questions, out, limits, evaluation, opening)


def _tune_answers(
    index: str,
    questions: str,
    out: Path | None,
    limits: "Limits | None",
    evaluation: EvaluationSettings,
    opening: OpenOptions,
) -> None:
    """Fit the confidence to `out`, and promise the limits, each if it is given; print what comes of
    it.
    """
    from rag.core.log import text_table
    from rag.eval.confidence_tuning import draw_questions, fit_confidence
    from rag.eval.promise_fitting import fit_promise, split_questions

    fitted = judged = draw_questions(questions, evaluation)
    if out is not None:
        if limits is not None:
            fitted, judged = split_questions(fitted, evaluation.seed)
        tuning = fit_confidence(index, fitted, out, settings=evaluation, **opening)
        say(
            f"{tuning.n:,} questions, {tuning.unanswerable:,} without an answer in what was retrieved"
        )
        say(f"ECE before {tuning.ece_before:.3f}, after (cross-validated) {tuning.ece_after:.3f}")
        columns = ["if given from", "answered", "right of these", "unanswerable refused"]
        rows = []
        for point in tuning.curve:
            shares = (point.given, point.right, point.refused)
            cells = ["–" if isnan(share) else f"{share:.0%}" for share in shares]
            rows.append([f"{point.threshold:.1f}", *cells])
        say("\n".join(text_table(columns, rows)))
        if not tuning.unanswerable:
            say('"no answer" stays as it was: give questions too that the documents do not answer')
        say(f"reader → {out}\nuse it: --reader {out}")
        # What is promised holds for the confidence that was just fitted.
        opening["reader"] = out
    if limits is not None:
        _say_needed(limits, "answers")
        promise = fit_promise(index, judged, limits, settings=evaluation, **opening)
        _say_promise(index, promise, "answers", len(judged))


def _check_tuning(
    what: str, out: Path | None, max_error: float | None, max_false_answers: float | None
) -> None:
    """Refuse options that do not fit together."""
    if what == "verdicts" and (out is not None or max_false_answers is not None):
        raise ConfigError(
            "{out} and {max_false_answers} belong to answers, not to verdicts",
            hint="leave them out",
            arguments=("out", "max_false_answers"),
        )
    if max_error is None and (out is None or max_false_answers is not None):
        raise ConfigError(
            "{max_error} is missing, without which no rate is promised",
            hint="give {max_error} to promise an error rate, or {out} alone to fit the confidence",
            arguments=("max_error", "out"),
        )


def _promise_verdicts(
    index: str,
    claim_file: str,
    limits: "Limits",
    evaluation: EvaluationSettings,
    opening: OpenOptions,
) -> None:
    """Promise the limits of verdicts on claims, and print what that needs and gives."""
    from rag.data.claims import read_claims
    from rag.eval.promise_fitting import fit_verdict_promise
    from rag.eval.source import check_selection_split

    check_selection_split(claim_file)
    claims = list(evaluation.draw(read_claims(claim_file)))
    _say_needed(limits, "verdicts")
    promise = fit_verdict_promise(index, claims, limits, top_k=evaluation.read, **opening)
    _say_promise(index, promise, "verdicts", len(claims))


def _say_needed(limits: "Limits", given: "Given") -> None:
    """Print how many answers, or verdicts, a promise needs."""
    from rag.core.log import text_table
    from rag.metrics.selective import needed_sample

    rows = []
    for wrong in (0, 1, 2, 5, 10):
        needed = needed_sample(wrong, limits.max_error, limits.confidence)
        rows.append([f"{wrong}", f"{needed:,}"])
    say(f"at most {limits.max_error:.3g} wrong, with confidence {limits.confidence:.3g}, needs:")
    say("\n".join(text_table([f"wrong {given}", f"given {given}"], rows)))


def _say_promise(index: str, promise: "Promise", given: "Given", n_asked: int) -> None:
    """Print a promise, and how many questions, or claims, it does not cover."""
    say(f"{promise.in_words(given)}: those with a confidence of at least {promise.threshold:.3f}")
    if promise.n < n_asked:
        say(f"{n_asked - promise.n:,} further ones {_NOT_COVERED[given]}")
    say(f"→ {index}; another version of the index, model or setting voids the promise")
