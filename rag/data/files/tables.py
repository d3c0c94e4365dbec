"""TREC runs, which are written, and relevance judgements, which are read."""

import math
from collections.abc import Iterable
from pathlib import Path

from rag.core.errors import DataError
from rag.data.examples import Example
from rag.data.files.record import finite, open_text, text_lines, token


def write_run(path: Path, examples: Iterable[Example]) -> None:
    """Write a TREC run: ranks from 1 in the order given, scores that read back exactly."""
    with open_text(path) as file:
        for example in examples:
            question = token(example.id, "question id")
            tag = token(str(example.meta.get("tag") or "rag"), "tag")
            last, seen = math.inf, set[str]()
            for rank, hit in enumerate(example.candidates, start=1):
                passage = token(hit.passage.id, "passage id")
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


def read_qrels(path: Path) -> dict[str, dict[str, int]]:
    """The grade of each judged passage of each question, TREC's or BEIR's; ids between tabs may hold blanks.

    Raises:
        DataError: a line of another shape; names it.
    """
    grades: dict[str, dict[str, int]] = {}
    for place, line in text_lines(path):
        fields = [field.strip() for field in line.split("\t")]
        if len(fields) not in (3, 4):
            fields = line.split()
        if not line.strip() or fields[0] == "query-id":
            continue
        if len(fields) not in (3, 4):
            raise DataError(f"{place}: {len(fields)} fields, qrels have 4 (TREC) or 3 (BEIR)")
        grades.setdefault(fields[0], {})[fields[-2]] = _grade(fields[-1], place)
    return grades


def _grade(value: str, place: str) -> int:
    """A whole number, which tables that were written by other programs may have as 1.0."""
    try:
        if (number := float(value)).is_integer():
            return int(number)
    except (ValueError, OverflowError):
        pass
    raise DataError(f"{place}: grade {value!r} is not a whole number")
