"""Training examples of what was retrieved: passages with an answer are positives, others
negatives.

Source:
    Khattab et al. 2021, "Relevance-guided Supervision for OpenQA with ColBERT", section 3.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from indexers.gold import text_key
from rag.config import DEFAULT_SEED
from rag.data.examples import Candidate, Example
from rag.data.text import AnswerMatcher
from rag.runtime.seeds import generator
from retrievers.examples.data import matchable_answers
from retrievers.negatives.settings import GuidanceSettings

# Half of the negatives are drawn from the first hundred passages, the others from the first thousand.
_NEGATIVE_RANKS = 1000
_NEAR_RANKS = 100
_NEAR_SHARE = 0.5


def guided_examples(
    ranked: Iterable[Example], settings: GuidanceSettings, counts: Counter[str]
) -> Iterator[Example]:
    """One example per positive of a question: this positive first, then the others, and its
    negatives.

    Args:
        ranked: questions with answers and what was retrieved for them, best first.
        counts: of questions, of those that are left out, of positives and negatives; added to.

    Example:
        >>> from rag.core.types import Passage
        >>> retrieved = [Candidate(Passage(str(n), "", f"text {n}"), "retrieved") for n in range(4)]
        >>> example = Example("q", "which?", ("2",), tuple(retrieved))
        >>> settings = GuidanceSettings(positives="1,4", negatives=2)
        >>> (guided,) = guided_examples([example], settings, Counter())
        >>> guided.positives[0].text, len(guided.negatives)
        ('text 2', 2)
    """
    for example in ranked:
        counts["questions"] += 1
        answers = matchable_answers(example.answers, example.answer_profile)
        if not answers:
            counts["without answers"] += 1
            continue
        matcher = AnswerMatcher(answers, example.answer_profile)
        hits = example.candidates
        holding = [rank for rank, hit in enumerate(hits) if matcher.matches(hit.passage.text)]
        chosen = set[int]()
        # At most so many of so many first passages.
        for most, first in settings.rules:
            chosen.update([rank for rank in holding if rank < first][:most])
        if not chosen:
            counts["no passage holds an answer"] += 1
            continue
        positives = [replace(hits[rank], role="positive") for rank in sorted(chosen)]
        counts["positives"] += len(positives)
        rest = _without_answer(hits, holding, positives)
        for number, positive in enumerate(positives):
            ranks = _draw(rest, settings.negatives, number, example.id)
            negatives = [replace(hits[rank], role="hard_negative") for rank in ranks]
            counts["negatives"] += len(negatives)
            name = f"{example.id}#{number + 1}" if number else example.id
            also = [other for other in positives if other is not positive]
            yield replace(example, id=name, candidates=(positive, *also, *negatives))


def _without_answer(
    hits: tuple[Candidate, ...], holding: list[int], positives: list[Candidate]
) -> list[int]:
    """Ranks of the passages that may be negatives."""
    right = {text_key(hit.passage.text) for hit in positives}
    ranks = sorted(set(range(min(len(hits), _NEGATIVE_RANKS))) - set(holding))
    return [rank for rank in ranks if text_key(hits[rank].passage.text) not in right]


def _draw(ranks: list[int], count: int, number: int, question_id: str) -> list[int]:
    """Ranks of the negatives of a question's n-th positive."""
    draw = generator(DEFAULT_SEED, number, *question_id.encode())
    shuffled: list[int] = draw.permutation(ranks).tolist()
    near = [rank for rank in shuffled if rank < _NEAR_RANKS][: round(_NEAR_SHARE * count)]
    others = [rank for rank in shuffled if rank not in near][: count - len(near)]
    return sorted(near + others)
