"""What every recipe learns from: a question and candidates with roles, scores and targets; their files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rag.core.errors import DataError
from rag.core.log import get_logger
from rag.core.types import Passage, Query
from rag.data.files.dpr_family import TRAINING_ROLES, training_record
from rag.data.files.fields import QUESTION_ID_FIELDS, first_of
from rag.data.files.record import Context, write_json_list
from rag.data.files.streams import first_mark, iter_json_array, json_lines, open_binary
from rag.data.records import BadRecord, Problem, ReadReport

Role = Literal["positive", "negative", "retrieved"]
Needed = Literal["positives", "targets", "questions"]

_ROLES = {**TRAINING_ROLES, "ctxs": "contexts", "query_ctxs": "query_contexts"}
_MAX_BAD_SHARE = 0.001
_SHOWN = 3
_SHAPE = (
    "expected {question, answers, positive_ctxs: [{title, text, passage_id}], hard_negative_ctxs: [...]}, "
    "in a JSON list or one a line"
)
_NEEDED = {
    "positives": ("a positive passage", _SHAPE),
    "targets": ("two passages whose targets differ", "`rag score` writes targets that do"),
    "questions": ("a text", _SHAPE),
}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A passage beside a question, and what is known of the two together.

    Attributes:
        passage: its id is "" if the file has none.
        role: "positive" answers the question, "negative" should score low, "retrieved" is unjudged.
        source: what found it, for example "bm25", "dense" or "bm25+dense"; "" if unknown.
        rank: 1-based rank in that search, if known.
        score: score of that search, if known; larger is better.
        target: what a retriever should learn to score it, on any scale, for example a reader's verdict; None
            if nobody said.
    """

    passage: Passage
    role: Role
    source: str = ""
    rank: int | None = None
    score: float | None = None
    target: float | None = None


@dataclass(frozen=True, slots=True)
class Example:
    """One question to train a retriever on.

    Attributes:
        id: unique in its file.
        question: its text.
        answers: accepted answers, maybe none.
        candidates: passages in their roles: the gold one first of the positives, the hardest first of the
            negatives; maybe none.
        context: passages that the query brings along, in the order in which they were found: those of the
            hops before this one.
        answers_are_regex: the answers are regular expressions, as CuratedTREC's.

    Example:
        >>> one, other = Passage("1", "Danube", "A river."), Passage("2", "Rhine", "Another.")
        >>> example = Example.labelled("q", "which river?", ("Danube",), [one], [other])
        >>> [(candidate.role, candidate.passage.title) for candidate in example.candidates]
        [('positive', 'Danube'), ('negative', 'Rhine')]
    """

    id: str
    question: str
    answers: tuple[str, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    context: tuple[Passage, ...] = ()
    answers_are_regex: bool = False

    @classmethod
    def labelled(
        cls,
        id: str,
        question: str,
        answers: Sequence[str],
        positives: Iterable[Passage],
        negatives: Iterable[Passage | Candidate] = (),
    ) -> Example:
        """An example of passages that are right and passages that are not."""
        right = (Candidate(passage, "positive") for passage in positives)
        wrong = (n if isinstance(n, Candidate) else Candidate(n, "negative") for n in negatives)
        return cls(id, question, tuple(answers), (*right, *wrong))

    @property
    def query(self) -> Query:
        """What the question tower reads."""
        return Query(self.question, self.context)

    @property
    def positives(self) -> tuple[Passage, ...]:
        """The passages that answer it, the gold one first."""
        return tuple(c.passage for c in self.candidates if c.role == "positive")

    @property
    def negatives(self) -> tuple[Candidate, ...]:
        """The hard negatives, hardest first."""
        return tuple(c for c in self.candidates if c.role == "negative")

    @property
    def answer_mode(self) -> Literal["regex", "tokens"]:
        """How `AnswerMatcher` takes the answers."""
        return "regex" if self.answers_are_regex else "tokens"

    def has(self, needed: Needed) -> bool:
        """Whether a method that needs this can use the example."""
        if needed == "targets":
            return len({c.target for c in self.candidates if c.target is not None}) > 1
        return needed == "questions" or any(c.role == "positive" for c in self.candidates)


def read_examples(path: str | Path, *, needs: Needed = "positives", quiet: bool = False) -> Iterator[Example]:
    """Stream training examples; only one record is held at a time.

    Read are DPR's training JSON (a list; passages named by `passage_id` or `psg_id`), the files of FiD and of
    DPR's retrieval results (their `ctxs` are unjudged), and the same records one a line. `hard_negative_ctxs`
    are preferred, `negative_ctxs` are taken where there are none of them. Any passage may carry a `target`;
    `query_ctxs` are passages that belong to the query. Questions without what the method needs are left out
    and counted, as DPR leaves out those without a positive; empty passages are bad records.

    Args:
        path: the file (also .gz, .bz2, .zst, .xz).
        needs: "positives": one at least; "targets": two at least that differ, of candidates in any role;
            "questions": nothing more.
        quiet: do not warn of what is left out: an earlier reading did.

    Raises:
        DataError: no such file, over 0.1 % malformed records (the first are listed with their places),
            malformed JSON, or no question with what is needed.

    Source: Karpukhin et al. 2020, "Dense Passage Retrieval for Open-Domain Question Answering", section 3.2.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "train.jsonl"
        >>> _ = path.write_text('{"question": "who", "answers": ["x"], "positive_ctxs": [{"text": "x is"}]}')
        >>> next(read_examples(path)).positives[0].text
        'x is'
    """
    counts, left_out, untold = ReadReport(), 0, 0
    name, found, first_left_out = str(path), 0, []
    with open_binary(path) as stream:
        is_list = first_mark(stream) == "["
        records: Iterator[tuple[int, Any]] = iter_json_array(stream, name) if is_list else json_lines(stream)
        for number, record in records:
            try:
                example = example_from_json(_good(record), f"q{number}")
            except (ValueError, DataError) as error:
                unit = "record" if is_list else "line"
                counts.add_bad(Problem(name, number, unit, "malformed record", str(error)))
                counts.check(_MAX_BAD_SHARE, at_end=False, hint=_SHAPE)
                continue
            counts.add_good()
            if not example.has(needs):
                left_out += 1
                untold += all(candidate.target is None for candidate in example.candidates)
                first_left_out += [f"{name}:{number}"] if left_out <= _SHOWN else []
                continue
            found += 1
            yield example
    counts.check(_MAX_BAD_SHARE, at_end=True, hint=_SHAPE)
    log = get_logger(__name__)
    if counts.bad and not quiet:
        log.warning("%s: %s", name, counts.summary())
    what, hint = _NEEDED[needs]
    if left_out and not quiet:
        places = ", ".join(first_left_out)
        log.warning("%s: %d questions without %s left out (%s …)", name, left_out, what, places)
    if not found:
        told = f"; {untold} have no target, {left_out - untold} targets that are all alike"
        raise DataError(f"{name}: no question with {what}" + (told if needs == "targets" else ""), hint=hint)


def first_record(path: Path) -> Any:
    """The first record of a JSON list or of JSON Lines, as it is; None if the file holds neither."""
    with open_binary(path) as stream:
        is_list = first_mark(stream) == "["
        try:
            return next(iter_json_array(stream, str(path)) if is_list else json_lines(stream), (0, None))[1]
        except DataError:
            return None


def write_examples(path: str | Path, examples: Iterable[Example]) -> int:
    """Write DPR's training JSON, an example a line of the list; the file appears whole. Returns how many.

    Passages carry what is known of them as the keys `source`, `rank`, `score` and `target`.

    Raises:
        ResourceError: the disk is full or not writable.
    """
    return write_json_list(Path(path), map(example_to_json, examples))


def example_from_json(record: Any, fallback_id: str) -> Example:
    """Read one record; it may have no candidates.

    Raises:
        ValueError: it has another shape; says what was found.
    """
    if not isinstance(record, Mapping):
        raise ValueError(f"expected an object, found {type(record).__name__}")
    if not _ROLES.keys() & record.keys() and {"data", "context"} & record.keys():
        raise ValueError(
            "a question set such as SQuAD's or HotpotQA's: `rag mine` makes training examples of it"
        )
    answers = record.get("answers", record.get("answer", record.get("target"))) or ()
    found = training_record({**record, "answers": answers}, _ROLES)
    if not (found.question or "").strip():
        raise ValueError("the question is missing or empty")
    key, identifier = first_of(record, QUESTION_ID_FIELDS)
    candidates = (
        *(_candidate(context, "positive") for context in found.positives),
        *(_candidate(context, "negative") for context in found.hard_negatives or found.negatives),
        *(_candidate(context, "retrieved") for context in found.contexts),
    )
    return Example(
        fallback_id if key is None else str(identifier),
        str(found.question),
        found.answers or (),
        candidates,
        context=tuple(map(_passage, found.query_contexts)),
        answers_are_regex=record.get("answers_are_regex") is True,
    )


def example_to_json(example: Example) -> dict[str, Any]:
    """The record that `example_from_json` reads back."""
    by_role: dict[Role, list[dict[str, Any]]] = {"positive": [], "negative": [], "retrieved": []}
    for candidate in example.candidates:
        by_role[candidate.role].append(_candidate_json(candidate))
    lists = {
        "positive_ctxs": by_role["positive"],
        "negative_ctxs": [],
        "hard_negative_ctxs": by_role["negative"],
        **({"ctxs": by_role["retrieved"]} if by_role["retrieved"] else {}),
    }
    if example.context:
        lists["query_ctxs"] = [_passage_json(passage) for passage in example.context]
    head: dict[str, Any] = {"id": example.id, "question": example.question, "answers": [*example.answers]}
    if example.answers_are_regex:
        head["answers_are_regex"] = True
    return {**head, **lists}


def _good(record: Any) -> Any:
    if isinstance(record, BadRecord):
        raise ValueError(f"{record.reason}: {record.detail}")
    return record


def _passage(context: Context) -> Passage:
    title, text = context.title, context.text or ""
    if not text.strip():
        raise ValueError(f"a passage has no text ({text!r})")
    try:
        (text + title).encode()
    except UnicodeEncodeError as error:
        raise ValueError("a passage is not valid Unicode") from error
    return Passage(context.id, title, text)


def _candidate(context: Context, role: Role) -> Candidate:
    rank, target = context.extra.get("rank"), context.extra.get("target")
    try:
        place, wanted = None if rank is None else int(rank), None if target is None else float(target)
    except (TypeError, ValueError) as error:
        raise ValueError(f"rank or target of a passage is not a number ({rank!r}, {target!r})") from error
    if wanted is not None and not math.isfinite(wanted):
        raise ValueError(f"the target of a passage is {wanted}, expected a finite number")
    source = str(context.extra.get("source") or "")
    return Candidate(_passage(context), role, source, place, context.score, wanted)


def _passage_json(passage: Passage) -> dict[str, Any]:
    head = {"passage_id": passage.id} if passage.id else {}
    return {**head, "title": passage.title, "text": passage.text}


def _candidate_json(candidate: Candidate) -> dict[str, Any]:
    fields: dict[str, Any] = _passage_json(candidate.passage)
    for key in ("source", "rank", "score", "target"):
        if (value := getattr(candidate, key)) not in (None, ""):
            fields[key] = value
    return fields
