"""Search with a filter beside search without one, through each kind of retrieval."""

from collections.abc import Sequence
from pathlib import Path

from rag.bench.common import question_texts, time_interleaved
from rag.bench.report import Goal, Report, Table
from rag.core.progress import format_seconds

_GOAL = 1.5  # a filter may cost half of a search
_WARM_UP = {"dense": 1, "hybrid": 2, "bm25": 20}  # rounds; Java compiles a path after some hundred questions


def run_filter_benchmark(
    index: Path,
    questions: Path,
    filter: str,
    retrievers: Sequence[str] = ("bm25", "dense", "hybrid"),
    top_k: int = 20,
    sample: int = 20,
    rounds: int = 9,
    precision: str = "auto",
    format: str = "auto",
) -> Report:
    """Time of a search with a filter beside one without it; questions are searched one by one.

    Args:
        questions: Question file.
        filter: Condition as in `rag ask --filter`.
        retrievers: Kinds of retrieval.
        top_k: Number of hits per question.
        rounds: Interleaved rounds; the ratio is of medians.
    """
    from rag.data.filters import Filter
    from rag.pipeline import Pipeline

    texts, chosen = question_texts(questions, limit=sample, format=format), Filter.parse_options([filter])
    report = Report("filter", {"index": index, "filter": filter, "questions": len(texts), "top_k": top_k})
    rows = []
    for kind in retrievers:
        with Pipeline.open(index, retriever=kind, reader=False, precision=precision) as pipeline:

            def search(filter: Filter | None, pipeline: Pipeline = pipeline) -> None:
                for text in texts:
                    pipeline.retrieve([text], top_k, filter=filter)

            timings = time_interleaved(
                {"without": lambda: search(None), "with": lambda: search(chosen)},
                rounds=rounds,
                warm_up=_WARM_UP[kind],
            )
            if chosen is not None:
                selected = pipeline.index.select(chosen)
                counts = {"selected": len(selected), "passages": selected.total}
                report.settings = {**report.settings, **counts}
        ratio = timings.ratio("with", "without")
        medians = [format_seconds(timings.median(name) / len(texts)) for name in ("without", "with")]
        rows.append((kind, *medians, f"{ratio:.3f}"))
        report.figures[kind] = {**timings.to_json(), "ratio": ratio}
        report.goals.append(Goal(f"{kind}: with / without", ratio.value, "at most", _GOAL))
    columns = ("retriever", "without", "with", "ratio")
    report.tables.append(Table(f"one question, median of {rounds} interleaved rounds", columns, rows))
    return report
