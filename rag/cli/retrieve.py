"""`rag retrieve`: many questions, results as DPR JSON or a TREC run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rag.cli.options import (
    DATA,
    OPENING,
    OUTPUT,
    SEARCH,
    IndexDir,
    Limit,
    QuestionFile,
    QuestionFormat,
    adds_options,
    option,
)
from rag.core.errors import ConfigError
from rag.core.progress import Progress

if TYPE_CHECKING:
    from rag.core.types import Passage, Question
    from rag.data.examples import Example
    from rag.pipeline import Found


_SEARCH = {name: option for name, option in OPENING.items() if name != "effort"}


@adds_options("opening", _SEARCH)
def retrieve(
    index: IndexDir,
    questions: QuestionFile,
    out: Annotated[
        Path,
        option(
            *("--out", "-o"),
            help="*.json: DPR results; *.run or *.trec: a TREC run; *.jsonl: paths.",
            panel=OUTPUT,
        ),
    ],
    opening: dict[str, Any],
    top_k: Annotated[int, option(min=1, help="Hits per question.", panel=SEARCH)] = 100,
    format: QuestionFormat = "auto",
    batch_size: Annotated[int, option(min=1, help="Questions searched at once.", panel=SEARCH)] = 512,
    limit: Limit = None,
    regex: Annotated[
        bool, option("--regex", help="Answers are regular expressions (CuratedTREC).", panel=DATA)
    ] = False,
) -> None:
    """Search for many questions; writes DPR's results JSON, a TREC run, or MDR's paths, by extension."""
    from itertools import islice

    from rag.data.files.dpr_family import write_results
    from rag.data.files.results import write_paths
    from rag.data.files.tables import write_run
    from rag.data.questions import read_questions
    from rag.pipeline import Pipeline
    from retrievers.protocols import PathRetriever

    suffix = out.name.rpartition(".")[2]
    if suffix not in ("json", "jsonl", "run", "trec"):
        raise ConfigError(
            f"--out {out}: unknown extension .{suffix}",
            hint="use .json (DPR results), .run (TREC) or .jsonl (paths)",
        )
    asked = list(islice(read_questions(questions, format=format), limit))
    pipeline = Pipeline.open(index, reads=False, **opening)
    if suffix == "jsonl" and not isinstance(pipeline.retriever, PathRetriever):
        raise ConfigError(
            f"--out {out}: .jsonl holds paths, and {opening['retriever']} retrieval finds none",
            hint="write .json or .run, or use --retriever multihop",
        )

    def results() -> Iterator[tuple[Question, Found, list[Found]]]:
        with Progress(len(asked), "questions", "retrieve") as progress:
            for start in range(0, len(asked), batch_size):
                batch = asked[start : start + batch_size]
                found = pipeline.retrieve_paths([question.text for question in batch], top_k)
                yield from zip(batch, *found, strict=True)
                progress.update(len(batch))

    if suffix == "jsonl":
        write_paths(out, ((question, list(map(_as_path, paths))) for question, _, paths in results()))
    else:
        examples = (_as_example(question, found, regex) for question, found, _ in results())
        (write_results if suffix == "json" else write_run)(out, examples)
    typer.echo(f"{len(asked):,} questions × top {top_k} → {out}")


def _as_path(steps: Found) -> tuple[float, list[Passage]]:
    return sum(hit.score for hit, _ in steps), [passage for _, passage in steps]


def _as_example(question: Question, found: Found, regex: bool) -> Example:
    from rag.data.examples import Candidate, Example
    from rag.data.text import AnswerMatcher

    regex = regex or question.answers_are_regex
    matcher = AnswerMatcher(question.answers, "regex" if regex else "tokens") if question.answers else None
    candidates = (
        Candidate(
            passage, "retrieved", score=hit.score,
            has_answer=None if matcher is None else matcher.matches(passage.text),
            extra={} if passage.location is None else {"location": passage.location.to_json()},
        )
        for hit, passage in found
    )  # fmt: skip
    return Example(question.id, question.text, question.answers, tuple(candidates), answers_are_regex=regex)
