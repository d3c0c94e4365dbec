"""The reader protocol over anything that completes a chat."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Protocol

from pydantic import Field

from rag.config import Config
from rag.core.errors import ReaderError
from rag.core.log import get_logger
from rag.core.types import Passage
from readers.llm.prompt import (
    Completion,
    MalformedReply,
    grounded_messages,
    parse_reply,
    quoting_messages,
    to_result,
    without_question,
)
from readers.protocols import PassageLists, ReadAnswer, ReadResult, ScoreLists, check_request

log = get_logger(__name__)
_SHOWN_FAILURES = 3


class LanguageModelSettings(Config):
    """Settings of a language model as a reader.

    Attributes:
        passages: maximum number of passages in the prompt, the best first.
        effort: "full" shows all passages that fit, a number that many, "normal" `passages` of them.
        answer_tokens: maximum length of a reply.
        cite: ask for JSON that cites the passages; otherwise for a few words, a shorter prompt that small
            models follow better. Evidence is then the passage that contains the words.
        quote: restrict the replies of a local model to spans of the passages.
        beams: number of beams of a local model; 1 is greedy. With `quote`, each beam is an answer.
        batch: number of questions that a local model reads together.
        timeout_s: longest time for a question at an endpoint, repetitions and pauses included.
        retries: repetitions of a failed request, with growing pauses, and of a malformed reply.
        parallel: questions that an endpoint is asked at the same time.
    """

    passages: int = Field(default=20, ge=1)
    effort: str = Field(default="normal", pattern=r"^(full|normal|[1-9]\d{0,3})$")
    answer_tokens: int = Field(default=128, ge=8)
    cite: bool = True
    quote: bool = False
    beams: int = Field(default=1, ge=1, le=16)
    batch: int = Field(default=4, ge=1)
    timeout_s: float = Field(default=60.0, gt=0)
    retries: int = Field(default=2, ge=0)
    parallel: int = Field(default=4, ge=1)


class Completer(Protocol):
    """A model that continues a chat; `is_remote`: elsewhere, for any thread of this process."""

    name: str
    parallel: int
    is_remote: bool

    def complete(
        self, messages: Sequence[dict[str, str]], max_tokens: int, *, timeout_s: float | None = None
    ) -> Completion:
        """The reply to the messages, within `timeout_s` if the model runs elsewhere.

        Raises:
            ReaderError: there is no reply; the message states why.
        """

    def fits(self, messages: Sequence[dict[str, str]], max_tokens: int) -> bool:
        """Whether messages and reply fit into the model's window, as far as is known."""


class LanguageModelReader:
    """A language model as a reader: one answer per question, with the passage that supports it.

    Attributes:
        name: name of the model, for reports.
        reads_at_once: questions that a model elsewhere takes at a time, from any thread; 0: it runs here.
    """

    def __init__(self, completer: Completer, settings: LanguageModelSettings) -> None:
        self.completer, self.settings, self.name = completer, settings, completer.name
        self.reads_at_once = completer.parallel if completer.is_remote else 0

    def read(
        self, questions: Sequence[str], passages: PassageLists, scores: ScoreLists, n_best: int = 5
    ) -> list[ReadResult]:
        """Answer each question from its own passages; see `readers.protocols.Reader`.

        A question without passages is not sent to the model and has no answer. A question without a reply, or
        with one that cannot be parsed, has a `failure`; the others are still answered.

        Raises:
            ReaderError: not a single question could be read; the reason of the first.
        """
        check_request(questions, passages, scores, n_best)
        order = [best_ranked(own, self.settings) for own in scores]
        jobs = list(zip(questions, passages, order, strict=True))
        workers = min(self.completer.parallel, len(jobs))
        if workers <= 1:
            read = [self._one(*job) for job in jobs]
        else:
            with ThreadPoolExecutor(workers) as pool:
                read = list(pool.map(lambda job: self._one(*job), jobs))
        return as_results(read, n_best)

    def _one(
        self, question: str, passages: Sequence[Passage], order: Sequence[int]
    ) -> ReadResult | ReaderError:
        try:
            return self._read(question, passages, order)
        except ReaderError as error:
            return error

    def _read(self, question: str, passages: Sequence[Passage], order: Sequence[int]) -> ReadResult:
        if not order:
            return ReadResult((), 1.0)
        tokens = self.settings.answer_tokens
        shown, messages = self.shown(question, passages, order)
        wrong: ReaderError | None = None
        ends = time.monotonic() + self.settings.timeout_s
        for _ in range(1 + self.settings.retries):
            if (left_s := ends - time.monotonic()) <= 0:
                break
            completion = self.completer.complete(messages, tokens, timeout_s=left_s)
            try:
                return self.parse_result(question, completion, [passages[place] for place in shown], shown)
            except ReaderError as error:
                wrong = error
        raise wrong or ReaderError(f"{self.name}: no reply within {self.settings.timeout_s:g} s")

    def shown(
        self, question: str, passages: Sequence[Passage], order: Sequence[int]
    ) -> tuple[list[int], list[dict[str, str]]]:
        """The indices of as many passages as fit, best first, and the messages that ask about them."""
        shown = list(order)
        ask = grounded_messages if self.settings.cite and not self.settings.quote else quoting_messages
        messages = ask(question, [passages[place] for place in shown])
        while len(shown) > 1 and not self.completer.fits(messages, self.settings.answer_tokens):
            shown.pop()
            messages = ask(question, [passages[place] for place in shown])
        return shown, messages

    def parse_result(
        self, question: str, completion: Completion, passages: Sequence[Passage], shown: Sequence[int]
    ) -> ReadResult:
        """A reply as a result.

        Args:
            question: the question, which a reply may repeat.
            completion: the reply.
            passages: the passages that were shown.
            shown: the index of each among the given passages.

        Raises:
            ReaderError: the reply cannot be parsed.
        """
        try:
            reply = parse_reply(completion.text)
        except MalformedReply as error:
            raise ReaderError(
                f"{self.name}: malformed reply: {error}",
                hint="use a model that follows instructions, or raise answer_tokens if the reply is cut",
            ) from error
        reply = replace(reply, answer=without_question(reply.answer, question))
        result = to_result(reply, completion, passages)
        return replace(result, answers=tuple(reindexed(answer, shown) for answer in result.answers))


def best_ranked(scores: Sequence[float], settings: LanguageModelSettings) -> list[int]:
    """Indices of the passages to show, best first."""
    order = sorted(range(len(scores)), key=lambda place: -scores[place])
    if settings.effort == "normal":
        return order[: settings.passages]
    return order if settings.effort == "full" else order[: int(settings.effort)]


def as_results(read: Sequence[ReadResult | ReaderError], n_best: int) -> list[ReadResult]:
    """Results with at most `n_best` answers; an error becomes a result that states the reason in `failure`.

    Raises:
        ReaderError: the first error, if there are only errors.
    """
    failures = [one for one in read if isinstance(one, ReaderError)]
    if failures and len(failures) == len(read):
        raise failures[0]
    for failure in failures[:_SHOWN_FAILURES]:
        log.warning("a question could not be read: %s", failure.message)
    return [
        ReadResult((), 1.0, failure=one.message)
        if isinstance(one, ReaderError)
        else replace(one, answers=one.answers[:n_best])
        for one in read
    ]


def reindexed(answer: ReadAnswer, shown: Sequence[int]) -> ReadAnswer:
    """Replace indices of passages in the prompt by those of the caller's list."""
    citations = [replace(cited, passage_index=shown[cited.passage_index]) for cited in answer.citations]
    return replace(answer, passage_index=shown[answer.passage_index], citations=tuple(citations))
