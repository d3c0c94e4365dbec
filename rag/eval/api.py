"""Evaluate, compare, choose settings, in one call each: what `rag evaluate` and `rag compare` do."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from rag.config import load_config
from rag.core.errors import ConfigError
from rag.core.types import Hit, Question
from rag.data.questions import draw_sample, read_questions
from rag.eval import runner
from rag.eval.breakdown import TrainingOverlap
from rag.eval.compare import Comparison, compare_evaluations
from rag.eval.fact_tuning import FactTuning, collect_examples, tune_facts, write_tuning
from rag.eval.facts import BOUNDARIES, FactFinder, open_finder
from rag.eval.fusion_tuning import FusionTuning, tune_fusion
from rag.eval.guard import check_selection_split
from rag.eval.report import write_report
from rag.eval.resolve import GoldResolver
from rag.eval.results import Evaluation, load_evaluation, load_evaluations
from rag.eval.settings import EvaluationSettings, QuestionSource
from rag.eval.systems import Paths, Retrieved, RetrieveThenRead
from rag.pipeline import Pipeline
from readers.open import open_reader
from retrievers.hybrid import HybridRetriever

__all__ = ["REPORT_NAME", "choose_facts", "choose_fusion", "compare", "evaluate"]

REPORT_NAME = "report.html"
Questions = str | Path | Iterable[Question]


def evaluate(
    index: str | Path | None = None,
    questions: Questions = (),
    out: str | Path | None = None,
    *,
    retriever: str = "auto",
    fusion: str | None = None,
    rerank: str | None = None,
    encoder: str | None = None,
    reader: str | Literal[False] | None = None,
    precision: str = "auto",
    effort: str | None = None,
    format: str = "auto",
    split: str | None = None,
    train: str | Path | None = None,
    facts: str = "auto",
    sentences: str | Path | None = None,
    command: str = "",
    **settings: Any,
) -> Evaluation:
    """Ask every question, score every answer.

    Args:
        index: a directory written by `rag index`; None with `read="gold"` for sets that quote their passages.
        questions: a file, a data set `hf:owner/name[:config][:split]`, or questions.
        out: result folder, continued if an earlier run stopped in it; by default one that is deleted with the
            object returned.
        retriever, fusion, rerank, encoder, reader, precision, effort: as in `Pipeline.open`; reader False
            retrieves only.
        format: of the question file.
        split: "train", "dev" or "test", if the file name does not say.
        train: training questions, to tell what was seen before.
        facts: supporting facts (profile "hotpot"): "auto", "off", or a file of settings.
        sentences: corpus the index was built from, for exact sentence numbers.
        command: the command line, for the report.
        **settings: fields of `EvaluationSettings`: profile, limit, sample, ks, read_top_k, read, oracle, …

    Returns:
        The figures with their intervals, and where records, predictions and the report page lie.

    Raises:
        ConfigError: a setting is unknown, or two do not fit.
        MismatchedArtifactError: `out` holds results of other settings, questions or another system.

    Example:
        `print(rag.evaluate(index="my-index", questions="dev.jsonl", limit=200).figures["em"])`
    """
    chosen = load_config(EvaluationSettings, overrides=settings)
    finder = None
    if chosen.profile == "hotpot" and reader is not False:
        finder = open_finder(facts, sentences, read_top_k=chosen.read_top_k)
    source = _source(questions, format, split)
    if index is None:
        if chosen.read != "gold" or reader is False:
            raise ConfigError(
                "no index was given", hint="give one, or a reader and read='gold' to read the gold passages"
            )
        opened = open_reader(reader, precision=precision, **({"effort": effort} if effort else {}))
        pipeline = None
        named: dict[str, Any] = {"reader": getattr(opened, "name", type(opened).__name__)}
        system = RetrieveThenRead(_no_search, opened, "", _identity(named, finder))
        asked: Iterable[Question] = _read(questions, format)
        resolver = None
    else:
        pipeline = Pipeline.open(
            index,
            retriever=retriever,
            fusion=fusion,
            rerank=rerank,
            encoder=encoder,
            reader=reader,
            precision=precision,
            effort=effort,
        )
        system = _system(pipeline, finder)
        resolver = GoldResolver(pipeline.index.passages)
        asked = map(resolver, _read(questions, format))
    holder = tempfile.TemporaryDirectory(prefix="rag-evaluation-") if out is None else None
    place = Path(holder.name if holder is not None else str(out))
    runner.evaluate(
        system,
        asked,
        place,
        chosen,
        source=source,
        command=command,
        overlap=TrainingOverlap.from_training(read_questions(train)) if train else None,
        lookup=pipeline.passage if pipeline is not None else None,
        facts=finder,
    )
    notes = []
    if finder is not None and (guessed := finder.boundaries["rule"]):
        notes += [
            f"sentences of {guessed:,} of {finder.boundaries.total():,} supporting passages were cut "
            f"{BOUNDARIES['rule']}",
            "  → give the corpus with --sentences",
        ]
    if resolver is not None and (note := resolver.describe()):
        notes.append(note)
    evaluation = load_evaluation(place, notes=notes, holder=holder)
    write_report([evaluation], place / REPORT_NAME)
    return evaluation


def compare(
    results: Sequence[str | Path | Evaluation],
    figures: Sequence[str] | None = None,
    *,
    all_pairs: bool = False,
    report: str | Path | None = None,
) -> list[Comparison]:
    """Compare systems on the same questions: paired tests, Holm's correction, wins, ties and losses.

    Args:
        results: folders written by `evaluate`, or what it returned; the others are compared with the first.
        figures: names of figures; the main ones by default.
        all_pairs: compare every pair instead.
        report: write a side-by-side HTML page here.

    Raises:
        ConfigError: fewer than two results, or one lacks a figure.
        MismatchedArtifactError: they were not run on the same questions.

    Example:
        `for row in rag.compare(["runs/bm25", "runs/hybrid"]): print(row.figure, row.result.difference)`
    """
    evaluations = load_evaluations(
        [result.place if isinstance(result, Evaluation) else result for result in results]
    )
    compared = compare_evaluations(evaluations, figures, all_pairs=all_pairs)
    if report is not None:
        write_report(evaluations, report)
    return compared


def choose_facts(
    index: str | Path,
    questions: str,
    out: str | Path,
    *,
    facts: str = "auto",
    sentences: str | Path | None = None,
    format: str = "auto",
    split: str | None = None,
    settings: EvaluationSettings,
    **opening: Any,
) -> tuple[FactTuning, Path]:
    """Choose the settings of supporting facts on training questions and write them into `out`.

    Raises:
        ConfigError: the questions are a test set, or facts are off.
    """
    finder = open_finder(facts, sentences, read_top_k=settings.read_top_k)
    if finder is None or opening.get("reader") is False:
        raise ConfigError(
            "--tune-facts needs a reader and facts", hint="leave out --facts off and --read-top-k 0"
        )
    source = QuestionSource.of_file(questions, split=split, format=format)
    check_selection_split(source.path, source.split)
    system = _system(Pipeline.open(index, **opening), finder)
    examples = collect_examples(system, read_questions(questions, format=format), finder, settings)
    tuning = tune_facts(examples, finder.settings, seed=settings.seed)
    return tuning, write_tuning(tuning, out, source, system.identity)


def choose_fusion(
    index: str | Path,
    questions: str,
    out: str | Path,
    *,
    format: str = "auto",
    split: str | None = None,
    settings: EvaluationSettings,
    **opening: Any,
) -> FusionTuning:
    """Compare fusion settings on training questions and write `fusion.json` into `out`.

    Raises:
        ConfigError: the questions are a test set, or the retriever is not a hybrid one.
    """
    source = QuestionSource.of_file(questions, split=split, format=format)
    check_selection_split(source.path, source.split)
    pipeline = Pipeline.open(index, **{**opening, "reader": False, "rerank": None})
    if not isinstance(pipeline.retriever, HybridRetriever):
        raise ConfigError(
            "--tune-fusion needs hybrid retrieval", hint="build the index with `--retriever hybrid`"
        )
    given = list(islice(read_questions(questions, format=format), settings.limit))
    if settings.sample is not None:
        given = list(draw_sample(given, settings.sample, settings.seed))
    resolver = GoldResolver(pipeline.index.passages)
    resolved = [resolver(question) for question in given]
    tuning = tune_fusion(pipeline.retriever, pipeline.index.passages, resolved, ks=settings.ks)
    place = Path(out)
    place.mkdir(parents=True, exist_ok=True)
    tuning.write(place / "fusion.json")
    return tuning


def _read(questions: Questions, format: str) -> Iterable[Question]:
    return read_questions(questions, format=format) if isinstance(questions, str | Path) else questions


def _source(questions: Questions, format: str, split: str | None) -> QuestionSource:
    if isinstance(questions, (str, Path)):
        return QuestionSource.of_file(questions, split=split, format=format)
    if not isinstance(questions, list | tuple):
        raise ConfigError("questions are read more than once", hint="give a file or a list, no iterator")
    return QuestionSource.of_questions(questions, split=split)


def _system(pipeline: Pipeline, finder: FactFinder | None) -> RetrieveThenRead:
    identity = _identity(pipeline.identity, finder)
    search_both = getattr(pipeline.retriever, "search_both", None)  # of retrievers that find paths
    passages = pipeline.index.passages

    def fetch(hits: Sequence[Hit]) -> Retrieved:
        return list(zip(hits, passages.get_many([hit.row for hit in hits]), strict=True))

    def search_paths(questions: Sequence[str], top_k: int) -> tuple[list[Retrieved], list[Paths]]:
        assert search_both is not None
        found, paths = search_both(questions, top_k)
        return [fetch(hits) for hits in found], [[fetch(path.hits) for path in row] for row in paths]

    return RetrieveThenRead(
        pipeline.retrieve,
        pipeline.reader,
        pipeline.index_version,
        identity,
        search_paths if search_both is not None else None,
    )


def _identity(named: Mapping[str, Any], finder: FactFinder | None) -> dict[str, Any]:
    return {**named, **({"facts": finder.identity} if finder is not None else {})}


def _no_search(questions: Sequence[str], top_k: int) -> Any:
    raise ConfigError("there is no index to search", hint="give one, or read the gold passages")
