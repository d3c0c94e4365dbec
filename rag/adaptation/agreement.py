"""Training examples of made questions: all of them, or those on which search and reader agree."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from rag.adaptation.questions import MadeQuestion
from rag.core.types import Passage, RankedPassages
from rag.data.examples import Candidate, Example
from rag.data.text import AnswerMatcher, f1
from readers.protocols import Reader

Made = tuple[Passage, MadeQuestion]


def agreeing(
    made: Sequence[Made],
    search: Callable[[Sequence[str], int], Sequence[RankedPassages]],
    reader: Reader | None,
    *,
    top_k: int,
    least_f1: float,
    counts: Counter[str],
) -> Iterator[Example]:
    """The questions whose passage is among the first `top_k` hits, from which the reader gives their answer.

    Args:
        made: questions with the passages that they were made from.
        search: `Pipeline.retrieve`.
        reader: None keeps all questions.
        least_f1: F1 of the reader's first answer that counts as agreement.
        counts: is added to: "made", "retrieved", "kept", and "kept KIND" by kind of question.

    Returns:
        Examples whose positive is the question's passage; the other hits that do not hold the answer are hard
        negatives, so that a reader also learns from them alone that there is no answer.

    Source:
        Alberti et al. 2019, "Synthetic QA Corpora Generation with Roundtrip Consistency", section 2.
    """
    counts["made"] += len(made)
    hits = search([question.text for _, question in made], top_k) if made else []
    kept = [(passage, question, pairs) for (passage, question), pairs in zip(made, hits, strict=True)]
    retrieved = [
        (passage, question, pairs)
        for passage, question, pairs in kept
        if passage.id in [hit.passage_id for hit, _ in pairs]
    ]
    counts["retrieved"] += len(retrieved)
    if reader is not None:
        results = reader.read(
            [question.text for _, question, _ in retrieved],
            [[passage for _, passage in pairs] for _, _, pairs in retrieved],
            [[hit.score for hit, _ in pairs] for _, _, pairs in retrieved],
            n_best=1,
        ) if retrieved else []  # fmt: skip
        first = [result.answers[0].text if result.answers else "" for result in results]
        kept = [
            (passage, question, pairs)
            for (passage, question, pairs), answer in zip(retrieved, first, strict=True)
            if f1(answer, [question.answer]) >= least_f1
        ]
    for passage, question, pairs in kept:
        counts["kept"] += 1
        counts[f"kept {question.kind}"] += 1
        matcher = AnswerMatcher([question.answer])
        others = [
            Candidate(other, "hard_negative", rank=rank, score=round(hit.score, 5))
            for rank, (hit, other) in enumerate(pairs, start=1)
            if other.id != passage.id and not matcher.matches(other.text)
        ]
        name = f"{passage.id}:{question.start}:{question.kind}"
        yield Example.labelled(name, question.text, [question.answer], [passage], others)
