"""`rag evaluate` and `rag compare`: figures with intervals, and tests between systems."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from annotated_types import Ge

from rag.cli.lazy import resumable
from rag.cli.options import OPENING, options_of, some
from rag.eval.settings import EvaluationSettings

_OPTIONS = {**some(options_of(EvaluationSettings, panel="Figures"), without=("read",)), **OPENING}


def evaluate(
    *,
    index: str | None = None,
    questions: str | None = None,
    dataset: str | None = None,
    split: Literal["train", "dev", "test"] | None = None,
    run: str | None = None,
    read: Annotated[int, Ge(0)] = 20,
    out: Path,
    **options: Annotated[Any, _OPTIONS],
) -> None:
    """Evaluate an index and a reader on a question set.

    Args:
        index: Directory written by `rag index`; --gold needs none.
        dataset: irds:NAME, such as irds:beir/scifact/test: its corpus is indexed where that is
            missing (in --index, or beside --out), and its questions are searched for.
        run: Score these search results instead: a TREC run, or DPR's JSON.
        read: Passages the reader sees; 0 evaluates retrieval only.
        out: Result folder; an unfinished one is continued.
    """
    from rag.core.errors import ConfigError
    from rag.eval import api

    if (questions is None) is (dataset is None):
        raise ConfigError("give --questions, or --dataset and no --questions")
    if dataset is not None:
        from rag.commands import index as build
        from rag.data.files.named import corpus_of

        kind: Any = str(options["retriever"]).partition(":")[0]
        kind = kind if kind in ("bm25", "dense") else "hybrid"
        index = str(
            build(corpus_of(dataset), index or f"{out}.index", retriever=kind, split="none")
        )
        questions, read = dataset, 0
    options |= {"read": max(read, 1), "reads": read > 0, "split": split, "run": run}
    options["command"] = shlex.join(["rag", *sys.argv[1:]])
    with resumable():
        typer.echo(str(api.evaluate(index, questions, out, **options)))
    typer.echo(f"figures, records, predictions and {api.REPORT_NAME} → {out}")


def compare(results: list[Path], /, all_pairs: bool = False, report: Path | None = None) -> None:
    """Compare systems: paired tests, Holm's correction, wins, ties and losses.

    Args:
        results: Two or more folders written by `rag evaluate`.
        all_pairs: Compare every pair of systems, instead of each with the first.
        report: Write a side-by-side HTML page.
    """
    from rag.eval.api import compare as run

    typer.echo(_comparison_table(run(results, all_pairs=all_pairs, report=report)))


def _comparison_table(compared: Sequence[Any]) -> str:
    from rag.core.log import text_table

    columns = ["figure", "A", "B", "A", "B", "B-A", "p", "p Holm", "won/tied/lost"]
    rows = []
    for row in compared:
        test, a, b = row.result, 100 * row.value_a, 100 * row.value_b
        p_values = ("<0.0001" if p < 0.0001 else f"{p:.4f}" for p in (test.p_value, row.p_holm))
        counts = f"{len(test.gained)}/{test.ties}/{len(test.lost)}"
        rows.append(
            [row.figure, row.a, row.b, f"{a:.2f}", f"{b:.2f}", f"{b - a:+.2f}", *p_values, counts]
        )
    return "\n".join(text_table(columns, rows))
