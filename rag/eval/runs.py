"""Write the search results of many questions to a file: DPR's results, a TREC run, or MDR's
paths.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rag.core.errors import ConfigError
from rag.core.log import get_logger, in_batches
from rag.core.types import Paths, Question, RankedPassages, SearchResult
from rag.data.examples import Candidate, Example, write_examples, write_run
from rag.data.files.rows import write_json_lines
from rag.data.filters import Filter
from rag.data.text import AnswerMatcher
from rag.pipeline import Pipeline

EXTENSIONS = ("json", "run", "trec", "jsonl")
_BATCH_SIZE = 512


def extension_of(out: Path) -> str:
    """The extension of `out`, one of `EXTENSIONS`, which selects the file format; else a
    ConfigError.
    """
    suffix = out.name.rpartition(".")[2]
    if suffix not in EXTENSIONS:
        message = f"{out}: unknown extension .{suffix}"
        raise ConfigError(message, hint="use .json (DPR results), .run (TREC) or .jsonl (paths)")
    return suffix


def write_results(
    pipeline: Pipeline,
    questions: Sequence[Question],
    out: Path,
    top_k: int,
    *,
    filter: Filter | None = None,
) -> None:
    """Search for all questions and write the results.

    Args:
        out: `*.json` for DPR's results with passages, `*.run` or `*.trec` for TREC's, `*.jsonl` for
            paths.
        top_k: number of hits per question.
        filter: which passages may be returned; a warning says if there are none.

    Raises:
        ConfigError: an unknown extension, or paths of a retriever that finds none.
    """
    suffix = extension_of(out)
    if suffix == "jsonl" and not pipeline.retriever.finds_paths:
        raise ConfigError(
            f"{out}: this retriever finds no paths", hint="search with the retriever multihop"
        )
    if filter is not None and not len(pipeline.index.select(filter)):
        get_logger(__name__).warning("no passage meets the filter: every list of hits is empty")

    def searched() -> Iterator[tuple[Question, SearchResult]]:
        for batch in in_batches(questions, _BATCH_SIZE, "questions", "retrieve"):
            texts = [question.text for question in batch]
            yield from zip(batch, pipeline.search(texts, top_k, filter=filter), strict=True)

    if suffix == "jsonl":
        write_json_lines(out, (_paths_json(q, result.paths[:top_k]) for q, result in searched()))
    else:
        write = write_examples if suffix == "json" else write_run
        write(out, (_as_example(question, result.passages) for question, result in searched()))


def _paths_json(question: Question, paths: Paths) -> dict[str, Any]:
    """MDR's record of a question, best path first; MDR's own files have no ids."""
    chains = [[passage.to_json() for _, passage in path] for path in paths]
    return {"_id": question.id, "question": question.text, "candidate_chains": chains}


def _as_example(question: Question, hits: RankedPassages) -> Example:
    answers = question.answers
    profile = question.answer_profile
    matcher = AnswerMatcher(answers, profile)
    candidates = []
    for hit, passage in hits:
        has_answer = matcher.matches(passage.text) if answers else None
        candidates.append(Candidate(passage, "retrieved", score=hit.score, has_answer=has_answer))
    found = tuple(candidates)
    return Example(question.id, question.text, answers, found, answer_profile=profile)
