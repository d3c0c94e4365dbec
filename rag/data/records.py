"""Records on their way in: options, documents, checked questions, bad records, a report; quick to
import.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import PurePath
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, field_validator

from rag.core.errors import ConfigError, DataError, QuestionError
from rag.core.types import MAX_TOP_K, Location, Metadata, Pages, as_unicode, page_at
from rag.data.languages import ANALYZERS, AUTO, ENGLISH

# Bad records that are named, and problems at all.
MAX_RECORDS = 10
_MAX_SHOWN = 100
Kind = Literal["heading", "paragraph", "item", "row", "code"]


class PlacedRecord(NamedTuple):
    """A record of a file or data set, as read.

    Attributes:
        location: where it stands, for messages.
        number: its number or line, from 1.
        value: what it holds; a `BadRecord` if that could not be read.
    """

    location: str
    number: int
    value: Any


class CorpusOptions(BaseModel):
    """How a corpus is read and cut into passages; stored in the manifest of its index.

    Attributes:
        id_field: field or column of the document id; by default one of the usual names.
        title_field: field or column of the title.
        text_field: field or column of the text.
        metadata: field that passages keep for filters; it may stand in an object "metadata", as in
            BEIR. May be given several times.
        exclude: pattern of files and folders below a given folder that are left out, as a line of
            .gitignore; may be given several times. A file .ragignore in the folder holds more.
        max_bad_share: highest tolerated share of bad records (not of files).
        document_timeout: most seconds for reading one file.
        split: how documents are cut. "sections" cuts files (PDF, HTML, Markdown, …) by headings,
            with the path to each as title; "words100" cuts into disjoint blocks of `words` words;
            "none" keeps each document as one passage; "auto" is "sections" for files, else
            "words100".
        words: words per passage, for --split words100.
        max_tokens: most tokens of title and text of a passage, for --split sections; by default what
            the encoder reads, at most 512, and 256 without an encoder.
        language: language of the texts, such as de: BM25 analyses words by it, rules for English
            are off in others, and --split words100 counts characters in zh, ja and th; auto finds
            it in a sample.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id_field: str | None = None
    title_field: str | None = None
    text_field: str | None = None
    metadata: list[str] = []
    exclude: list[str] = []
    max_bad_share: float = Field(default=0.01, ge=0, le=1)
    document_timeout: float = Field(default=60.0, ge=0.1)
    split: Literal["auto", "sections", "words100", "none"] = "auto"
    words: int = Field(default=100, ge=1)
    max_tokens: int = Field(default=256, ge=1)
    language: str = ENGLISH

    @field_validator("language")
    @classmethod
    def _check_language(cls, value: str) -> str:
        if value not in (AUTO, ENGLISH, *ANALYZERS):
            known = ", ".join(ANALYZERS)
            raise ValueError(f"expected {AUTO}, {ENGLISH} or one of {known}")
        return value


def rows_of(value: Any, what: str, *, hint: str = "put it in a list") -> list[Any]:
    """The rows of a list, an array, a generator or a data set; those of a table as mappings.

    Tables are those of pandas, polars and Arrow, whose iteration would give the columns. One
    string, mapping, path or number is refused; `what` names the argument.
    """
    if hasattr(value, "columns"):
        to_rows = getattr(value, "to_dicts", None) or getattr(value, "to_pylist", None)
        value = to_rows() if to_rows else value.to_dict("records")
    if isinstance(value, str | bytes | Mapping | PurePath) or not isinstance(value, Iterable):
        if value is None:
            raise DataError(f"{what} is None, expected a list")
        raise DataError(f"{what} is a single {type(value).__name__}, expected a list", hint=hint)
    rows = []
    for row in value:
        if isinstance(row, Mapping):
            row = {name: _cell_or_none(cell) for name, cell in row.items()}
        rows.append(row)
    return rows


def _cell_or_none(value: Any) -> Any:
    """The value, or None for pandas' markers of an empty cell: NaN or NA."""
    is_missing = type(value).__name__ == "NAType" or (
        isinstance(value, float) and math.isnan(value)
    )
    return None if is_missing else value


def check_questions(questions: Iterable[str], top_k: int, n_best: int = 1) -> list[str]:
    """The questions as a list; refuses those that are empty or not valid text.

    Raises:
        ConfigError: `top_k` or `n_best` is out of range or no whole number.
        DataError: the questions are not a list.
        QuestionError: a question is no text, is empty, or is no valid Unicode.
    """
    checked = rows_of(questions, "questions")
    for name, number, most in (("n_best", n_best, math.inf), ("top_k", top_k, MAX_TOP_K)):
        if not isinstance(number, Integral) or isinstance(number, bool) or not 1 <= number <= most:
            bounds = "at least 1" if most == math.inf else f"1 to {most}"
            raise ConfigError(f"{name} is {number!r}, expected a whole number, {bounds}")
    for number, question in enumerate(checked):
        if fault := fault_of_question(question):
            is_list = isinstance(question, list | tuple)
            raise QuestionError(
                f"{f'question {number}' if len(checked) > 1 else 'the question'} {fault}",
                hint="several questions go to ask_many or retrieve_many" if is_list else "",
            )
    return checked


def fault_of_question(text: object) -> str:
    """Why this cannot be a question, to follow "the question"; "" if it can."""
    if not isinstance(text, str):
        return f"is not text, found {type(text).__name__} {text!r:.40}"
    if not text.strip():
        return "is empty"
    is_valid = "\x00" not in text and as_unicode(text) == text
    return "" if is_valid else f"is not valid Unicode, or has a NUL character: {text!r:.60}"


class Block(NamedTuple):
    """A span of a document's text: its first character, and one past the last; see
    `blocks.Piece`.
    """

    kind: Kind
    start: int
    end: int
    level: int = 0


@dataclass(frozen=True, slots=True)
class Document:
    """An article, or any text with an id.

    Attributes:
        id: unique within a corpus.
        text: the whole text, without the title.
        blocks: headings, paragraphs, rows … of a file, as spans of the text; empty for records.
        pages: where in the text each page of a file begins; empty for records, and files without
            pages.
        scanned: the labels of those pages whose text was recognised in a picture.
        path: the file it is, as people write it; "" for records.
        metadata: further fields that its passages keep, see `Passage`.
        notes: remarks about its conversion for the user ("not read: comments: 2").
    """

    id: str
    title: str
    text: str
    blocks: tuple[Block, ...] = ()
    pages: Pages = ()
    scanned: tuple[str, ...] = ()
    path: str = ""
    metadata: Metadata = ()
    notes: tuple[str, ...] = ()

    def text_of(self, block: Block) -> str:
        """The text of a block."""
        return self.text[block.start : block.end]

    def location(self, start: int, end: int, headings: Sequence[str] = ()) -> Location:
        """The location of a span of the text, which is a passage."""
        page = page_at(self.pages, start)
        more = tuple((at - start, label) for at, label in self.pages if start < at < end)
        pages = ((0, page), *more)
        ocr = any(label in self.scanned for _, label in pages)
        return Location(self.path, page, tuple(headings), pages if more else (), ocr)


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record that cannot become a document.

    Attributes:
        reason: its kind, one of a few fixed phrases ("duplicate id"); problems are counted by it.
    """

    reason: str
    detail: str = ""


@dataclass(slots=True)
class ReadReport:
    """Counts what was read; filled while the documents are consumed.

    Attributes:
        problems: the first bad records with their places, unread files, and what conversion lost of
            others.
        ignored: files in folders that no reader was chosen for, each with the reason.
        files: how many of all records are files that are a document each.
        unread: how many of these could not be read; they never stop the reading, however large
            their share.
        notes: which fields became id, title and text, and other facts for the user.

    Example:
        >>> report = ReadReport()
        >>> report.total += 1; report.add_bad("a.jsonl:2", BadRecord("empty text"))
        >>> print(report.faults())
        1 of 2 records, 1 bad (50.00 %): 1 × empty text
          a.jsonl:2: empty text
    """

    total: int = 0
    bad: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    files: int = 0
    unread: int = 0
    notes: list[str] = field(default_factory=list)

    def add_bad(self, location: str, record: BadRecord, *, is_file: bool = False) -> None:
        """Count a bad record, or a file that cannot be read, and list it if it is among the
        first.
        """
        self.total += 1
        self.bad += 1
        self.files += is_file
        self.unread += is_file
        self.reasons[record.reason] += 1
        if is_file or self.bad - self.unread <= MAX_RECORDS:
            detail = f" ({record.detail})" if record.detail else ""
            self.problems.append(f"{location}: {record.reason}{detail}")

    def counts(self) -> str:
        """How many records are usable, and how many are bad for which reason."""
        noun = "documents" if self.files else "records"
        if not self.bad:
            return f"{self.total:,} {noun}, none bad"
        kinds = ", ".join(f"{count:,} × {reason}" for reason, count in self.reasons.most_common())
        share = f"{100 * self.bad / self.total:.2f} %"
        return f"{self.total - self.bad:,} of {self.total:,} {noun}, {self.bad:,} bad ({share}): {kinds}"

    def faults(self) -> str:
        """The counts, and the first problems."""
        return "\n  ".join([self.counts(), *first_lines(self.problems)])

    def left_out(self) -> list[str]:
        """What users are told of files and records that were not read, or not wholly."""
        unread = [f"not read: {line}" for line in first_lines(self.ignored)]
        return unread + first_lines(self.problems)

    def check(self, max_bad_share: float, *, at_end: bool, hint: str = "") -> None:
        """Refuse input that is too damaged: no record is usable, or more than this share of records
        is bad.

        Files that are documents do not count in the share, and nothing is judged under 100 records
        before the end. A `hint` stands for an option that changes the share.
        """
        bad = self.bad - self.unread
        records = self.total - self.files
        if not hint:
            hint = "mend or replace what is listed above"
            if records:
                hint += ", or raise {max_bad_share} to continue without it"
        problem = ""
        if at_end and self.total and self.bad == self.total:
            problem = "no usable record"
        elif (at_end or self.total >= 100) and bad > max_bad_share * records:
            problem = f"too many bad records (limit {100 * max_bad_share:g} %)"
        if problem:
            raise DataError(f"{problem}: {self.faults()}", hint=hint, arguments=["max_bad_share"])


def first_lines(lines: Sequence[str]) -> list[str]:
    """The first lines, and how many more there are."""
    first = list(lines[:_MAX_SHOWN])
    if len(lines) > _MAX_SHOWN:
        first.append(f"… and {len(lines) - _MAX_SHOWN:,} more")
    return first
