"""`rag evaluate` and `rag compare`: figures with intervals, and tests between systems."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Unpack

from cyclopts import Parameter
from cyclopts.types import NonNegativeInt

from rag.cli.options import OPENING, Out, Questions, options_of, with_options, without
from rag.cli.show import say
from rag.core.errors import ConfigError
from rag.eval.settings import EvaluationSettings
from rag.options import EvaluationOptions

if TYPE_CHECKING:
    from indexers.settings import IndexKind


@with_options(without(options_of(EvaluationSettings, panel="Figures"), "read"), OPENING)
def evaluate(
    *,
    index: Annotated[str | None, Parameter(alias="-i")] = None,
    questions: Questions | None = None,
    dataset: str | None = None,
    claims: str | None = None,
    split: Literal["train", "dev", "test"] | None = None,
    run: str | None = None,
    read: Annotated[NonNegativeInt | None, Parameter(alias="--top-k")] = None,
    out: Out,
    **options: Unpack[EvaluationOptions],
) -> None:
    """Evaluate an index and a reader on a question set, or a verifier on claims.

    Args:
        index: Directory written by `rag index`; --gold needs none.
        dataset: irds:NAME, such as irds:beir/scifact/test: its corpus is indexed where that is
            missing (in --index, or beside --out), and its questions are searched for, and read for
            with --read alone.
        claims: Claims to judge in place of questions: JSON lines, or FEVER's, HoVer's, SciFact's or
            Fool Me Twice's published files. With --gold by the evidence that they bring.
        split: Split of a data set, if the file name does not contain it, such as dev.
        run: Score these search results instead: a TREC run, the columns of MS MARCO, Tevatron or
            ColBERT, or the JSON of ranx, BEIR or DPR.
        read: Passages the reader sees, 20 by default, or that a claim is judged by, 5 by default; 0
            evaluates retrieval only.
        out: Result folder; an unfinished one is continued.
    """
    from rag.eval import api

    if sum(given is not None for given in (questions, dataset, claims)) != 1:
        raise ConfigError(
            "give {questions}, or {dataset}, or {claims}, and one of these alone",
            hint="{dataset} names a corpus with its questions",
            arguments=("questions", "dataset", "claims"),
        )
    if dataset is not None:
        index = _index_of(dataset, index or f"{out}.index", str(options.get("retriever", "auto")))
        questions = dataset
        read = read or 0
    if read is None:
        read = 20 if claims is None else api.READ
    command = shlex.join(["rag", *sys.argv[1:]])
    evaluation = api.evaluate(
        index,
        questions,
        out,
        run=run,
        claims=claims,
        reads=read > 0,
        read=max(read, 1),
        split=split,
        command=command,
        **options,
    )
    say(evaluation)
    say(f"figures, records, predictions and {api.REPORT_NAME} → {out}")


def _index_of(dataset: str, out: str, retriever: str) -> str:
    """Build the index of a data set's corpus, where it is missing, for a kind of retriever."""
    from rag.commands import index as build
    from rag.data.files.named import corpus_of

    kinds: dict[str, IndexKind] = {"bm25": "bm25", "dense": "dense"}
    kind = kinds.get(retriever.partition(":")[0], "hybrid")
    return str(build(corpus_of(dataset), out, retriever=kind, split="none"))


def compare(results: list[Path], /, *, report: Path | None = None) -> None:
    """Compare systems: paired tests, Holm's correction, wins, ties and losses.

    Args:
        results: Two or more folders written by `rag evaluate`; the others are compared with the
            first.
        report: Write a side-by-side HTML page.
    """
    from rag.core.log import text_table
    from rag.eval.api import compare as run

    columns = ["figure", "A", "B", "A", "B", "B-A", "p", "p Holm", "won/tied/lost"]
    rows = []
    for row in run(results, report=report):
        test = row.result
        a = 100 * row.value_a
        b = 100 * row.value_b
        counts = f"{test.gained}/{test.ties}/{test.lost}"
        values = [f"{a:.2f}", f"{b:.2f}", f"{b - a:+.2f}"]
        p_values = [_p_value(test.p_value), _p_value(row.p_holm)]
        rows.append([row.figure, row.a, row.b, *values, *p_values, counts])
    say("\n".join(text_table(columns, rows)))


def _p_value(p: float) -> str:
    return "<0.0001" if p < 0.0001 else f"{p:.4f}"
