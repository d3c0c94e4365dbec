"""The interface of readers: questions with their passages in, answers with evidence out."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from rag.core.errors import ConfigError, DataError, QuestionError
from rag.core.types import (
    AnswerSet,
    Evidence,
    Hit,
    Passage,
    Paths,
    RankedPassages,
    SearchResult,
    Verdict,
)
from rag.data.languages import ENGLISH

if TYPE_CHECKING:
    from rag.core.arrays import Float32
    from readers.llm.reader import Completer

PassageLists = Sequence[Sequence[Passage]]  # the passages of each question
TextSink = Callable[[str], object]  # gets a text piece by piece
ScoreLists = Sequence[Sequence[float]]  # one score per passage, question by question

MAX_QUESTION_CHARS = 4_000
MAX_PASSAGE_CHARS = 200_000


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A question with the passages to read for it.

    Attributes:
        question: over-long questions are truncated by the reader's settings.
        ranked: the passages with their hits, in any order; maybe none.
        paths: the paths that a multi-hop retriever found, best first; paths of one passage say
            nothing more than `ranked`.
    """

    question: str
    ranked: RankedPassages
    paths: Paths = ()

    @classmethod
    def of(
        cls, question: str, passages: Sequence[Passage], scores: Sequence[float] | None = None
    ) -> ReadRequest:
        """A request for passages that come from no index.

        Args:
            scores: a retrieval score per passage, larger is better; equal scores by default.
        """
        if scores is None:
            scores = [1.0] * len(passages)
        if len(scores) != len(passages):
            raise ConfigError(
                f"{len(passages)} passages but {len(scores)} scores for {question[:60]!r}"
            )
        hits = [Hit(-1, passage.id, score) for passage, score in zip(passages, scores, strict=True)]
        return cls(question, list(zip(hits, passages, strict=True)))

    @property
    def passages(self) -> list[Passage]:
        """The passages as a reader sees them: text beyond `MAX_PASSAGE_CHARS` is not read."""
        return [_readable(passage) for _, passage in self.ranked]

    @property
    def scores(self) -> list[float]:
        """The score of each passage by the last stage of the search."""
        return [hit.score for hit, _ in self.ranked]

    @property
    def first_stage_scores(self) -> list[float]:
        """The score of each passage before re-ranking: a re-ranker's scores are on another scale."""
        return [(hit.first_stage or hit).score for hit, _ in self.ranked]

    @property
    def has_paths(self) -> bool:
        """Whether there is a path of several passages."""
        return any(len(path) > 1 for path in self.paths)

    def evidence(self, number: int, span: tuple[int, int] | None = None) -> Evidence:
        """A passage, by its number in `ranked`, as evidence with an answer at `span`."""
        hit, passage = self.ranked[number]
        return Evidence.of(passage, hit.score, span, first_stage=hit.first_stage)


class Reader(ABC):
    """Finds or generates answers in passages. A subclass needs `read` alone; the rest says what else
    it can do.

    Attributes:
        name: folder, hub name or address, for reports.
        max_concurrent: questions that a model in another process takes at a time, from any thread;
            0: the reader computes in this process.
        counts_scores: whether answers depend on the values of retrieval scores, as p(z|x) (RAG) or
            as a summand (ORQA), not on their order alone.
        effort: how much the reader reads, if it can leave something unread.
        version: hash of weights, settings and calibration; "" if the reader has none.
        completer: the language model that it reads with, for policies that ask a model.
        language: of the passages; rules that are made for English are off in others.
    """

    name: str = ""
    language: str = ENGLISH
    max_concurrent: int = 0
    counts_scores: bool = False
    effort: str = ""
    version: str = ""
    completer: Completer | None = None

    @abstractmethod
    def read(self, requests: Sequence[ReadRequest], n_best: int = 5) -> list[AnswerSet]:
        """Answer each question from its own passages.

        Args:
            n_best: maximum number of answers per question.

        Returns:
            B results in the order of the requests; index version and timings are the caller's to
            add. Without passages, or with empty ones only: no answers and a no-answer confidence of
            1.

        Raises:
            ConfigError, QuestionError: see `check_requests`.
        """

    def stream(self, request: ReadRequest, on_text: TextSink, n_best: int = 5) -> AnswerSet:
        """Answer one question like `read`; a reader that words its answers hands on their text as
        it comes, others hand on nothing.
        """
        return self.read([request], n_best)[0]

    def for_language(self, language: str) -> Self:
        """This reader with its loaded model, for passages in a language."""
        reader = copy.copy(self)
        reader.language = language
        return reader

    def search_scores(self, request: ReadRequest) -> list[float]:
        """The score of each passage by the stage that the reader was trained with."""
        return request.first_stage_scores if self.counts_scores else request.scores

    def count_candidates(self, question: str, n_best: int) -> int:
        """How many answers `present` needs in order to return `n_best` of them."""
        return n_best

    def present(self, result: AnswerSet, n_best: int) -> AnswerSet:
        """At most `n_best` answers, in the form that the question asks for."""
        return replace(result, answers=result.answers[:n_best])


class Verifier(ABC):
    """Judges whether texts support or refute a claim. A subclass needs `probabilities` alone.

    Attributes:
        name: folder of the model, for reports.
        version: hash of weights, settings and calibration; "" if the verifier has none.
    """

    name: str = ""
    version: str = ""

    @abstractmethod
    def probabilities(self, claims: Sequence[str], texts: Sequence[str]) -> Float32:
        """Judge each claim by the text of the same number, B > 0; no text is blank.

        Returns:
            Calibrated probabilities (B, 3), in the order of `VERDICT_LABELS`.
        """

    def judge(self, claims: Sequence[str], evidence: Sequence[Sequence[str]]) -> list[Verdict]:
        """Judge each claim by texts that come from no index.

        Args:
            evidence: the texts of each claim, maybe none.

        Raises:
            ConfigError: there are not as many lists of texts as claims.
            QuestionError: a claim is blank or too long.
        """
        if len(claims) != len(evidence):
            raise ConfigError(f"{len(claims)} claims but {len(evidence)} lists of texts")
        found = []
        for claim, texts in zip(claims, evidence, strict=True):
            passages = [Passage(str(number), "", text) for number, text in enumerate(texts)]
            ranked = [(Hit(-1, passage.id, 1.0), passage) for passage in passages]
            found.append(SearchResult(claim, ranked))
        return self.judge_found(found)

    def judge_found(self, results: Sequence[SearchResult]) -> list[Verdict]:
        """Judge each query as a claim, by the passages that were found for it.

        See `readers.verdicts.judge_results`.

        Raises:
            QuestionError: a claim is blank or too long.
        """
        from readers.verdicts import judge_results

        return judge_results(results, self.probabilities)


def reader_name(reader: Reader) -> str:
    """The reader's name, or that of its class."""
    return reader.name or type(reader).__name__


def best_first(scores: Sequence[float]) -> list[int]:
    """Numbers of the passages by their scores, the highest first; equal ones keep their order."""
    return sorted(range(len(scores)), key=scores.__getitem__, reverse=True)


def check_requests(requests: Sequence[ReadRequest], n_best: int) -> None:
    """Refuse invalid arguments of `Reader.read`.

    Raises:
        ConfigError: `n_best` is below 1.
        QuestionError: a question is blank or too long.
    """
    if n_best < 1:
        raise ConfigError(f"n_best is {n_best}, expected at least 1")
    for request in requests:
        if not request.question.strip():
            raise QuestionError("a question is blank")
        if len(request.question) > MAX_QUESTION_CHARS:
            raise QuestionError(
                f"a question has {len(request.question)} characters, more than {MAX_QUESTION_CHARS}"
            )


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


def _readable(passage: Passage) -> Passage:
    if len(passage.text) <= MAX_PASSAGE_CHARS:
        return passage
    return replace(passage, text=passage.text[:MAX_PASSAGE_CHARS])
