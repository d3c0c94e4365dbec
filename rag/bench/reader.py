"""Readers on the gold paragraph: exact match and F1 by SQuAD's official rules, and how fast they read."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rag.bench.common import sample_questions
from rag.bench.report import Report, Table, format_interval
from rag.core.errors import DataError
from rag.core.progress import Progress
from rag.core.types import Passage, Question
from rag.eval.gold import gold_passages
from rag.metrics.answers import AnswerScores, score_answers
from rag.metrics.significance import bootstrap, compare_paired

__all__ = ["read_gold", "run_reader_benchmark"]


def _gold_passages(questions: Sequence[Question], path: str | Path) -> list[Passage]:
    passages = []
    for question in questions:
        gold = gold_passages(question)
        if not gold:
            raise DataError(
                f"{path}: question {question.id!r} comes without its paragraph",
                hint="use SQuAD JSON or DPR training JSON, where the paragraph stands beside the question",
            )
        passages.append(Passage(question.id, gold[0].title, gold[0].text))
    return passages


def read_gold(
    reader: Any,
    questions: Sequence[Question],
    passages: Sequence[Passage],
    *,
    label: str,
    batch_size: int = 64,
) -> tuple[list[str], float]:
    """The best answer of each question from its own passage ("" if there is none), and the seconds taken."""
    predictions: list[str] = []
    seconds = 0.0
    with Progress(len(questions), "questions", label) as progress:
        for start in range(0, len(questions), batch_size):
            batch = questions[start : start + batch_size]
            rows = [[passage] for passage in passages[start : start + batch_size]]
            began = time.perf_counter()
            results = reader.read([question.text for question in batch], rows, [[0.0]] * len(batch), 1)
            seconds += time.perf_counter() - began
            predictions += [result.answers[0].text if result.answers else "" for result in results]
            progress.update(len(batch))
    return predictions, seconds


def run_reader_benchmark(
    questions_path: str | Path,
    *,
    readers: Sequence[str | None] = (None,),
    limit: int | None = None,
    seed: int | None = None,
    precision: str = "auto",
    profile: str = "squad",
    format: str = "auto",
) -> Report:
    """Measure readers on questions that come with their paragraph.

    Args:
        questions_path: SQuAD JSON, or another file that carries the gold passage's text.
        readers: folders or hub names; None for the reader in the package. With several, each is compared with
            the first, question by question.
        limit: at most this many questions.
        seed: take a random sample instead of the first `limit`.
        precision: "auto", "fp32" or "bf16".
        profile: rules of EM and F1, see `rag.data.text`.
        format: of the question file.

    Raises:
        DataError: a question comes without its paragraph.
    """
    from readers.open import open_reader

    questions = sample_questions(questions_path, limit=limit, seed=seed, format=format)
    passages = _gold_passages(questions, questions_path)
    settings = {
        "questions": questions_path,
        "n_questions": len(questions),
        "seed": seed,
        "precision": precision,
        "profile": profile,
    }
    report = Report("reader", settings)
    scores: dict[str, AnswerScores] = {}
    rows = []
    for source in readers:
        name = source or "shipped"
        reader = open_reader(source, precision=precision)
        read_gold(reader, questions[:8], passages[:8], label="warm-up")
        predictions, seconds = read_gold(reader, questions, passages, label=name)
        scores[name] = score_answers(predictions, [question.answers for question in questions], profile)
        em, f1 = bootstrap(np.stack([scores[name].em, scores[name].f1], axis=1))
        speed = len(questions) / max(seconds, 1e-9)
        rows.append((name, *(format_interval(i, 2, percent=True) for i in (em, f1)), f"{speed:,.1f}"))
        report.figures[name] = {"em": em, "f1": f1, "questions_per_s": speed}
    columns = ("reader", "EM", "F1", "questions/s")
    report.tables.append(Table("gold paragraph [95 % bootstrap interval over questions]", columns, rows))
    if len(scores) > 1:
        _compare(report, scores)
    return report


def _compare(report: Report, scores: dict[str, AnswerScores]) -> None:
    first, *others = scores
    rows = []
    for name in others:
        for label in ("em", "f1"):
            test = compare_paired(getattr(scores[first], label), getattr(scores[name], label))
            difference = format_interval(test.difference, 2, percent=True)
            rows.append(
                (f"{name} minus {first}, {label.upper()}", difference, f"{test.p_value:.2g}", test.test)
            )
            report.figures[name][f"{label}_minus_{first}"] = test.difference
    report.tables.append(Table("readers compared (paired)", ("", "difference", "p", "test"), rows))
