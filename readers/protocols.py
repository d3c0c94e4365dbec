"""The interface of readers: questions and their passages in, answers with evidence out."""

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

from rag.core.errors import ConfigError, DataError, QuestionError
from rag.core.types import AnswerSet, Passage

PassageLists = Sequence[Sequence[Passage]]  # the passages of each question
ScoreLists = Sequence[Sequence[float]]  # one score per passage, question by question

MAX_QUESTION_CHARS = 4_000
MAX_PASSAGE_CHARS = 200_000


@runtime_checkable
class Reader(Protocol):
    """A reader: finds or generates answers from passages."""

    def read(
        self, questions: Sequence[str], passages: PassageLists, scores: ScoreLists, n_best: int = 5
    ) -> list[AnswerSet]:
        """Answer each question from its own passages.

        Args:
            questions: B questions; over-long ones are truncated by the reader's settings.
            passages: for each question the passages to read, in any order; maybe none.
            scores: for each passage its retrieval score (larger is better).
            n_best: maximum number of answers per question.

        Returns:
            B results in the order of the questions; index version and timings are the caller's to
            add. Without passages, or with empty ones only: no answers and a no-answer confidence of
            1.

        Raises:
            ConfigError, DataError: see `check_request`.
        """


def check_request(
    questions: Sequence[str], passages: PassageLists, scores: ScoreLists, n_best: int
) -> None:
    """Refuse invalid arguments of `Reader.read`.

    Raises:
        ConfigError: if `n_best` is below 1 or the lists do not match in length.
        QuestionError: if a question is blank or too long.
        DataError: if a passage is too long.
    """
    if n_best < 1:
        raise ConfigError(f"n_best is {n_best}, expected at least 1")
    if not len(questions) == len(passages) == len(scores):
        raise ConfigError(
            f"{len(questions)} questions, {len(passages)} lists of passages, {len(scores)} lists of scores: "
            "expected one of each per question"
        )
    for question, own, ranks in zip(questions, passages, scores, strict=True):
        if not question.strip():
            raise QuestionError("a question is blank")
        if len(question) > MAX_QUESTION_CHARS:
            raise QuestionError(
                f"a question has {len(question)} characters, more than {MAX_QUESTION_CHARS}"
            )
        if len(own) != len(ranks):
            raise ConfigError(f"{len(own)} passages but {len(ranks)} scores for {question[:60]!r}")
        check_lengths(own)


def check_lengths(passages: Iterable[Passage]) -> None:
    """Refuse passages that are too long to read.

    Raises:
        DataError: a passage is too long; the message states its id.
    """
    for passage in passages:
        if len(passage.text) > MAX_PASSAGE_CHARS:
            raise DataError(
                f"passage {passage.id!r} has {len(passage.text)} characters, more than {MAX_PASSAGE_CHARS}",
                hint="split documents when indexing (`rag index --split words100`)",
            )
