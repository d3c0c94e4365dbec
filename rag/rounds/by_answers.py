"""Rounds of relevance-guided supervision: passages that contain an answer count as positives.

A round's folder holds `guided.json`, examples with positives and negatives of what was retrieved.

Source:
    Khattab, Potts and Zaharia 2021, "Relevance-guided Supervision for OpenQA with ColBERT", section 3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rag.config import DEFAULT_SEED
from rag.core.errors import DataError
from rag.data.examples import Candidate, Example, read_examples, write_examples
from rag.data.text import AnswerMatcher
from rag.rounds.config import ColbertRoundsConfig
from rag.runtime.seeds import generator
from retrievers.examples.data import matchable_answers
from retrievers.negatives.select import NegativeFilter
from retrievers.negatives.settings import GuidanceSettings

if TYPE_CHECKING:
    from rag.rounds.rounds import Round

_NEGATIVE_RANKS = 1000  # number of best-ranked passages that negatives are drawn from,
_NEAR_RANKS, _NEAR_SHARE = 100, 0.5  # this share of them from the first hundred


def labelled_examples(
    config: ColbertRoundsConfig, current: Round, found: Path
) -> tuple[Path, dict[str, Any]]:
    """The retrieved passages as positives and negatives, and counts of them."""
    guided = current.folder / "guided.json"

    def label() -> dict[str, Any]:
        counts: Counter[str] = Counter()
        ranked = read_examples(found, needs="questions")
        if not write_examples(guided, guided_examples(ranked, config.guidance, counts)):
            raise DataError(
                f"no retrieved passage holds an answer to any of {counts['questions']} questions "
                f"({counts['without answers']} have no answers)",
                hint="raise top_k and the rules of positives, or give the corpus that answers them",
            )
        return dict(sorted(counts.items()))

    return guided, current.stage("label", label)


def guided_examples(
    ranked: Iterable[Example], settings: GuidanceSettings, counts: Counter[str]
) -> Iterator[Example]:
    """One example per positive of a question: this positive first, then the others, and its negatives.

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
    rules = settings.rules
    depth = max(_NEGATIVE_RANKS, *(first for _, first in rules))
    for example in ranked:
        counts["questions"] += 1
        answers = matchable_answers(example.answers, example.answer_mode)
        if not answers:
            counts["without answers"] += 1
            continue
        matcher = AnswerMatcher(answers, example.answer_mode)
        listed = example.candidates[:depth]
        holding = [place for place, found in enumerate(listed) if matcher.matches(found.passage.text)]
        chosen = sorted({p for most, first in rules for p in [n for n in holding if n < first][:most]})
        if not chosen:
            counts["no passage holds an answer"] += 1
            continue
        right = [replace(listed[place], role="positive") for place in chosen]
        copies = NegativeFilter(None, (), [found.passage.text for found in right], Counter())
        rest = sorted(set(range(min(len(listed), _NEGATIVE_RANKS))) - set(holding))
        rest = [place for place in rest if copies.accepts(-1, listed[place].passage)]
        counts.update({"questions learnt from": 1, "positives": len(right), "without negatives": not rest})
        for number, positive in enumerate(right):
            draw = generator(DEFAULT_SEED, number, *example.id.encode())
            wrong: list[Candidate] = [
                replace(listed[place], role="hard_negative")
                for place in _drawn(rest, settings.negatives, draw)
            ]
            counts["negatives"] += len(wrong)
            others = (other for other in right if other is not positive)
            name = f"{example.id}#{number + 1}" if number else example.id
            yield replace(example, id=name, candidates=(positive, *others, *wrong))


def _drawn(places: list[int], count: int, draw: np.random.Generator) -> list[int]:
    """Some of the places, in their order: a share of the near ones, the others of what is left."""
    order = draw.permutation(len(places)).tolist()
    shuffled = [places[number] for number in order]
    near = [place for place in shuffled if place < _NEAR_RANKS]
    taken = near[: round(_NEAR_SHARE * count)]
    left = (place for place in shuffled if place not in set(taken))
    return sorted([*taken, *islice(left, count - len(taken))])
