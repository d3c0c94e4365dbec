"""Write the search results of many questions to files: DPR's results, a TREC run, or paths."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from rag.core.errors import ConfigError
from rag.core.log import get_logger
from rag.core.progress import Progress
from rag.core.types import Passage, Paths, Question, RankedPassages
from rag.data.examples import Candidate, Example, write_paths, write_run
from rag.data.examples import write_results as write_dpr_results
from rag.data.filters import Filter
from rag.data.text import AnswerMatcher
from rag.pipeline import Pipeline
from retrievers.protocols import PathRetriever

EXTENSIONS = ("json", "jsonl", "run", "trec")


def extension_of(out: Path) -> str:
    """The extension of `out`, which selects the file format.

    Raises:
        ConfigError: none of `EXTENSIONS`.

    Example:
        >>> extension_of(Path("found.run"))
        'run'
    """
    suffix = out.name.rpartition(".")[2]
    if suffix not in EXTENSIONS:
        raise ConfigError(
            f"--out {out}: unknown extension .{suffix}",
            hint="use .json (DPR results), .run (TREC) or .jsonl (paths)",
        )
    return suffix


def write_results(
    pipeline: Pipeline,
    questions: Sequence[Question],
    out: Path,
    top_k: int,
    *,
    batch_size: int = 512,
    regex: bool = False,
    filter: Filter | None = None,
) -> None:
    """Search for all questions and write the results.

    Args:
        out: `*.json` for DPR's results with passages, `*.run` or `*.trec` for TREC's, `*.jsonl` for paths.
        top_k: number of hits per question.
        batch_size: questions searched at once.
        regex: treat answers as regular expressions, even if the question set does not mark them so.
        filter: which passages may be returned; a warning says if there are none.

    Raises:
        ConfigError: an unknown extension, or `*.jsonl` with a retriever that returns no paths.
    """
    suffix = extension_of(out)
    if suffix == "jsonl" and not isinstance(pipeline.retriever, PathRetriever):
        raise ConfigError(
            f"--out {out}: .jsonl holds paths, and this retriever finds none",
            hint="write .json or .run, or use --retriever multihop",
        )

    if filter is not None and not len(pipeline.index.select(filter)):
        get_logger(__name__).warning("no passage meets the filter: every list of hits is empty")

    def results() -> Iterator[tuple[Question, RankedPassages, Paths]]:
        with Progress(len(questions), "questions", "retrieve") as progress:
            for start in range(0, len(questions), batch_size):
                batch = questions[start : start + batch_size]
                found = pipeline.retrieve_paths([it.text for it in batch], top_k, filter=filter)
                yield from zip(batch, *found, strict=True)
                progress.update(len(batch))

    if suffix == "jsonl":
        write_paths(out, ((question, list(map(_as_path, paths))) for question, _, paths in results()))
    else:
        examples = (_as_example(question, found, regex) for question, found, _ in results())
        (write_dpr_results if suffix == "json" else write_run)(out, examples)


def _as_path(steps: RankedPassages) -> tuple[float, list[Passage]]:
    return sum(hit.score for hit, _ in steps), [passage for _, passage in steps]


def _as_example(question: Question, found: RankedPassages, regex: bool) -> Example:
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
