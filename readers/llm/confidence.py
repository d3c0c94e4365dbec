"""How likely the answer of a language model is right."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rag.core.arrays import Float64
from readers.confidence import chance
from readers.llm.prompt import Completion
from readers.llm.reply import Statement

_UNKNOWN = 0.5  # probability of an answer whose tokens have none
_DOUBT = 0.2  # factor on the confidence of an unsupported answer


@dataclass(frozen=True, slots=True)
class Signs:
    """What predicts whether an answer is right.

    Attributes:
        log_p: mean log-probability of the answer's tokens; None if the model gives none.
        support: how far the passages support the answer, in [0, 1].
        agreement: word overlap in [0, 1] with the answer that an extractive reader gives; 0 if none
            was asked.
    """

    log_p: float | None
    support: float
    agreement: float = 0.0

    @property
    def features(self) -> Float64:
        """Inputs (4,) of a logistic regression."""
        known = self.log_p is not None
        return np.array([self.log_p or 0.0, known, self.support, self.agreement], np.float64)


def confidence(signs: Signs, fitted: Sequence[float] | None) -> float:
    """Probability that an answer is right.

    Args:
        fitted: bias and slopes of `Signs.features`; None for the geometric mean of the tokens'
            probabilities, less where the answer is not supported, which is not calibrated.

    Example:
        >>> confidence(Signs(None, 1.0), None), confidence(Signs(-0.5, 0.0), (0.0, 2.0, 1.0, 0.0, 0.0))
        (0.5, 0.5)
    """
    if fitted is not None:
        return chance(fitted, signs.features)
    likely = _UNKNOWN if signs.log_p is None else math.exp(min(0.0, signs.log_p))
    return likely * (_DOUBT + (1.0 - _DOUBT) * signs.support)


def answer_log_p(completion: Completion, statements: Sequence[Statement]) -> float | None:
    """Mean log-probability of the tokens of an answer, without those of the JSON around it, which a
    grammar may have forced; None if the model gives none, or the answer does not stand in the reply.

    Args:
        statements: of the reply; none of one that says that there is no answer.

    Example:
        >>> tokens = ((b'{"answer": "', -9.0), (b"Ulm", -0.5), (b'"', -2.0), (b"}", 0.0))
        >>> answer_log_p(Completion('{"answer": "Ulm"}', tokens), [("Ulm", ())])
        -0.5
    """
    tokens = completion.tokens
    if not tokens:
        return None
    reply = b"".join(piece for piece, _ in tokens)
    if not statements:
        statements = [("null" if b"null" in reply else reply.decode(errors="ignore"), ())]
    chosen = list[float]()
    for start, end in _spans(reply, statements):
        inside = list[float]()
        touching = list[float]()
        offset = 0
        for piece, log_p in tokens:
            first = offset + len(piece) - len(piece.lstrip())
            last = offset + len(piece.rstrip())
            offset += len(piece)
            if start <= first < last <= end:
                inside.append(log_p)
            elif first < end and last > start:
                touching.append(log_p)
        # Those that reach into the answer count if none is within.
        chosen += inside or touching
    return sum(chosen) / len(chosen) if chosen else None


def _spans(reply: bytes, statements: Sequence[Statement]) -> Iterator[tuple[int, int]]:
    """Where the statements stand in a reply."""
    begin = reply.find(b'"answer"')
    is_json = begin >= 0
    begin = max(begin, 0)
    for text, _ in statements:
        # A final stop may have been taken from elsewhere.
        words = text.rstrip(".")
        words_in_reply = json.dumps(words, ensure_ascii=False)[1:-1] if is_json else words
        at = reply.find(words_in_reply.encode(), begin)
        if not is_json and len(statements) == 1:
            # Of reasoning the conclusion counts.
            at = reply.rfind(words_in_reply.encode())
        if at >= 0:
            begin = at + len(words_in_reply.encode())
            yield at, begin
