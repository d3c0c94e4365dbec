"""Write the search results of many questions to a file: DPR's results or a TREC run."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from rag.core.errors import ConfigError
from rag.core.log import get_logger
from rag.core.progress import Progress
from rag.core.types import Question, RankedPassages
from rag.data.examples import Candidate, Example, write_run
from rag.data.examples import write_results as write_dpr_results
from rag.data.filters import Filter
from rag.data.text import AnswerMatcher
from rag.pipeline import Pipeline

EXTENSIONS = ("json", "run", "trec")
_BATCH_SIZE = 512


def extension_of(out: Path) -> str:
    """The extension of `out`, one of `EXTENSIONS`, which selects the file format; else a ConfigError."""
    suffix = out.name.rpartition(".")[2]
    if suffix not in EXTENSIONS:
        message = f"--out {out}: unknown extension .{suffix}"
        raise ConfigError(message, hint="use .json (DPR results) or .run (TREC)")
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
        out: `*.json` for DPR's results with passages, `*.run` or `*.trec` for TREC's.
        top_k: number of hits per question.
        filter: which passages may be returned; a warning says if there are none.

    Raises:
        ConfigError: an unknown extension.
    """
    suffix = extension_of(out)
    if filter is not None and not len(pipeline.index.select(filter)):
        get_logger(__name__).warning("no passage meets the filter: every list of hits is empty")

    def examples() -> Iterator[Example]:
        with Progress(len(questions), "questions", "retrieve") as progress:
            for start in range(0, len(questions), _BATCH_SIZE):
                batch = questions[start : start + _BATCH_SIZE]
                rankings = pipeline.retrieve([question.text for question in batch], top_k, filter=filter)
                for question, hits in zip(batch, rankings, strict=True):
                    yield _as_example(question, hits)
                progress.update(len(batch))

    (write_dpr_results if suffix == "json" else write_run)(out, examples())


def _as_example(question: Question, hits: RankedPassages) -> Example:
    regex = question.answers_are_regex
    matcher = AnswerMatcher(question.answers, "regex" if regex else "tokens") if question.answers else None
    candidates = (
        Candidate(
            passage, "retrieved", score=hit.score,
            has_answer=None if matcher is None else matcher.matches(passage.text),
            extra={} if passage.location is None else {"location": passage.location.to_json()},
        )
        for hit, passage in hits
    )  # fmt: skip
    return Example(question.id, question.text, question.answers, tuple(candidates), answers_are_regex=regex)
