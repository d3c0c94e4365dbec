"""Read passages of multi-hop paths, and explain answers by their paths and supporting sentences.

Passages are read separately; the position of a passage on its paths tells how likely it contains the answer.
The supporting sentences are chosen by the rule of `readers.facts`.
"""

import math
from dataclasses import replace
from itertools import pairwise

from rag.core.types import Answer, AnswerSet, Evidence, Paths, RankedPassages
from rag.data.sentences import sentence_spans
from readers.facts import FactPassage, choose_facts, is_named

# In units of ln(1 + rank of the path). Chosen, with `ReaderSettings.path_weight`, on 291 questions of
# HotpotQA that no reader had learnt from.
_LEADS_ON, _NAMED = 0.6, 0.5


def hop_scores(question: str, retrieved: RankedPassages, paths: Paths) -> list[float]:
    """Score each passage by how likely it is to hold the answer, from the paths alone; higher is likelier.

        −ln(1 + rank of its best path) − 0.6·[it is not the last on that path] − 0.5·[the question names it]

    A passage that is not the last of its path seldom contains the answer, nor does one named in the question.

    Example:
        >>> from rag.core.types import Hit, Passage
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


def with_paths(answers: AnswerSet, paths: Paths) -> AnswerSet:
    """Give every answer the best path that its passage is part of.

    The supporting sentences are chosen by the rule of `readers.facts` among those of neighbouring passages.

    Args:
        answers: answers to one question.
        paths: paths of this question, best first; paths of one passage add nothing to the evidence.

    Example:
        >>> from rag.core.types import Hit, Passage
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
    return replace(answers, answers=tuple(_explained(answers.question, a, paths) for a in answers.answers))


def _explained(question: str, answer: Answer, paths: Paths) -> Answer:
    own = answer.evidence
    several = (path for path in paths if len(path) > 1)
    path = next((path for path in several if any(p.id == own.passage_id for _, p in path)), None)
    if path is None:
        return answer
    spans = [sentence_spans(passage.text) for _, passage in path]
    inputs = []
    for (hit, passage), sentences in zip(path, spans, strict=True):
        texts = [passage.text[start:end] for start, end in sentences]
        read = FactPassage(passage.title, texts, hit.score)
        if passage.id == own.passage_id:
            at = len(passage.text) if own.start is None else own.start
            place = next((n for n, (_, end) in enumerate(sentences) if at < end), None)
            read = replace(read, confidence=answer.confidence, answer_sentence=place)
        inputs.append(read)
    chosen = {
        (first + place, sentence)
        for first, two in enumerate(pairwise(inputs))
        for place, sentence in choose_facts(question, two)
    }
    steps = []
    for number, ((hit, passage), sentences) in enumerate(zip(path, spans, strict=True)):
        lit = tuple(span for place, span in enumerate(sentences) if (number, place) in chosen)
        if passage.id == own.passage_id:
            steps.append(replace(own, score=hit.score, supporting=own.supporting or lit))
        else:
            steps.append(Evidence.of(passage, hit.score, supporting=lit))
    return replace(answer, path=tuple(steps))
