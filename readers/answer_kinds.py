"""Kinds of answers where one span is none: lists, steps, and sentences for yes or no.

Who asks for several things gets the whole list that the best span stands in, and who asks how to do
something the numbered steps. Who asks for yes or no gets the sentences that bear on it, unless a
comparison of two values decides: the "yes" and "no" of the readers here are right no more often than
guesses.
"""

from dataclasses import replace

import regex

from rag.core.types import Answer, AnswerSet, Evidence
from rag.data.sentences import sentence_spans

_YES_NO = regex.compile(
    r"\W*(?:(?:and|but|so|then|also|ok(?:ay)?|well),? )*"
    r"(?:is|are|was|were|do|does|did|has|have|had|can|could|will|would|should|may|might|must)(?:n['’]t)?\s"
    r"(?!(?:you|anyone|someone) (?:please |also |just )?"
    r"(?:tell|explain|list|describe|give|show|name|help|let)\b)"
    r"(?!.*\bor\b)",
    regex.IGNORECASE | regex.DOTALL,
)
_MANY = (
    r"(?:two|three|four|five|six|seven|eight|nine|ten|\d+|several|some|all|main|various|different)"
)
_SEVERAL = regex.compile(
    rf"\W*(?:(?:please )?(?:list|name|enumerate|give)(?: me)? (?:the|{_MANY})\b(?!.*\b(?:name|number) of\b)"
    rf"|(?:(?:in|on|of|for|from|by|with) )?(?:which|what|who) (?:(?:are|were) (?:the|{_MANY})|{_MANY})\b)",
    regex.IGNORECASE,
)
_HOW_TO = regex.compile(
    r"\W*(?:\w+,? )?how (?:(?:do|can|should|must) (?:i|we|you|one)|to)\b", regex.IGNORECASE
)
_STEP = regex.compile(r"\s*\(?\d{1,3}[.)]\s")
_ITEM = regex.compile(r"\s*(?:[•▪◦‣–*+-]|\(?\d{1,3}[.)]|\(?[a-z][.)])\s+\S")


def present_spans(result: AnswerSet, n_best: int) -> AnswerSet:
    """At most `n_best` of a question's spans, in the form that the question asks for.

    Args:
        result: the spans; for a question of yes or no all candidates, whose sentences are counted.
    """
    is_decided = result.best and result.best.evidence.question
    if asks_yes_no(result.question) and not is_decided:
        return replace(result, answers=_as_sentences(result)[:n_best], kind="passage")
    answers = result.answers[:n_best]
    whole = _list_of(result.question, answers[0].evidence) if answers else None
    if whole is None:
        return replace(result, answers=answers)
    return replace(result, answers=(_at_bounds(answers[0], whole), *answers[1:]), kind="list")


def _list_of(question: str, evidence: Evidence) -> tuple[int, int] | None:
    """The place of the list that answers a question, around or behind its best span."""
    asks_how = _HOW_TO.match(question) is not None
    if evidence.start is None or not (asks_how or asks_several(question)):
        return None
    bounds = list_around(evidence.text, evidence.start)
    if bounds is None or not asks_how:
        return bounds
    lines = evidence.text[slice(*bounds)].split("\n")
    return bounds if all(map(_STEP.match, filter(str.strip, lines))) else None


def _at_bounds(answer: Answer, bounds: tuple[int, int]) -> Answer:
    evidence = replace(answer.evidence, start=bounds[0], end=bounds[1])
    return replace(answer, text=evidence.text[slice(*bounds)], evidence=evidence)


def _as_sentences(result: AnswerSet) -> tuple[Answer, ...]:
    """The sentences in which answers begin, each once; answers without a place are left out.

    The confidence that there is an answer is divided among them, in proportion to the sum of
    confidences of the spans that begin in each.
    """
    sentences: dict[tuple[str, int], Answer] = {}
    shares: dict[tuple[str, int], float] = {}
    for answer in result.answers:
        evidence = answer.evidence
        if evidence.start is None:
            continue
        spans = sentence_spans(evidence.text)
        before = [span for span in spans if span[0] <= evidence.start]
        sentence = before[-1] if before else spans[0]
        key = (evidence.passage_id, sentence[0])
        sentences.setdefault(key, _at_bounds(answer, sentence))
        shares[key] = shares.get(key, 0.0) + answer.confidence
    scale = (1.0 - result.no_answer_confidence) / (sum(shares.values()) or 1.0)
    ordered = sorted(shares, key=lambda key: -shares[key])
    return tuple(replace(sentences[key], confidence=shares[key] * scale) for key in ordered)


def asks_yes_no(question: str) -> bool:
    """Whether a question asks for yes or no: it opens with an auxiliary verb, and offers no choice
    with "or".

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
    is_item = [_ITEM.match(line[0]) is not None for line in lines]
    number = sum(line.end() <= start for line in lines)
    if number < len(lines) and lines[number][0].rstrip().endswith(":") and not is_item[number]:
        number += 1
    first = number
    while first > 0 and is_item[first - 1]:
        first -= 1
    last = number
    while last < len(lines) and is_item[last]:
        last += 1
    if last == number or last - first < 2:
        return None
    return lines[first].start(), lines[last - 1].end()
