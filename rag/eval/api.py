"""Evaluate and compare with one function call each: the Python side of the commands."""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Unpack, cast

from indexers.index import Index
from rag.config import load_config
from rag.core.errors import ConfigError, DataError, MismatchedArtifactError
from rag.core.files import atomic_write_text, check_target
from rag.core.log import get_logger
from rag.core.types import Question
from rag.data.claims import read_claims
from rag.data.questions import questions_from, read_questions
from rag.eval import runner
from rag.eval.claims import (
    READ,
    ClaimSystem,
    evaluate_claims,
    system_with_evidence,
    system_with_search,
)
from rag.eval.compare import Comparison, compare_evaluations
from rag.eval.gold import gold_keys
from rag.eval.report import render_report
from rag.eval.results import Evaluation, load_evaluation, load_evaluations
from rag.eval.settings import EvaluationSettings
from rag.eval.source import QuestionSource
from rag.eval.systems import (
    AnswersQuestions,
    System,
    gold_system,
    has_texts,
    open_results,
    system_of,
)
from rag.opening import OpenSettings, resolve_reader
from rag.options import OpenOptions, ScoringOptions
from rag.pipeline import Pipeline
from rag.policies import Policy

REPORT_NAME = "report.html"
Evaluated = str | Path | Index | AnswersQuestions | None


def evaluate(
    index: Evaluated = None,
    questions: object = None,
    out: str | Path | None = None,
    *,
    run: str | Path | None = None,
    claims: str | Path | None = None,
    policy: Policy | None = None,
    reads: bool = True,
    split: str | None = None,
    command: str = "",
    **options: Unpack[ScoringOptions],
) -> Evaluation:
    """Ask every question, score every answer; or judge every claim, score every verdict.

    Args:
        index: a directory written by `rag index`, an open `Pipeline`, or your own object with the
            methods of `rag.eval.systems.AnswersQuestions`; None with `run`, or with `gold=True` for
            sets that quote their passages.
        questions: a file, a data set `hf:owner/name[[:config]:split]` or `irds:beir/scifact/test`,
            a list of `Question` records or of mappings with the fields of a file, or a DataFrame of
            such rows.
        out: result folder, continued if an earlier run stopped in it; by default one that is
            deleted with the object returned.
        run: search results to be scored, in place of a search: a TREC run, DPR's JSON, or others
            (see `rag docs evaluating`).
        claims: a file of claims, in place of questions, see `rag.data.claims.read_claims`; with
            `gold=True` they are judged by the evidence that they bring.
        policy: decides when to search and read; by default, search once and read.
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
    scoring: dict[str, object] = {**options}
    opening = {name: scoring.pop(name) for name in OpenSettings.model_fields if name in scoring}
    _refuse_objects({**opening, "policy": policy}, out)
    opening_options = cast("OpenOptions", opening)
    if claims is not None:
        is_asked = any(given is not None for given in (run, questions, policy))
        if is_asked or not reads:
            what = "claims are judged, not only searched for"
            hint = "read 1 passage or more, and leave {run}, {questions} and {policy} out"
            raise ConfigError(what, hint=hint, arguments=["run", "questions", "policy"])
        settings = load_config(EvaluationSettings, overrides={"read": READ, **scoring})
        source = QuestionSource.of_file(claims, split=split)
        _check_out(out, settings, source)
        judge = partial(
            evaluate_claims,
            _claim_system(index, opening_options, settings),
            read_claims(claims),
            settings=settings,
            source=source,
            command=command,
        )
        return _evaluation(out, judge)
    settings = load_config(EvaluationSettings, overrides=scoring)
    source, stream = _read(questions, split)
    if run is None:
        _check_out(out, settings, source)
    if run is not None or not isinstance(index, str | Path | Index | None):
        _refuse_unused(opening)
    stream = _refuse_unjudged(stream)
    if run is None:
        reads = reads and opening.get("reader") is not False
        system, opened = _open_system(index, opening_options, settings, reads=reads)
    else:
        opened = _index_of(index)
        system, settings = _open_run(Path(run), opened, settings)
        if opened is None and not has_texts(Path(run)):
            stream = _judged_by_id(stream)
    if policy is not None:
        system = _with_policy(system, policy)
    ask = partial(
        runner.run_evaluation,
        system,
        stream,
        settings=settings,
        source=source,
        command=command,
        index=opened,
    )
    return _evaluation(out, ask)


def _refuse_unused(opening: Mapping[str, object]) -> None:
    """Refuse what says how to search and read, where search results or what is open are scored."""
    given = [name for name, value in opening.items() if value not in (None, False)]
    if given:
        raise ConfigError(
            f"{', '.join(given)} would change nothing: a {{run}} is not searched for, and an open {{index}} "
            "searches and reads as it was opened",
            hint="leave these out, or give the folder of an index without {run}",
            arguments=["run", "index"],
        )


def _judged_by_id(questions: Iterable[Question]) -> Iterator[Question]:
    """The questions without their answers, for results of which the ids alone are known.

    Raises:
        DataError: a question names its gold passages by titles.
    """
    for question in questions:
        if gold_keys(question)[0] == "title":
            raise DataError(
                f"question {question.id!r} names its gold passages by their titles, and a run holds "
                "ids alone",
                hint="give the index that was searched",
            )
        yield replace(question, answers=())


def _evaluation(out: str | Path | None, score: Callable[[Path], None]) -> Evaluation:
    """The evaluation in a folder, with its report, after `score` has written its records and
    figures there.
    """
    holder = None
    if out is None:
        holder = tempfile.TemporaryDirectory(prefix="rag-evaluation-")
        out = holder.name
    score(Path(out))
    evaluation = load_evaluation(out)
    atomic_write_text(evaluation.folder / REPORT_NAME, render_report([evaluation]))
    return replace(evaluation, holder=holder)


def _check_out(
    out: str | Path | None, settings: EvaluationSettings, source: QuestionSource
) -> None:
    """Refuse a folder that holds anything but this evaluation, before models are loaded."""
    if out is not None:
        check_target(out, folder=True)
        if Path(out).exists():
            runner.check_folder(Path(out), runner.settings_header(settings, source))


def _refuse_objects(opening: Mapping[str, object], out: str | Path | None) -> None:
    """Refuse to continue results with an object: nothing tells whether it made them."""
    for name, value in opening.items():
        is_object = not isinstance(value, str | Path | int | float | None)
        if is_object and out is not None and Path(out).exists() and any(Path(out).iterdir()):
            raise MismatchedArtifactError(
                f"{out} holds results, and nothing tells whether they are those of the object "
                f"given as {name}",
                hint="choose another {out}",
                arguments=["out"],
            )


def _read(questions: object, split: str | None) -> tuple[QuestionSource, Iterator[Question]]:
    """Where questions are from, and the questions."""
    if isinstance(questions, str | Path):
        return QuestionSource.of_file(questions, split=split), read_questions(questions)
    question_list = questions_from(questions)
    return QuestionSource.of_questions(question_list, split=split), iter(question_list)


def _refuse_unjudged(questions: Iterator[Question]) -> Iterator[Question]:
    """The same questions; a DataError if none of them says what is right."""
    first = list[Question]()
    for question in questions:
        first.append(question)
        has_gold = question.gold_passage_ids or question.gold or question.provenance
        if question.answers or has_gold or question.is_impossible:
            return chain(first, questions)
    others = [name for question in first[:1] for name in question.meta]
    raise DataError(
        f"no question has answers or gold passages; other fields of the first are {others}",
        hint="give them in fields called answers and gold_passage_ids, or name the judgements (qrels) "
        "in place of the questions",
    )


def _index_of(index: Evaluated) -> Index | None:
    """The index that holds the passages of search results; None if none was given."""
    if isinstance(index, Pipeline):
        return index.index
    if isinstance(index, str | Path):
        return Index.open(index)
    if isinstance(index, Index | None):
        return index
    raise ConfigError(
        f"the index is a {type(index).__name__}, and results of another search are to be scored",
        hint="give the index that was searched, or leave it out",
    )


def _open_run(
    run: Path, index: Index | None, settings: EvaluationSettings
) -> tuple[System, EvaluationSettings]:
    """The system that replays search results, and settings that look no deeper than these go."""
    if index is None and settings.profile == "kilt":
        raise ConfigError(
            "KILT's figures are of pages, and a run without its index names passages alone",
            hint="give the index that was searched",
        )
    system, depth = open_results(run, None if index is None else index.passages.find)
    if depth > max(settings.ks):
        get_logger(__name__).warning(
            "%s holds up to %d passages for a question: the first %d count (--ks)",
            *(run, depth, max(settings.ks)),
        )
    # Nothing is read, so that ks alone says how deep the figures look.
    ks = tuple(min(k, depth) for k in settings.ks)
    return system, settings.replaced(ks=ks, read=1)


def _open_system(
    index: Evaluated, opening: OpenOptions, settings: EvaluationSettings, *, reads: bool
) -> tuple[System, Index | None]:
    """The system that is evaluated, and its index."""
    if isinstance(index, str | Path | Index):
        index = Pipeline.open(index, reads=reads, **opening)
    if index is not None:
        opened = index.index if isinstance(index, Pipeline) else None
        if not reads:
            return System({**index.identity, "reader": None}, None, index.search), opened
        if not settings.gold or index.reader is None:
            return system_of(index), opened
        lookup = None if opened is None else opened.passages.find
        return gold_system(index.reader, lookup, index.identity), opened
    if not settings.gold or not reads:
        raise ConfigError(
            "no index was given",
            hint="give one, or results to be scored as run, or a reader and gold=True to read gold "
            "passages",
        )
    models = load_config(OpenSettings, overrides=opening)
    reader = resolve_reader(models.reader, models.precision, models.effort)
    assert reader is not None, "only reader=False opens none"
    return gold_system(reader, None), None


def _with_policy(system: System, policy: Policy) -> System:
    """The system with a policy of its user, whose name stands in the identity."""
    name = type(policy).__name__
    if system.reader is None:
        raise ConfigError(
            f"the policy {name} decides when to read, and there is no reader",
            hint="give one, or leave {policy} out",
            arguments=["policy"],
        )
    return replace(system, policy=policy, identity={**system.identity, "policy": name})


def _claim_system(
    index: Evaluated, opening: OpenOptions, settings: EvaluationSettings
) -> ClaimSystem:
    """The system that judges the claims."""
    if settings.gold:
        given = index.verifier if isinstance(index, Pipeline) else opening.get("verifier")
        return system_with_evidence(given)
    if isinstance(index, str | Path | Index):
        index = Pipeline.open(index, reads=False, **opening)
    if not isinstance(index, Pipeline):
        raise ConfigError(
            "claims are judged by the passages of an index, or by the evidence that they bring",
            hint="give a folder of an index or a Pipeline, or gold=True",
        )
    return system_with_search(index, settings.read)


def compare(
    results: Sequence[str | Path | Evaluation], *, report: str | Path | None = None
) -> list[Comparison]:
    """Compare systems on the same questions: paired tests, Holm's correction, wins, ties and
    losses.

    Args:
        results: folders written by `evaluate`, or its return values; the others are compared with
            the first.
        report: write a side-by-side HTML page here.

    Example:
        `for row in rag.compare(["runs/bm25", "runs/hybrid"]): print(row.figure,
        row.result.difference)`
    """
    if isinstance(results, str | Path | Evaluation) or len(results) < 2:
        raise ConfigError("results names one folder or none", hint="give a list of two or more")
    if report is not None:
        check_target(report)
    evaluations = load_evaluations(
        [result.folder if isinstance(result, Evaluation) else result for result in results]
    )
    compared = compare_evaluations(evaluations)
    if report is not None:
        atomic_write_text(report, render_report(evaluations))
    return compared
