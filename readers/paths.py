"""Read passages of multi-hop paths, and explain answers by their paths and supporting sentences.

Passages are read separately; the position of a passage on its paths tells how likely it contains the answer.
The supporting sentences are chosen by the rule of `readers.facts`.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from rag.core.types import Answer, AnswerSet, Evidence, Paths, RankedPassages
from rag.data.sentences import Spans, sentence_spans
from readers.facts import FactPassage, choose_facts, find_signs, is_named
from readers.protocols import Citation, ReadAnswer, Reader, ReadResult, readable

_NO_ANSWER = ReadResult((), 1.0)
# In units of ln(1 + rank of the path). Chosen, with `ReaderSettings.path_weight`, on 291 questions of
# HotpotQA that no reader had learnt from.
_LEADS_ON, _NAMED = 0.6, 0.5


def hop_scores(question: str, retrieved: RankedPassages, paths: Paths) -> list[float]:
    """Score each passage by how likely it is to hold the answer, from the paths alone; higher is likelier.

        −ln(1 + rank of its best path) − 0.6·[it is not the last on that path] − 0.5·[the question names it]

    A passage that is not the last of its path seldom contains the answer, nor does one named in the question.

    Example:
        >>> from rag.core.types import Hit
        >>> texts = Passage("d", "Danube", "In Germany."), Passage("g", "Germany", "Its capital is Berlin.")
        >>> path = [(Hit(row, text.id, 0.9), text) for row, text in enumerate(texts)]
        >>> hop_scores("Is the Danube in Germany?", path, [path])
        [-1.1, -0.5]
    """
    standing: dict[str, float] = {}
    for rank, path in enumerate(paths):
        for place, (_, passage) in enumerate(path, start=1):
            standing.setdefault(passage.id, math.log1p(rank) + _LEADS_ON * (place < len(path)))
    return [
        -standing.get(passage.id, math.log1p(len(paths))) - _NAMED * is_named(passage.title, question)
        for _, passage in retrieved
    ]


def counts_scores(reader: object) -> bool:
    """Whether a reader uses retrieval scores: as p(z|x) (RAG), or added to its own scores (ORQA)."""
    settings = getattr(reader, "settings", None)
    return getattr(settings, "marginal", None) is not None or getattr(settings, "score_weight", 0.0) > 0.0


def search_scores(reader: object, found: RankedPassages) -> list[float]:
    """The score of each passage to give to a reader.

    A reader that uses retrieval scores gets the first-stage ones: a re-ranker's are on another scale.
    """
    counts = counts_scores(reader)
    return [(hit.first_stage if counts and hit.first_stage else hit).score for hit, _ in found]


def read_answers(
    reader: Reader,
    questions: Sequence[str],
    retrieved: Sequence[RankedPassages],
    paths: Sequence[Paths],
    n_best: int,
    index_version: str,
) -> list[AnswerSet]:
    """Answers with evidence; timings are the caller's to add.

    Args:
        reader: any reader; one with `reads_paths` gets `hop_scores`, and is told so by `from_paths=True`.
        retrieved: passages to read for each question, best first; without passages there is no answer.
        paths: paths for each question, best first; paths of one passage add nothing.
        n_best: largest number of answers per question.
        index_version: version of the index they came from.
    """
    of_paths = [any(len(path) > 1 for path in own) for own in paths]
    read: dict[int, ReadResult] = {}
    for several in (False, True):
        numbers = [n for n, found in enumerate(retrieved) if found and of_paths[n] == several]
        if not numbers:
            continue
        texts = [questions[n] for n in numbers]
        shown = [[readable(passage) for _, passage in retrieved[n]] for n in numbers]
        if several and getattr(reader, "reads_paths", False):
            scores = [hop_scores(questions[n], retrieved[n], paths[n]) for n in numbers]
            results = reader.read(texts, shown, scores, n_best, from_paths=True)  # type: ignore[call-arg]
        else:
            scores = [search_scores(reader, retrieved[n]) for n in numbers]
            results = reader.read(texts, shown, scores, n_best)
        read.update(zip(numbers, results, strict=True))
    answers = []
    for n, question in enumerate(questions):
        result = read.get(n, _NO_ANSWER)
        given = tuple(_with_evidence(answer, retrieved[n]) for answer in result.answers)
        answers.append(
            AnswerSet(
                question,
                given,
                result.no_answer_confidence,
                index_version,
                {},
                result.reading,
                result.failure,
            )
        )
    return answers


def _with_evidence(read: ReadAnswer, found: RankedPassages) -> Answer:
    def evidence(place: Citation | ReadAnswer, supporting: Spans = ()) -> Evidence:
        hit, passage = found[place.passage_index]
        named = (passage.id, passage.title, passage.text, place.start, place.end)
        return Evidence(*named, hit.score, tuple(supporting), hit.first_stage, passage.location)

    weights = {}
    if read.weights:
        weights = {passage.id: w for (_, passage), w in zip(found, read.weights, strict=True)}
    is_more = {cited.passage_index for cited in read.citations} - {read.passage_index}
    return Answer(
        read.text,
        read.score,
        read.confidence,
        evidence(read, read.supporting),
        weights=weights,
        citations=tuple(map(evidence, read.citations)) if is_more else (),
        is_supported=read.is_supported,
        note=read.note,
    )


def _path_with(passage_id: str, paths: Paths) -> int | None:
    """Number of the best path of several passages that this one is part of."""
    return next(
        (n for n, path in enumerate(paths) if len(path) > 1 and any(p.id == passage_id for _, p in path)),
        None,
    )


def _steps(own: Evidence, path: RankedPassages, marked: Sequence[Spans]) -> tuple[Evidence, ...]:
    """A path as evidence, the answer's own passage with the answer."""
    return tuple(
        replace(own, score=hit.score, supporting=own.supporting or lit)
        if passage.id == own.passage_id
        else Evidence(
            passage.id, passage.title, passage.text, None, None, hit.score, lit, location=passage.location
        )
        for (hit, passage), lit in zip(path, marked, strict=True)
    )


def with_paths(answers: AnswerSet, paths: Paths) -> AnswerSet:
    """Give every answer the best path that its passage is part of.

    The supporting sentences are chosen by the rule of `readers.facts` among those of neighbouring passages.

    Args:
        answers: answers to one question.
        paths: paths of this question, best first; paths of one passage add nothing to the evidence.

    Example:
        >>> from rag.core.types import Hit
        >>> danube = Passage("d", "Danube", "The Danube rises in Germany. It is long.")
        >>> germany = Passage("g", "Germany", "A state. The capital of Germany is Berlin.")
        >>> evidence = Evidence("g", "Germany", germany.text, 35, 41, 0.8)
        >>> question = "What is the capital of the country where the Danube rises?"
        >>> found = AnswerSet(question, (Answer("Berlin", 1.0, 0.9, evidence),), 0.1, "v", {})
        >>> path = [(Hit(0, "d", 0.7), danube), (Hit(1, "g", 0.8), germany)]
        >>> for step in with_paths(found, [path]).answers[0].path:
        ...     print(step.title, [step.text[start:end] for start, end in step.supporting])
        Danube ['The Danube rises in Germany.']
        Germany ['The capital of Germany is Berlin.']
    """
    return replace(answers, answers=tuple(_with_path(answers.question, a, paths) for a in answers.answers))


def _with_path(question: str, answer: Answer, paths: Paths) -> Answer:
    place = _path_with(answer.evidence.passage_id, paths)
    if place is None:  # no path of several passages
        return answer
    path = paths[place]
    return replace(answer, path=_steps(answer.evidence, path, _supporting(question, answer, path)))


def _supporting(question: str, answer: Answer, path: RankedPassages) -> list[tuple[tuple[int, int], ...]]:
    spans = [sentence_spans(passage.text) for _, passage in path]
    inputs = [
        FactPassage(passage.title, [passage.text[start:end] for start, end in own], hit.score)
        for (hit, passage), own in zip(path, spans, strict=True)
    ]
    at = answer.evidence.start
    for place, (_, passage) in enumerate(path):
        if passage.id == answer.evidence.passage_id:
            holds = next((n for n, (_, end) in enumerate(spans[place]) if at is not None and at < end), None)
            inputs[place] = replace(inputs[place], confidence=answer.confidence, answer_sentence=holds)
    chosen: list[set[int]] = [set() for _ in path]
    for first, two in enumerate(pairwise(inputs)):
        for place, sentence in choose_facts(find_signs(question, two)):
            chosen[first + place].add(sentence)
    return [
        tuple(own[number] for number in sorted(numbers)) for own, numbers in zip(spans, chosen, strict=True)
    ]
