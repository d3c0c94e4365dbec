"""Evaluate a system on a question set: streamed, resumable, with everything needed to trust the
figures.

The output directory holds `per_question.jsonl`, the official prediction files and, written last,
`metrics.json`.
While it runs, finished questions stand in `per_question.jsonl.part`; running again asks the others,
and those that could not be read.
"""

import json
import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from indexers.index import Index
from rag.answering import AnswerOptions
from rag.core.errors import (
    ConfigError,
    DataError,
    EndpointError,
    MismatchedArtifactError,
    ReaderError,
)
from rag.core.files import (
    atomic_write_json,
    clean_directory,
    directory_lock,
    disk_errors,
    read_json,
)
from rag.core.log import Progress, get_logger
from rag.core.manifest import differences
from rag.core.optional import installed_version
from rag.core.types import Passage, Question
from rag.data.examples import Candidate, Example, write_run
from rag.data.files.rows import write_json_lines
from rag.data.text import REGEX_PROFILE
from rag.eval.figures import main_figures
from rag.eval.gold import GoldResolver
from rag.eval.journal import Journal
from rag.eval.records import QuestionRecord, read_records
from rag.eval.scoring import AskedQuestion, score_outcomes
from rag.eval.settings import EvaluationSettings
from rag.eval.source import QuestionSource
from rag.eval.summary import summarise
from rag.eval.systems import System

_FORMAT_VERSION = 1
METRICS_NAME = "metrics.json"
RECORDS_NAME = "per_question.jsonl"
_PART_NAME = "per_question.jsonl.part"
_STATE_NAME = "state.json"
_STAGES = ("total", "retrieve", "read", "judge")
N_BEST = 5
"""Answers per question that are kept and judged."""
_MOST_FAILURES = 3
"""Questions in a row at which a server fails before the evaluation stops."""

_Answered = tuple[list[AskedQuestion], list[ReaderError]]
_PACKAGES = ("torch", "transformers", "faiss-cpu", "pyserini", "ir_measures", "numpy", "scipy")


def run_evaluation(
    system: System,
    questions: Iterable[Question],
    folder: Path,
    settings: EvaluationSettings,
    *,
    source: QuestionSource,
    command: str = "",
    index: Index | None = None,
) -> None:
    """Ask every question, score every answer, write the results; users call
    `rag.eval.api.evaluate`.

    Args:
        questions: streamed; each run must give the same ones.
        index: holds the passages that are found, and the gold passages of the questions.

    Raises:
        ReaderError: the server of a language model failed several times in a row; the same call
            continues.
    """
    if settings.gold and system.reader is None:
        raise ConfigError(
            "reading gold passages needs a system that can read passages",
            hint="evaluate with a reader, or leave the gold passages out",
        )
    resolver = None
    if index is not None:
        resolver = GoldResolver(index.passages, index.documents)
        # Results of another program are scored by what this index holds.
        identity = {**system.identity, "index_version": index.version}
        system = replace(system, identity=identity, document_of=index.document_of)
    header: dict[str, Any] = {
        **settings_header(settings, source),
        "profile": settings.profile,
        "system": system.identity,
    }
    with directory_lock(folder):
        if check_folder(folder, header):
            if not read_json(folder / METRICS_NAME).get("failed"):
                return
            # The evaluation becomes one that stopped before its figures.
            write_state(folder, header)
            (folder / METRICS_NAME).unlink()
        clean_directory(folder)
        drawn = settings.draw(questions)
        if resolver is not None:
            drawn = map(resolver, drawn)
        _ask_all(system, drawn, folder, settings, header)
        write_predictions(folder / RECORDS_NAME, folder, settings.profile)
        figures = summarise(read_records(folder / RECORDS_NAME), settings)
        if resolver is not None:
            figures["notes"] += resolver.notes()
        figures["notes"] += _notes(folder / RECORDS_NAME, figures["figures"])
        finish(folder, {**header, **figures}, command)


def _notes(records_path: Path, figures: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Warnings about the figures."""
    notes: list[str] = []
    failures = [record.failure for record in read_records(records_path) if record.failure]
    n_without_hits = sum(not record.hits for record in read_records(records_path))
    if failures:
        notes.append(
            f"{len(failures):,} questions could not be read and count as unanswered: {failures[0]} "
            "(the same evaluation asks them again)"
        )
    if n_without_hits:
        notes.append(f"{n_without_hits:,} questions have no results at all, and count as not found")
    if "RR" in figures and figures["RR"]["value"] == 0:
        notes.append("no gold passage was found: do results and questions name passages alike?")
    if not main_figures(figures):
        notes.append("no figures: no question has gold passages in this index")
    return notes


def finish(folder: Path, metrics: Mapping[str, object], command: str) -> None:
    """Write the figures, with which an evaluation is finished, and how they came about."""
    versions = {"python": platform.python_version(), "platform": platform.platform()}
    for name in _PACKAGES:
        versions[name] = installed_version(name) or "not installed"
    report = {
        **metrics,
        "command": command,
        "versions": versions,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    atomic_write_json(folder / METRICS_NAME, report)
    (folder / _STATE_NAME).unlink(missing_ok=True)


def write_state(folder: Path, state: Mapping[str, object]) -> None:
    """Write the header, by which an evaluation is continued, before its first record."""
    if not (folder / _STATE_NAME).exists():
        atomic_write_json(folder / _STATE_NAME, state)


def open_journal(folder: Path) -> Journal:
    """The records that an unfinished evaluation has in this folder."""
    part = folder / _PART_NAME
    if (folder / RECORDS_NAME).is_file() and not part.is_file():
        # An earlier run stopped between asking and summarising.
        os.replace(folder / RECORDS_NAME, part)
    return Journal(part)


def _ask(system: System, batch: Sequence[Question], options: AnswerOptions) -> _Answered:
    """The outcomes of a batch, and the errors of those questions that could not be read."""
    errors = list[ReaderError]()
    outcomes = system.answer(batch, options, errors)
    shares_ms = shares_of(outcomes[0].timings_ms, len(batch))
    scored = [
        AskedQuestion(question, outcome, shares_ms, options.top_k, system.document_of)
        for question, outcome in zip(batch, outcomes, strict=True)
    ]
    return scored, errors


def shares_of(timings_ms: Mapping[str, float], count: int) -> dict[str, float]:
    """The share of each of `count` questions or claims in the times of their batch."""
    return {name: round(timings_ms[name] / count, 3) for name in _STAGES if name in timings_ms}


def _answer_batches(
    system: System, questions: Iterator[Question], options: AnswerOptions, batch_size: int
) -> Iterator[_Answered]:
    """The outcomes of batches. Where a model in another process reads several questions at a time,
    a batch is a single question, and outcomes come in the order of the answers.
    """
    parallel = 0 if system.reader is None else system.reader.max_concurrent
    if not parallel:
        while batch := list(islice(questions, batch_size)):
            yield _ask(system, batch, options)
        return
    waiting = set[Future[_Answered]]()
    with ThreadPoolExecutor(parallel) as pool:
        while True:
            for question in islice(questions, parallel - len(waiting)):
                waiting.add(pool.submit(_ask, system, [question], options))
            if not waiting:
                return
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for answer in done:
                yield answer.result()


def settings_header(settings: EvaluationSettings, source: QuestionSource) -> dict[str, object]:
    """The part of an evaluation's header that is known before its system is open."""
    return {
        "format_version": _FORMAT_VERSION,
        "kind": "evaluation",
        "question_set": asdict(source),
        "settings": settings.model_dump(mode="json"),
    }


def _compared(header: Mapping[str, Any]) -> dict[str, Any]:
    """The header as it is stored, without the path of the questions, which are known by their
    checksum.
    """
    without_path = {**header, "question_set": {**header["question_set"], "path": ""}}
    return dict(json.loads(json.dumps(without_path, default=str)))


def check_folder(folder: Path, header: Mapping[str, object]) -> bool:
    """Refuse a folder that holds anything but this evaluation; return whether it is finished.

    Args:
        header: the evaluation's, or only its `settings_header`.
    """
    names = [path.name for path in folder.iterdir() if not path.name.startswith(".")]
    if names and not {METRICS_NAME, _STATE_NAME, RECORDS_NAME, _PART_NAME} & {*names}:
        raise ConfigError(
            f"{folder} holds other files ({', '.join(sorted(names)[:3])}), not an evaluation",
            hint="choose another {out}, or an empty folder",
            arguments=["out"],
        )
    is_finished = (folder / METRICS_NAME).is_file()
    file = folder / (METRICS_NAME if is_finished else _STATE_NAME)
    if file.is_file():
        stored = read_json(file)
        earlier = {name: stored.get(name, {}) for name in header}
        changes = differences(_compared(earlier), _compared(header))
        if changes:
            raise MismatchedArtifactError(
                f"{folder} holds another evaluation ({changes})",
                hint="choose another {out}, or delete that directory",
                arguments=["out"],
            )
    return is_finished


def _ask_all(
    system: System,
    stream: Iterable[Question],
    folder: Path,
    settings: EvaluationSettings,
    header: Mapping[str, Any],
) -> None:
    """Append the records of all questions that have none yet.

    The header, with which alone this may be continued, is written before the first record.
    """
    options = AnswerOptions(
        top_k=settings.retrieve_top_k,
        read=settings.read,
        n_best=N_BEST,
        policy=system.policy,
    )
    count = settings.sample or settings.limit
    order: dict[str, None] = {}
    journal = open_journal(folder)
    unanswered = journal.unanswered(_distinct(stream, settings, order))
    # Records of the questions that failed since the server last answered. If the server is gone,
    # they are not written, so that the next run asks these questions again.
    unwritten = list[QuestionRecord]()
    with (
        disk_errors(journal.path),
        Progress(count, "questions", "evaluate", initial=len(journal.answered)) as progress,
    ):
        for outcomes, errors in _answer_batches(system, unanswered, options, settings.batch_size):
            unwritten += score_outcomes(outcomes, settings)
            progress.update(len(outcomes))
            endpoint_errors = [error for error in errors if isinstance(error, EndpointError)]
            if endpoint_errors and len(unwritten) >= _MOST_FAILURES:
                raise EndpointError(
                    f"{len(unwritten)} questions in a row could not be asked: {endpoint_errors[0].message}",
                    hint=f"{endpoint_errors[0].hint}; the same command continues",
                )
            if not endpoint_errors:
                write_state(folder, header)
                journal.append(unwritten)
                unwritten.clear()
        journal.append(unwritten)
        if not order:
            raise DataError(
                "there are no questions to evaluate",
                hint="check the question file and {limit}",
                arguments=["limit"],
            )
        journal.finish(folder / RECORDS_NAME, [*order])


def _distinct(
    questions: Iterable[Question], settings: EvaluationSettings, order: dict[str, None]
) -> Iterator[Question]:
    """The same questions, each checked as it passes; `order` gets their ids."""
    for question in questions:
        if question.answer_profile == REGEX_PROFILE != settings.profile:
            raise ConfigError(
                f"the answers of question {question.id!r} are regular expressions, and profile "
                f"{settings.profile} compares words",
                hint=f"use the profile {REGEX_PROFILE}",
            )
        if question.id in order:
            raise DataError(
                f"two questions have the id {question.id!r}", hint="give every question its own id"
            )
        order[question.id] = None
        yield question


def write_predictions(records_path: Path, out: Path, profile: str) -> None:
    """Write every official prediction file that the records allow.

    - `predictions.squad.json`: `{question id: answer}`
    - `predictions.nq_open.jsonl`: one `{"question", "prediction"}` per line
    - `predictions.hotpot.json`: `{"answer": {id: …}, "sp": {id: [[title, sentence], …]}}`, profile
        "hotpot" only
    - `run.trec`: `qid Q0 passage rank score tag`; left out, with a warning, where the format cannot
        hold it

    A question without an answer gets "".
    """
    # The records are read anew for every file.
    records = partial(read_records, records_path)
    try:
        write_run(out / "run.trec", map(_ranking, records()))
    except DataError as error:
        get_logger(__name__).warning("run.trec is not written: %s", error.message)
    if any("prediction" not in record.model_fields_set for record in records()):
        return
    answers = {record.id: record.prediction or "" for record in records()}
    atomic_write_json(out / "predictions.squad.json", answers)
    pairs = (
        {"question": record.question, "prediction": answers[record.id]} for record in records()
    )
    write_json_lines(out / "predictions.nq_open.jsonl", pairs)
    if profile == "hotpot":
        facts = {record.id: record.facts or [] for record in records()}
        atomic_write_json(out / "predictions.hotpot.json", {"answer": answers, "sp": facts})


def _ranking(record: QuestionRecord) -> Example:
    hits = (Candidate(Passage(hit.id, "", ""), "retrieved", score=hit.score) for hit in record.hits)
    return Example(record.id, "", candidates=tuple(hits))
