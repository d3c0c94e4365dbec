"""Kinds of answers where one span is none: lists, and sentences for yes or no.

Who asks for several things gets the whole list that the best span stands in. Who asks for yes or no gets
the sentences that bear on it: the "yes" and "no" of the readers here are right no more often than guesses.
"""

from collections.abc import Sequence
from dataclasses import replace

from rag.core.types import Answer, AnswerSet
from rag.data.sentences import sentence_spans
from readers.answer_forms import asks_several, asks_yes_no, list_around
from readers.extractive.settings import ReaderSettings

Sentence = tuple[str, int, int]  # the passage's id, start and end


def count_candidates(reader: object, questions: Sequence[str], n_best: int) -> int:
    """How many answers to read for `n_best` to be shown: all candidates if they become sentences."""
    settings = _span_settings(reader)
    if settings is None or not any(map(asks_yes_no, questions)):
        return n_best
    return max(n_best, settings.candidates)


def present(reader: object, result: AnswerSet, n_best: int) -> AnswerSet:
    """At most `n_best` answers; or sentences, if the question asks for yes or no and the reader cannot tell.

    If the question asks for several things, the first answer becomes the whole list that it stands in. Of
    sentences each comes once, and answers without a place are left out; the confidence that there is an
    answer is divided among them, in proportion to the sum of confidences of the spans that begin in each.

    Args:
        result: the answers to one question; for sentences, as many as `count_candidates`.

    Example:
        >>> from types import SimpleNamespace
        >>> from rag.core.types import Evidence
        >>> text = "It is a server. It runs on Linux only."
        >>> place = Evidence("1", "", text, text.index("Linux"), text.index(" only"), 0.0)
        >>> yes = Answer("yes", 2.0, 0.4, replace(place, start=None, end=None))
        >>> answers = yes, Answer("Linux", 1.0, 0.1, place)
        >>> result = AnswerSet("Does it run on Windows?", answers, 0.25, "v", {})
        >>> shown = present(SimpleNamespace(settings=ReaderSettings()), result, 3)
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
