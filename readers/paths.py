"""Multi-hop questions: reading the passages of paths, and explaining answers by paths and
supporting facts.

Passages are read separately; the position of a passage on its paths tells how likely it contains
the answer.

Supporting facts are sentences, of the passages read, that support the answer, chosen by a rule. It
takes two passages that together contain the rare words of the question, that mention each other's
titles, whose titles occur in the question, and in which the reader found its answer; and of these
two the sentences with the same signs.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise

import numpy as np

from rag.core.arrays import Bool, Float64
from rag.core.types import Answer, AnswerSet, Evidence, Paths, RankedPassages
from rag.data.sentences import sentence_spans

# In units of ln(1 + rank of the path), and the weight of a passage's rank by them, which tells more
# than a
# search's. Chosen on 291 questions of HotpotQA that no reader had learnt from.
_LEADS_ON, _NAMED, PATH_WEIGHT = 0.6, 0.5, 6.0


def hop_scores(question: str, retrieved: RankedPassages, paths: Paths) -> list[float]:
    """Score each passage by how likely it is to hold the answer, from the paths alone; higher is
    likelier.

        −ln(1 + rank of its best path) − 0.6·[it is not the last on that path] − 0.5·[the question
        names it]

    A passage that is not the last of its path seldom contains the answer, nor does one named in the
    question.

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
        -standing.get(passage.id, math.log1p(len(paths)))
        - _NAMED * is_named(passage.title, question)
        for _, passage in retrieved
    ]


def with_paths(answers: AnswerSet, paths: Paths) -> AnswerSet:
    """Give every answer the best path that its passage is part of.

    The supporting sentences are chosen by `choose_facts` among those of neighbouring passages.

    Args:
        answers: answers to one question.
        paths: paths of this question, best first; paths of one passage add nothing to the evidence.

    Example:
        >>> from rag.core.types import Hit, Passage
        >>> danube = Passage("d", "Danube", "The Danube rises in Germany. It is long.")
        >>> germany = Passage("g", "Germany", "A state. The capital of Germany is Berlin.")
        >>> evidence = Evidence("g", "Germany", germany.text, 35, 41, 0.8)
        >>> question = "What is the capital of the country where the Danube rises?"
        >>> answers = AnswerSet(question, (Answer("Berlin", 1.0, 0.9, evidence),), 0.1, "v", {})
        >>> path = [(Hit(0, "d", 0.7), danube), (Hit(1, "g", 0.8), germany)]
        >>> for step in with_paths(answers, [path]).answers[0].path:
        ...     print(step.title, [step.text[start:end] for start, end in step.supporting])
        Danube ['The Danube rises in Germany.']
        Germany ['The capital of Germany is Berlin.']
    """
    return replace(
        answers, answers=tuple(_explained(answers.question, a, paths) for a in answers.answers)
    )


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


# Weights of the signs, chosen on 480 questions of HotpotQA kept for training, 20 passages each, and
# rounded;
# that of paths later, on 291 questions of HotpotQA that no reader was trained on.
_SCORE = 0.6  # a passage's retrieval score, scaled to 0 … 1 among the passages of the question
_CONFIDENCE = 0.4  # the reader's confidence in its answers from the passage
_TITLE = 0.5  # the question contains the passage's title
_LINK = 0.75  # one passage contains the other's title
_COVERAGE = 3.0  # the share of the question's rare words that the two contain together
_PATH = 0.2  # less per ln(1 + rank) of the two among the paths of a multi-hop retriever
_SENTENCE_ANSWER = 0.45  # a sentence contains the answer; its share of rare words weighs 1
_SENTENCE_LINK = 0.5  # a sentence contains the other passage's title
_THRESHOLD = (
    0.7  # from which a sentence is a supporting fact; the best sentence of a passage always is
)


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


_STOP_WORDS = frozenset(
    _words(
        """
        a after also an and are as at be been before between both by can could did do does during else first
        for from had has have he her his how if in into is it its many more most much of on or other same she
        some such than that the their them then there these they this to those was were what when where which
        while who whom whose why will with would
        """
    )
)


@dataclass(frozen=True, slots=True)
class FactPassage:
    """A passage that was read.

    Attributes:
        title: title of its document.
        sentences: its text, split into sentences.
        score: retrieval score.
        confidence: sum of the reader's confidences in answers from this passage.
        answer_sentence: number of the sentence with the best of all answers, None if that is
            elsewhere.
    """

    title: str
    sentences: Sequence[str]
    score: float
    confidence: float = 0.0
    answer_sentence: int | None = None


def choose_facts(
    question: str, passages: Sequence[FactPassage], paths: Sequence[Sequence[int]] = ()
) -> list[tuple[int, int]]:
    """Choose (passage number, sentence number) pairs, in reading order; empty without passages.

    Args:
        passages: the K passages that were read.
        paths: numbers of the passages on each path that a retriever found, best first.

    Example:
        >>> first = FactPassage("Danube", ["The Danube rises in Germany.", "It is long."], score=2.0)
        >>> second = FactPassage("Germany", ["Germany lies in Europe.", "Its capital is Berlin."], score=1.0)
        >>> choose_facts("What is the capital of the country where the Danube rises?", [first, second])
        [(0, 0), (1, 1)]
    """
    if not passages:
        return []
    words, titles = _words(question), [_name(passage.title) for passage in passages]
    lines = [[_words(sentence) for sentence in passage.sentences] for passage in passages]
    sought = [word for word in dict.fromkeys(words) if word not in _STOP_WORDS]
    bags = [{*_words(p.title), *chain(*own)} for own, p in zip(lines, passages, strict=True)]
    present = np.array([[word in bag for word in sought] for bag in bags], bool).reshape(
        len(bags), -1
    )
    # weights that sum to 1 (or 0): a word of few passages tells more
    rarity = np.maximum(np.log((len(bags) + 1) / (present.sum(0) + 0.5)), 0.0)
    rarity = rarity / (float(rarity.sum()) or 1.0)
    mentions = [  # for each passage (S, K): whether its sentence names the title of another
        np.array([[_within(title, line) for title in titles] for line in own], bool).reshape(
            -1, len(titles)
        )
        for own in lines
    ]
    pair = [0]
    if len(passages) > 1:
        in_question = np.array([_within(title, words) for title in titles])
        coverage = (present[:, None] | present[None, :]) @ rarity
        pair = _best_pair(passages, in_question, mentions, coverage, paths)
    facts = []
    for number, other in zip(pair, pair[::-1], strict=True):  # one passage alone is its own other
        values = np.array(
            [rarity[[word in line for word in sought]].sum() for line in lines[number]]
        )
        values[[not line for line in lines[number]]] = -np.inf  # a blank sentence keeps its number
        if (at := passages[number].answer_sentence) is not None:
            values[at] += _SENTENCE_ANSWER
        if other != number:
            values += _SENTENCE_LINK * mentions[number][:, other]
        if np.isfinite(values).any():
            is_fact = (values >= _THRESHOLD) | (np.arange(len(values)) == values.argmax())
            facts += [(number, sentence) for sentence in np.nonzero(is_fact)[0].tolist()]
    return facts


def _best_pair(
    passages: Sequence[FactPassage],
    in_question: Bool,
    mentions: Sequence[Bool],
    coverage: Float64,
    paths: Sequence[Sequence[int]],
) -> list[int]:
    """Numbers of the two passages that fit best; of the best one, if all are of one document."""
    titles = np.array([passage.title for passage in passages])
    names = np.array([own.any(axis=0) for own in mentions], bool)
    np.fill_diagonal(names, False)
    scores, confidence = np.array([(p.score, p.confidence) for p in passages], np.float64).T
    scaled = (scores - scores.min()) / (float(np.ptp(scores)) or 1.0)
    ranks = np.full(coverage.shape, math.log1p(len(paths)))
    for number in reversed(range(len(paths))):
        for first, second in pairwise(paths[number]):
            ranks[first, second] = ranks[second, first] = math.log1p(number)
    single = _SCORE * scaled + _CONFIDENCE * confidence + _TITLE * in_question
    values = (
        single[:, None] + single + _LINK * (names | names.T) + _COVERAGE * coverage - _PATH * ranks
    )
    values[(titles[:, None] == titles) | np.tri(len(titles), dtype=bool)] = -np.inf
    if np.isneginf(values).all():
        return [int(np.argmax(single))]
    return [int(n) for n in np.unravel_index(int(np.argmax(values)), values.shape)]


def _name(title: str) -> list[str]:
    """Words of a title, without what tells it from others of that name: "Mercury (planet)" →
    "mercury".
    """
    return _words(re.sub(r"\s*\([^()]*\)$", "", title))


def is_named(title: str, text: str) -> bool:
    """Whether a text contains the words of a title one after another."""
    return _within(_name(title), _words(text))


def _within(name: Sequence[str], words: Sequence[str]) -> bool:
    return bool(name) and f" {' '.join(name)} " in f" {' '.join(words)} "
