"""Open-domain answers: retrieve, read, score; every question's result is kept, so a stopped run goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rag.bench.common import sample_questions
from rag.bench.gold import GoldKind, GoldRows, find_gold, gold_rank
from rag.bench.report import Report, Table, format_interval
from rag.bench.results import Record, ResultLog
from rag.core.errors import DataError
from rag.core.progress import Progress
from rag.core.types import Hit, Passage, Question
from rag.metrics.answers import AnswerScores, score_answers
from rag.metrics.calibration import calibration
from rag.metrics.significance import Interval, bootstrap, compare_paired
from readers.extractive.ranking import confidences, rank
from readers.extractive.settings import with_overrides
from readers.protocols import ReadAnswer, ReadResult

__all__ = ["answer_missing", "fill_openqa", "run_openqa_benchmark"]

_BATCH = 8


def _read(
    reader: Any,
    texts: Sequence[str],
    passages: Sequence[Sequence[Passage]],
    scores: Sequence[Sequence[float]],
    weights: Sequence[float],
) -> tuple[list[ReadResult], dict[float, list[str]]]:
    """The reader's answers, and what it would answer with other retrieval weights.

    The network runs once; only the ranking of its spans is repeated.
    """
    if not weights:
        return reader.read(texts, passages, scores, 1), {}
    scored = reader.score(texts, passages)
    others = {
        weight: [
            ranked.candidates[0].text if ranked.candidates else ""
            for ranked in rank(scored, scores, with_overrides(reader.settings, {"retrieval_weight": weight}))
        ]
        for weight in weights
    }
    results = []
    for ranked in rank(scored, scores, reader.settings):
        if not ranked.candidates:
            results.append(ReadResult((), 1.0))
            continue
        values = np.array([candidate.score for candidate in ranked.candidates])
        probabilities, none = confidences(values, ranked.null, reader.calibration)
        best = ranked.candidates[0]
        answer = ReadAnswer(
            best.text, best.score, float(probabilities[0]), best.passage_index, best.start, best.end
        )
        results.append(ReadResult((answer,), none))
    return results, others


def _answer_batches(
    pipeline: Any,
    questions: Sequence[Question],
    gold: Mapping[str, frozenset[int]],
    kind: GoldKind,
    top_k: int,
    weights: Sequence[float],
) -> Iterator[list[Record]]:
    for start in range(0, len(questions), _BATCH):
        batch = questions[start : start + _BATCH]
        texts = [question.text for question in batch]
        began = time.perf_counter()
        found: list[list[tuple[Hit, Passage]]] = pipeline.retrieve(texts, top_k)
        retrieved = time.perf_counter()
        passages = [[passage for _, passage in pairs] for pairs in found]
        scores = [[hit.score for hit, _ in pairs] for pairs in found]
        results, others = _read(pipeline.reader, texts, passages, scores, weights)
        finished = time.perf_counter()
        records = []
        for number, (question, pairs, result) in enumerate(zip(batch, found, results, strict=True)):
            best = result.answers[0] if result.answers else None
            hits = [hit for hit, _ in pairs]
            record = {
                "id": question.id,
                "prediction": best.text if best else "",
                "confidence": float(best.confidence) if best else 0.0,
                "no_answer_confidence": float(result.no_answer_confidence),
                "passage_id": passages[number][best.passage_index].id if best else None,
                "passage_rank": best.passage_index + 1 if best else None,
                "gold_rank": gold_rank(question, gold[question.id], kind, hits, pipeline.index.passages),
                "retrieve_ms": round(1000 * (retrieved - began) / len(batch), 3),
                "read_ms": round(1000 * (finished - retrieved) / len(batch), 3),
                "by_weight": {f"{weight:g}": texts[number] for weight, texts in others.items()},
            }
            records.append(record)
        yield records


def run_openqa_benchmark(
    index_dir: str | Path,
    questions_path: str | Path,
    *,
    retriever: str = "hybrid",
    reader: str | None = None,
    top_k: int = 20,
    limit: int | None = None,
    seed: int | None = None,
    results_path: str | Path | None = None,
    weights: Sequence[float] = (0.0,),
    encoder: str | None = None,
    precision: str = "auto",
    profile: str = "squad",
    format: str = "auto",
) -> Report:
    """Answer questions from the whole index and score the answers.

    Args:
        index_dir: index to search.
        questions_path: questions with answers.
        retriever: "dense", "bm25", "hybrid" or "auto".
        reader: folder or hub name; the one in the package by default.
        top_k: passages read.
        limit: at most this many questions.
        seed: take a random sample instead of the first `limit`.
        results_path: JSON Lines file of every question's result; a second run continues it.
        weights: other weights of the retrieval score to compare with the reader's own; 0 leaves it out.
        encoder: folder of the index's encoder, if it moved.
        precision: "auto", "fp32" or "bf16".
        profile: rules of EM and F1.
        format: of the question file.

    Raises:
        ConfigError: `results_path` belongs to another run.
        DataError: question ids repeat, or there are no answers.
    """
    from rag.pipeline import Pipeline

    questions = sample_questions(questions_path, limit=limit, seed=seed, format=format)
    if len({question.id for question in questions}) != len(questions):
        raise DataError(f"{questions_path}: question ids repeat", hint="give every question an id of its own")
    pipeline = Pipeline.open(
        index_dir, retriever=retriever, encoder=encoder, reader=reader, precision=precision
    )
    settings = {
        "index": index_dir,
        "index_version": pipeline.index_version,
        "questions": questions_path,
        "n_questions": len(questions),
        "seed": seed,
        "retriever": retriever,
        "reader": reader or "shipped",
        "top_k": top_k,
        "precision": precision,
        "weights": ",".join(f"{weight:g}" for weight in weights),
    }
    report = Report("openqa", settings)
    log = ResultLog(
        results_path, {key: settings[key] for key in settings if key not in ("index", "n_questions", "seed")}
    )
    answer_missing(pipeline, questions, log, top_k=top_k, weights=weights)
    fill_openqa(report, questions, [log.results[question.id] for question in questions], profile, top_k)
    return report


def answer_missing(
    pipeline: Any, questions: Sequence[Question], log: ResultLog, *, top_k: int, weights: Sequence[float] = ()
) -> None:
    """Answer the questions that `log` has no result for, and add the results batch by batch."""
    gold = _gold(questions, pipeline)
    rows = dict(zip((question.id for question in questions), gold.rows, strict=True))
    missing = [question for question in questions if question.id not in log.results]
    done = len(questions) - len(missing)
    with Progress(len(questions), "questions", "openqa", initial=done) as progress:
        for records in _answer_batches(pipeline, missing, rows, gold.kind, top_k, weights):
            log.add(records)
            progress.update(len(records))


def _gold(questions: Sequence[Question], pipeline: Any) -> GoldRows:
    try:
        return find_gold(questions, pipeline.index.passages)
    except DataError:  # the passages were cut otherwise: judge retrieval by answer string
        return find_gold(questions, pipeline.index.passages, kind="answer")


def fill_openqa(
    report: Report, questions: Sequence[Question], records: Sequence[Record], profile: str, top_k: int
) -> None:
    """Scores, calibration and speed of answered questions, as figures and tables."""
    answers = [question.answers for question in questions]
    scores = score_answers([record["prediction"] for record in records], answers, profile)
    is_found = np.array([record["gold_rank"] is not None for record in records], dtype=np.float64)
    em, f1, found = bootstrap(np.stack([scores.em, scores.f1, is_found], axis=1))
    given_found = bootstrap(np.where(is_found > 0, scores.em, np.nan))[0]
    figures: list[tuple[str, Interval]] = [
        ("EM", em),
        ("F1", f1),
        (f"gold in top {top_k}", found),
        ("EM where gold was found", given_found),
    ]
    report.figures.update({"em": em, "f1": f1, "gold_in_top_k": found, "em_given_found": given_found})
    rows = [(name, format_interval(interval, 2, percent=True), str(interval.n)) for name, interval in figures]
    report.tables.append(
        Table("open-domain answers [95 % bootstrap interval]", ("", "per cent", "questions"), rows)
    )
    _fill_weights(report, records, answers, scores, profile)
    reliability = calibration([record["confidence"] for record in records], scores.em)
    if reliability is not None:
        report.figures["calibration"] = reliability.to_json()
        bins = [
            (f"{b.low:.2f}–{b.high:.2f}", str(b.n), f"{b.confidence:.3f}", f"{b.accuracy:.3f}")
            for b in reliability.bins
        ]
        title = f"confidence: ECE {reliability.ece:.4f}, Brier {reliability.brier:.4f}"
        report.tables.append(Table(title, ("confidence", "questions", "mean confidence", "right"), bins))
    times = {key: float(np.mean([record[key] for record in records])) for key in ("retrieve_ms", "read_ms")}
    report.figures["mean_ms"] = times
    report.notes.append(
        f"a question took {times['retrieve_ms']:.0f} ms to search and {times['read_ms']:.0f} ms to read"
    )


def _fill_weights(
    report: Report,
    records: Sequence[Record],
    answers: Sequence[Sequence[str]],
    scores: AnswerScores,
    profile: str,
) -> None:
    """What mixing the retrieval scores in is worth: other weights beside the reader's own."""
    rows = []
    for weight in records[0]["by_weight"]:
        other = score_answers([record["by_weight"][weight] for record in records], answers, profile)
        em, f1 = bootstrap(np.stack([other.em, other.f1], axis=1))
        test = compare_paired(other.em, scores.em)
        cells = (format_interval(interval, 2, percent=True) for interval in (em, f1, test.difference))
        rows.append((weight, *cells, f"{test.p_value:.2g}"))
        report.figures.setdefault("by_weight", {})[weight] = {
            "em": em,
            "f1": f1,
            "em_gain_of_own_weight": test.difference,
            "p_value": test.p_value,
        }
    if rows:
        columns = ("weight", "EM", "F1", "EM of the reader's own minus it", "p (McNemar)")
        report.tables.append(Table("other weights of the retrieval score in the reader", columns, rows))
