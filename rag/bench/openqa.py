"""Open-domain answers: retrieve, read, score; every question's result is kept, so a stopped run goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rag.bench.common import sample_questions
from rag.bench.gold import GoldRows, find_gold, gold_rank
from rag.bench.report import Report, Table, format_interval
from rag.core.errors import ConfigError, DataError
from rag.core.progress import Progress
from rag.core.types import Hit, Passage, Question
from rag.eval.answers import score_answers
from rag.eval.calibration import calibration
from rag.eval.significance import Interval, bootstrap, compare_paired

__all__ = ["ResultLog", "run_openqa_benchmark"]

Record = dict[str, Any]


class ResultLog:
    """One JSON line a question, behind a first line that says what was run.

    Args:
        path: the file; None keeps results in memory only.
        settings: what decides the results; a file begun with other settings is refused.

    Raises:
        ConfigError: the file belongs to another run.

    Example:
        >>> log = ResultLog(None, {"top_k": 20})
        >>> log.add([{"id": "q1", "prediction": "Basel"}])
        >>> log.results["q1"]["prediction"]
        'Basel'
    """

    def __init__(self, path: str | Path | None, settings: Mapping[str, Any]) -> None:
        self.path = None if path is None else Path(path)
        self.results: dict[str, Record] = {}
        header = {"settings": json.loads(json.dumps(settings, default=str))}
        if self.path is None:
            return
        if self.path.exists() and self.path.stat().st_size:
            self._read(header)
        else:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps(header, ensure_ascii=False) + "\n", encoding="utf-8")

    def _read(self, header: Mapping[str, Any]) -> None:
        assert self.path is not None
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        try:
            found, *records = [json.loads(line) for line in whole.splitlines()]
        except ValueError as error:
            raise DataError(
                f"{self.path} is not a result log ({error})", hint="choose another --results"
            ) from error
        if found != header:
            raise ConfigError(
                f"{self.path} was begun with other settings: {found.get('settings', found)}",
                hint="choose another --results, or delete the file",
            )
        if whole != data:  # a killed run left half a line
            self.path.write_bytes(whole)
        self.results = {record["id"]: record for record in records}

    def add(self, records: Sequence[Record]) -> None:
        """Keep the records and append them to the file."""
        self.results.update({record["id"]: record for record in records})
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def _answer_batches(
    pipeline: Any,
    questions: Sequence[Question],
    gold: Mapping[str, frozenset[int]],
    kind: Any,
    top_k: int,
    without_mix: bool,
) -> Iterator[list[Record]]:
    for start in range(0, len(questions), 8):
        batch = questions[start : start + 8]
        texts = [question.text for question in batch]
        began = time.perf_counter()
        found: list[list[tuple[Hit, Passage]]] = pipeline.retrieve(texts, top_k)
        retrieved = time.perf_counter()
        passages = [[passage for _, passage in pairs] for pairs in found]
        scores = [[hit.score for hit, _ in pairs] for pairs in found]
        results = pipeline.reader.read(texts, passages, scores, 1)
        finished = time.perf_counter()
        plain = (
            pipeline.reader.read(texts, passages, [[0.0] * len(s) for s in scores], 1)
            if without_mix
            else None
        )
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
            }
            if plain is not None:
                record["prediction_without_mix"] = (
                    plain[number].answers[0].text if plain[number].answers else ""
                )
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
    without_mix: bool = False,
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
        without_mix: read a second time with equal retrieval scores, to see what mixing them in is worth.
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
        "without_mix": without_mix,
    }
    report = Report("openqa", settings)
    log = ResultLog(
        results_path, {key: settings[key] for key in settings if key not in ("index", "n_questions", "seed")}
    )
    gold = _gold(questions, pipeline)
    rows = dict(zip((question.id for question in questions), gold.rows, strict=True))
    missing = [question for question in questions if question.id not in log.results]
    done = len(questions) - len(missing)
    with Progress(len(questions), "questions", "openqa", initial=done) as progress:
        for records in _answer_batches(pipeline, missing, rows, gold.kind, top_k, without_mix):
            log.add(records)
            progress.update(len(records))
    _fill(report, questions, [log.results[question.id] for question in questions], profile, top_k)
    return report


def _gold(questions: Sequence[Question], pipeline: Any) -> GoldRows:
    try:
        return find_gold(questions, pipeline.index.passages)
    except DataError:  # the passages were cut otherwise: judge retrieval by answer string
        return find_gold(questions, pipeline.index.passages, kind="answer")


def _fill(
    report: Report, questions: Sequence[Question], records: Sequence[Record], profile: str, top_k: int
) -> None:
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
    if "prediction_without_mix" in records[0]:
        plain = score_answers([record["prediction_without_mix"] for record in records], answers, profile)
        plain_em, plain_f1 = bootstrap(np.stack([plain.em, plain.f1], axis=1))
        test = compare_paired(plain.em, scores.em)
        figures += [("EM without retrieval scores", plain_em), ("F1 without retrieval scores", plain_f1)]
        report.figures["without_mix"] = {
            "em": plain_em,
            "f1": plain_f1,
            "em_gain_of_mix": test.difference,
            "p_value": test.p_value,
        }
        gain = format_interval(test.difference, 2, percent=True)
        report.notes.append(
            f"mixing retrieval scores in adds {gain} EM (p = {test.p_value:.2g}, {test.test})"
        )
    rows = [(name, format_interval(interval, 2, percent=True), str(interval.n)) for name, interval in figures]
    report.tables.append(
        Table("open-domain answers [95 % bootstrap interval]", ("", "per cent", "questions"), rows)
    )
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
