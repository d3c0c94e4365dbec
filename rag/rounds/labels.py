"""Relevance-guided supervision: retrieved passages that contain an answer count as positives.

Source:
    Khattab, Potts and Zaharia 2021, "Relevance-guided Supervision for OpenQA with ColBERT", section 3.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice

import numpy as np

from rag.config import DEFAULT_SEED
from rag.data.examples import Candidate, Example
from rag.data.text import AnswerMatcher
from rag.runtime.seeds import generator
from retrievers.examples.data import matchable_answers
from retrievers.negatives.select import NegativeFilter
from retrievers.negatives.settings import GuidanceSettings

_NEGATIVE_RANKS = 1000  # number of best-ranked passages that negatives are drawn from,
_NEAR_RANKS, _NEAR_SHARE = 100, 0.5  # this share of them from the first hundred


def guided_examples(
    ranked: Iterable[Example], settings: GuidanceSettings, counts: Counter[str]
) -> Iterator[Example]:
    """One example per positive of a question: this positive first, then the others, and its negatives.

    Args:
        ranked: questions with answers and what was retrieved for them, best first.
        settings: which passages count as right.
        counts: "questions", "without answers", "no passage holds an answer" (both are left out), "positives",
            "negatives" are added.

    Example:
        >>> from rag.core.types import Passage
        >>> retrieved = [Candidate(Passage(str(n), "", f"text {n}"), "retrieved") for n in range(4)]
        >>> example = Example("q", "which?", ("2",), tuple(retrieved))
        >>> (guided,) = guided_examples([example], GuidanceSettings(positives="1,4", negatives=2), Counter())
        >>> guided.positives[0].text, len(guided.negatives)
        ('text 2', 2)
    """
    depth = max(_NEGATIVE_RANKS, *(first for _, first in settings.rules))
    for example in ranked:
        counts["questions"] += 1
        answers = matchable_answers(example.answers, example.answer_mode)
        if not answers:
            counts["without answers"] += 1
            continue
        matcher = AnswerMatcher(answers, example.answer_mode)
        listed = example.candidates[:depth]
        holding = [place for place, hit in enumerate(listed) if matcher.matches(hit.passage.text)]
        chosen = sorted(
            {p for most, first in settings.rules for p in [n for n in holding if n < first][:most]}
        )
        if not chosen:
            counts["no passage holds an answer"] += 1
            continue
        right = [replace(listed[place], role="positive") for place in chosen]
        copies = NegativeFilter(None, (), [hit.passage.text for hit in right], Counter())
        rest = sorted(set(range(min(len(listed), _NEGATIVE_RANKS))) - set(holding))
        rest = [place for place in rest if copies.accepts(-1, listed[place].passage)]
        counts["positives"] += len(right)
        for number, positive in enumerate(right):
            draw = generator(DEFAULT_SEED, number, *example.id.encode())
            wrong: list[Candidate] = [
                replace(listed[place], role="hard_negative")
                for place in _draw_places(rest, settings.negatives, draw)
            ]
            counts["negatives"] += len(wrong)
            others = (other for other in right if other is not positive)
            name = f"{example.id}#{number + 1}" if number else example.id
            yield replace(example, id=name, candidates=(positive, *others, *wrong))


def _draw_places(places: list[int], count: int, draw: np.random.Generator) -> list[int]:
    """Some of the places, in their order: a share of the near ones, the others of what is left."""
    order = draw.permutation(len(places)).tolist()
    shuffled = [places[number] for number in order]
    near = [place for place in shuffled if place < _NEAR_RANKS]
    taken = near[: round(_NEAR_SHARE * count)]
    left = (place for place in shuffled if place not in set(taken))
    return sorted([*taken, *islice(left, count - len(taken))])
