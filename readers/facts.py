"""Supporting facts of a two-hop question: the sentences, of the passages read, that support the answer.

They are chosen by a rule. It chooses two passages that together contain the rare words of the question, that
mention each other's titles, whose titles occur in the question, and in which the reader found its answer; and
of these two, the sentences with the same signs. The weights of the signs were chosen on training questions of
HotpotQA by `rag tune facts`.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rag.config import Config
from rag.core.arrays import Bool, Float64


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


_STOP_WORDS = frozenset(
    _words(
        """
        a after also an and are as at be been before between both by can could did do does during else first
        for from had has have he her his how if in into is it its many more most much of on or other same she
        some such than that the their them then there these they this those to was were what when where which
        while who whom whose why will with would
        """
    )
)


class FactSettings(Config):
    """Weights of the signs; the defaults were chosen on 480 questions of HotpotQA kept for training, with 20
    passages each, and rounded.

    Attributes:
        score: weight of a passage's retrieval score, scaled to 0 … 1 among the passages of the question.
        confidence: weight of the reader's confidence in its answers from the passage.
        title: weight if the question contains the passage's title.
        link: weight if one passage contains the other's title.
        coverage: weight of the share of the question's rare words that the two passages contain together.
        path: penalty per ln(1 + rank) of the two among the paths of a multi-hop retriever; chosen later, on
            291 questions of HotpotQA that no reader was trained on.
        sentence_answer: weight if the sentence contains the answer.
        sentence_link: weight if the sentence contains the other passage's title.
        threshold: weighted sum from which a sentence is a supporting fact; the best sentence of a passage
            always is. A sentence's share of rare words has the weight 1.
    """

    score: float = 0.6
    confidence: float = 0.4
    title: float = 0.5
    link: float = 0.75
    coverage: float = 3.0
    path: float = 0.2
    sentence_answer: float = 0.45
    sentence_link: float = 0.5
    threshold: float = 0.7


@dataclass(frozen=True, slots=True)
class FactPassage:
    """A passage that was read.

    Attributes:
        title: title of its document.
        sentences: its text, split into sentences.
        score: retrieval score.
        confidence: sum of the reader's confidences in answers from this passage.
        answer_sentence: number of the sentence with the best of all answers, None if that is elsewhere.
    """

    title: str
    sentences: Sequence[str]
    score: float
    confidence: float = 0.0
    answer_sentence: int | None = None


@dataclass(frozen=True, slots=True)
class FactSigns:
    """The signs of one question's K passages, before they are weighted.

    Attributes:
        passages: (K, 3) scaled score, confidence, title in the question.
        links: (K, K) whether one of the two mentions the other's title.
        coverage: (K, K) share of the question's rare words that the two contain together.
        ranks: (K, K) ln(1 + rank) of the path made of the two; without such a path, of the rank after the
            last.
        titles: K titles.
        sentences: for each passage (S, 2): share of rare words, holds the answer; NaN for a blank sentence.
        mentions: for each passage (S, K) whether its sentence names the title of another.
    """

    passages: Float64
    links: Bool
    coverage: Float64
    ranks: Float64
    titles: tuple[str, ...]
    sentences: tuple[Float64, ...]
    mentions: tuple[Bool, ...]


def find_signs(
    question: str, passages: Sequence[FactPassage], paths: Sequence[Sequence[int]] = ()
) -> FactSigns:
    """Look for all signs in the passages of one question.

    Args:
        passages: the K passages that were read.
        paths: numbers of the passages on each path that a retriever found, best first.
    """
    words = _words(question)
    titles = [_name(passage.title) for passage in passages]
    lines = [[_words(sentence) for sentence in passage.sentences] for passage in passages]
    wanted = [word for word in dict.fromkeys(words) if word not in _STOP_WORDS]
    bags = [
        {word for line in own for word in line}.union(_words(passage.title))
        for own, passage in zip(lines, passages, strict=True)
    ]
    rarity = _rarity(wanted, bags)
    held = np.array([[word in bag for word in wanted] for bag in bags], dtype=bool)
    held = held.reshape(len(bags), len(wanted))
    mentions = tuple(
        np.array([[_within(title, line) for title in titles] for line in own], dtype=bool).reshape(
            len(own), len(titles)
        )
        for own in lines
    )
    names = np.array([own.any(axis=0) for own in mentions], dtype=bool).reshape(len(bags), len(bags))
    np.fill_diagonal(names, False)
    scores = np.array([passage.score for passage in passages], dtype=np.float64)
    spread = float(np.ptp(scores)) if len(scores) else 0.0
    scaled = (scores - scores.min()) / spread if spread else np.zeros(len(scores))
    in_question = [float(_within(title, words)) for title in titles]
    ranks = np.full((len(bags), len(bags)), math.log1p(len(paths)))
    for number in reversed(range(len(paths))):
        for first, second in pairwise(paths[number]):
            ranks[first, second] = ranks[second, first] = math.log1p(number)
    return FactSigns(
        passages=np.stack([scaled, [passage.confidence for passage in passages], in_question], axis=1),
        links=names | names.T,
        coverage=(held[:, None] | held[None, :]) @ rarity,
        ranks=ranks,
        titles=tuple(passage.title for passage in passages),
        sentences=tuple(
            _sentence_signs(own, wanted, rarity, passage)
            for own, passage in zip(lines, passages, strict=True)
        ),
        mentions=mentions,
    )


def choose_facts(signs: FactSigns, settings: FactSettings | None = None) -> list[tuple[int, int]]:
    """Choose (passage number, sentence number) pairs, in reading order; empty without passages.

    Example:
        >>> first = FactPassage("Danube", ["The Danube rises in Germany.", "It is long."], score=2.0)
        >>> second = FactPassage("Germany", ["Germany lies in Europe.", "Its capital is Berlin."], score=1.0)
        >>> question = "What is the capital of the country where the Danube rises?"
        >>> choose_facts(find_signs(question, [first, second]))
        [(0, 0), (1, 1)]
    """
    settings = settings or FactSettings()
    facts = []
    pair = _best_pair(signs, settings)
    for number, other in zip(pair, pair[::-1], strict=True):  # one passage alone is its own other
        values = signs.sentences[number] @ np.array([1.0, settings.sentence_answer])
        if other != number:
            values = values + settings.sentence_link * signs.mentions[number][:, other]
        if np.isnan(values).all():
            continue
        best = int(np.nanargmax(values))
        facts += [
            (number, at) for at, value in enumerate(values) if at == best or value >= settings.threshold
        ]
    return facts


def _best_pair(signs: FactSigns, settings: FactSettings) -> list[int]:
    count = len(signs.titles)
    if count < 2:
        return list(range(count))
    single = signs.passages @ np.array([settings.score, settings.confidence, settings.title])
    values = single[:, None] + single[None, :] + settings.link * signs.links
    values = values + settings.coverage * signs.coverage - settings.path * signs.ranks
    alike = np.array(signs.titles)[:, None] == np.array(signs.titles)[None, :]
    values[alike | np.tri(count, dtype=bool)] = -np.inf
    if np.isneginf(values).all():  # passages of one document
        return [int(np.argmax(single))]
    row, column = np.unravel_index(int(np.argmax(values)), values.shape)
    return [int(row), int(column)]


def _name(title: str) -> list[str]:
    """Words of a title, without what tells it from others of that name: "Mercury (planet)" → "mercury"."""
    return _words(re.sub(r"\s*\([^()]*\)$", "", title))


def is_named(title: str, text: str) -> bool:
    """Whether a text contains the words of a title one after another."""
    return _within(_name(title), _words(text))


def _within(name: Sequence[str], words: Sequence[str]) -> bool:
    return bool(name) and f" {' '.join(name)} " in f" {' '.join(words)} "


def _rarity(wanted: Sequence[str], bags: Sequence[set[str]]) -> Float64:
    """(W,) weights of the question's words, summing to 1 (or 0): a word of few passages tells more."""
    counts = [sum(word in bag for bag in bags) for word in wanted]
    weights = np.array([max(math.log((len(bags) + 1) / (count + 0.5)), 0.0) for count in counts])
    total = float(weights.sum())
    return weights / total if total else weights


def _sentence_signs(
    lines: Sequence[Sequence[str]], wanted: Sequence[str], rarity: Float64, passage: FactPassage
) -> Float64:
    rows = np.full((len(lines), 2), np.nan)
    for at, line in enumerate(lines):
        if line:
            held = np.array([word in set(line) for word in wanted], dtype=bool)
            rows[at] = rarity[held].sum(), at == passage.answer_sentence
    return rows
