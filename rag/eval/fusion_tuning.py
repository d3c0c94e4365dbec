"""Compare fusion settings on training questions, to choose how hybrid retrieval weighs its lists."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from indexers.passages import PassageStore
from rag.core.errors import DataError
from rag.core.files import atomic_write_json
from rag.core.progress import Progress
from rag.core.types import Hit, Question
from rag.data.text import AnswerMatcher
from rag.eval.gold import gold_keys, passage_key
from rag.metrics.ranking import first_true, rank_figures
from rag.metrics.significance import Interval, bootstrap, compare_paired
from retrievers.fusion import Fusion
from retrievers.hybrid import HybridRetriever
from retrievers.rerank import RerankingRetriever

RRF_KS = (1.0, 5.0, 10.0, 20.0, 40.0, 60.0, 100.0)
RRF_BM25_WEIGHTS = (0.5, 1.0, 2.0)
MINMAX_BM25_SHARES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
STD_BM25_WEIGHTS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0)
RAW_BM25_WEIGHTS = (0.005, 0.01, 0.02, 0.04, 0.08)
MRR_DEPTH = 100
_QUESTIONS = 256  # questions searched at once


def fusion_candidates() -> Iterator[Fusion]:
    """Settings to compare; weights are dense (or re-ranker) first, BM25 (or first stage) second."""
    for k in RRF_KS:
        for weight in RRF_BM25_WEIGHTS:
            yield Fusion("rrf", (1.0, weight), k=k)
    for share in MINMAX_BM25_SHARES:
        yield Fusion("weighted", (round(1.0 - share, 2), share), normalize="minmax")
    for weight in STD_BM25_WEIGHTS:
        yield Fusion("weighted", (1.0, weight), normalize="std")
    for weight in RAW_BM25_WEIGHTS:
        yield Fusion("weighted", (1.0, weight))


@dataclass(frozen=True, slots=True)
class FusionRow:
    """Figures of one fusion setting.

    Attributes:
        name: a value of `--fusion`, or "dense alone", "bm25 alone" ("re-ranker alone", "first stage alone").
        figures: "top{k}" and "mrr" (up to rank 100) with their intervals.
        p_value: p-value of the difference from the default fusion, in the deciding figure.
    """

    name: str
    figures: dict[str, Interval]
    p_value: float


CHANCE = 0.05  # differences with a larger p-value are none
MATCHED = ", words matched"  # ends the name of a static encoder's hybrid as it is used by default


@dataclass(frozen=True, slots=True)
class FusionTuning:
    """Outcome of a comparison.

    Attributes:
        rows: best first; of equals, the default.
        default: name of the setting that is used if none is named.
        decided_by: the figure by which rows are ordered; "mrr" breaks ties.
        right: which passages count as right: "gold" passages, or any that holds an "answer".
        left_out: number of questions with neither gold passages nor answers.
    """

    rows: list[FusionRow]
    default: str
    decided_by: str
    right: str
    n: int
    left_out: int

    def write(self, path: str | Path) -> None:
        """All figures as JSON."""
        rows: list[dict[str, Any]] = [
            {
                "fusion": row.name,
                "figures": {name: interval.to_json() for name, interval in row.figures.items()},
                "p_value": row.p_value,
            }
            for row in self.rows
        ]
        made = {name: getattr(self, name) for name in ("default", "n", "left_out", "right", "decided_by")}
        atomic_write_json(path, {**made, "settings": rows})


def tune_fusion(
    retriever: HybridRetriever | RerankingRetriever,
    passages: PassageStore,
    questions: Sequence[Question],
    *,
    ks: Sequence[int] = (1, 5, 20, 100),
) -> FusionTuning:
    """Search once, fuse the retriever's two lists with every setting, and compare.

    Args:
        retriever: a hybrid of dense and BM25, or a re-ranker over a first stage.
        questions: training questions, never those for which results are reported; with gold ids of the
            index (see `GoldResolver`). Gold passages decide if at least half of the questions have some, else
            answers.
        ks: cut-offs; settings are ordered by the third (or the last of fewer), then by MRR.

    Raises:
        DataError: no question has gold passages or answers.
    """
    with_gold = [question for question in questions if gold_keys(question)[1]]
    by_gold = bool(with_gold) and 2 * len(with_gold) >= len(questions)
    judged = with_gold if by_gold else [question for question in questions if question.answers]
    if not judged:
        raise DataError("no question has a gold passage or an answer", hint="choose another question file")
    lists: list[list[list[Hit]]] = [[], []]
    right: list[set[int]] = []
    with Progress(len(judged), "questions", "search") as progress:
        for start in range(0, len(judged), _QUESTIONS):
            batch = judged[start : start + _QUESTIONS]
            found = retriever.lists([question.text for question in batch], MRR_DEPTH)
            for hits, new in zip(lists, found, strict=True):
                hits += new
            for number, question in enumerate(batch):
                rows = sorted({hit.row for new in found for hit in new[number]})
                right.append(_right_rows(question, rows, passages, by_gold))
            progress.update(len(batch))
    systems = {f"{name} alone": own for name, own in zip(retriever.names, lists, strict=True)}
    compared = {str(fusion): fusion for fusion in [retriever.fusion, *fusion_candidates()]}
    systems |= {name: fusion.fuse(lists, max(*ks, MRR_DEPTH)) for name, fusion in compared.items()}
    usual = str(retriever.fusion)
    if getattr(retriever, "matching", None) is not None:  # which only the default fusion has
        usual += MATCHED
        systems[usual] = retriever.search([question.text for question in judged], max(*ks, MRR_DEPTH))
    figures = {
        name: rank_figures(
            [first_true([hit.row in rows for hit in hits]) for hits, rows in zip(found, right, strict=True)],
            ks,
            depth=max(*ks, MRR_DEPTH),
        )
        for name, found in systems.items()
    }
    decided_by = f"top{sorted(ks)[min(2, len(ks) - 1)]}"
    default = figures[usual][decided_by]
    made = [
        FusionRow(
            name,
            dict(zip(values, bootstrap(np.stack(list(values.values()), axis=1)), strict=True)),
            compare_paired(default, values[decided_by]).p_value,
        )
        for name, values in figures.items()
    ]
    made.sort(key=lambda row: (-row.figures[decided_by].value, -row.figures["mrr"].value, row.name != usual))
    kind = "gold" if by_gold else "answer"
    return FusionTuning(made, usual, decided_by, kind, len(judged), len(questions) - len(judged))


def _right_rows(question: Question, rows: Sequence[int], passages: PassageStore, by_gold: bool) -> set[int]:
    found = passages.get_many(list(rows))
    if not by_gold:
        matcher = AnswerMatcher(question.answers, question.answer_mode)
        return {row for row, passage in zip(rows, found, strict=True) if matcher.matches(passage.text)}
    kind, keys = gold_keys(question)
    return {row for row, passage in zip(rows, found, strict=True) if passage_key(passage, kind) in keys}
