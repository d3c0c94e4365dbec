"""Files that commands write for other programs: TREC runs, and MDR's paths."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from rag.core.errors import DataError
from rag.core.types import Passage, Question
from rag.data.examples import Example
from rag.data.files.record import finite, open_text, write_json_lines


def write_paths(
    path: str | Path, results: Iterable[tuple[Question, Sequence[tuple[float, Sequence[Passage]]]]]
) -> None:
    """Write MDR's results, one question per line, atomically.

    Each is `{"_id", "question", "candidate_chains": [[{"id", "title", "text"}, …], …], "scores": […]}`, best
    path first; MDR's own files have neither ids nor scores.

    Raises:
        ResourceError: the disk is full or not writable.
    """
    records = (
        {
            "_id": question.id,
            "question": question.text,
            "candidate_chains": [[passage.to_json() for passage in passages] for _, passages in paths],
            "scores": [score for score, _ in paths],
        }
        for question, paths in results
    )
    write_json_lines(Path(path), records)


def write_run(path: Path, examples: Iterable[Example]) -> None:
    """Write a TREC run: ranks from 1 in the order given, scores that read back exactly."""
    with open_text(path) as file:
        for example in examples:
            question = _token(example.id, "question id")
            tag = _token(str(example.meta.get("tag") or "rag"), "tag")
            last, seen = math.inf, set[str]()
            for rank, hit in enumerate(example.candidates, start=1):
                passage = _token(hit.passage.id, "passage id")
                where = f"passage {passage!r} of question {question!r}"
                score = -float(rank) if hit.score is None else finite(hit.score, where)
                if score > last:
                    raise DataError(
                        f"question {question!r}: the score rises at rank {rank}; expected falling scores",
                        hint="distances of an HNSW index must be negated first",
                    )
                if passage in seen:
                    raise DataError(f"question {question!r}: passage {passage!r} stands twice in its ranking")
                last = score
                seen.add(passage)
                file.write(f"{question} Q0 {passage} {rank} {score!r} {tag}\n")


def _token(value: str, what: str) -> str:
    """The value, if it is a token of a file whose fields are separated by blanks.

    Raises:
        DataError: it is empty or holds white space.
    """
    if not value or value.split() != [value]:
        raise DataError(
            f"{what} {value!r} is empty or holds white space, which this format cannot express",
            hint="write a JSON format, or give ids without spaces",
        )
    return value
