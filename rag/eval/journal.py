"""The records of a running evaluation: those of answered questions are in the file at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TypeVar

from rag.core.errors import MismatchedArtifactError
from rag.core.files import atomic_path, fsync_path, records_of_journal
from rag.core.types import Claim, Question
from rag.eval.records import QuestionRecord

Asked = TypeVar("Asked", Question, Claim)


class Journal:
    """Records of questions, in the order in which their answers came.

    A question that could not be read is asked again by the next run; of several records of a
    question the last counts.

    Attributes:
        answered: id → text of each question that an earlier run could read.

    Raises:
        DataError: a line before the last is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.answered = dict[str, str]()
        self._ids = list[str]()
        for record in records_of_journal(path):
            name = str(record["id"])
            self._ids.append(name)
            if not record.get("failure"):
                self.answered[name] = str(record.get("question"))

    def append(self, records: Sequence[QuestionRecord]) -> None:
        """Add records; a kill loses at most these."""
        with open(self.path, "a", encoding="utf-8") as file:
            file.writelines(record.to_line() for record in records)
        self._ids += [record.id for record in records]

    def unanswered(self, questions: Iterator[Asked]) -> Iterator[Asked]:
        """The questions that still have to be asked.

        Raises:
            MismatchedArtifactError: an answered question is not among them, or has other words.
        """
        missing = dict(self.answered)
        unasked: list[Asked] = []
        while missing:
            question = next(questions, None)
            if question is None:
                raise self._mismatch(next(iter(missing)), "no question of that id")
            text = missing.pop(question.id, None)
            if text is None:
                unasked.append(question)
            elif text != question.text:
                raise self._mismatch(question.id, f"{question.text!r} there")
        return chain(unasked, questions)

    def _mismatch(self, name: str, found: str) -> MismatchedArtifactError:
        return MismatchedArtifactError(
            f"{self.path}: question {name!r} was answered, the question set now has {found}",
            hint="choose another {out}, or delete that directory",
            arguments=("out",),
        )

    def finish(self, target: Path, order: Sequence[str]) -> None:
        """Move the records to `target`: the last record of every question, in this order."""
        if self._ids != order:
            places = dict[str, int]()
            with open(self.path, "rb") as source, atomic_path(self.path) as arranged:
                for name in self._ids:
                    places[name] = source.tell()
                    source.readline()
                with open(arranged, "wb") as file:
                    for name in order:
                        source.seek(places[name])
                        file.write(source.readline())
        self._ids = list(order)
        fsync_path(self.path)
        self.path.replace(target)
        fsync_path(target.parent)
