"""Evaluate, compare, or fit a confidence with one function call each: the Python side of the commands."""

import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from rag.config import load_config
from rag.core.arguments import checked
from rag.core.errors import ConfigError
from rag.core.files import atomic_write_text, check_target
from rag.core.log import get_logger
from rag.core.types import Question
from rag.data.questions import draw_sample, questions_from, read_questions
from rag.eval import runner
from rag.eval.breakdown import TrainingOverlap
from rag.eval.compare import Comparison, compare_evaluations, compare_pooled, markdown_tables
from rag.eval.confidence_tuning import ConfidenceTuning, tune_confidence
from rag.eval.facts import BOUNDARIES, FactFinder, open_finder
from rag.eval.gold import GoldResolver
from rag.eval.guard import check_selection_split
from rag.eval.report import write_report
from rag.eval.report_labels import main_figures
from rag.eval.results import Evaluation, load_evaluation, load_evaluations
from rag.eval.settings import EvaluationSettings
from rag.eval.source import QuestionSource
from rag.eval.systems import GoldReader
from rag.open_settings import OpenSettings
from rag.pipeline import Pipeline
from readers.extractive.files import check_calibrated, save_calibrated
from readers.extractive.reader import ExtractiveReader
from readers.open import open_reader

REPORT_NAME = "report.html"
Questions = Any  # a file, or what `questions_from` takes
_log = get_logger(__name__)
_SHOWN_FIELDS = 6


@checked
def evaluate(
    index: str | Path | None = None,
    questions: Questions = (),
    out: str | Path | None = None,
    *,
    reader: Any = None,
    reads: bool = True,
    format: str = "auto",
    split: str | None = None,
    train: str | Path | None = None,
    facts: str | Path = "auto",
    sentences: str | Path | None = None,
    command: str = "",
    **options: Any,
) -> Evaluation:
    """Ask every question, score every answer.

    Args:
        index: a directory written by `rag index`; None with `gold=True` for sets that quote their passages.
        questions: a file, a data set `hf:owner/name[:config][:split]`, a list of `Question` records or of
            mappings with the fields of a file, or a DataFrame of such rows.
        out: result folder, continued if an earlier run stopped in it; by default one that is deleted with the
            object returned.
        reader, reads: as in `Pipeline.open`; without reading, only retrieval is scored.
        format: format of the question file.
        split: "train", "dev" or "test", if the file name does not say.
        train: training questions, to report figures by overlap with them.
        facts: supporting facts (profile "hotpot"): "auto", "off", or a file of settings.
        sentences: corpus the index was built from, for exact sentence numbers.
        command: the command line, for the report.
        **options: further fields of `OpenSettings` (retriever, fusion, index_encoder, …), and fields of
            `EvaluationSettings` (profile, limit, sample, ks, read, gold, oracle, …).

    Returns:
        The figures with their intervals, and the folder of records, predictions and report.

    Raises:
        ConfigError: a setting is unknown, or two contradict each other.
        MismatchedArtifactError: `out` holds results of other settings, questions or another system.

    Example:
        `print(rag.evaluate(index="my-index", questions="dev.jsonl", limit=200).figures["em"])`
    """
    opening = {name: options.pop(name) for name in OpenSettings.model_fields if name in options}
    chosen = load_config(EvaluationSettings, overrides=options)
    if not isinstance(questions, str | Path):
        questions = questions_from(questions)
    finder, answers = None, reads and reader is not False
    if chosen.profile == "hotpot" and answers:
        finder = open_finder(facts, sentences, read=chosen.read)
    source = _source(questions, format, split)
    unread: Counter[str] = Counter()
    asked: Iterable[Question]
    if isinstance(questions, str | Path):
        stream = _warned(read_questions(questions, format=format), chosen.by, reads=answers)
        asked = _counting(stream, unread, chosen.by)
    else:
        asked = _warned(questions, reads=answers)
    system: Pipeline | GoldReader
    lookup = resolver = None
    if index is not None:
        system = Pipeline.open(index, reader=reader, reads=reads, **opening)
        resolver = GoldResolver(system.index.passages)
        asked, lookup = map(resolver, asked), system.passage
    elif chosen.gold and answers:
        given = {name: value for name in ("precision", "effort") if (value := opening.get(name))}
        system = GoldReader(open_reader(reader or None, **given))
    else:
        raise ConfigError(
            "no index was given", hint="give one, or a reader and gold=True to read the gold passages"
        )
    holder = tempfile.TemporaryDirectory(prefix="rag-evaluation-") if out is None else None
    place = Path(holder.name if holder is not None else str(out))
    runner.evaluate(
        system,
        asked,
        place,
        chosen,
        source=source,
        identity=_identity(system, finder),
        command=command,
        overlap=TrainingOverlap.from_training(read_questions(train)) if train else None,
        lookup=lookup,
        facts=finder,
    )
    found = load_evaluation(place)
    notes = []
    if finder is not None and (guessed := finder.boundaries["rule"]):
        notes += [
            f"sentences of {guessed:,} of {finder.boundaries.total():,} supporting passages were cut "
            f"{BOUNDARIES['rule']}",
            "  → give the corpus with --sentences",
        ]
    if resolver is not None:
        notes += resolver.notes()
    judged = {name: figure.n for name, figure in found.figures.items()}
    if finder is not None and (unmarked := judged.get("em", 0) - judged.get("sp_f1", 0)):
        notes += [f"{unmarked:,} questions mark no sentences: figures of supporting facts leave them out"]
    if answers and (failures := [failure for one in found.records() if (failure := one.get("failure"))]):
        notes += [f"{len(failures):,} questions could not be read and count as unanswered: {failures[0]}"]
    if unread:
        listed = [f"{name} ({count:,} questions)" for name, count in unread.most_common(_SHOWN_FIELDS)]
        notes += [f"fields of the questions that are not read: {', '.join(listed)}"]
    if not main_figures(judged):
        n = found.metrics["n"]
        notes += [
            f"no figures: none of {n:,} questions has answers, or gold passages in this index",
            "  → give them with the questions, in fields called answers and gold_passage_ids",
        ]
    write_report([found], place / REPORT_NAME)
    return replace(found, notes=tuple(notes), holder=holder)


def evaluate_fusions(
    index: str | Path | None, questions: Questions, out: str | Path, fusions: Sequence[str], **options: Any
) -> tuple[list[Evaluation], list[Comparison]]:
    """Evaluate fusions of hybrid retrieval, each in a folder of `out`, and compare them with the first.

    Args:
        fusions: settings as `Pipeline.open` takes them, such as "std:1,0.6".
        options: further arguments of `evaluate`.
    """
    places = [Path(out) / re.sub(r"[^\w.,-]+", "-", fusion) for fusion in fusions]
    evaluations = [
        evaluate(index, questions, place, fusion=fusion, **options)
        for place, fusion in zip(places, fusions, strict=True)
    ]
    return evaluations, compare(evaluations)


@checked
def compare(
    results: Sequence[str | Path | Evaluation],
    figures: str | Sequence[str] | None = None,
    *,
    all_pairs: bool = False,
    margin: float | None = None,
    report: str | Path | None = None,
    markdown: str | Path | None = None,
) -> list[Comparison]:
    """Compare systems on the same questions: paired tests, Holm's correction, wins, ties and losses.

    Args:
        results: folders written by `evaluate`, or its return values; the others are compared with the first.
        figures: names of figures; the main ones by default.
        all_pairs: compare every pair instead.
        margin: test whether the second of each pair of results loses less than this to the first, pooled
            over the pairs; see `compare_pooled`.
        report: write a side-by-side HTML page here.
        markdown: write tables of the figures and of the comparisons here, in Markdown.

    Raises:
        ConfigError: fewer than two results, an odd number with a margin, or one lacks a figure.
        MismatchedArtifactError: they were not run on the same questions.

    Example:
        `for row in rag.compare(["runs/bm25", "runs/hybrid"]): print(row.figure, row.result.difference)`
    """
    if isinstance(results, str | Path | Evaluation):
        raise ConfigError("results is a single folder, expected a list", hint="give two or more")
    figures = [figures] if isinstance(figures, str) else figures
    for target in (report, markdown):
        if target is not None:
            check_target(target)
    evaluations = load_evaluations(
        [result.place if isinstance(result, Evaluation) else result for result in results]
    )
    if margin is not None and all_pairs:
        raise ConfigError(
            "a margin compares results pair by pair already", hint="leave out --all-pairs or --margin"
        )
    if margin is None:
        compared = compare_evaluations(evaluations, figures, all_pairs=all_pairs)
    else:
        compared = compare_pooled(evaluations, margin, figures)
    if report is not None:
        write_report(evaluations, report)
    if markdown is not None:
        atomic_write_text(markdown, markdown_tables(evaluations, compared))
    return compared


def fit_confidence(
    index: str | Path,
    questions: str,
    out: str | Path,
    *,
    reader: str | None = None,
    format: str = "auto",
    settings: EvaluationSettings,
    **opening: Any,
) -> ConfidenceTuning:
    """Fit the confidence of an extractive reader to a corpus and write the reader with it into `out`.

    Raises:
        ConfigError: the questions are a test set, `reader` is not extractive, or `out` is not for it.
    """
    check_selection_split(QuestionSource.of_file(questions, format=format).path)
    pipeline = Pipeline.open(index, reader=reader, **opening)
    if not isinstance(pipeline.reader, ExtractiveReader):
        raise ConfigError(
            f"{reader} is a {type(pipeline.reader).__name__}, expected an extractive reader",
            hint="leave --reader out, or give a folder of `rag train reader`",
        )
    check_calibrated(reader, Path(out))
    given = _drawn(questions, format, settings)
    tuning = tune_confidence(pipeline, given, pipeline.reader.calibration, settings)
    save_calibrated(reader, Path(out), tuning.calibration)
    return tuning


def _drawn(questions: str, format: str, settings: EvaluationSettings) -> list[Question]:
    """The first questions of a file, or a sample of these."""
    given = list(islice(read_questions(questions, format=format), settings.limit))
    return given if settings.sample is None else draw_sample(given, settings.sample, settings.seed)


def _warned(
    questions: Iterable[Question], read: Sequence[str] = (), *, reads: bool = False
) -> Iterator[Question]:
    """The questions; a warning before the first is asked if nothing can be judged in the first hundred, or if
    answers to them would be read for nothing.
    """
    stream = iter(questions)
    first = list(islice(stream, 100))
    if first and not any(one.answers or one.gold_passage_ids or one.gold for one in first):
        fields = sorted({name for one in first for name in one.meta if name not in read})
        _log.warning(
            "the first %d questions have neither answers nor gold passages, and cannot be judged%s",
            len(first), f"; fields that are not read: {', '.join(fields)}" if fields else "",
        )  # fmt: skip
    elif first and reads and not any(one.answers for one in first):
        _log.warning(
            "the first %d questions have gold passages and no answers; unless they are to be unanswerable, "
            "--read 0 gives the same figures much faster",
            len(first),
        )
    return chain(first, stream)


def _counting(questions: Iterable[Question], unread: Counter[str], read: Sequence[str]) -> Iterator[Question]:
    for question in questions:
        unread.update(name for name in question.meta if name not in read)
        yield question


def _source(questions: Questions, format: str, split: str | None) -> QuestionSource:
    if isinstance(questions, (str, Path)):
        return QuestionSource.of_file(questions, split=split, format=format)
    return QuestionSource.of_questions(list(questions), split=split)


def _identity(system: Pipeline | GoldReader, finder: FactFinder | None) -> dict[str, Any]:
    return {**system.identity, **({"facts": finder.identity} if finder is not None else {})}
