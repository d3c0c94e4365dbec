"""The interface of readers: questions and their passages in, answers with evidence out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from rag.core.errors import ConfigError, DataError
from rag.core.types import Passage

PassageLists = Sequence[Sequence[Passage]]  # the passages of each question
ScoreLists = Sequence[Sequence[float]]  # one score per passage, question by question

MAX_QUESTION_CHARS = 4_000
MAX_PASSAGE_CHARS = 200_000


@dataclass(frozen=True, slots=True)
class Citation:
    """A passage that a reader cites, and the characters of the answer in it; None if it does not occur."""

    passage_index: int
    start: int | None = None
    end: int | None = None


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    """One answer and the passage that supports it.

    Attributes:
        text: the answer; exactly `passages[passage_index].text[start:end]` if there is a span.
        score: larger is better; comparable within the question.
        confidence: calibrated probability that the answer is right, in [0, 1].
        passage_index: index of that passage.
        start, end: characters of that passage's text, the end exclusive; None if the answer does not occur
            there literally ("yes", or the words of a generator).
        supporting: start and end of the sentences that support it, if the reader marks them.
        weights: each passage's share in the answer's probability, by Bayes' rule, if the reader computes it;
            they sum to 1.
        citations: every passage that the reader cites, if it does.
        is_supported: False if the cited passages do not contain the answer.
        note: a sentence about unusual citations, or "".
    """

    text: str
    score: float
    confidence: float
    passage_index: int
    start: int | None = None
    end: int | None = None
    supporting: tuple[tuple[int, int], ...] = ()
    weights: tuple[float, ...] = ()
    citations: tuple[Citation, ...] = ()
    is_supported: bool = True
    note: str = ""


@dataclass(frozen=True, slots=True)
class ReadResult:
    """Answers of one question, best first, and the probability that the passages hold none.

    `reading` states the cost, if the reader counts it: "passages" that were read, "dropped" of these before
    the end, "token_layers". `failure` states why this question could not be read; "" if it was.
    """

    answers: tuple[ReadAnswer, ...]
    no_answer_confidence: float
    reading: Mapping[str, int] = field(default_factory=dict)
    failure: str = ""


@runtime_checkable
class Reader(Protocol):
    """A reader: finds or generates answers from passages."""

    def read(
        self, questions: Sequence[str], passages: PassageLists, scores: ScoreLists, n_best: int = 5
    ) -> list[ReadResult]:
        """Answer each question from its own passages.

        Args:
            questions: B questions; over-long ones are truncated by the reader's settings.
            passages: for each question the passages to read, in any order; maybe none.
            scores: for each passage its retrieval score (larger is better).
            n_best: maximum number of answers per question.

        Returns:
            B results in the order of the questions. Without passages, or with empty ones only: no answers and
            a no-answer confidence of 1.

        Raises:
            ConfigError, DataError: see `check_request`.
        """


def check_request(questions: Sequence[str], passages: PassageLists, scores: ScoreLists, n_best: int) -> None:
    """Refuse invalid arguments of `Reader.read`.

    Raises:
        ConfigError: if `n_best` is below 1 or the lists do not match in length.
        DataError: if a question is blank, or a question or passage is too long.
    """
    if n_best < 1:
        raise ConfigError(f"n_best is {n_best}, expected at least 1")
    if not len(questions) == len(passages) == len(scores):
        raise ConfigError(
            f"{len(questions)} questions, {len(passages)} lists of passages, {len(scores)} lists of scores: "
            "expected one of each per question"
        )
    for question, found, given in zip(questions, passages, scores, strict=True):
        if not question.strip():
            raise DataError("a question is blank")
        if len(question) > MAX_QUESTION_CHARS:
            raise DataError(
                f"a question has {len(question)} characters, at most {MAX_QUESTION_CHARS} are accepted"
            )
        if len(found) != len(given):
            raise ConfigError(
                f"{len(found)} passages but {len(given)} scores for the question {question[:60]!r}"
            )
        check_lengths(found)


def readable(passage: Passage) -> Passage:
    """The passage as far as a reader accepts it: one that is too long must not cost a question its answer."""
    if len(passage.text) <= MAX_PASSAGE_CHARS:
        return passage
    return replace(passage, text=passage.text[:MAX_PASSAGE_CHARS])


def check_lengths(passages: Iterable[Passage]) -> None:
    """Refuse passages that are too long to read.

    Raises:
        DataError: a passage is too long; the message states its id.
    """
    for passage in passages:
        if len(passage.text) > MAX_PASSAGE_CHARS:
            raise DataError(
                f"passage {passage.id!r} has {len(passage.text)} characters, at most {MAX_PASSAGE_CHARS} "
                "are accepted",
                hint="split documents when indexing (`rag index --split words100`)",
            )
