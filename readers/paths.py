"""Reading paths of passages, and why an answer follows: hop by hop, with the sentences that support it.

A reader that was taught to (`ReadsPaths`) sees the passages of a path as one text, so that what one says of
the other can decide, and marks the supporting sentences itself. Any other reads each passage for itself; the
sentences are then chosen by the rule of `readers.facts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from rag.core.types import Answer, AnswerSet, Evidence, Hit, Passage
from rag.data.sentences import Spans, sentence_spans
from readers.facts import FactPassage, choose_facts, find_signs
from readers.protocols import ReadAnswer, Reader, ReadResult
from readers.spans import find_span

__all__ = ["JoinedPath", "ReadsPaths", "Steps", "join_path", "read_answers", "with_paths"]

Steps = Sequence[tuple[Hit, Passage]]

_NO_ANSWER = ReadResult((), 1.0)


@runtime_checkable
class ReadsPaths(Reader, Protocol):
    """A reader that may have been taught to read joined paths."""

    @property
    def reads_paths(self) -> bool:
        """Whether it was."""
        ...

    def support(
        self, questions: Sequence[str], passages: Sequence[Passage], sentences: Sequence[Spans]
    ) -> list[npt.NDArray[np.float32]]:
        """Logits of the sentences of one passage a question: above 0 supports the answer."""
        ...


@dataclass(frozen=True, slots=True)
class JoinedPath:
    """Passages as one text: the title of the first, its text, and ` | title | text` of each further one.

    Attributes:
        passage: the text, with the first passage's title.
        starts: first character of each passage's own text in it.
        steps: the passages.

    Example:
        >>> joined = join_path([Passage("d", "Danube", "It ends in Ulm."), Passage("u", "Ulm", "A city.")])
        >>> joined.passage.text, joined.starts
        ('It ends in Ulm. | Ulm | A city.', (0, 24))
        >>> joined.locate(24, 26), joined.locate(18, 21)
        ((1, 0, 2), None)
    """

    passage: Passage
    starts: tuple[int, ...]
    steps: tuple[Passage, ...]

    def locate(self, start: int, end: int) -> tuple[int, int, int] | None:
        """Number of the passage and the same characters in its text; None for those of a title or border."""
        for number, (begin, step) in enumerate(zip(self.starts, self.steps, strict=True)):
            if begin <= start and end <= begin + len(step.text):
                return number, start - begin, end - begin
        return None

    def sentences(self) -> list[Spans]:
        """Start and end, in the joined text, of each passage's sentences."""
        return [
            tuple((begin + start, begin + end) for start, end in sentence_spans(step.text))
            for begin, step in zip(self.starts, self.steps, strict=True)
        ]


def join_path(passages: Sequence[Passage]) -> JoinedPath:
    """Join passages, in their order; one alone stays what it is."""
    text, starts = passages[0].text, [0]
    for passage in passages[1:]:
        text += f" | {passage.title} | "
        starts.append(len(text))
        text += passage.text
    joined = Passage(passages[0].id, passages[0].title, text)
    return JoinedPath(joined, tuple(starts), tuple(passages))


def read_answers(
    reader: Reader,
    questions: Sequence[str],
    retrieved: Sequence[Steps],
    paths: Sequence[Sequence[Steps]],
    n_best: int,
    index_version: str,
) -> list[AnswerSet]:
    """Answers with evidence; timings are the caller's to add.

    Args:
        reader: any.
        questions: B questions.
        retrieved: of each the passages to read, best first; without any there is no answer.
        paths: of each the paths, best first. A reader of paths reads these, until they hold as many passages
            as `retrieved` does; a question whose paths are single passages is read as usual.
        n_best: most answers a question.
        index_version: of the index they came from.
    """
    joins = isinstance(reader, ReadsPaths) and reader.reads_paths
    units: list[list[tuple[Steps, JoinedPath, float]]] = []
    for found, own in zip(retrieved, paths, strict=True):
        chosen: list[Steps] = [[pair] for pair in found]
        if joins and any(len(path) > 1 for path in own):
            chosen = _within(own, len(found))
        units.append([(steps, join_path([p for _, p in steps]), steps[-1][0].score) for steps in chosen])
    filled = [number for number, of_question in enumerate(units) if of_question]
    results = (
        reader.read(
            [questions[n] for n in filled],
            [[joined.passage for _, joined, _ in units[n]] for n in filled],
            [[score for _, _, score in units[n]] for n in filled],
            n_best,
        )
        if filled
        else []
    )
    read = dict(zip(filled, results, strict=True))
    marked: dict[tuple[int, int], list[Spans]] = {}
    if joins and isinstance(reader, ReadsPaths):
        wanted = [
            (n, place)
            for n, result in read.items()
            for place in dict.fromkeys(answer.passage_index for answer in result.answers)
            if len(units[n][place][0]) > 1
        ]
        marked = _mark(reader, questions, {key: units[key[0]][key[1]][1] for key in wanted})
    return [
        AnswerSet(
            question,
            tuple(
                replace(
                    _with_evidence(
                        answer, *units[n][answer.passage_index][:2], marked.get((n, answer.passage_index))
                    ),
                    weights=_weights(answer, units[n]),
                )
                for answer in read.get(n, _NO_ANSWER).answers
            ),
            read.get(n, _NO_ANSWER).no_answer_confidence,
            index_version,
            {},
            read.get(n, _NO_ANSWER).reading,
        )
        for n, question in enumerate(questions)
    ]


def _weights(answer: ReadAnswer, units: Sequence[tuple[Steps, JoinedPath, float]]) -> dict[str, float]:
    """What each passage accounts for, by its id."""
    if not answer.weights:
        return {}
    return {steps[-1][1].id: w for (steps, *_), w in zip(units, answer.weights, strict=True)}


def _within(paths: Sequence[Steps], passages: int) -> list[Steps]:
    """The first paths that hold `passages` passages together, one at least."""
    chosen: list[Steps] = []
    for path in paths:
        if chosen and sum(map(len, chosen)) + len(path) > passages:
            break
        chosen.append(path)
    return chosen


def _mark(
    reader: ReadsPaths, questions: Sequence[str], joined: dict[tuple[int, int], JoinedPath]
) -> dict[tuple[int, int], list[Spans]]:
    """Of each passage of each path the sentences above 0, and its best one anyway."""
    if not joined:
        return {}
    sentences = [one.sentences() for one in joined.values()]
    flat = [tuple(span for own in spans for span in own) for spans in sentences]
    logits = reader.support([questions[n] for n, _ in joined], [one.passage for one in joined.values()], flat)
    marked = {}
    for key, one, spans, values in zip(joined, joined.values(), sentences, logits, strict=True):
        at, kept = 0, []
        for begin, own in zip(one.starts, spans, strict=True):
            mine = values[at : at + len(own)]
            at += len(own)
            chosen = (mine > 0) | (mine == mine.max(initial=-np.inf))
            kept.append(tuple((s - begin, e - begin) for (s, e), yes in zip(own, chosen, strict=True) if yes))
        marked[key] = kept
    return marked


def _with_evidence(
    read: ReadAnswer, steps: Steps, joined: JoinedPath, marked: Sequence[Spans] | None
) -> Answer:
    place, start, end = 0, read.start, read.end
    if start is not None and end is not None:
        found = joined.locate(start, end)
        if found is None:  # in a title, or over a border: where else the words stand
            spans = [find_span(read.text, step.text) for step in joined.steps]
            place = next((number for number, span in enumerate(spans) if span), len(spans) - 1)
            start, end = spans[place] or (None, None)
        else:
            place, start, end = found
    evidence = [
        Evidence(
            passage.id, passage.title, passage.text,
            start if number == place else None, end if number == place else None,
            hit.score, marked[number] if marked else read.supporting if number == place else (),
            hit.first_stage,
        )
        for number, (hit, passage) in enumerate(steps)
    ]  # fmt: skip
    path = tuple(evidence) if len(steps) > 1 else ()
    return Answer(read.text, read.score, read.confidence, evidence[place], path)


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
    if answer.path:  # the reader gave it
        return answer
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
    spans = [sentence_spans(passage.text) for _, passage in path]
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
