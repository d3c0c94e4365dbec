"""Fusion settings side by side on training questions, to choose the default of the hybrid retriever."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rag.bench.common import sample_questions
from rag.bench.gold import find_gold, has_gold
from rag.bench.report import Report, Table, format_interval
from rag.bench.retrieval import MRR_DEPTH, Searched, ranks_of, search_all
from rag.metrics.significance import bootstrap, compare_paired
from retrievers.fusion import Fusion

__all__ = ["fusion_candidates", "run_fusion_tuning"]

RRF_KS = (1.0, 5.0, 10.0, 20.0, 40.0, 60.0, 100.0)
RRF_BM25_WEIGHTS = (0.5, 1.0, 2.0)
MINMAX_BM25_SHARES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
RAW_BM25_WEIGHTS = (0.005, 0.01, 0.02, 0.04, 0.08)
DEFAULT = str(Fusion())


def fusion_candidates() -> Iterator[Fusion]:
    """Settings to compare; weights are dense first, BM25 second."""
    for k in RRF_KS:
        for weight in RRF_BM25_WEIGHTS:
            yield Fusion("rrf", (1.0, weight), k=k)
    for share in MINMAX_BM25_SHARES:
        yield Fusion("weighted", (round(1.0 - share, 2), share), normalize="minmax")
    for weight in RAW_BM25_WEIGHTS:
        yield Fusion("weighted", (1.0, weight))


def run_fusion_tuning(
    index_dir: str | Path,
    questions_path: str | Path,
    *,
    top_ks: Sequence[int] = (1, 5, 20, 100),
    depth: int = 200,
    gold: str = "auto",
    limit: int | None = 2000,
    seed: int | None = 0,
    encoder: str | None = None,
    precision: str = "auto",
    format: str = "auto",
) -> Report:
    """Compare fusion settings; nothing is written or changed.

    Args:
        index_dir: an index with dense and BM25 parts.
        questions_path: training questions, never those the result is reported on.
        top_ks: ranks to report; settings are ordered by the third (or the last of fewer), then by MRR.
        depth: hits taken from each list.
        gold: how gold passages are found, see `find_gold`.
        limit: at most this many questions.
        seed: of the sample.
        encoder: folder of the index's encoder, if it moved.
        precision: "auto", "fp32" or "bf16".
        format: of the question file.
    """
    from indexers.index import Index
    from retrievers.open import open_retriever

    asked = sample_questions(questions_path, limit=limit, seed=seed, format=format)
    questions = [question for question in asked if has_gold(question)]
    index = Index.open(index_dir)
    rows = find_gold(questions, index.passages, kind=gold)
    settings = {
        "index": index_dir,
        "questions": questions_path,
        "n_questions": len(questions),
        "seed": seed,
        "depth": depth,
        "gold": rows.kind,
    }
    report = Report("retrieval --tune-fusion", settings)
    lists = []
    for name in ("dense", "bm25"):
        retriever = open_retriever(index, name, encoder=encoder, precision=precision)
        lists.append(search_all(retriever, questions, depth, label=name)[0])
    systems = {}
    for name, hit_lists in (("dense alone", lists[0]), ("bm25 alone", lists[1])):
        systems[name] = Searched(ranks_of(questions, rows, hit_lists, index.passages), 0.0)
    for fusion in fusion_candidates():
        fused = fusion.fuse(lists, max(*top_ks, MRR_DEPTH))
        systems[str(fusion)] = Searched(ranks_of(questions, rows, fused, index.passages), 0.0)
    _fill(report, systems, top_ks)
    report.notes.append("the first of them can be given as --fusion to ask, retrieve, evaluate and serve")
    report.notes.append("an encoder that was trained on these very questions looks better here than it is")
    return report


def _fill(report: Report, systems: dict[str, Searched], top_ks: Sequence[int]) -> None:
    judged = sorted(top_ks)[min(2, len(top_ks) - 1)]

    def merit(name: str) -> tuple[float, float]:
        searched = systems[name]
        return float(searched.accuracy(judged).mean()), float(searched.reciprocal_rank().mean())

    rows: list[Any] = []
    for name in sorted(systems, key=merit, reverse=True):
        searched = systems[name]
        values = np.stack([*(searched.accuracy(k) for k in top_ks), searched.reciprocal_rank()], axis=1)
        intervals = bootstrap(values)
        test = compare_paired(systems[DEFAULT].accuracy(judged), searched.accuracy(judged))
        p_value = "" if name == DEFAULT else f"{test.p_value:.2g}"
        rows.append((name, *(format_interval(interval) for interval in intervals), p_value))
        report.figures[name] = {
            **{f"top_{k}": interval for k, interval in zip(top_ks, intervals, strict=False)},
            "mrr": intervals[-1],
        }
    columns = (
        "fusion",
        *(f"top {k}" for k in top_ks),
        f"MRR@{MRR_DEPTH}",
        f"p against {DEFAULT}, top {judged}",
    )
    report.tables.append(
        Table(f"best first, by top {judged} and MRR [95 % bootstrap interval]", columns, rows)
    )
