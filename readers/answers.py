"""Read what was retrieved: answers with evidence, by any reader, and how many of them are right."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rag.core.types import Answer, AnswerSet, Evidence, Passage, Paths, RankedPassages
from rag.data.examples import Example
from rag.data.text import Profile
from rag.metrics.answers import em_and_f1
from readers.paths import hop_scores
from readers.protocols import MAX_PASSAGE_CHARS, Reader

_MEASURED = 64  # questions that are measured at a time


def counts_scores(reader: object) -> bool:
    """Whether a reader uses retrieval scores: as p(z|x) (RAG), or added to its own scores
    (ORQA).
    """
    settings = getattr(reader, "settings", None)
    return (
        getattr(settings, "marginal", None) is not None
        or getattr(settings, "score_weight", 0.0) > 0.0
    )


def search_scores(reader: object, retrieved: RankedPassages) -> list[float]:
    """The score of each passage to give to a reader: the first stage's to one that uses retrieval
    scores, because a re-ranker's are on another scale.
    """
    counts = counts_scores(reader)
    return [(hit.first_stage if counts and hit.first_stage else hit).score for hit, _ in retrieved]


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
        reader: any reader; one with `reads_paths` gets `hop_scores`, and `from_paths=True`.
        retrieved: passages to read for each question, best first; without passages there is no
            answer.
        paths: paths for each question, best first; paths of one passage add nothing.
    """
    of_paths = [any(len(path) > 1 for path in own) for own in paths]
    read: dict[int, AnswerSet] = {}
    for several in (False, True):
        numbers = [n for n, own in enumerate(retrieved) if own and of_paths[n] == several]
        if not numbers:
            continue
        texts = [questions[n] for n in numbers]
        # what is too long must not cost a question its answer
        shown = [
            [replace(p, text=p.text[:MAX_PASSAGE_CHARS]) for _, p in retrieved[n]] for n in numbers
        ]
        if several and getattr(reader, "reads_paths", False):
            scores = [hop_scores(questions[n], retrieved[n], paths[n]) for n in numbers]
            results = reader.read(texts, shown, scores, n_best, from_paths=True)  # type: ignore[call-arg]
        else:
            scores = [search_scores(reader, retrieved[n]) for n in numbers]
            results = reader.read(texts, shown, scores, n_best)
        read.update(zip(numbers, results, strict=True))
    answers = []
    for n, question in enumerate(questions):
        result = read.get(n) or AnswerSet(question, (), 1.0)
        own = tuple(_as_retrieved(answer, retrieved[n]) for answer in result.answers)
        answers.append(replace(result, answers=own, index_version=index_version))
    return answers


def answer_scores(
    texts: Sequence[str | None], answers: Sequence[Sequence[str]], profiles: Sequence[Profile]
) -> dict[str, float]:
    """{"em", "f1", "silent"} in percent; "silent" is the share of questions left without an answer.

    Args:
        texts: (n,) the best answer to each question, None without one.
        answers: (n,) accepted answers of each question.
        profiles: (n,) rules by which answers are compared. Patterns have no F1.
    """
    em, f1 = zip(*map(em_and_f1, texts, answers, profiles), strict=True)
    overlaps = [overlap for overlap in f1 if not np.isnan(overlap)] or [0.0]
    shares = {"em": np.mean(em), "f1": np.mean(overlaps), "silent": texts.count(None) / len(texts)}
    return {name: round(100 * float(share), 2) for name, share in shares.items()}


def reading_scores(
    reader: Reader, examples: Sequence[Example], passages: Sequence[Sequence[Passage]]
) -> dict[str, float]:
    """`answer_scores` of a reader that reads these passages of each example, all with equal
    scores.
    """
    texts: list[str | None] = []
    for begin in range(0, len(examples), _MEASURED):
        own = passages[begin : begin + _MEASURED]
        questions = [example.question for example in examples[begin : begin + _MEASURED]]
        results = reader.read(questions, own, [[1.0] * len(listed) for listed in own], n_best=1)
        texts += [result.answers[0].text if result.answers else None for result in results]
    return answer_scores(texts, [e.answers for e in examples], [e.answer_profile for e in examples])


def _as_retrieved(answer: Answer, retrieved: RankedPassages) -> Answer:
    """The answer with the search's scores and whole passages in its evidence, not those it was read
    with.
    """
    pairs = {passage.id: (hit, passage) for hit, passage in retrieved}

    def whole(evidence: Evidence) -> Evidence:
        hit, passage = pairs[evidence.passage_id]
        return replace(evidence, text=passage.text, score=hit.score, first_stage=hit.first_stage)

    is_more = any(cited.passage_id != answer.evidence.passage_id for cited in answer.citations)
    citations = tuple(map(whole, answer.citations)) if is_more else ()
    return replace(answer, evidence=whole(answer.evidence), citations=citations)
