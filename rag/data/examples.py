"""Training examples: a question and candidates with roles, scores and targets; reading and writing
them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from rag.core.errors import DataError
from rag.core.files import atomic_path
from rag.core.log import get_logger
from rag.core.types import AnswerProfile, Passage, Query, as_unicode
from rag.data.files import rows as files
from rag.data.files.fields import passage_of
from rag.data.files.question_sets import answers_of, parse_record, table_columns
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
    "answers, positive_ctxs: [{title, text, passage_id}], hard_negative_ctxs: [...]}, in a list or one a line"
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
        right = (Candidate(passage, "positive") for passage in positives)
        wrong = (
            n if isinstance(n, Candidate) else Candidate(n, "hard_negative") for n in negatives
        )
        return cls(id, question, tuple(answers), (*right, *wrong))

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
        return next(
            (passage.title for passage in self.positives[:1] if passage.title), self.question
        )

    def has(self, needed: Needed) -> bool:
        """Whether a method that needs this can use the example."""
        if needed == "targets":
            return len({c.target for c in self.candidates if c.target is not None}) > 1
        return needed == "questions" or bool(
            self.candidates if needed == "passages" else self.positives
        )


def read_examples(path: str | Path, *, needs: Needed = "positives") -> Iterator[Example]:
    """Stream examples to learn from; one record at a time.

    The formats are DPR's training JSON, FiD's files, DPR's retrieval results (their passages are
    unjudged), and those of sentence-transformers, Tevatron and MS MARCO (triples of texts, or of
    ids beside its collection and queries). Negatives are `hard_negative_ctxs` or, if there are
    none, `negative_ctxs`. Any passage may carry a `target`. Questions without what the method needs
    are left out and counted, as DPR leaves out those without a positive; empty passages are bad
    records.

    Args:
        path: the file (also .gz, .bz2, .zst, .xz).
        needs: what an example must have: "positives": at least one; "targets": at least two
            different ones, of candidates in any role; "passages": at least one in any role
            (negatives of both kinds are read, empty passages skipped); "questions": only the
            question.

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
    counts, name, left_out = ReadReport(), str(path), list[str]()
    texts: tuple[dict[str, str], dict[str, str]] | None = None
    for place, number, record in files.read_rows(name, partial(table_columns, path=name)):
        try:
            if isinstance(record, files.TableRow) and "positive_id" in record:
                texts = texts or _ms_marco_texts(Path(path))
                record = _with_texts(record, *texts)
            example = _to_learn_from(example_from_json(record, f"q{number}"), needs)
        except ValueError as error:
            counts.add_bad(place, BadRecord("malformed record", str(error)))
            counts.check(_MAX_BAD_SHARE, at_end=False, hint=_SHAPE)
            continue
        counts.total += 1
        if example.has(needs):
            yield example
        else:
            left_out.append(place)
    counts.check(_MAX_BAD_SHARE, at_end=True, hint=_SHAPE)
    log = get_logger(__name__)
    if counts.bad:
        log.warning("%s: %s", name, counts.faults())
    if left_out:
        log.warning(
            "%s: questions left out, for lack of %s: %d (%s …)",
            *(name, needs, len(left_out), ", ".join(left_out[:3])),
        )
    if counts.total == counts.bad + len(left_out):
        raise DataError(f"{name}: no question has {needs}", hint=_SHAPE)


def _ms_marco_texts(triples: Path) -> tuple[dict[str, str], dict[str, str]]:
    """The questions and passages that MS MARCO's triples name, by id, from the tables beside
    them.
    """
    questions, passages = set[str](), set[str]()
    for question, *named in _id_rows(triples, "question_id", "positive_id", "negative_id"):
        questions.add(question)
        passages.update(named)
    queries = sorted(triples.parent.glob("queries*.tsv*"))
    collection = find_in_folder(triples.parent, "collection.tsv")
    if collection is None or not queries:
        raise DataError(
            f"{triples} names texts by id, and {'queries' if collection else 'collection'}.tsv is not there",
            hint="unpack MS MARCO's queries and collection into the same folder",
        )
    texts = {
        id: text for path in queries for id, text in _id_rows(path, "id", "text") if id in questions
    }
    return texts, {id: text for id, text in _id_rows(collection, "id", "text") if id in passages}


def _with_texts(
    row: Mapping[str, str], questions: Mapping[str, str], texts: Mapping[str, str]
) -> Any:
    question, right, wrong = row["question_id"], row["positive_id"], row["negative_id"]
    if question not in questions or not {right, wrong} <= texts.keys():
        raise ValueError(f"no text for question {question}, passage {right} or passage {wrong}")
    lists = zip(("positive_ctxs", "hard_negative_ctxs"), (right, wrong), strict=True)
    contexts = {name: [{"passage_id": id, "title": "", "text": texts[id]}] for name, id in lists}
    return {"question": questions[question], **contexts}


def _id_rows(path: Path, *names: str) -> Iterator[Sequence[str]]:
    """Cells of a table of MS MARCO, which has no header and quotes nothing."""
    for place, _, row in files.read_rows(str(path), lambda _: list(names), format="tsv"):
        yield tuple(files.refuse_bad(row, place).values())


def write_examples(path: str | Path, examples: Iterable[Example]) -> int:
    """Write DPR's JSON, one example per line, atomically; returns the number of examples.

    It is training data or, where all passages are "retrieved", retrieval results.
    """
    return files.write_json_lines(Path(path), map(example_to_json, examples), listed=True)


def example_from_json(record: Any, fallback_id: str = "") -> Example:
    """Read one record of a training file or of results; fields of others are not kept.

    Raises:
        ValueError: it has another shape; the message says which.
    """
    question, rest = parse_record(record, fallback_id)
    candidates = list[Candidate]()
    for name, role in ROLES.items():
        listed = rest.get(name) or ()
        if not isinstance(listed, list | tuple):
            raise ValueError(f"{name} is not a list")
        candidates += [_candidate(value, role) for value in listed]
    stated = answers_of(rest.get("target") or ())
    return Example(
        question.id,
        question.text,
        question.answers or stated,
        tuple(candidates),
        answer_profile=question.answer_profile,
        target_answer="".join(stated[:1]),
    )


def example_to_json(example: Example) -> dict[str, Any]:
    """The record that `example_from_json` reads back."""
    head: dict[str, Any] = {
        "id": example.id,
        "question": example.question,
        "answers": [*example.answers],
    }
    head |= {
        "answers_are_regex": example.answer_profile == REGEX_PROFILE,
        "target": example.target_answer,
    }
    record = {
        name: value for name, value in head.items() if value or name in ("question", "answers")
    }
    roles = {candidate.role for candidate in example.candidates}
    judged = (
        ["positive_ctxs", "negative_ctxs", "hard_negative_ctxs"] if roles - {"retrieved"} else []
    )
    names = [*judged, "ctxs"] if "retrieved" in roles or not judged else judged
    return record | {
        name: list(map(_candidate_json, example.of_role(ROLES[name]))) for name in names
    }


def _candidate_json(candidate: Candidate) -> dict[str, Any]:
    passage, id_name = candidate.passage, "id" if candidate.role == "retrieved" else "passage_id"
    fields: dict[str, Any] = {id_name: passage.id} if passage.id else {}
    fields |= {"title": passage.title, "text": passage.text}
    for key in ("source", "rank", "score", "target", "has_answer"):
        if (value := getattr(candidate, key)) not in (None, ""):
            fields[key] = value
    if candidate.role == "retrieved" and passage.location is not None:
        fields["location"] = passage.location.to_json()
    return fields


def write_run(path: Path, examples: Iterable[Example]) -> None:
    """Write a TREC run: ranks from 1 in the order of the candidates, scores that read back exactly.

    Such a file cannot express white space: a passage's id with white space is percent-encoded.

    Raises:
        DataError: an id is empty, or that of a question holds white space.
    """
    with (
        atomic_path(path) as temporary,
        open(temporary, "w", encoding="utf-8", newline="\n") as file,
    ):
        for example in examples:
            for rank, hit in enumerate(example.candidates, start=1):
                question = example.id
                passage = _id_in_run(hit.passage.id)
                if odd := [id for id in (question, passage) if id.split() != [id]]:
                    fault = "is empty" if "" in odd else "holds white space"
                    raise DataError(
                        f"question {question!r}, passage {passage!r}: an id {fault}",
                        hint="write JSON instead of a run, or give questions ids without spaces",
                    )
                score = -float(rank) if hit.score is None else float(hit.score)
                file.write(f"{question} Q0 {passage} {rank} {score!r} rag\n")


def _id_in_run(id: str) -> str:
    if re.search(r"\s", id) is None:
        return id
    return re.sub(r"[\s%]", lambda match: quote(match[0]), id)


def _candidate(value: Any, role: Role) -> Candidate:
    passage = passage_of(value)
    if as_unicode(passage.text + passage.title) != passage.text + passage.title:
        raise ValueError("a passage is not valid Unicode")
    rank, score, target = (_number(value, name) for name in ("rank", "score", "target"))
    place = None if rank is None else int(rank)
    has_answer = value.get("has_answer", value.get("hasanswer"))  # FiD's files have the second
    has_answer = None if has_answer is None else bool(has_answer)
    return Candidate(
        passage, role, str(value.get("source") or ""), place, score, target, has_answer
    )


def _number(fields: Mapping[str, Any], name: str) -> float | None:
    stated = fields.get(name)
    try:
        number = None if stated is None else float(stated)
    except (TypeError, ValueError):
        number = math.nan
    if number is not None and not math.isfinite(number):
        raise ValueError(f"the {name} of a passage is {stated!r}, expected a finite number")
    return number


def _to_learn_from(example: Example, needs: Needed) -> Example:
    """The example without empty passages, and with only its hard negatives, or the others if it has
    none.
    """
    if needs == "passages":
        return replace(
            example, candidates=tuple(c for c in example.candidates if c.passage.text.strip())
        )
    for passage in example.passages:
        if not passage.text.strip():
            raise ValueError(f"a passage has no text ({passage.text!r})")
    others = example.of_role("negative")
    if not others:
        return example
    hard = example.negatives or tuple(
        replace(candidate, role="hard_negative") for candidate in others
    )
    candidates = (*example.of_role("positive"), *hard, *example.of_role("retrieved"))
    return replace(example, candidates=candidates)
