"""Kinds of answers where one span is none: lists, sentences for yes or no, and parts of a question.

Who asks for several things gets the whole list that the best span stands in. Who asks for yes or no gets
the sentences that bear on it: the "yes" and "no" of the readers here are right no more often than guesses.
Who asks two questions in one gets an answer to each.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from rag.core.types import Answer, AnswerSet, certainty
from rag.data.sentences import sentence_spans
from readers.answer_forms import asks_several, asks_yes_no, list_around
from readers.extractive.settings import ReaderSettings
from readers.two_parts import two_parts

Sentence = tuple[str, int, int]  # the passage's id, start and end


def in_parts(reader: object, questions: Sequence[str]) -> list[tuple[str, ...]]:
    """The questions to ask for each question: its two parts, or itself."""
    if _span_settings(reader) is None:
        return [(question,) for question in questions]
    return [two_parts(question) or (question,) for question in questions]


def of_parts(question: str, parts: Sequence[AnswerSet]) -> AnswerSet:
    """The answers to a question of two parts, from those to each; those to an undivided question as they are.

    Its `answers` are the first answers of the parts that are answered, and the confidence that there is no
    answer is that for neither part having one.

    Example:
        >>> parts = [AnswerSet(part, (), 0.5, "v", {}) for part in ("When was it?", "Where was it?")]
        >>> whole = of_parts("When and where was it?", parts)
        >>> whole.kind, whole.no_answer_confidence, len(whole.parts)
        ('parts', 0.25, 2)
    """
    if len(parts) == 1:
        return parts[0]
    names = {name: None for part in parts for name in part.reading}
    return replace(
        parts[0],
        question=question,
        answers=tuple(part.answers[0] for part in parts if _is_shown(part)),
        no_answer_confidence=prod(part.no_answer_confidence for part in parts),
        reading={name: sum(part.reading.get(name, 0) for part in parts) for name in names},
        failure=next((part.failure for part in parts if part.failure), ""),
        kind="parts",
        parts=tuple(replace(part, timings_ms={}) for part in parts),
    )


def _is_shown(part: AnswerSet) -> bool:
    """Whether its first answer is presented as one, if with a "perhaps"."""
    first = part.answers[0].confidence if part.answers else 0.0
    return certainty(first, part.no_answer_confidence) != "none"


def answers_wanted(reader: object, questions: Sequence[str], n_best: int) -> int:
    """How many answers to read for `n_best` to be shown: all candidates if they become sentences."""
    settings = _span_settings(reader)
    if settings is None or not any(map(asks_yes_no, questions)):
        return n_best
    return max(n_best, settings.candidates)


def with_kind(reader: object, result: AnswerSet, n_best: int) -> AnswerSet:
    """At most `n_best` answers; or sentences, if the question asks for yes or no and the reader cannot tell.

    If the question asks for several things, the first answer becomes the whole list that it stands in. Of
    sentences each comes once, and answers without a place are left out; the confidence that there is an
    answer is divided among them, in proportion to the sum of confidences of the spans that begin in each.

    Args:
        result: the answers to one question; for sentences, as many as `answers_wanted`.

    Example:
        >>> from types import SimpleNamespace
        >>> from rag.core.types import Evidence
        >>> text = "It is a server. It runs on Linux only."
        >>> place = Evidence("1", "", text, text.index("Linux"), text.index(" only"), 0.0)
        >>> yes = Answer("yes", 2.0, 0.4, replace(place, start=None, end=None))
        >>> answers = yes, Answer("Linux", 1.0, 0.1, place)
        >>> result = AnswerSet("Does it run on Windows?", answers, 0.25, "v", {})
        >>> shown = with_kind(SimpleNamespace(settings=ReaderSettings()), result, 3)
        >>> shown.kind, [(answer.text, answer.confidence) for answer in shown.answers]
        ('passage', [('It runs on Linux only.', 0.75)])
    """
    settings = _span_settings(reader)
    if settings is None:
        return replace(result, answers=result.answers[:n_best])
    if not asks_yes_no(result.question):
        return _with_list(replace(result, answers=result.answers[:n_best]))
    best: dict[Sentence, Answer] = {}
    shares: dict[Sentence, float] = {}
    for answer in result.answers:
        place = _sentence(answer)
        if place is not None:
            best.setdefault(place, answer)
            shares[place] = shares.get(place, 0.0) + answer.confidence
    total = sum(shares.values()) or 1.0
    sentences = [
        replace(
            best[place],
            text=best[place].evidence.text[place[1] : place[2]],
            confidence=(1.0 - result.no_answer_confidence) * (share / total),
            evidence=replace(best[place].evidence, start=place[1], end=place[2]),
        )
        for place, share in sorted(shares.items(), key=lambda item: -item[1])
    ]
    return replace(result, answers=tuple(sentences[:n_best]), kind="passage")


def _with_list(result: AnswerSet) -> AnswerSet:
    """The whole list in place of the first answer, if it stands in one and several things are asked for."""
    if not (result.answers and asks_several(result.question)):
        return result
    best, *others = result.answers
    evidence = best.evidence
    if evidence.start is None:
        return result
    found = list_around(evidence.text, evidence.start)
    if found is None:
        return result
    whole = replace(
        best, text=evidence.text[slice(*found)], evidence=replace(evidence, start=found[0], end=found[1])
    )
    return replace(result, answers=(whole, *others), kind="list")


def _span_settings(reader: object) -> ReaderSettings | None:
    """The settings of a reader of spans; None for other readers."""
    settings = getattr(reader, "settings", None)
    return settings if isinstance(settings, ReaderSettings) else None


def _sentence(answer: Answer) -> Sentence | None:
    """The sentence in which the answer begins."""
    evidence = answer.evidence
    if evidence.start is None:
        return None
    spans = sentence_spans(evidence.text)
    start, end = next(span for span in reversed(spans) if span[0] <= evidence.start or span is spans[0])
    return evidence.passage_id, start, end
