"""Relevance-guided supervision: which passages of a ranking are right is read off the answers alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import ClassVar

import numpy as np
from pydantic import Field, field_validator

from rag.config import Config
from rag.core.errors import ConfigError
from rag.data.examples import Candidate, Example
from rag.data.text import AnswerMatcher
from rag.runtime.seeds import generator
from retrievers.examples.data import matchable_answers
from retrievers.negatives.select import NegativeFilter


class GuidanceSettings(Config):
    """What becomes of a ranking.

    Attributes:
        positives: rules "b,k", separated by spaces: the b best-ranked passages among the first k that hold an
            answer; what any of them takes is a positive.
        negatives: drawn for each positive from the passages that hold none.
        negatives_ranks: from the first so many.
        near_share: share of them that are drawn from the first `near_ranks`.
        near_ranks: see there.
        draw_seed: of the draws.

    Source:
        Khattab, Potts and Zaharia 2021, "Relevance-guided Supervision for OpenQA with ColBERT", section 3.3.
    """

    recipe: ClassVar[str] = "guidance"

    positives: str = "3,50"
    negatives: int = Field(default=20, ge=1)
    negatives_ranks: int = Field(default=1000, ge=1)
    near_share: float = Field(default=0.5, ge=0, le=1)
    near_ranks: int = Field(default=100, ge=1)
    draw_seed: int = Field(default=13, ge=0)

    @field_validator("positives")
    @classmethod
    def _check_positives(cls, value: str) -> str:
        try:
            return " ".join(f"{most},{first}" for most, first in parse_rules(value))
        except ConfigError as error:
            raise ValueError(str(error)) from error

    @property
    def depth(self) -> int:
        """Passages of a ranking that are looked at."""
        return max(self.negatives_ranks, *(first for _, first in parse_rules(self.positives)))


def parse_rules(text: str) -> tuple[tuple[int, int], ...]:
    """Depth rules "b,k b,k" as pairs.

    Raises:
        ConfigError: it is something else.

    Example:
        >>> parse_rules("3,50 1,1000")
        ((3, 50), (1, 1000))
    """
    try:
        rules = tuple((int(most), int(first)) for most, first in (rule.split(",") for rule in text.split()))
    except ValueError:
        rules = ()
    if not rules or any(not 1 <= most <= first for most, first in rules):
        raise ConfigError(
            f"rules of positives {text!r}: expected b,k with 1 ≤ b ≤ k, perhaps several",
            hint='for example "3,50 1,1000": three of the first 50, or else one of the first 1000',
        )
    return rules


def guided_examples(
    ranked: Iterable[Example], settings: GuidanceSettings, counts: Counter[str]
) -> Iterator[Example]:
    """An example for each positive of each question: that one first, the others, and its own negatives.

    Args:
        ranked: questions with answers and what was retrieved for them, best first.
        settings: which passages count as right.
        counts: "questions", "without answers", "no passage holds an answer" (both are left out), "questions
            learnt from", "positives", "negatives", "without negatives" are added.

    Example:
        >>> from rag.core.types import Passage
        >>> found = [Candidate(Passage(str(n), "", f"text {n}"), "retrieved") for n in range(4)]
        >>> asked = Example("q", "which?", ("2",), tuple(found))
        >>> (made,) = guided_examples([asked], GuidanceSettings(positives="1,4", negatives=2), Counter())
        >>> made.positives[0].text, len(made.negatives)
        ('text 2', 2)
    """
    rules = parse_rules(settings.positives)
    for example in ranked:
        counts["questions"] += 1
        answers = matchable_answers(example.answers, example.answer_mode)
        if not answers:
            counts["without answers"] += 1
            continue
        matcher = AnswerMatcher(answers, example.answer_mode)
        listed = example.candidates[: settings.depth]
        holding = [place for place, found in enumerate(listed) if matcher.matches(found.passage.text)]
        chosen = sorted({p for most, first in rules for p in [n for n in holding if n < first][:most]})
        if not chosen:
            counts["no passage holds an answer"] += 1
            continue
        right = [replace(listed[place], role="positive") for place in chosen]
        copies = NegativeFilter(None, (), [found.passage.text for found in right], Counter())
        rest = sorted(set(range(min(len(listed), settings.negatives_ranks))) - set(holding))
        rest = [place for place in rest if copies.accepts(-1, listed[place].passage)]
        counts.update({"questions learnt from": 1, "positives": len(right), "without negatives": not rest})
        for number, positive in enumerate(right):
            draw = generator(settings.draw_seed, number, *example.id.encode())
            wrong: list[Candidate] = [
                replace(listed[place], role="hard_negative") for place in _drawn(rest, settings, draw)
            ]
            counts["negatives"] += len(wrong)
            others = (other for other in right if other is not positive)
            name = f"{example.id}#{number + 1}" if number else example.id
            yield replace(example, id=name, candidates=(positive, *others, *wrong))


def _drawn(places: list[int], settings: GuidanceSettings, draw: np.random.Generator) -> list[int]:
    """Some of the places, in their order: a share of the near ones, the others of what is left."""
    order = draw.permutation(len(places)).tolist()
    shuffled = [places[number] for number in order]
    near = [place for place in shuffled if place < settings.near_ranks]
    taken = near[: round(settings.near_share * settings.negatives)]
    left = (place for place in shuffled if place not in set(taken))
    return sorted([*taken, *islice(left, settings.negatives - len(taken))])
