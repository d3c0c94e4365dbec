"""What a language model is asked, and what its reply says: an answer that names the passages it rests on."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from rag.core.types import Passage
from readers.protocols import ReadAnswer, ReadResult
from readers.spans import find_span

_INSTRUCTIONS = (
    "Answer the question from the numbered passages alone, never from what you know otherwise. Reply with "
    'one JSON object and nothing else: {"answer": …, "passages": […]}. "answer" is as short as possible: a '
    'name, a date, a number, a few words copied from a passage, or yes or no. "passages" lists the '
    "numbers of the passages that say so. If the passages do not say it, reply "
    '{"answer": null, "passages": []}.'
)
_UNKNOWN = {"", "null", "none", "unknown", "n/a", "not in the passages", "no answer", "unanswerable"}


class MalformedReply(ValueError):
    """A reply that is not of the shape that was asked for."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What a model wrote.

    Attributes:
        text: the reply.
        tokens: its pieces with the log-probability of each, where the model tells.
    """

    text: str
    tokens: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply, understood.

    Attributes:
        answer: "" for "not in the passages".
        passages: the numbers it names, from 1, as it wrote them.
    """

    answer: str
    passages: tuple[int, ...]


def grounded_messages(question: str, passages: Sequence[Passage]) -> list[dict[str, str]]:
    """The chat messages that ask `question` of numbered passages."""
    numbered = [
        f"[{number}] {passage.title + ': ' if passage.title else ''}{passage.text}"
        for number, passage in enumerate(passages, start=1)
    ]
    asked = "\n".join([*numbered, "", f"Question: {question}"])
    return [{"role": "system", "content": _INSTRUCTIONS}, {"role": "user", "content": asked}]


def parse_reply(text: str) -> Reply:
    """Read a reply; text around the JSON object is allowed.

    Raises:
        MalformedReply: no JSON object with an "answer" is in it.

    Example:
        >>> parse_reply('Sure: {"answer": "the Black Forest", "passages": [2]}')
        Reply(answer='the Black Forest', passages=(2,))
        >>> parse_reply('{"answer": null, "passages": []}').answer
        ''
    """
    decoder, start = json.JSONDecoder(), text.find("{")
    while start >= 0:
        try:
            value, _ = decoder.raw_decode(text, start)
        except json.JSONDecodeError:
            value = None
        if isinstance(value, dict) and "answer" in value:
            return _reply(value["answer"], value.get("passages"))
        start = text.find("{", start + 1)
    raise MalformedReply(f'expected a JSON object with "answer" and "passages", found {text[:120]!r}')


def _reply(answer: object, passages: object) -> Reply:
    if answer is not None and not isinstance(answer, str | int | float):
        raise MalformedReply(f'"answer" is {str(answer)[:80]!r}, expected a string or null')
    words = "" if answer is None else str(answer).strip()
    if isinstance(answer, bool):
        words = "yes" if answer else "no"
    named = passages if isinstance(passages, list) else [passages]
    bare = [str(number).strip("[] ") for number in named]
    numbers = [int(number) for number in bare if number.isdecimal()]
    return Reply("" if words.lower().rstrip(".") in _UNKNOWN else words, tuple(dict.fromkeys(numbers)))


def to_result(reply: Reply, completion: Completion, passages: Sequence[Passage]) -> ReadResult:
    """The reply as an answer with evidence.

    Evidence is the first named passage in which the answer stands literally; else the first named one,
    without a span. A passage that does not exist is not evidence, and an answer without any evidence, neither
    named nor literally in a passage, is no answer: nobody could check it.

    The confidence is the model's own probability of the reply (`exp` of the summed log-probabilities), where
    the model tells; else 0.5, which claims nothing. Neither is calibrated.
    """
    probability = math.exp(min(0.0, sum(p for _, p in completion.tokens))) if completion.tokens else 0.5
    if not reply.answer:
        return ReadResult((), probability if completion.tokens else 1.0)
    named = [number - 1 for number in reply.passages if 1 <= number <= len(passages)]
    others = [place for place in range(len(passages)) if place not in named]
    literal = [] if reply.answer.lower() in ("yes", "no") else [*named, *others]  # these are no quotations
    for place in literal:
        if (span := find_span(reply.answer, passages[place].text)) is not None:
            start, end = span
            text = passages[place].text[start:end]
            return _answered(ReadAnswer(text, probability, probability, place, start, end))
    if named:
        return _answered(ReadAnswer(reply.answer, probability, probability, named[0]))
    return ReadResult((), 1.0)


def _answered(answer: ReadAnswer) -> ReadResult:
    return ReadResult((answer,), 0.0)
