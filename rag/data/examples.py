"""Training examples: a question and candidates with roles, scores and targets."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import quote

import numpy as np

from rag.core.errors import DataError
from rag.core.files import atomic_path
from rag.core.log import get_logger
from rag.core.types import AnswerProfile, Passage, Query, as_unicode
from rag.data.files.fields import passage_of
from rag.data.files.question_sets import answers_of, parse_record, table_columns
from rag.data.files.rows import TableRow, read_rows, refuse_bad, write_json_lines
from rag.data.formats import find_in_folder
from rag.data.records import BadRecord, ReadReport
from rag.data.text import REGEX_PROFILE

Role = Literal["positive", "hard_negative", "negative", "retrieved"]
Needed = Literal["positives", "targets", "passages", "questions"]

ROLES: Mapping[str, Role] = {
    "positive_ctxs": "positive",
    "hard_negative_ctxs": "hard_negative",
    "negative_ctxs": "negative",
    "ctxs": "retrieved",
}
"""The lists of passages in DPR's and FiD's records, and what stands in them."""

_MAX_BAD_SHARE = 0.001
_SHAPE = (
    "`rag mine` makes examples of questions and an index, `rag score` gives targets; expected {question, "
    "answers, positive_ctxs: [{title, text, passage_id}], hard_negative_ctxs: [...]}, in a list or one a line, "
    "or texts called anchor, positive and negative, in a table too, or a table of three ids beside queries.tsv "
    "and collection.tsv; all in UTF-8"
)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A passage for a question, with its role, rank, score and target.

    Attributes:
        passage: its id, title or text is "" where the file gives none.
        role: "positive" answers the question, "hard_negative" looks as if it did, "negative" is any
            other passage that does not, "retrieved" is unjudged.
        source: the search that returned it, for example "bm25", "dense" or "bm25+dense"; "" if
            unknown.
        rank: 1-based rank in that search, if known.
        score: score of that search, if known; larger is better.
        target: target score for training a retriever, on any scale, for example a reader's score.
        has_answer: whether it holds an answer; None if not checked.
    """

    passage: Passage
    role: Role
    source: str = ""
    rank: int | None = None
    score: float | None = None
    target: float | None = None
    has_answer: bool | None = None


@dataclass(frozen=True, slots=True)
class Example:
    """A question, and the passages that a retriever or a reader learns from.

    Attributes:
        candidates: passages with their roles; among positives the gold one comes first, among
            negatives the hardest. May be empty, as the answers may.
        context: passages of the earlier hops, which are part of the query, in order of retrieval.
        answer_profile, answer_starts: as in `Question`; the starts are those in the first positive.
        target_answer: the one answer that a generator should give, where the file names it; else
            "".

    Example:
        >>> danube, rhine = Passage("1", "Danube", "A river."), Passage("2", "Rhine", "Another.")
        >>> example = Example.labelled("q", "which river?", ("Danube",), [danube], [rhine])
        >>> [(candidate.role, candidate.passage.title) for candidate in example.candidates]
        [('positive', 'Danube'), ('hard_negative', 'Rhine')]
    """

    id: str
    question: str
    answers: tuple[str, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    context: tuple[Passage, ...] = ()
    answer_profile: AnswerProfile = "squad"
    answer_starts: tuple[int, ...] = ()
    target_answer: str = ""

    @classmethod
    def labelled(
        cls,
        id: str,
        question: str,
        answers: Sequence[str],
        positives: Iterable[Passage],
        negatives: Iterable[Passage | Candidate] = (),
    ) -> Example:
        """An example with positive and negative passages."""
        candidates = [Candidate(passage, "positive") for passage in positives]
        for negative in negatives:
            if isinstance(negative, Passage):
                negative = Candidate(negative, "hard_negative")
            candidates.append(negative)
        return cls(id, question, tuple(answers), tuple(candidates))

    @property
    def query(self) -> Query:
        """The input of the question encoder."""
        return Query(self.question, self.context)

    @property
    def passages(self) -> tuple[Passage, ...]:
        """The passages of all candidates, in their order."""
        return tuple(candidate.passage for candidate in self.candidates)

    @property
    def positives(self) -> tuple[Passage, ...]:
        """The passages that answer it, the gold one first."""
        return tuple(candidate.passage for candidate in self.of_role("positive"))

    @property
    def negatives(self) -> tuple[Candidate, ...]:
        """The hard negatives, hardest first."""
        return self.of_role("hard_negative")

    def of_role(self, *roles: Role) -> tuple[Candidate, ...]:
        """The candidates in one of these roles."""
        return tuple(candidate for candidate in self.candidates if candidate.role in roles)

    @property
    def article(self) -> str:
        """Title of the first positive, or the question if there is none; see `hold_out`."""
        positives = self.positives
        return (positives[0].title if positives else "") or self.question

    def has(self, needed: Needed) -> bool:
        """Whether a method that needs this can use the example."""
        if needed == "questions":
            return True
        if needed == "passages":
            return bool(self.candidates)
        if needed == "positives":
            return bool(self.positives)
        targets = {candidate.target for candidate in self.candidates}
        return len(targets - {None}) > 1


def read_examples(path: str | Path, *, needs: Needed = "positives") -> Iterator[Example]:
    """Stream examples to learn from; one record at a time.

    The formats are DPR's training JSON, FiD's files, DPR's retrieval results (their passages are
    unjudged), and those of sentence-transformers, Tevatron and MS MARCO (triples of texts, or of
    ids beside its collection and queries). Negatives are `hard_negative_ctxs` or, if there are
    none, `negative_ctxs`. Any passage may carry a `target`, also one of `negative_ctxs`. Questions
    without what the method needs are left out and counted, as DPR leaves out those without a
    positive; empty passages are bad records.

    Args:
        path: the file (also .gz, .bz2, .zst, .xz).
        needs: what an example must have: "positives": at least one positive; "targets": at least
            two different targets, of candidates in any role; "passages": at least one candidate in
            any role (negatives of both kinds are read, empty passages skipped); "questions": only
            the question.

    Raises:
        DataError: no such file, over 0.1 % malformed records (the first are listed with their
            places), malformed JSON, or no question with what is needed.

    Source: Karpukhin et al. 2020, "Dense Passage Retrieval for Open-Domain Question Answering",
        section 3.2.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "train.jsonl"
        >>> _ = path.write_text('{"question": "who", "answers": ["x"], "positive_ctxs": [{"text": "x is"}]}')
        >>> next(read_examples(path)).positives[0].text
        'x is'
    """
    name = str(path)
    report = ReadReport()
    left_out: list[str] = []
    texts_of_ids = cache(partial(_MsMarcoTexts, Path(path)))
    for location, number, record in read_rows(name, partial(table_columns, path=name)):
        try:
            if isinstance(record, TableRow) and "positive_id" in record:
                record = texts_of_ids().with_texts(record)
            example = _to_learn_from(example_from_json(record, f"q{number}"), needs)
        except (ValueError, TypeError) as error:
            report.add_bad(location, BadRecord("malformed record", str(error)))
            report.check(_MAX_BAD_SHARE, at_end=False, hint=_SHAPE)
            continue
        report.total += 1
        if example.has(needs):
            yield example
        else:
            left_out.append(location)
    report.check(_MAX_BAD_SHARE, at_end=True, hint=_SHAPE)
    log = get_logger(__name__)
    if report.bad:
        log.warning("%s: %s", name, report.faults())
    if left_out:
        first = ", ".join(left_out[:3])
        message = "%s: questions left out, for lack of %s: %d (%s …)"
        log.warning(message, name, needs, len(left_out), first)
    if report.total == report.bad + len(left_out):
        raise DataError(f"{name}: no question has {needs}", hint=_SHAPE)


class _MsMarcoTexts:
    """The questions and passages that MS MARCO's triples name by id, of the tables beside them."""

    def __init__(self, triples: Path) -> None:
        queries = sorted(triples.parent.glob("queries*.tsv*"))
        collection = find_in_folder(triples.parent, "collection.tsv")
        if collection is None or not queries:
            missing = "queries" if collection else "collection"
            raise DataError(
                f"{triples} names texts by id, and {missing}.tsv is not there",
                hint="unpack MS MARCO's queries and collection into the same folder",
            )
        question_ids: set[str] = set()
        passage_ids: set[str] = set()
        for question_id, *ids in _cells(triples, "question_id", "positive_id", "negative_id"):
            question_ids.add(question_id)
            passage_ids.update(ids)
        self._questions: dict[str, Sequence[str]] = {}
        for path in queries:
            self._questions |= _texts(path, question_ids)
        self._passages = _texts(collection, passage_ids)

    def with_texts(self, row: Mapping[str, str]) -> dict[str, object]:
        """The record that a row of ids stands for; a ValueError if an id has no text."""
        try:
            return {
                "question": self._questions[row["question_id"]][0],
                "positive_ctxs": [self._context(row["positive_id"])],
                "hard_negative_ctxs": [self._context(row["negative_id"])],
            }
        except KeyError as error:
            raise ValueError(f"no text for the id {error}") from error

    def _context(self, passage_id: str) -> dict[str, str]:
        text, *title = self._passages[passage_id]
        return {"passage_id": passage_id, "text": text, "title": "".join(title)}


def _texts(path: Path, ids: set[str]) -> dict[str, Sequence[str]]:
    """The text of each of these, and its title in ColBERT's collections."""
    return {id: texts for id, *texts in _cells(path, "id", "text", "title") if id in ids}


def _cells(path: Path, *names: str) -> Iterator[Sequence[str]]:
    """Cells of a table of MS MARCO, which has no header and quotes nothing."""
    for record in read_rows(str(path), lambda row: list(names[: len(row)]), format="tsv"):
        yield tuple(refuse_bad(record).values())


def write_examples(path: str | Path, examples: Iterable[Example]) -> int:
    """Write DPR's JSON, one example per line, atomically; returns the number of examples.

    It is training data or, where all passages are "retrieved", retrieval results.
    """
    return write_json_lines(Path(path), map(example_to_json, examples), as_list=True)


def example_from_json(record: object, fallback_id: str = "") -> Example:
    """Read one record of a training file or of results; fields of others are not kept.

    Raises:
        ValueError: it has another shape; the message says which.
    """
    question, rest = parse_record(record, fallback_id)
    candidates: list[Candidate] = []
    for name, role in ROLES.items():
        contexts = rest.get(name) or ()
        if not isinstance(contexts, list | tuple):
            raise ValueError(f"{name} is not a list")
        candidates += [_candidate(context, role) for context in contexts]
    targets = answers_of(rest.get("target") or ())
    return Example(
        question.id,
        question.text,
        question.answers or targets,
        tuple(candidates),
        answer_profile=question.answer_profile,
        target_answer=targets[0] if targets else "",
    )


def example_to_json(example: Example) -> dict[str, object]:
    """The record that `example_from_json` reads back."""
    record: dict[str, Any] = {}
    if example.id:
        record["id"] = example.id
    record["question"] = example.question
    record["answers"] = [*example.answers]
    if example.answer_profile == REGEX_PROFILE:
        record["answers_are_regex"] = True
    if example.target_answer:
        record["target"] = example.target_answer
    roles = {candidate.role for candidate in example.candidates}
    names = ["ctxs"]
    if roles - {"retrieved"}:
        names = ["positive_ctxs", "negative_ctxs", "hard_negative_ctxs"]
        if "retrieved" in roles:
            names.append("ctxs")
    for name in names:
        candidates = example.of_role(ROLES[name])
        record[name] = [_candidate_json(candidate) for candidate in candidates]
    return record


def _candidate_json(candidate: Candidate) -> dict[str, Any]:
    passage = candidate.passage
    fields: dict[str, Any] = {}
    if passage.id:
        id_field = "id" if candidate.role == "retrieved" else "passage_id"
        fields[id_field] = passage.id
    fields["title"] = passage.title
    fields["text"] = passage.text
    for name in ("source", "rank", "score", "target", "has_answer"):
        value = getattr(candidate, name)
        if value not in (None, ""):
            fields[name] = value
    if candidate.role == "retrieved" and passage.location is not None:
        fields["location"] = passage.location.to_json()
    return fields


def run_id(passage_id: str) -> str:
    """A passage's id as a TREC run holds it: percent-encoded if there is white space in it.

    Example:
        >>> run_id("100% wool"), run_id("100%")
        ('100%25%20wool', '100%')
    """
    if re.search(r"\s", passage_id):
        return re.sub(r"[\s%]", lambda match: quote(match[0]), passage_id)
    return passage_id


def write_run(path: Path, examples: Iterable[Example]) -> None:
    """Write a TREC run: ranks from 1 in the order of the candidates, scores that read back exactly.

    trec_eval orders by score, of 32 bits, alone: a score that is not below the one before it is
    written as the next lower number.
    Such a file cannot express white space: a passage's id with white space is percent-encoded.

    Raises:
        DataError: an id is empty, or that of a question holds white space.
    """
    with (
        atomic_path(path) as temporary,
        open(temporary, "w", encoding="utf-8", newline="\n") as file,
    ):
        for example in examples:
            before = np.float32(np.inf)
            for rank, candidate in enumerate(example.candidates, start=1):
                passage_id = run_id(candidate.passage.id)
                if example.id.split() != [example.id] or not passage_id:
                    raise DataError(
                        f"question {example.id!r}, passage {passage_id!r}: an id is empty, or holds "
                        "white space",
                        hint="write JSON instead of a run, or give questions ids without spaces",
                    )
                score = np.float32(-rank if candidate.score is None else candidate.score)
                before = min(score, np.nextafter(before, np.float32(-np.inf)))
                file.write(f"{example.id} Q0 {passage_id} {rank} {float(before)!r} rag\n")


def _candidate(context: object, role: Role) -> Candidate:
    passage = passage_of(context)
    text = passage.title + passage.text
    if as_unicode(text) != text:
        raise ValueError("a passage is not valid Unicode")
    fields = cast("Mapping[str, Any]", context)
    rank = _number(fields, "rank")
    # FiD's files have the second.
    has_answer = fields.get("has_answer", fields.get("hasanswer"))
    if has_answer not in (None, True, False):
        raise ValueError(f"has_answer is {has_answer!r}, expected true or false")
    return Candidate(
        passage,
        role,
        source=str(fields.get("source") or ""),
        rank=None if rank is None else int(rank),
        score=_number(fields, "score"),
        target=_number(fields, "target"),
        has_answer=None if has_answer is None else bool(has_answer),
    )


def _number(fields: Mapping[str, Any], name: str) -> float | None:
    value = fields.get(name)
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"the {name} of a passage is {value!r}, expected a finite number")
    return number


def _to_learn_from(example: Example, needs: Needed) -> Example:
    """The example without empty passages, and of its negatives with the hard ones and those with a
    target; with all of them, as hard ones, if none is hard.
    """
    if needs == "passages":
        filled = [item for item in example.candidates if item.passage.text.strip()]
        return replace(example, candidates=tuple(filled))
    for passage in example.passages:
        if not passage.text.strip():
            raise ValueError(f"a passage has no text ({passage.text!r})")
    others = example.of_role("negative")
    if not others:
        return example
    hard = example.negatives
    if not hard:
        hard = tuple(replace(candidate, role="hard_negative") for candidate in others)
        others = ()
    taught = [candidate for candidate in others if candidate.target is not None]
    candidates = (*example.of_role("positive"), *hard, *taught, *example.of_role("retrieved"))
    return replace(example, candidates=candidates)
