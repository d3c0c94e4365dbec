"""Sources of the questions of an evaluation; test sets stay for testing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rag.core.errors import ConfigError
from rag.core.files import fingerprint
from rag.core.types import Question
from rag.data.files.named import is_named
from rag.data.formats import strip_compression
from rag.data.questions import question_files, questions_digest

_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("dev", "devel", "valid", "validation", "val"), "dev"),
    **dict.fromkeys(("test", "tests", "testing", "eval", "heldout", "blind", "sealed"), "test"),
}


def guess_split(name: str | Path) -> str | None:
    """The split in a file or data-set name, or None; the last such word of the file name counts.

    Example:
        >>> [guess_split(name) for name in ("data/nq-tests.qa.csv", "dev-v1.1.json.gz", "questions.jsonl")]
        ['test', 'dev', None]
    """
    words = re.findall(r"[a-z]+", Path(name).name.lower())
    return next((_WORDS[word] for word in reversed(words) if word in _WORDS), None)


@dataclass(frozen=True, slots=True)
class QuestionSource:
    """Source of the questions: part of the report, and compared when an evaluation is resumed.

    Attributes:
        path: file, or data-set name.
        split: "train", "dev", "test" or None if unknown.
        sha256: checksum of the file; empty without a file.
    """

    name: str
    path: str = ""
    split: str | None = None
    sha256: str = ""

    @classmethod
    def of_file(cls, path: str | Path, *, split: str | None = None) -> QuestionSource:
        """Describe a question file, or a data set `hf:owner/name[[:config]:split]` or `irds:name`;
        the split is guessed from its name if not given.

        Raises:
            DataError: there is no such file.
        """
        if is_named(path):
            name = str(path).partition(":")[2]
            marked = split or guess_split(name.rpartition(":")[2].rpartition("/")[2])
            return cls(name, str(path), marked)
        stem = strip_compression(Path(path).name)
        stem = stem.removesuffix(Path(stem).suffix).removesuffix(".qa")
        # The names of many sets are those of their folders.
        name = f"{Path(path).resolve().parent.name}/{stem}".removeprefix("/")
        split = split or guess_split(question_files(path)[-1])
        return cls(name, str(path), split, questions_digest(path))

    @classmethod
    def of_questions(cls, questions: Sequence[Question], *, split: str | None) -> QuestionSource:
        """Describe questions that were given as objects."""
        digest = fingerprint(list(map(repr, questions)))
        return cls("questions", split=split, sha256=digest)


def check_selection_split(name: str | Path) -> None:
    """Refuse a question set for choosing checkpoints or settings if it is named as a test set.

    Raises:
        ConfigError: its name says "test".
    """
    if guess_split(name) == "test":
        raise ConfigError(
            f"{name} is by its name a test set: choosing a checkpoint or a setting on it would make its "
            "figures meaningless",
            hint="hold out training questions and choose on these, or rename the file if it is none",
        )
