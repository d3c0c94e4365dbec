"""What the server does with questions, claims and texts: a class for each kind of job, with its
results.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, ClassVar, Generic, Literal, NamedTuple, TypeVar

from rag.core.arrays import Float32
from rag.core.errors import ArtifactError, ConfigError, RagError, ReaderError
from rag.core.log import stage
from rag.core.types import AnswerSet, Hit, Passage, SearchResult, Verdict
from rag.data.filters import Filter
from readers.protocols import TextSink
from serve.errors import ApiError, invalid_request
from serve.shelves import Scope

if TYPE_CHECKING:
    from rag.pipeline import Pipeline

Result = TypeVar("Result")


@dataclass(slots=True)
class Served(Generic[Result]):
    """What became of a question, claim or text.

    Attributes:
        value: the result.
        index_version: of the index that was asked.
        timings_ms: wall time of each stage in milliseconds; "queue" is the wait for it.
        unavailable: names of shelves that could not be asked.
    """

    value: Result
    index_version: str
    timings_ms: Mapping[str, float]
    unavailable: Sequence[str] = ()


def served_json(
    served: Served[AnswerSet] | Served[SearchResult] | Served[Verdict],
) -> dict[str, object]:
    """The public JSON shape of a result."""
    value = served.value
    if isinstance(value, SearchResult):
        hits = [hit_json(hit, passage) for hit, passage in value.passages]
        content: dict[str, object] = {"question": value.query, "hits": hits}
    else:
        content = value.to_json()
    content["index_version"] = served.index_version
    content["timings_ms"] = {name: round(ms, 3) for name, ms in served.timings_ms.items()}
    if served.unavailable:
        content["unavailable"] = list(served.unavailable)
    return content


def passage_json(passage: Passage) -> dict[str, object]:
    """A passage by its id, title and text; with location and metadata if it has such."""
    fields = passage.to_json()
    return {"passage_id": fields.pop("id"), **fields}


def hit_json(hit: Hit, passage: Passage) -> dict[str, object]:
    """A passage with its score; with rank and score before re-ranking, if it was re-ranked."""
    first = {} if hit.first_stage is None else {"first_stage": asdict(hit.first_stage)}
    return {**passage_json(passage), "score": float(hit.score), **first}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(ABC, Generic[Result]):
    """What is to be done with texts; only equal jobs share a batch.

    Attributes:
        kind: its name in metrics.
        is_long: whether a list of texts takes long.
        lacks: what is answered where the models of the server cannot do this, by the error that
            says so.
        alone: the id of a request that shares its batches with no other request, so that an equal
            request has the same result to the bit; "" if it may share them.
        on_text: gets the words of an answer as they come, on another thread.
    """

    kind: ClassVar[str]
    is_long: ClassVar[bool] = False
    lacks: ClassVar[Mapping[type[RagError], ApiError]] = {}

    scope: Scope
    alone: str = ""
    on_text: TextSink | None = None

    @property
    def takes_turns(self) -> bool:
        """Whether a long list lets others' questions in between its batches."""
        return self.is_long or bool(self.alone)

    @abstractmethod
    def run(self, pipeline: Pipeline, texts: list[str]) -> Sequence[Served[Result] | BaseException]:
        """The results of a batch, in order; a text that failed has an error as its result."""

    def passage_ids(self, value: Result) -> Iterable[str] | None:
        """The passages that a result shows; None: this kind of job shows none."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask(Job[AnswerSet]):
    """Answer questions.

    Attributes:
        context: the question that a question follows up on.
    """

    kind = "ask"

    top_k: int
    n_best: int
    filter: Filter | None = None
    context: str = ""

    def run(
        self, pipeline: Pipeline, texts: list[str]
    ) -> Sequence[Served[AnswerSet] | BaseException]:
        """Answers with evidence."""
        answer_sets = pipeline.ask_many(
            texts,
            top_k=self.top_k,
            n_best=self.n_best,
            filter=self.filter,
            context=self.context,
            on_text=self.on_text,
        )
        results = list[Served[AnswerSet] | BaseException]()
        for answers in answer_sets:
            if answers.failure:
                results.append(ReaderError(answers.failure))
            else:
                results.append(Served(answers, answers.index_version, answers.timings_ms))
        return results

    def passage_ids(self, value: AnswerSet) -> Iterable[str]:
        """Those of the evidence of all answers."""
        for answer in value.answers:
            for evidence in (answer.evidence, *answer.path, *answer.citations):
                yield evidence.passage_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrieve(Job[SearchResult]):
    """Find passages for questions, without answers."""

    kind = "retrieve"

    top_k: int
    filter: Filter | None = None

    def run(self, pipeline: Pipeline, texts: list[str]) -> Sequence[Served[SearchResult]]:
        """Passages, best first."""
        timer = dict[str, float]()
        with stage(timer, self.kind):
            found = pipeline.search(texts, self.top_k, filter=self.filter, timer=timer)
        return _served(pipeline, found, timer)

    def passage_ids(self, value: SearchResult) -> Iterable[str]:
        """Those that were found."""
        return (passage.id for _, passage in value.passages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verify(Job[Verdict]):
    """Judge claims.

    Attributes:
        in_text: the claims are the sentences of a text.
    """

    kind = "verify"
    is_long = True
    lacks: ClassVar = {
        # A pipeline without a verifier raises it.
        ArtifactError: ApiError(
            501,
            "no_verifier",
            "this server has no verifier of claims",
            "its operator may set RAG_SERVE_VERIFIER",
        )
    }

    top_k: int
    filter: Filter | None = None
    in_text: bool = False

    def run(self, pipeline: Pipeline, texts: list[str]) -> Sequence[Served[Verdict]]:
        """A verdict on each claim."""
        verdicts = pipeline.verify(texts, self.top_k, filter=self.filter, in_text=self.in_text)
        return [Served(verdict, verdict.index_version, verdict.timings_ms) for verdict in verdicts]

    def passage_ids(self, value: Verdict) -> Iterable[str]:
        """Those that were judged."""
        return [evidence.passage_id for evidence in (value.evidence, *value.path) if evidence]


@dataclass(frozen=True, slots=True, kw_only=True)
class Embed(Job[Float32]):
    """Encode texts as vectors (D,).

    Attributes:
        side: whether the texts are encoded as questions or as passages.
    """

    kind = "embed"
    is_long = True
    lacks: ClassVar = {
        ConfigError: invalid_request(
            "this index makes no vectors of the input_type that was asked for",
            "an encoder with one vector per text makes them; a reader's own one, of questions alone",
        )
    }

    side: Literal["query", "passage"]

    def run(self, pipeline: Pipeline, texts: list[str]) -> Sequence[Served[Float32]]:
        """The vector of each text."""
        timer = dict[str, float]()
        with stage(timer, self.kind):
            vectors = pipeline.embed(texts, self.side)
        return _served(pipeline, vectors, timer)


class TextScore(NamedTuple):
    """The relevance of a text; where it is no log-odds, a similarity."""

    score: float
    is_log_odds: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerank(Job[TextScore]):
    """Score texts for a question."""

    kind = "rerank"
    lacks: ClassVar = {
        ConfigError: invalid_request(
            "this server has no model that scores texts",
            "its operator may set RAG_SERVE_RERANK, or an extractive reader",
        )
    }

    question: str

    def run(self, pipeline: Pipeline, texts: list[str]) -> Sequence[Served[TextScore]]:
        """The relevance of each text."""
        timer = dict[str, float]()
        with stage(timer, self.kind):
            is_log_odds = pipeline.scorer.is_log_odds
            scores = pipeline.relevance(self.question, texts).tolist()
        return _served(pipeline, [TextScore(score, is_log_odds) for score in scores], timer)


def _served(
    pipeline: Pipeline, values: Iterable[Result], timer: Mapping[str, float]
) -> list[Served[Result]]:
    """The results of a batch that share their times."""
    return [Served(value, pipeline.index_version, timer) for value in values]
