"""Retrieval: is the gold passage in the top k, how high is it, and is the hybrid better than its parts."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rag.bench.common import sample_questions
from rag.bench.gold import GoldRows, find_gold, gold_rank, has_gold
from rag.bench.report import Report, Table, format_interval
from rag.core.errors import ConfigError
from rag.core.progress import Progress
from rag.core.types import Hit, Question
from rag.metrics.significance import PairedTest, bootstrap, compare_paired

__all__ = ["Searched", "run_retrieval_benchmark", "search_all", "top_k_table"]

Floats = npt.NDArray[np.float64]
MRR_DEPTH = 100


@dataclass(frozen=True, slots=True)
class Searched:
    """What one retriever found.

    Attributes:
        ranks: (n,) 1-based rank of the first gold passage; infinity if it is not among the hits.
        seconds: wall time of all searches.
    """

    ranks: Floats
    seconds: float

    def accuracy(self, top_k: int) -> Floats:
        """(n,) 1 where a gold passage is in the top k."""
        return (self.ranks <= top_k).astype(np.float64)

    def reciprocal_rank(self, depth: int = MRR_DEPTH) -> Floats:
        """(n,) 1 / rank, 0 below `depth`."""
        return np.where(self.ranks <= depth, 1.0 / self.ranks, 0.0)


def search_all(
    retriever: Any, questions: Sequence[Question], top_k: int, *, label: str, batch_size: int = 256
) -> tuple[list[list[Hit]], float]:
    """Hits of every question in order, and the seconds the searches took."""
    hit_lists: list[list[Hit]] = []
    seconds = 0.0
    with Progress(len(questions), "questions", label) as progress:
        for start in range(0, len(questions), batch_size):
            texts = [question.text for question in questions[start : start + batch_size]]
            started = time.perf_counter()
            hit_lists += retriever.search(texts, top_k)
            seconds += time.perf_counter() - started
            progress.update(len(texts))
    return hit_lists, seconds


def ranks_of(
    questions: Sequence[Question], gold: GoldRows, hit_lists: Sequence[Sequence[Hit]], passages: Any
) -> Floats:
    """(n,) rank of the first gold hit of each question; infinity where there is none."""
    found = (
        gold_rank(question, rows, gold.kind, hits, passages)
        for question, rows, hits in zip(questions, gold.rows, hit_lists, strict=True)
    )
    return np.array([np.inf if rank is None else float(rank) for rank in found])


def top_k_table(
    systems: Mapping[str, Searched], top_ks: Sequence[int], title: str
) -> tuple[Table, dict[str, Any]]:
    """Top-k accuracy, MRR and speed of each system, with 95 % bootstrap intervals over questions."""
    columns = ("retriever", *(f"top {k}" for k in top_ks), f"MRR@{MRR_DEPTH}", "questions/s")
    rows, figures = [], {}
    for name, searched in systems.items():
        values = np.stack([*(searched.accuracy(k) for k in top_ks), searched.reciprocal_rank()], axis=1)
        intervals = bootstrap(values)
        speed = len(searched.ranks) / max(searched.seconds, 1e-9)
        rows.append((name, *(format_interval(interval) for interval in intervals), f"{speed:,.1f}"))
        figures[name] = {
            **{f"top_{k}": interval for k, interval in zip(top_ks, intervals, strict=False)},
            "mrr": intervals[-1],
            "questions_per_s": speed,
        }
    return Table(title, columns, rows), figures


def _compare(systems: Mapping[str, Searched], top_ks: Sequence[int]) -> tuple[Table, dict[str, Any]]:
    """The hybrid against the best single retriever, question by question, for every k and MRR."""
    rows, figures = [], {}
    singles = [name for name in systems if name != "hybrid"]
    for label in (*(f"top {k}" for k in top_ks), f"MRR@{MRR_DEPTH}"):
        values = {
            name: searched.reciprocal_rank() if label.startswith("MRR") else searched.accuracy(int(label[4:]))
            for name, searched in systems.items()
        }
        best = max(singles, key=lambda name: float(values[name].mean()))
        test: PairedTest = compare_paired(values[best], values["hybrid"])
        rows.append(
            (
                label,
                best,
                format_interval(test.difference),
                str(test.wins),
                str(test.losses),
                f"{test.p_value:.2g}",
                test.test,
            )
        )
        figures[label] = {
            "best_single": best,
            "difference": test.difference,
            "wins": test.wins,
            "losses": test.losses,
            "p_value": test.p_value,
            "test": test.test,
        }
    columns = ("figure", "best single", "hybrid minus it", "wins", "losses", "p", "test")
    return Table("hybrid against the best single retriever (paired)", columns, rows), figures


def run_retrieval_benchmark(
    index_dir: str | Path,
    questions_path: str | Path,
    *,
    retrievers: Sequence[str] = ("dense", "bm25", "hybrid"),
    top_ks: Sequence[int] = (1, 5, 20, 100),
    gold: str = "auto",
    limit: int | None = None,
    seed: int | None = None,
    encoder: str | None = None,
    precision: str = "auto",
    format: str = "auto",
) -> Report:
    """Measure retrievers on questions with known gold passages.

    Args:
        index_dir: an index that has what the retrievers need.
        questions_path: a question file; SQuAD's gold paragraph is found by its text.
        retrievers: any of "dense", "bm25", "hybrid".
        top_ks: ranks to report.
        gold: how gold passages are found, see `find_gold`.
        limit: at most this many questions.
        seed: take a random sample instead of the first `limit`.
        encoder: folder of the index's encoder, if it moved.
        precision: "auto", "fp32" or "bf16".
        format: of the question file.

    Raises:
        ConfigError: unknown retriever.
        DataError: gold passages are not in the index.
    """
    from indexers.index import Index
    from retrievers.open import open_retriever

    unknown = set(retrievers) - {"dense", "bm25", "hybrid"}
    if unknown or not retrievers:
        raise ConfigError(
            f"--retrievers {', '.join(sorted(unknown))!r}: unknown", hint="use dense, bm25, hybrid"
        )
    asked = sample_questions(questions_path, limit=limit, seed=seed, format=format)
    questions = [question for question in asked if has_gold(question)]
    index = Index.open(index_dir)
    rows = find_gold(questions, index.passages, kind=gold)
    settings = {
        "index": index_dir,
        "questions": questions_path,
        "n_questions": len(questions),
        "seed": seed,
        "passages": len(index.passages),
        "gold": rows.kind,
        "precision": precision,
    }
    report = Report("retrieval", settings)
    systems = {}
    depth = min(max(*top_ks, MRR_DEPTH), len(index.passages))
    for name in retrievers:
        retriever = open_retriever(index, name, encoder=encoder, precision=precision)
        retriever.search([questions[0].text], depth)  # warm up: load pages, compile, start Java
        hit_lists, seconds = search_all(retriever, questions, depth, label=name)
        systems[name] = Searched(ranks_of(questions, rows, hit_lists, index.passages), seconds)
    table, figures = top_k_table(
        systems, top_ks, "gold passage in the top k [95 % bootstrap interval over questions]"
    )
    report.tables.append(table)
    report.figures["retrievers"] = figures
    report.figures["gold_found"] = {"questions": len(questions), "in_index": rows.found}
    if "hybrid" in systems and len(systems) > 1:
        table, figures = _compare(systems, top_ks)
        report.tables.append(table)
        report.figures["hybrid_vs_best_single"] = figures
    if len(questions) < len(asked):
        report.notes.append(
            f"{len(asked) - len(questions)} questions without gold passage or answer are left out"
        )
    if rows.found < len(questions):
        report.notes.append(
            f"{len(questions) - rows.found} questions have no gold passage in the index: counted as not found"
        )
    return report
