"""Evaluate and compare with one function call each: the Python side of the commands."""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from indexers.index import Index
from rag.config import load_config
from rag.core.errors import ConfigError, DataError, MismatchedArtifactError
from rag.core.files import atomic_write_text, check_target
from rag.core.types import Question
from rag.data.questions import questions_from, read_questions
from rag.eval import runner
from rag.eval.compare import Comparison, compare_evaluations
from rag.eval.figures import main_figures
from rag.eval.gold import GoldResolver
from rag.eval.report import render_report
from rag.eval.results import Evaluation, load_evaluation, load_evaluations
from rag.eval.settings import EvaluationSettings
from rag.eval.source import QuestionSource
from rag.eval.systems import System, gold_system, open_results, system_of
from rag.opening import OpenSettings, resolve_reader
from rag.pipeline import Pipeline

REPORT_NAME = "report.html"
Questions = Any  # a file, or what `questions_from` takes


def evaluate(
    index: Any = None,
    questions: Questions = (),
    out: str | Path | None = None,
    *,
    run: str | Path | None = None,
    reads: bool = True,
    split: str | None = None,
    command: str = "",
    **options: Any,
) -> Evaluation:
    """Ask every question, score every answer.

    Args:
        index: a directory written by `rag index`, an open `Pipeline`, or your own object with the
            methods of `rag.eval.systems.AnswersQuestions`; None with `run`, or with `gold=True` for
            sets that quote their passages.
        questions: a file, a data set `hf:owner/name[[:config]:split]` or `irds:beir/scifact/test`,
            a list of `Question` records or of mappings with the fields of a file, or a DataFrame of
            such rows.
        out: result folder, continued if an earlier run stopped in it; by default one that is
            deleted with the object returned.
        run: search results to be scored, in place of a search: a TREC run or DPR's JSON.
        reads: False only searches, and so does `reader=False`.
        split: "train", "dev" or "test", if the file name does not say.
        command: the command line, for the report.
        **options: fields of `OpenSettings` (retriever, reader, fusion, index_encoder, …), which
            also take your own objects, and of `EvaluationSettings` (profile, limit, sample, ks,
            read, gold, …).

    Returns:
        The figures with their intervals, and the folder of records, predictions and report.

    Example:
        `print(rag.evaluate(index="my-index", questions="dev.jsonl", limit=200).figures["em"])`
    """
    opening = {name: options.pop(name) for name in OpenSettings.model_fields if name in options}
    reads = reads and opening.get("reader") is not False
    own = [
        name
        for name, value in opening.items()
        if not isinstance(value, str | Path | int | float | None)
    ]
    if own and out is not None and Path(out).exists() and any(Path(out).iterdir()):
        raise MismatchedArtifactError(
            f"{out} holds results, and nothing tells whether they are those of the object given as {own[0]}",
            hint="choose another out",
        )
    settings = load_config(EvaluationSettings, overrides=options)
    if isinstance(questions, str | Path):
        source = QuestionSource.of_file(questions, split=split)
        stream = read_questions(questions)
    else:
        listed = questions_from(questions)
        source, stream = QuestionSource.of_questions(listed, split=split), iter(listed)
    if out is not None:  # refused before models are loaded
        check_target(out, folder=True)
        if run is None and Path(out).exists():
            runner.check_folder(Path(out), runner.stated(settings, source))
    stream = _refuse_unjudged(stream)
    if run is not None:
        opened = Index.open(index) if isinstance(index, str | Path) else index
        opened = opened.index if isinstance(opened, Pipeline) else opened
        system, depth = open_results(Path(run), None if opened is None else opened.passages.find)
        ks = tuple(k for k in settings.ks if k <= depth) or (depth,)
        settings = settings.replaced(ks=ks, read=min(settings.read, depth))
        if opened is None and settings.profile == "kilt":
            raise ConfigError(
                "KILT's figures are of pages, and a run without its index names passages alone",
                hint="give the index that was searched",
            )
        if opened is None and ".json" not in Path(run).suffixes:  # ids alone can be judged
            stream = (replace(question, answers=()) for question in stream)
    else:
        system, opened = _open_system(index, opening, settings, reads=reads)
    resolver = None
    if opened is not None:
        resolver = GoldResolver(opened.passages, opened.documents)
        system = replace(system, document_of=opened.document_of)
    holder = tempfile.TemporaryDirectory(prefix="rag-evaluation-") if out is None else None
    place = Path(holder.name if holder is not None else str(out))
    resolved = stream if resolver is None else map(resolver, stream)
    runner.evaluate(system, resolved, place, settings, source=source, command=command)
    evaluation = load_evaluation(place)
    notes = [*([] if resolver is None else resolver.notes()), *_notes(evaluation)]
    atomic_write_text(place / REPORT_NAME, render_report([evaluation]))
    return replace(evaluation, notes=tuple(notes), holder=holder)


def _refuse_unjudged(questions: Iterator[Question]) -> Iterator[Question]:
    """The same questions; a DataError if none of them says what is right."""
    first = list[Question]()
    for question in questions:
        first.append(question)
        has_gold = question.gold_passage_ids or question.gold or question.provenance
        if question.answers or has_gold or question.is_impossible:
            return chain(first, questions)
    hint = "give them in fields called answers and gold_passage_ids"
    raise DataError("no question has answers or gold passages", hint=hint)


def _open_system(
    index: Any, opening: dict[str, Any], settings: EvaluationSettings, *, reads: bool
) -> tuple[System, Index | None]:
    """What is evaluated, and its index."""
    if isinstance(index, str | Path | Index):
        index = Pipeline.open(index, reads=reads, **opening)
    if index is not None:
        opened = index.index if isinstance(index, Pipeline) else None
        if not settings.gold or index.reader is None:
            return system_of(index, is_checked=isinstance(index, Pipeline)), opened
        lookup = None if opened is None else opened.passages.find
        return gold_system(index.reader, lookup, index.identity), opened
    if settings.gold and reads:
        opening_settings = load_config(OpenSettings, overrides=opening)
        reader = resolve_reader(
            opening_settings.reader, opening_settings.precision, opening_settings.effort
        )
        assert reader is not None, "only reader=False opens none"
        return gold_system(reader, None), None
    raise ConfigError(
        "no index was given",
        hint="give one, or results to be scored as run, or a reader and gold=True to read gold passages",
    )


def _notes(evaluation: Evaluation) -> list[str]:
    """Warnings about the figures."""
    figures, notes = evaluation.figures, []
    outcomes = [(record.get("failure"), not record["hits"]) for record in evaluation.records()]
    if failures := [failure for failure, _ in outcomes if failure]:
        notes += [
            f"{len(failures):,} questions could not be read and count as unanswered: {failures[0]} "
            "(the same evaluation asks them again)"
        ]
    if empty := sum(has_no_hits for _, has_no_hits in outcomes):
        notes += [f"{empty:,} questions have no results at all, and count as not found"]
    if not main_figures(figures):
        notes += ["no figures: no question has gold passages in this index"]
    return notes


def compare(
    results: Sequence[str | Path | Evaluation],
    *,
    all_pairs: bool = False,
    report: str | Path | None = None,
) -> list[Comparison]:
    """Compare systems on the same questions: paired tests, Holm's correction, wins, ties and
    losses.

    Args:
        results: folders written by `evaluate`, or its return values; the others are compared with
            the first.
        all_pairs: compare every pair instead.
        report: write a side-by-side HTML page here.

    Example:
        `for row in rag.compare(["runs/bm25", "runs/hybrid"]): print(row.figure,
        row.result.difference)`
    """
    if isinstance(results, str | Path | Evaluation):
        raise ConfigError("results is a single folder, expected a list", hint="give two or more")
    if report is not None:
        check_target(report)
    evaluations = load_evaluations(
        [result.place if isinstance(result, Evaluation) else result for result in results]
    )
    compared = compare_evaluations(evaluations, all_pairs=all_pairs)
    if report is not None:
        atomic_write_text(report, render_report(evaluations))
    return compared
