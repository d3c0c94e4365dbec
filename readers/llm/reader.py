"""The reader protocol over anything that completes a chat."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Protocol

from pydantic import Field

from rag.config import Config
from rag.core.errors import ReaderError
from rag.core.log import get_logger
from rag.core.types import Passage
from readers.llm.prompt import Completion, MalformedReply, grounded_messages, parse_reply, to_result
from readers.protocols import ReadResult, check_request

log = get_logger(__name__)


class LanguageModelSettings(Config):
    """How a language model is asked.

    Attributes:
        passages: most passages that are shown to it, the best first.
        answer_tokens: longest reply.
        timeout_s: for one reply of an endpoint.
        retries: repetitions of a failed request, with growing pauses, and of a malformed reply.
        parallel: questions that an endpoint is asked at the same time.
    """

    passages: int = Field(default=20, ge=1)
    answer_tokens: int = Field(default=128, ge=8)
    timeout_s: float = Field(default=60.0, gt=0)
    retries: int = Field(default=2, ge=0)
    parallel: int = Field(default=4, ge=1)


class Completer(Protocol):
    """Something that continues a chat."""

    name: str
    parallel: int

    def complete(self, messages: Sequence[dict[str, str]], max_tokens: int) -> Completion:
        """The reply to the messages.

        Raises:
            ReaderError: it cannot be had; says why.
        """
        ...

    def fits(self, messages: Sequence[dict[str, str]], max_tokens: int) -> bool:
        """Whether messages and reply fit into the model's window, as far as is known."""
        ...


class LanguageModelReader:
    """A language model behind the reader protocol: one answer a question, with the passage that says so.

    Attributes:
        name: of the model, for reports.
    """

    def __init__(self, completer: Completer, settings: LanguageModelSettings) -> None:
        self.completer, self.settings, self.name = completer, settings, completer.name

    def read(
        self,
        questions: Sequence[str],
        passages: Sequence[Sequence[Passage]],
        scores: Sequence[Sequence[float]],
        n_best: int = 5,
    ) -> list[ReadResult]:
        """Answer each question from its own passages; see `readers.protocols.Reader`.

        A question without passages is not asked: it has no answer.

        Raises:
            ReaderError: the model did not reply, or not in the shape that was asked for.
        """
        check_request(questions, passages, scores, n_best)
        order = [sorted(range(len(own)), key=lambda place: -own[place]) for own in scores]
        jobs = list(zip(questions, passages, order, strict=True))
        workers = min(self.completer.parallel, len(jobs))
        if workers <= 1:
            return [self._one(*job) for job in jobs]
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(lambda job: self._one(*job), jobs))

    def _one(self, question: str, passages: Sequence[Passage], order: Sequence[int]) -> ReadResult:
        shown = list(order[: self.settings.passages])
        if not shown:
            return ReadResult((), 1.0)
        tokens = self.settings.answer_tokens
        messages = grounded_messages(question, [passages[place] for place in shown])
        while len(shown) > 1 and not self.completer.fits(messages, tokens):
            shown.pop()
            messages = grounded_messages(question, [passages[place] for place in shown])
        wrong: MalformedReply | None = None
        for _ in range(1 + self.settings.retries):
            completion = self.completer.complete(messages, tokens)
            try:
                reply = parse_reply(completion.text)
            except MalformedReply as error:
                wrong = error
                continue
            result = to_result(reply, completion, [passages[place] for place in shown])
            # passages are counted as the caller gave them, not as they were shown
            moved = [replace(answer, passage_index=shown[answer.passage_index]) for answer in result.answers]
            return replace(result, answers=tuple(moved))
        raise ReaderError(
            f"{self.name}: malformed reply: {wrong}",
            hint="use a model that follows instructions, or raise answer_tokens if the reply is cut",
        )
