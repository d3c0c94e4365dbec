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
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise

import numpy as np

from rag.core.arrays import Bool, Float64
from rag.core.types import Answer, AnswerSet, Evidence, Paths, RankedPassages
from rag.data.sentences import sentence_spans
from readers.words import FACT_STOP_WORDS, has_phrase, words

# Added to ln(1 + rank of the path), see `hop_scores`. All three were chosen on 291 questions of
# HotpotQA that no reader had learnt from.
_LEADS_ON_COST = 0.6
_NAMED_COST = 0.5
# The weight of a passage's rank by paths, which tells more than a search's.
PATH_WEIGHT = 6.0


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
    # Of each passage on its best path.
    costs: dict[str, float] = {}
    for rank, path in enumerate(paths):
        for hop, (_, passage) in enumerate(path, start=1):
            costs.setdefault(passage.id, math.log1p(rank) + _LEADS_ON_COST * (hop < len(path)))
    on_no_path = math.log1p(len(paths))
    scores = []
    for _, passage in retrieved:
        in_question = is_named(passage.title, question)
        scores.append(-costs.get(passage.id, on_no_path) - _NAMED_COST * in_question)
    return scores


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
    explained = [_explain(answers.question, answer, paths) for answer in answers.answers]
    return replace(answers, answers=tuple(explained))


def _explain(question: str, answer: Answer, paths: Paths) -> Answer:
    evidence = answer.evidence
    path = _path_through(evidence.passage_id, paths)
    if path is None:
        return answer
    spans = [sentence_spans(passage.text) for _, passage in path]
    fact_passages = []
    for (hit, passage), sentences in zip(path, spans, strict=True):
        confidence = 0.0
        answer_sentence = None
        if passage.id == evidence.passage_id:
            confidence = answer.confidence
            # An answer that does not stand in the text is in none of its sentences.
            answer_start = len(passage.text) if evidence.start is None else evidence.start
            numbers = (number for number, (_, end) in enumerate(sentences) if answer_start < end)
            answer_sentence = next(numbers, None)
        texts = [passage.text[start:end] for start, end in sentences]
        fact_passages.append(
            FactPassage(passage.title, texts, hit.score, confidence, answer_sentence)
        )
    facts = set()
    for first, neighbours in enumerate(pairwise(fact_passages)):
        for hop, sentence in choose_facts(question, neighbours):
            facts.add((first + hop, sentence))
    steps = []
    for hop, ((hit, passage), sentences) in enumerate(zip(path, spans, strict=True)):
        supporting = tuple(
            span for sentence, span in enumerate(sentences) if (hop, sentence) in facts
        )
        step = Evidence.of(passage, hit.score, supporting=supporting)
        if passage.id == evidence.passage_id:
            # What the reader states itself goes before the rule.
            step = replace(evidence, score=hit.score, supporting=evidence.supporting or supporting)
        steps.append(step)
    return replace(answer, path=tuple(steps))


def _path_through(passage_id: str, paths: Paths) -> RankedPassages | None:
    """The best path of several passages with this passage among them."""
    for path in paths:
        if len(path) > 1 and any(passage.id == passage_id for _, passage in path):
            return path
    return None


# Weights of the signs, chosen on 480 questions of HotpotQA kept for training, 20 passages each, and
# rounded; that of paths later, on 291 questions of HotpotQA that no reader was trained on.
_SCORE = 0.6  # a passage's retrieval score, scaled to 0 … 1 among the passages of the question
_CONFIDENCE = 0.4  # the reader's confidence in its answers from the passage
_TITLE = 0.5  # the question contains the passage's title
_LINK = 0.75  # one passage contains the other's title
_COVERAGE = 3.0  # the share of the question's rare words that the two contain together
_PATH = 0.2  # less per ln(1 + rank) of the two among the paths of a multi-hop retriever
_SENTENCE_ANSWER = 0.45  # a sentence contains the answer; its share of rare words weighs 1
_SENTENCE_LINK = 0.5  # a sentence contains the other passage's title
# From which a sentence is a supporting fact; the best sentence of a passage always is.
_THRESHOLD = 0.7


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
    question_words = words(question)
    terms = [word for word in dict.fromkeys(question_words) if word not in FACT_STOP_WORDS]
    names = [_name(passage.title) for passage in passages]
    sentences = [list(map(words, passage.sentences)) for passage in passages]
    word_sets = []
    for passage, of_passage in zip(passages, sentences, strict=True):
        word_sets.append({*words(passage.title), *chain.from_iterable(of_passage)})
    passage_terms = _presence(word_sets, terms)  # (K, W)
    # Weights that sum to 1 (or 0): a word of few passages tells more.
    rarity = np.maximum(np.log((len(word_sets) + 1) / (passage_terms.sum(0) + 0.5)), 0.0)
    rarity = rarity / (float(rarity.sum()) or 1.0)
    mentions = [_mentions(of_passage, names) for of_passage in sentences]  # (S, K) each
    pair = [0]
    if len(passages) > 1:
        in_question = _mentions([question_words], names)[0]
        # (K, K) share of the weights of the terms that two passages contain together.
        coverage = (passage_terms[:, None] | passage_terms[None, :]) @ rarity
        pair = _best_pair(passages, in_question, mentions, coverage, paths)
    facts = []
    # One passage alone is its own other.
    for number, other in zip(pair, pair[::-1], strict=True):
        sentence_terms = _presence(sentences[number], terms)
        values = np.array([rarity[is_in].sum() for is_in in sentence_terms])
        # A blank sentence keeps its number.
        values[[not sentence for sentence in sentences[number]]] = -np.inf
        answer_sentence = passages[number].answer_sentence
        if answer_sentence is not None:
            values[answer_sentence] += _SENTENCE_ANSWER
        if other != number:
            values += _SENTENCE_LINK * mentions[number][:, other]
        if np.isfinite(values).any():
            is_fact = (values >= _THRESHOLD) | (np.arange(len(values)) == values.argmax())
            facts += [(number, sentence) for sentence in np.flatnonzero(is_fact).tolist()]
    return facts


def _presence(texts: Sequence[Collection[str]], terms: Sequence[str]) -> Bool:
    """(N, W) whether each of N texts has each of W terms."""
    present = np.zeros((len(texts), len(terms)), bool)
    for row, text in enumerate(texts):
        present[row] = [word in text for word in terms]
    return present


def _mentions(texts: Sequence[list[str]], names: Sequence[list[str]]) -> Bool:
    """(N, K) whether each of N texts has each name."""
    found = np.zeros((len(texts), len(names)), bool)
    for row, text in enumerate(texts):
        found[row] = [has_phrase(text, name) for name in names]
    return found


def _best_pair(
    passages: Sequence[FactPassage],
    in_question: Bool,
    mentions: Sequence[Bool],
    coverage: Float64,
    paths: Sequence[Sequence[int]],
) -> list[int]:
    """Numbers of the two passages that fit best; of the best one, if all are of one document."""
    titles = np.array([passage.title for passage in passages])
    links = np.array([of_passage.any(axis=0) for of_passage in mentions], bool)
    np.fill_diagonal(links, False)
    scores = np.array([passage.score for passage in passages], np.float64)
    confidence = np.array([passage.confidence for passage in passages], np.float64)
    scaled = (scores - scores.min()) / (float(np.ptp(scores)) or 1.0)
    log_ranks = np.full(coverage.shape, math.log1p(len(paths)))
    # The best path comes last, so that a pair has the rank of its best one.
    for number in reversed(range(len(paths))):
        for first, second in pairwise(paths[number]):
            log_ranks[first, second] = log_ranks[second, first] = math.log1p(number)
    passage_scores = _SCORE * scaled + _CONFIDENCE * confidence + _TITLE * in_question
    pair_scores = (
        passage_scores[:, None]
        + passage_scores
        + _LINK * (links | links.T)
        + _COVERAGE * coverage
        - _PATH * log_ranks
    )
    # Each pair once, and none of one document.
    pair_scores[(titles[:, None] == titles) | np.tri(len(titles), dtype=bool)] = -np.inf
    if np.isneginf(pair_scores).all():
        return [int(np.argmax(passage_scores))]
    return list(map(int, np.unravel_index(int(np.argmax(pair_scores)), pair_scores.shape)))


def _name(title: str) -> list[str]:
    """Words of a title, without what tells it from others of that name: "Mercury (planet)" →
    "mercury".
    """
    return words(re.sub(r"\s*\([^()]*\)$", "", title))


def is_named(title: str, text: str) -> bool:
    """Whether a text contains the words of a title one after another."""
    return has_phrase(words(text), _name(title))
