"""Why an answer follows: the path of passages it rests on, hop by hop, with the sentences that support it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from rag.core.types import Answer, AnswerSet, Evidence, Hit, Passage
from rag.data.sentences import split_sentences
from readers.facts import FactPassage, choose_facts, find_signs

__all__ = ["with_paths"]

Steps = Sequence[tuple[Hit, Passage]]


def with_paths(answers: AnswerSet, paths: Sequence[Steps]) -> AnswerSet:
    """Give every answer the best path that its passage is part of.

    Where the reader has marked no supporting sentences, those are lit that the rule of `readers.facts` takes
    among the sentences of neighbouring passages.

    Args:
        answers: of one question.
        paths: of the same question, best first; those of one passage say nothing that the evidence does not.

    Example:
        >>> danube = Passage("d", "Danube", "The Danube rises in Germany. It is long.")
        >>> germany = Passage("g", "Germany", "A state. The capital of Germany is Berlin.")
        >>> evidence = Evidence("g", "Germany", germany.text, 35, 41, 0.8)
        >>> asked = "What is the capital of the country where the Danube rises?"
        >>> found = AnswerSet(asked, (Answer("Berlin", 1.0, 0.9, evidence),), 0.1, "v", {})
        >>> path = [(Hit(0, "d", 0.7), danube), (Hit(1, "g", 0.8), germany)]
        >>> for step in with_paths(found, [path]).answers[0].path:
        ...     print(step.title, [step.text[start:end] for start, end in step.supporting])
        Danube ['The Danube rises in Germany.']
        Germany ['The capital of Germany is Berlin.']
    """
    return replace(answers, answers=tuple(_with_path(answers.question, a, paths) for a in answers.answers))


def _with_path(question: str, answer: Answer, paths: Sequence[Steps]) -> Answer:
    own = answer.evidence
    for path in paths:
        if len(path) > 1 and any(passage.id == own.passage_id for _, passage in path):
            marked = _supporting(question, answer, path)
            steps = tuple(
                replace(own, score=hit.score, supporting=own.supporting or marked[place])
                if passage.id == own.passage_id
                else Evidence(passage.id, passage.title, passage.text, None, None, hit.score, marked[place])
                for place, (hit, passage) in enumerate(path)
            )
            return replace(answer, path=steps)
    return answer


def _supporting(question: str, answer: Answer, path: Steps) -> list[tuple[tuple[int, int], ...]]:
    spans = [_sentence_spans(passage.text) for _, passage in path]
    at = answer.evidence.start
    inputs = [
        FactPassage(
            passage.title,
            [passage.text[start:end] for start, end in own],
            hit.score,
            answer.confidence if passage.id == answer.evidence.passage_id else 0.0,
            next((n for n, (_, end) in enumerate(own) if at is not None and at < end), None)
            if passage.id == answer.evidence.passage_id
            else None,
        )
        for (hit, passage), own in zip(path, spans, strict=True)
    ]
    chosen: list[set[int]] = [set() for _ in path]
    for first, second in pairwise(range(len(path))):
        for place, sentence in choose_facts(find_signs(question, [inputs[first], inputs[second]])):
            chosen[(first, second)[place]].add(sentence)
    return [
        tuple(own[number] for number in sorted(numbers)) for own, numbers in zip(spans, chosen, strict=True)
    ]


def _sentence_spans(text: str) -> list[tuple[int, int]]:
    spans, at = [], 0
    for sentence in split_sentences(text):
        start = text.index(sentence, at)
        at = start + len(sentence)
        spans.append((start, at))
    return spans
