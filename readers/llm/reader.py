"""The reader protocol over anything that completes a chat."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import Any, Protocol, Self

from rag.core.errors import ReaderError
from rag.core.files import fingerprint
from rag.core.log import get_logger
from rag.core.types import Answer, AnswerSet, Passage
from rag.data.languages import ENGLISH
from rag.data.text import f1
from readers.llm.checking import to_result
from readers.llm.confidence import Signs, answer_log_p, confidence
from readers.llm.prompt import REPLY_SCHEMA, Completion, ReplyFormat, prompt_messages
from readers.llm.reply import parse_reply
from readers.llm.specs import SHIPPED, WORDS, LanguageModel
from readers.llm.streaming import ReplyStream
from readers.protocols import Reader, ReadRequest, TextSink, Verifier, best_first, check_requests
from readers.verifying.open import load_verifier

log = get_logger(__name__)
_LOGGED_FAILURES = 3


class Completer(Protocol):
    """A model that continues a chat.

    Attributes:
        name: what results and messages call it.
        is_remote: it computes elsewhere, for any thread of this process.
    """

    name: str
    is_remote: bool

    @property
    def takes_schemas(self) -> bool:
        """Whether `complete` can hold a reply to a schema."""

    def complete(
        self,
        messages: Sequence[dict[str, str]],
        max_tokens: int,
        schema: Mapping[str, Any] | None = None,
        on_text: TextSink | None = None,
    ) -> Completion:
        """The reply to the messages, or a `ReaderError` that states why there is none.

        Args:
            on_text: gets the reply piece by piece as it comes.
        """

    def fits(self, messages: Sequence[dict[str, str]], max_tokens: int) -> bool:
        """Whether messages and reply fit into the model's window, as far as is known."""


def fit_messages(
    model: Completer,
    write: Callable[[Sequence[Passage]], list[dict[str, str]]],
    passages: Sequence[Passage],
    reply_tokens: int,
) -> tuple[list[dict[str, str]], int] | None:
    """The messages with as many passages as the model's window takes, and their number.

    Args:
        write: passages → messages.
        passages: the best first.
        reply_tokens: room that the reply needs.

    Returns:
        None if not even one passage fits.
    """
    for count in range(len(passages), 0, -1):
        messages = write(passages[:count])
        if model.fits(messages, reply_tokens):
            return messages, count
    return None


@dataclass(frozen=True, slots=True)
class Reading:
    """The answer to a question, and what predicts whether it is right; None without an answer."""

    answers: AnswerSet
    signs: Signs | None = None


class LanguageModelReader(Reader):
    """A language model as a reader: one answer per question, with the passages that support it.

    See `Reader` for its attributes.

    Args:
        fitted: bias and slopes of `Signs.features`; None for a confidence that is not calibrated.
        second: a reader whose agreement is a sign that an answer is right.
        verifier: judges sentences that cite; by default the one that the settings name.

    Raises:
        ArtifactError: there is no such verifier.
    """

    def __init__(
        self,
        completer: Completer,
        settings: LanguageModel,
        *,
        fitted: Sequence[float] | None = None,
        second: Reader | None = None,
        verifier: Verifier | None = None,
    ) -> None:
        self.completer: Completer = completer
        self.settings = settings
        self.name = completer.name
        self.version = fingerprint([settings.settings, fitted and list(fitted)])
        self.max_concurrent = settings.parallel if completer.is_remote else 0
        self._fitted = fitted
        self._second = second
        self._verifier = verifier
        is_judged = settings.style == "cited" and settings.verifier != WORDS
        if verifier is None and is_judged:
            folder = None if settings.verifier == SHIPPED else settings.verifier
            self._verifier = load_verifier(folder)
        # Networks of this process compute for one thread at a time.
        self._compute_lock = Lock()

    def tuned(self, fitted: Sequence[float] | None, second: Reader) -> LanguageModelReader:
        """The same reader with a second one, whose agreement is a sign.

        Args:
            fitted: see the class; None while the confidence is still to be fitted.
        """
        reader = LanguageModelReader(
            self.completer, self.settings, fitted=fitted, second=second, verifier=self._verifier
        )
        return reader.for_language(self.language)

    def for_language(self, language: str) -> Self:
        """See `Reader`."""
        reader = super().for_language(language)
        if language != ENGLISH and self.settings.verifier == SHIPPED:
            reader._verifier = None
        return reader

    def read(self, requests: Sequence[ReadRequest], n_best: int = 5) -> list[AnswerSet]:
        """Answer each question from its own passages; see `readers.protocols.Reader`.

        A question without passages is not sent to the model and has no answer. A question without a
        reply has a `failure`; the others are still answered.

        Raises:
            ReaderError: not a single question could be read; the reason of the first.
        """
        check_requests(requests, n_best)
        results = list[AnswerSet]()
        errors = list[ReaderError]()
        for request, reading in zip(requests, self.readings(requests), strict=True):
            if isinstance(reading, ReaderError):
                errors.append(reading)
                results.append(AnswerSet(request.question, (), 1.0, failure=reading.message))
            else:
                results.append(reading.answers)
        if errors and len(errors) == len(results):
            raise errors[0]
        for failure in errors[:_LOGGED_FAILURES]:
            log.warning("a question could not be read: %s", failure.message)
        return results

    def stream(self, request: ReadRequest, on_text: TextSink, n_best: int = 5) -> AnswerSet:
        """Answer one question like `read`; sentences that cite are handed on as they come.

        Citations are numbered in the order in which they appear, which is that of the answer's
        `citations`. Short replies are no text to show, and sentences that may be dropped are not
        known before the end: these are not handed on.
        """
        check_requests([request], n_best)
        settings = self.settings
        if settings.style != "cited" or settings.unsupported == "drop":
            return self.read([request], n_best)[0]
        reading = self._read(request, on_text)
        (second_answer,) = self._second_answers([request])
        return self._with_confidence(reading, second_answer).answers

    def readings(self, requests: Sequence[ReadRequest]) -> list[Reading | ReaderError]:
        """The answer to each question with its signs, or why there is none."""
        with ThreadPoolExecutor(max(1, min(self.max_concurrent, len(requests)))) as pool:
            # In the context of the caller, who may leave.
            replies = [pool.submit(copy_context().run, self._read, request) for request in requests]
        readings = list[Reading | ReaderError]()
        for reply, second_answer in zip(replies, self._second_answers(requests), strict=True):
            error = reply.exception()
            if isinstance(error, ReaderError):
                readings.append(error)
            else:
                readings.append(self._with_confidence(reply.result(), second_answer))
        return readings

    def _second_answers(self, requests: Sequence[ReadRequest]) -> Sequence[AnswerSet | None]:
        """What the second reader answers to each question; None if there is no such reader."""
        if self._second is None:
            return [None] * len(requests)
        with self._compute_lock:
            return self._second.read(requests, n_best=1)

    def _with_confidence(self, reading: Reading, second_answer: AnswerSet | None) -> Reading:
        """The reading with the confidence of its answer, if it has one.

        Args:
            second_answer: what the second reader answers; agreement with it is a sign.
        """
        signs = reading.signs
        if signs is None:
            return reading
        [best] = reading.answers.answers
        if second_answer is not None and second_answer.answers:
            signs = replace(signs, agreement=f1(best.text, [second_answer.answers[0].text]))
        probability = confidence(signs, self._fitted)
        best = replace(best, score=probability, confidence=probability)
        no_answer = 0.0 if best.is_supported else (1.0 - signs.support) * (1.0 - probability)
        answers = replace(reading.answers, answers=(best,), no_answer_confidence=no_answer)
        return Reading(answers, signs)

    def _read(self, request: ReadRequest, on_text: TextSink | None = None) -> Reading:
        """Ask the model about one question; the answer has no confidence yet.

        Raises:
            ReaderError: not even one passage fits, there is no reply, or it cannot be parsed.
        """
        settings = self.settings
        passages = request.passages
        order = best_first(request.scores)[: settings.passages]
        if not order:
            return Reading(AnswerSet(request.question, (), 1.0))
        ranked = [passages[number] for number in order]
        reply_format = self._reply_format()
        write = partial(prompt_messages, request.question, reply_format=reply_format)
        fitting = fit_messages(self.completer, write, ranked, settings.answer_tokens)
        if fitting is None:
            raise ReaderError(
                f"{self.name}: a question with one passage and {settings.answer_tokens} tokens of reply are "
                "longer than the model's window",
                hint="index shorter passages, or use a model with a longer window",
            )
        messages, n_passages = fitting
        schema = REPLY_SCHEMA if reply_format == "json" else None
        complete = partial(self.completer.complete, messages, settings.answer_tokens, schema)
        if on_text is None:
            completion = complete()
        else:
            stream = ReplyStream(on_text, n_passages)
            completion = complete(stream.feed)
            stream.end()
        try:
            statements = parse_reply(completion.text, settings.style)
        except ReaderError as error:
            raise ReaderError(f"{self.name}: {error.message}", hint=error.hint) from error
        with self._compute_lock:
            answers = to_result(
                request,
                statements,
                order[:n_passages],
                settings.style,
                verifier=self._verifier,
                unsupported=settings.unsupported,
            )
        log_p = answer_log_p(completion, statements)
        if answers.answers:
            return Reading(answers, Signs(log_p, _support(answers.answers[0])))
        no_answer = 1.0 if log_p is None else math.exp(min(0.0, log_p))
        return Reading(replace(answers, no_answer_confidence=no_answer))

    def _reply_format(self) -> ReplyFormat:
        """The format of the reply to ask for."""
        if self.settings.style == "cited":
            return "cited"
        return "json" if self.completer.takes_schemas else "line"


def _support(answer: Answer) -> float:
    """How far passages support an answer: its sentences on average, by what they cite, or the whole
    where none of them cites anything.
    """
    if not any(sentence.citations for sentence in answer.sentences):
        return float(answer.is_supported)
    return sum(sentence.support for sentence in answer.sentences) / len(answer.sentences)
