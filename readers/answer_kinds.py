"""Kinds of answers where one span is none: lists, and sentences for yes or no.

Who asks for several things gets the whole list that the best span stands in. Who asks for yes or no gets
the sentences that bear on it: the "yes" and "no" of the readers here are right no more often than guesses.
"""

from collections.abc import Sequence
from dataclasses import replace

import regex

from rag.core.types import Answer, AnswerSet
from rag.data.sentences import sentence_spans
from readers.extractive.settings import ReaderSettings

_YES_NO = regex.compile(
    r"\W*(?:(?:and|but|so|then|also|ok(?:ay)?|well),? )*"
    r"(?:is|are|was|were|do|does|did|has|have|had|can|could|will|would|should|may|might|must)(?:n['’]t)?\s"
    r"(?!(?:you|anyone|someone) (?:please |also |just )?"
    r"(?:tell|explain|list|describe|give|show|name|help|let)\b)"
    r"(?!.*\bor\b)",
    regex.IGNORECASE | regex.DOTALL,
)
_MANY = r"(?:two|three|four|five|six|seven|eight|nine|ten|\d+|several|some|all|main|various|different)"
_SEVERAL = regex.compile(
    rf"\W*(?:(?:please )?(?:list|name|enumerate|give)(?: me)? (?:the|{_MANY})\b(?!.*\b(?:name|number) of\b)"
    rf"|(?:(?:in|on|of|for|from|by|with) )?(?:which|what|who) (?:(?:are|were) (?:the|{_MANY})|{_MANY})\b)",
    regex.IGNORECASE,
)
_LIST_MARKER = r"\s*(?:[•▪◦‣–*+-]|\(?\d{1,3}[.)]|\(?[a-z][.)])\s+"
_ITEM = regex.compile(rf"{_LIST_MARKER}\S")


def count_candidates(reader: object, questions: Sequence[str], n_best: int) -> int:
    """How many answers to read for `n_best` to be shown: all candidates if they become sentences."""
    settings = _span_settings(reader)
    if settings is None or not any(map(asks_yes_no, questions)):
        return n_best
    return max(n_best, settings.candidates)


def present(reader: object, result: AnswerSet, n_best: int) -> AnswerSet:
    """At most `n_best` answers, in the form that the question asks for.

    Args:
        result: the answers to one question; for sentences, as many as `count_candidates`.
    """
    if _span_settings(reader) is None:
        return replace(result, answers=result.answers[:n_best])
    if asks_yes_no(result.question):
        return replace(result, answers=_as_sentences(result)[:n_best], kind="passage")
    # "yes" and "no" stand nowhere, and are no further answers to other questions
    placed = [answer for answer in result.answers[1:] if answer.evidence.start is not None]
    few = replace(result, answers=(*result.answers[:1], *placed)[:n_best])
    return _with_list(few) if asks_several(result.question) else few


def _as_sentences(result: AnswerSet) -> tuple[Answer, ...]:
    """The sentences in which answers begin, each once; answers without a place are left out.

    The confidence that there is an answer is divided among them, in proportion to the sum of confidences of
    the spans that begin in each.
    """
    best: dict[tuple[str, int], Answer] = {}
    shares: dict[tuple[str, int], float] = {}
    for answer in result.answers:
        evidence = answer.evidence
        if evidence.start is not None:
            spans = sentence_spans(evidence.text)
            start, end = next((s for s in reversed(spans) if s[0] <= evidence.start), spans[0])
            place = evidence.passage_id, start
            sentence = replace(evidence, start=start, end=end)
            best.setdefault(place, replace(answer, text=evidence.text[start:end], evidence=sentence))
            shares[place] = shares.get(place, 0.0) + answer.confidence
    scale = (1.0 - result.no_answer_confidence) / (sum(shares.values()) or 1.0)
    ordered = sorted(shares, key=lambda place: -shares[place])
    return tuple(replace(best[place], confidence=shares[place] * scale) for place in ordered)


def _with_list(result: AnswerSet) -> AnswerSet:
    """The whole list in place of the first answer, if it stands in one."""
    if not result.answers or (start := result.answers[0].evidence.start) is None:
        return result
    best, *others = result.answers
    place = list_around(best.evidence.text, start)
    if place is None:
        return result
    evidence = replace(best.evidence, start=place[0], end=place[1])
    whole = replace(best, text=evidence.text[slice(*place)], evidence=evidence)
    return replace(result, answers=(whole, *others), kind="list")


def _span_settings(reader: object) -> ReaderSettings | None:
    """The settings of a reader of spans; None for other readers."""
    settings = getattr(reader, "settings", None)
    return settings if isinstance(settings, ReaderSettings) else None


def asks_yes_no(question: str) -> bool:
    """Whether a question asks for yes or no: it opens with an auxiliary verb, and offers no choice with "or".

    Example:
        >>> questions = "Does it run?", "Was Ann or Bob first?", "Can you tell me why?", "Who is he?"
        >>> [asks_yes_no(question) for question in questions]
        [True, False, False, False]
    """
    return _YES_NO.match(question) is not None


def asks_several(question: str) -> bool:
    """Whether a question asks for several things: "list the …", "which two …", "what are the …".

    Example:
        >>> [asks_several(q) for q in ("Which two tools does it use?", "What are the steps?", "Who is he?")]
        [True, True, False]
    """
    return _SEVERAL.match(question) is not None


def list_around(text: str, start: int) -> tuple[int, int] | None:
    """The whole list of at least two entries that the place `start` is in or leads to with a colon.

    Example:
        >>> text = "It needs:\\n• a key\\n• a name\\n\\nThen start it."
        >>> [text[slice(*list_around(text, at))] for at in (0, 13)]
        ['• a key\\n• a name', '• a key\\n• a name']
    """
    lines = list(regex.finditer(r"[^\n]*\S[^\n]*", text))
    place = next((n for n, line in enumerate(lines) if start < line.end()), len(lines))
    if place < len(lines) and lines[place][0].rstrip().endswith(":") and _ITEM.match(lines[place][0]) is None:
        place += 1
    first = last = place
    while first > 0 and last < len(lines) and _is_item(lines, first - 1):
        first -= 1
    while last < len(lines) and _is_item(lines, last):
        last += 1
    return (lines[first].start(), lines[last - 1].end()) if last - first > 1 and last > place else None


def _is_item(lines: list[regex.Match[str]], number: int) -> bool:
    return _ITEM.match(lines[number][0]) is not None
