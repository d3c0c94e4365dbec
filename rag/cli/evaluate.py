"""`rag evaluate`: official figures with intervals, per-question records, predictions, a report page."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from annotated_types import Ge

from rag.cli.compare import comparison_table
from rag.cli.options import DATA, OPENING, READING, Options, QuestionFormat, options_of, some
from rag.eval.settings import EvaluationSettings

_SETTINGS = Options(
    options_of(EvaluationSettings, "profile", "seed", "batch_size", panel="Figures")
    | options_of(EvaluationSettings, "gold", "likelihood", panel=READING)
    | options_of(EvaluationSettings, "limit", "sample", panel=DATA)
)


def evaluate(
    *,
    index: str | None = None,
    questions: str | None = None,
    dataset: str | None = None,
    format: QuestionFormat = "auto",
    split: Literal["train", "dev", "test"] | None = None,
    run: str | None = None,
    settings: Annotated[dict[str, Any], _SETTINGS],
    opening: Annotated[dict[str, Any], some(OPENING, without=("fusion",))],
    fusion: list[str] | None = None,
    read: Annotated[int, Ge(0)] = 20,
    ks: Sequence[int] = (1, 5, 20, 100),
    by: Sequence[str] = (),
    out: Path,
) -> None:
    """Evaluate an index and a reader on a question set.

    Args:
        index: Directory written by `rag index`; --gold needs none.
        dataset: irds:NAME, such as irds:beir/scifact/test: its corpus is indexed where that is missing (in
            --index, or beside --out), and its questions are searched for.
        run: Score these search results instead: a TREC run, or DPR's JSON.
        fusion: Of hybrid retrieval: "std:1,0.6", "rrf60:1,1", …; several are compared.
        read: Passages the reader sees; 0 evaluates retrieval only.
        ks: Cut-offs of the retrieval figures.
        by: Fields of the questions to break the figures down by: kind,format.
        out: Result folder; an unfinished one is continued.
    """
    from rag.core.errors import ConfigError
    from rag.eval import api

    if (questions is None) is (dataset is None):
        raise ConfigError("give --questions, or --dataset and no --questions")
    if dataset is not None:
        index = str(_index_dataset(dataset, index or f"{out}.index", str(opening["retriever"])))
        questions, read = dataset, 0
    given = {**settings, **opening, "ks": ks, "by": by, "read": max(read, 1), "format": format}
    given |= {"split": split, "run": run, "command": shlex.join(["rag", *sys.argv[1:]])}
    if read == 0:
        given["reads"] = False
    if fusion and len(fusion) > 1:
        evaluations, compared = api.evaluate_fusions(index, questions, out, fusion, **given)
        for evaluation in evaluations:
            typer.echo(f"{evaluation.name}\n{evaluation}\n")
        typer.echo(comparison_table(compared))
    else:
        typer.echo(str(api.evaluate(index, questions, out, fusion=fusion[0] if fusion else None, **given)))
    typer.echo(f"figures, records, predictions and {api.REPORT_NAME} → {out}")


def _index_dataset(name: str, place: str, retriever: str) -> Path:
    """Index the corpus of a data set, a document a passage, as far as this is not done."""
    from rag.commands import index
    from rag.data.files.named import corpus_of

    kind: Any = retriever.partition(":")[0]
    kind = kind if kind in ("bm25", "dense") else "hybrid"
    return index(corpus_of(name), place, retriever=kind, split="none")
