"""The records that the parts of the system exchange: passages, questions, hits, answers with
evidence.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, Literal

AnswerProfile = Literal["squad", "trec_search"]
VerdictLabel = Literal["supported", "refuted", "not_enough"]
ClaimLabel = Literal["supported", "refuted", "not_enough", "not_supported"]
"""Labels of claim sets: "not_supported" joins refuted and not enough."""
VERDICT_LABELS: tuple[VerdictLabel, ...] = ("supported", "refuted", "not_enough")
Value = str | int | float | bool
Metadata = tuple[tuple[str, Value | tuple[Value, ...]], ...]
"""Names and values; a tuple holds several values."""
Groups = frozenset[str]
"""Names of groups: those that a person belongs to, or that may read a document."""
_SLIDES = (".pptx", ".pptm", ".ppsx", ".ppsm", ".potx", ".potm")
Pages = tuple[tuple[int, str], ...]
"""Where in a text each page begins, and its label; in order."""


def as_unicode(text: str) -> str:
    """The text with question marks for halves of surrogate pairs, which JSON may hold and UTF-8 may
    not.

    Example:
        >>> as_unicode("caf\\ud800")
        'caf?'
    """
    return text.encode("utf-8", "replace").decode("utf-8")


def page_at(pages: Pages, position: int) -> str:
    """Label of the page that a character stands on; "" before the first page.

    Example:
        >>> [page_at(((0, "iv"), (120, "1")), place) for place in (119, 120)], page_at((), 5)
        (['iv', '1'], '')
    """
    before = bisect_right(pages, position, key=lambda page: page[0])
    return pages[before - 1][1] if before else ""


class Record:
    """What is shown as JSON, on the command line and by the server."""

    __slots__ = ()

    def to_json(self) -> dict[str, object]:
        """A dict ready for `json.dumps`, without the fields that have their defaults."""
        content = dict[str, Any]()
        for known in fields(self):  # type: ignore[arg-type]  # of the dataclasses that this is a base of
            name = known.name
            value = getattr(self, name)
            usual = {} if known.default is MISSING else known.default
            # The pages of a location say where in the text further ones begin.
            if value != usual and name != "pages":
                content[name] = dict(value) if name == "metadata" else _as_json(value)
        return content


def _as_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(map(_as_json, value))
    if isinstance(value, Mapping):
        return dict(value)
    return value.to_json() if isinstance(value, Record) else value


def _rounded(timings_ms: Mapping[str, float]) -> dict[str, float]:
    return {stage: round(value, 3) for stage, value in timings_ms.items()}


@dataclass(frozen=True, slots=True)
class Location(Record):
    """Position of a passage, or of a span in it, in a user's files.

    Attributes:
        path: path of the file as the user gave it.
        page: label of the page it begins on ("12", "xiv"), or the number of the slide; "" where the
            format has no pages.
        headings: the headings above it, the outermost first.
        pages: where in the passage's text its pages begin, the first one at 0; empty for a passage
            on one page, and in older indexes.
        ocr: whether its text was recognised in a picture of a page.
    """

    path: str
    page: str = ""
    headings: tuple[str, ...] = ()
    pages: Pages = ()
    ocr: bool = False

    def __str__(self) -> str:
        unit = "slide" if self.path.lower().endswith(_SLIDES) else "page"
        return f"{self.path}, {unit} {self.page}" if self.page else self.path


@dataclass(frozen=True, slots=True)
class Passage(Record):
    """A retrieval unit.

    Attributes:
        id: unique within a corpus.
        text: the passage itself, without the title.
        location: its position, for passages of files.
        metadata: further fields of its document that filters can name, such as `(("year", 2020),)`.
        shelf: the shelf of a server that it stands on; "" where there is one index.
    """

    id: str
    title: str
    text: str = field(repr=False)
    location: Location | None = None
    metadata: Metadata = ()
    shelf: str = ""

    @property
    def content(self) -> tuple[str, str]:
        """Title and text, by which equal passages are known."""
        return self.title, self.text


@dataclass(frozen=True, slots=True)
class Query:
    """Input of a question encoder: a question, alone or with the passages of earlier hops, in hop
    order.
    """

    question: str
    passages: tuple[Passage, ...] = ()


@dataclass(frozen=True, slots=True)
class GoldPassage:
    """A gold passage as the question set quotes or names it.

    Attributes:
        passage: the passage; its id is "" if the set gives none, its text "" if the set only names
            it.
        sentences: the sentences of its text as the set splits them; empty if the set gives running
            text. MuSiQue gives each paragraph as one sentence.
        supporting: numbers of the sentences that support the answer, 0-based, as in the set: a few
            in HotpotQA point past the last sentence.
    """

    passage: Passage
    sentences: tuple[str, ...] = ()
    supporting: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Question:
    """A question, with what its question set states about the answer.

    Attributes:
        id: unique within a question set.
        text: the question.
        answers: accepted short answers; empty if unknown or if the corpus cannot answer it.
        gold_passage_ids: ids of passages that answer it, in hop order for multi-hop questions.
        gold_grades: the grade of each of these ids, where the set states one (trec_eval's qrels).
        gold_are_documents: these ids are of documents, from which passages were cut.
        gold: the gold passages that the set quotes or names, in hop order.
        gold_are_ordered: the set states this order; else it is that of its file.
        gold_are_alternatives: any gold passage suffices, the first being the annotated one (as in
            DPR's files); if False, several are steps that are all needed.
        context: the other paragraphs that the set shows with the question (distractors).
        answer_starts: first character of each annotated answer in the text of `gold[0]`, with
            repetitions.
        answer_profile: how texts are compared with these answers: "trec_search" for regular
            expressions.
        is_impossible: the set states that its paragraph does not answer the question (SQuAD 2).
        is_left_out: a passage with the question's id is not ranked, by BEIR's rule: it would be the
            question itself (ArguAna, Quora).
        provenance: KILT's evidence sets, each a list of places `{wikipedia_id, title, …}`.
        meta: further fields of the source, by which an evaluation may group its figures.
    """

    id: str
    text: str
    answers: tuple[str, ...] = ()
    gold_passage_ids: tuple[str, ...] = ()
    gold: tuple[GoldPassage, ...] = ()
    gold_are_alternatives: bool = False
    context: tuple[GoldPassage, ...] = ()
    answer_starts: tuple[int, ...] = ()
    answer_profile: AnswerProfile = "squad"
    is_impossible: bool = False
    provenance: tuple[tuple[Mapping[str, Any], ...], ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)
    gold_are_documents: bool = False
    gold_grades: Mapping[str, int] = field(default_factory=dict)
    gold_are_ordered: bool = False
    is_left_out: bool = False


@dataclass(frozen=True, slots=True)
class GoldSentence:
    """A sentence that a claim set names as evidence.

    Attributes:
        article: title or id of the article that it stands in; "" if the set gives the text alone.
        sentence: its number in the article, 0-based; None if the set gives the text alone.
        text: the sentence; "" if the set only names it.
    """

    article: str = ""
    sentence: int | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """A sentence to be judged, with what its claim set states about it.

    Attributes:
        id: unique within a claim set.
        text: the claim.
        label: None if not known.
        evidence: the texts that the set gives as evidence, to be judged without a search.
        gold_sets: sets of sentences, each of which suffices for the label; empty if not known, and
            where the label is "not_enough".
        meta: further fields of the source, by which an evaluation may group its figures.
    """

    id: str
    text: str
    label: ClaimLabel | None = None
    evidence: tuple[str, ...] = ()
    gold_sets: tuple[tuple[GoldSentence, ...], ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)


MAX_TOP_K = 1000
"""Largest number of passages per question."""


@dataclass(frozen=True, slots=True)
class FirstStage(Record):
    """Rank (from 1) and score of a passage before it was re-ranked."""

    rank: int
    score: float


@dataclass(frozen=True, slots=True)
class Hit:
    """One search result.

    Attributes:
        score: larger is better; comparable within one retriever only.
        first_stage: rank and score before re-ranking; None without re-ranking.
    """

    row: int
    passage_id: str
    score: float
    first_stage: FirstStage | None = None

    @staticmethod
    def sort_key(hit: Hit) -> tuple[float, str]:
        """Best first; ties by passage id."""
        return (-hit.score, hit.passage_id)


@dataclass(frozen=True, slots=True)
class EvidencePath:
    """Passages that answer a question together: one hit per hop, no passage twice."""

    hits: tuple[Hit, ...]
    score: float


RankedPassages = Sequence[tuple[Hit, Passage]]
"""Best first; those of a path in hop order."""
Paths = Sequence[RankedPassages]
"""Of one question, best first."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Passages of one search, best first, and the paths that a multi-hop retriever found."""

    query: str
    passages: RankedPassages
    paths: Paths = ()


@dataclass(frozen=True, slots=True)
class Evidence(Record):
    """The passage, and the span in it, that supports an answer.

    Attributes:
        start: first character of the answer in `text`; None where the answer does not occur there
            literally, such as "yes", or a generator's own words.
        end: one past its last character, so `text[start:end]` is the answer; None where `start` is.
        supporting: start and end of the sentences of `text` that support the answer, where the
            reader marks them.
        first_stage: rank and score of the passage before re-ranking; None without re-ranking.
        location: file and headings of the passage, where it comes from a file, and the page on
            which the span begins; without a span, the first sentence of `supporting`, or else the
            passage.
        shelf: that of the passage.
        question: in the path of a comparison, what this passage answers: "How tall is Big Ben?";
            else "".
    """

    passage_id: str
    title: str
    text: str = field(repr=False)
    start: int | None
    end: int | None
    score: float
    supporting: tuple[tuple[int, int], ...] = ()
    first_stage: FirstStage | None = None
    location: Location | None = None
    shelf: str = ""
    question: str = ""

    def __post_init__(self) -> None:
        if self.location is not None and self.location.pages:
            first = self.supporting[0][0] if self.supporting else 0
            page = page_at(self.location.pages, first if self.start is None else self.start)
            object.__setattr__(self, "location", replace(self.location, page=page))

    @classmethod
    def of(
        cls, passage: Passage, score: float, span: tuple[int, int] | None = None, **more: Any
    ) -> Evidence:
        """A passage as evidence, with its score, and `start` and `end` of the answer in it."""
        start, end = span or (None, None)
        more |= {"location": passage.location, "shelf": passage.shelf}
        return cls(passage.id, passage.title, passage.text, start, end, score, **more)


@dataclass(frozen=True, slots=True)
class JudgedSentence(Record):
    """A sentence of a reply, judged by the passages that it cites.

    Attributes:
        citations: ids of these passages.
        relevant: those of them without which the rest would not suffice, or that suffice alone.
        support: probability in [0, 1] that the passages together say the sentence; 0 or 1 where
            words were compared.
        unknown: number of citations of passages that the model was not shown.
    """

    text: str
    citations: tuple[str, ...] = ()
    relevant: tuple[str, ...] = ()
    is_supported: bool = False
    support: float = 0.0
    unknown: int = 0


@dataclass(frozen=True, slots=True)
class Answer(Record):
    """A short answer with its evidence.

    Attributes:
        text: the answer, exactly `evidence.text[evidence.start:evidence.end]` where the evidence
            has a span.
        score: the reader's score; larger is better.
        confidence: calibrated probability in [0, 1] that the answer is right.
        path: all passages that support the answer, hop by hop or one for each value of a comparison,
            where there is more than one; `evidence` is one of them.
        citations: the passages that a language model cites, where they are not `evidence` alone.
        is_supported: False if the cited passages do not contain the answer.
        note: a sentence about unusual citations, or "".
        sentences: of a reply in sentences that cite, each with what became of its citations.
    """

    text: str
    score: float
    confidence: float
    evidence: Evidence = field(repr=False)
    path: tuple[Evidence, ...] = field(default=(), repr=False)
    citations: tuple[Evidence, ...] = field(default=(), repr=False)
    is_supported: bool = True
    note: str = ""
    sentences: tuple[JudgedSentence, ...] = field(default=(), repr=False)


# What is given, or withheld because it is not sure enough.
Given = Literal["answers", "verdicts"]


@dataclass(frozen=True, slots=True)
class Promise(Record):
    """A promise about the answers, or verdicts, that are given: how often they are wrong at most.

    Attributes:
        max_error: at most this share of the given answers is wrong.
        confidence: probability that this holds, over the draw of the questions, or claims, that it
            was fitted on.
        coverage: share of these questions that was answered.
        n: number of these questions.
        threshold: first answers of less confidence are not given.
        max_false_answers: at most this share of the questions without an answer gets one; None:
            nothing is promised about them.
    """

    max_error: float
    confidence: float
    coverage: float
    n: int
    threshold: float
    max_false_answers: float | None = None

    def in_words(self, given: Given) -> str:
        """The promise about what is given.

        Example:
            >>> promise = Promise(0.1, 0.95, 0.612, 150, 0.7)
            >>> print(promise.in_words("answers"))
            at most 10% of the given answers are wrong (95% sure, 61% of 150 questions answered)
            >>> print(promise.in_words("verdicts"))
            at most 10% of the given verdicts are wrong (95% sure, 61% of 150 claims judged)
        """
        asked = "questions answered" if given == "answers" else "claims judged"
        wrong = f"at most {100 * self.max_error:.3g}% of the given {given} are wrong"
        if self.max_false_answers is not None:
            wrong += f" and at most {100 * self.max_false_answers:.3g}% of questions without an answer get one"
        return f"{wrong} ({100 * self.confidence:.3g}% sure, {self.coverage:.0%} of {self.n:,} {asked})"


@dataclass(frozen=True, slots=True)
class Verdict(Record):
    """What passages say about a claim.

    Attributes:
        label: the likeliest of the probabilities; "not_judged" of what is no claim to be judged
            alone, such as a question: `notice` says why.
        probabilities: calibrated probability in [0, 1] of each of `VERDICT_LABELS`; empty if the
            claim is not judged.
        evidence: the passage that decides, with the deciding sentence in `supporting`; of
            "not_enough", the sentence that comes nearest to deciding; None if no passage was read.
        path: all passages that were judged, best first, those of a path in hop order; each with its
            own best sentence. `evidence` is one of them.
        notice: why nothing was judged or read; "" if there is no reason.
        timings_ms: wall time of each stage in milliseconds.
        promise: what is promised about this verdict; None without a promise.
    """

    claim: str
    label: VerdictLabel | Literal["not_judged"]
    probabilities: Mapping[VerdictLabel, float] = field(default_factory=dict)
    evidence: Evidence | None = field(default=None, repr=False)
    path: tuple[Evidence, ...] = field(default=(), repr=False)
    notice: str = ""
    index_version: str = ""
    timings_ms: Mapping[str, float] = field(default_factory=dict, repr=False)
    promise: Promise | None = None

    @property
    def confidence(self) -> float:
        """Probability of the label; 0 if the claim is not judged."""
        return max(self.probabilities.values(), default=0.0)

    def to_json(self) -> dict[str, object]:
        """The public JSON shape of the command line and the server."""
        return {
            **Record.to_json(self),
            "index_version": self.index_version,
            "timings_ms": _rounded(self.timings_ms),
        }


Certainty = Literal["likely", "perhaps", "none"]
AnswerKind = Literal["answer", "list", "passage"]
# An answer of less than a quarter of the confidence in "no answer" is shown as none. Over 420 training
# questions of seven sets, read with their passages, this withholds 13 answers, 12 of them wrong.
FAR_BELOW = 0.25


@dataclass(frozen=True, slots=True)
class AnswerSet(Record):
    """The answers to one question, and how they were obtained.

    Attributes:
        answers: best first; empty if there are none.
        no_answer_confidence: calibrated probability in [0, 1] that the passages hold no answer.
        timings_ms: wall time of each stage in milliseconds.
        reading: counts of the reader: "passages" read, and "token_layers".
        failure: why the passages could not be read; "" if they were.
        notice: why nothing was read: a filter that no passage meets, a greeting …; "" if there is
            no reason.
        kind: "answer"; "list" where the first answer is a whole list, one entry a line; "passage"
            where the question asks for yes or no and the reader cannot tell: then each `text` is no
            answer, but a sentence that bears on the question, with the confidence for that.
        promise: what is promised about this answer if it is given; None without a promise.
    """

    question: str
    answers: tuple[Answer, ...]
    no_answer_confidence: float
    index_version: str = ""
    timings_ms: Mapping[str, float] = field(default_factory=dict, repr=False)
    reading: Mapping[str, int] = field(default_factory=dict, repr=False)
    failure: str = ""
    notice: str = ""
    kind: AnswerKind = "answer"
    promise: Promise | None = None

    @property
    def best(self) -> Answer | None:
        """The first answer; None if there are none."""
        return self.answers[0] if self.answers else None

    @property
    def text(self) -> str:
        """The text of the first answer; "" if there are none."""
        return self.best.text if self.best else ""

    @property
    def confidence(self) -> float:
        """The confidence of the first answer; 0 if there are none."""
        return self.best.confidence if self.best else 0.0

    @property
    def certainty(self) -> Certainty:
        """How terminal, page, chat and tools present the first answer.

        "none" (present "no answer") if that is likelier than not, or if the first answer is far less
        likely than it; "likely" if the answer is likelier than not. What is no short answer, a list or
        sentences, is evidence, and "perhaps" at least. With a promise its threshold alone decides
        whether the answer is given.

        Example:
            >>> evidence = Evidence("d", "", "In Ulm.", 3, 6, 1.0)
            >>> def example(answer: float, no_answer: float) -> Certainty:
            ...     return AnswerSet("Where?", (Answer("Ulm", 1.0, answer, evidence),), no_answer).certainty
            >>> example(0.9, 0.05), example(0.3, 0.4), example(0.1, 0.46), example(0.1, 0.6)
            ('likely', 'perhaps', 'none', 'none')
        """
        confidence = self.confidence
        if confidence <= 0:
            return "none"
        certainty: Certainty = "likely" if confidence >= 0.5 else "perhaps"
        if self.promise is not None:
            return certainty if confidence >= self.promise.threshold else "none"
        is_far_below = confidence < FAR_BELOW * self.no_answer_confidence
        if self.no_answer_confidence > 0.5 or is_far_below:
            # "No answer" is the probability that there is no short one.
            return "none" if self.kind == "answer" else "perhaps"
        return certainty

    @property
    def is_answered(self) -> bool:
        """Whether a first answer is presented as the answer."""
        return self.certainty != "none"

    def to_json(self) -> dict[str, object]:
        """The public JSON shape of the command line and the server."""
        return {
            **Record.to_json(self),
            "certainty": self.certainty,
            "index_version": self.index_version,
            "timings_ms": _rounded(self.timings_ms),
        }
