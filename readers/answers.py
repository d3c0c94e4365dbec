"""Read what was retrieved: answers with evidence, by any reader."""

from collections.abc import Sequence

from rag.core.types import Answer, AnswerSet, Evidence, Paths, RankedPassages
from rag.data.sentences import Spans
from readers.paths import hop_scores
from readers.protocols import Citation, ReadAnswer, Reader, ReadResult, readable

_NO_ANSWER = ReadResult((), 1.0)


def counts_scores(reader: object) -> bool:
    """Whether a reader uses retrieval scores: as p(z|x) (RAG), or added to its own scores (ORQA)."""
    settings = getattr(reader, "settings", None)
    return getattr(settings, "marginal", None) is not None or getattr(settings, "score_weight", 0.0) > 0.0


def search_scores(reader: object, found: RankedPassages) -> list[float]:
    """The score of each passage to give to a reader.

    A reader that uses retrieval scores gets the first-stage ones: a re-ranker's are on another scale.
    """
    counts = counts_scores(reader)
    return [(hit.first_stage if counts and hit.first_stage else hit).score for hit, _ in found]


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
        reader: any reader; one with `reads_paths` gets `hop_scores`, and is told so by `from_paths=True`.
        retrieved: passages to read for each question, best first; without passages there is no answer.
        paths: paths for each question, best first; paths of one passage add nothing.
        n_best: largest number of answers per question.
        index_version: version of the index they came from.
    """
    of_paths = [any(len(path) > 1 for path in own) for own in paths]
    read: dict[int, ReadResult] = {}
    for several in (False, True):
        numbers = [n for n, found in enumerate(retrieved) if found and of_paths[n] == several]
        if not numbers:
            continue
        texts = [questions[n] for n in numbers]
        shown = [[readable(passage) for _, passage in retrieved[n]] for n in numbers]
        if several and getattr(reader, "reads_paths", False):
            scores = [hop_scores(questions[n], retrieved[n], paths[n]) for n in numbers]
            results = reader.read(texts, shown, scores, n_best, from_paths=True)  # type: ignore[call-arg]
        else:
            scores = [search_scores(reader, retrieved[n]) for n in numbers]
            results = reader.read(texts, shown, scores, n_best)
        read.update(zip(numbers, results, strict=True))
    answers = []
    for n, question in enumerate(questions):
        result = read.get(n, _NO_ANSWER)
        given = tuple(_with_evidence(answer, retrieved[n]) for answer in result.answers)
        answers.append(
            AnswerSet(
                question,
                given,
                result.no_answer_confidence,
                index_version,
                {},
                result.reading,
                result.failure,
            )
        )
    return answers


def _with_evidence(read: ReadAnswer, found: RankedPassages) -> Answer:
    def evidence(place: Citation | ReadAnswer, supporting: Spans = ()) -> Evidence:
        hit, passage = found[place.passage_index]
        named = (passage.id, passage.title, passage.text, place.start, place.end)
        return Evidence(*named, hit.score, tuple(supporting), hit.first_stage, passage.location)

    weights = {}
    if read.weights:
        weights = {passage.id: w for (_, passage), w in zip(found, read.weights, strict=True)}
    is_more = {cited.passage_index for cited in read.citations} - {read.passage_index}
    return Answer(
        read.text,
        read.score,
        read.confidence,
        evidence(read, read.supporting),
        weights=weights,
        citations=tuple(map(evidence, read.citations)) if is_more else (),
        is_supported=read.is_supported,
        note=read.note,
    )
