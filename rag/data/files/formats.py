"""File formats: how each is read and written, which fields it has and which it needs."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rag.data.examples import Example
from rag.data.files.record import write_json_list

Reader = Callable[[Path], Iterator[Example]]
Writer = Callable[[Path, Iterable[Example]], object]  # a file or folder that appears whole

QUESTION_PARTS = frozenset({"id", "question", "answers", "meta"})  # see `parts_of`
PASSAGE_PARTS = frozenset({"passage ids", "passage texts", "titles"})
ROLE_PARTS = {
    "positive": "positives",
    "hard_negative": "hard_negatives",
    "negative": "negatives",
    "retrieved": "contexts",
}


@dataclass(frozen=True, slots=True)
class Format:
    """One file format.

    Attributes:
        read: its examples; question, answers, ids and texts are "" or () where it has no place for them.
        write: None if the format is only read.
        keeps: parts of an example (see `parts_of`) the format has a place for.
        needs: parts it cannot be written without: "id", "question" and "answers" of every record, "passage
            ids" and "passage texts" of every passage, "contexts" or "positives" of one record at least.
    """

    name: str
    about: str
    read: Reader
    write: Writer | None = None
    keeps: frozenset[str] = frozenset()
    needs: frozenset[str] = frozenset()
    is_folder: bool = False


def parts_of(example: Example) -> set[str]:
    """Names of everything that is known of an example, as used by `Format`."""
    passages, given = example.passages, example.candidates
    known = {
        **{name: bool(getattr(example, name)) for name in QUESTION_PARTS},
        "meta": bool(example.meta or example.target_answer),
        "passage ids": any(passage.id for passage in passages),
        "passage texts": any(passage.text for passage in passages),
        "titles": any(passage.title for passage in passages),
        "scores": any(candidate.score is not None for candidate in given),
        "has_answer": any(candidate.has_answer is not None for candidate in given),
        "passage fields": any(
            c.extra or c.source or c.rank is not None or c.target is not None for c in given
        ),
    }
    return {name for name, is_known in known.items() if is_known} | {ROLE_PARTS[c.role] for c in given}


def as_json(
    to_json: Callable[[Example], Mapping[str, Any]], write: Callable[..., Any] = write_json_list
) -> Writer:
    """Writes records as one JSON list, or by another `write`."""
    return lambda path, examples: write(path, map(to_json, examples))
