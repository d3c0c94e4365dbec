"""Convert a file of one format into another, and report what is lost."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from rag.core.errors import ConfigError, DataError
from rag.core.files import check_target
from rag.core.types import Passage, Question
from rag.data.examples import ROLES, Candidate, Example, first_record
from rag.data.files.dpr_family import DPR_RESULTS, DPR_TRAINING, FID, NQ_OPEN, PYSERINI
from rag.data.files.formats import PASSAGE_PARTS, Format, parts_of
from rag.data.files.sources import in_folder
from rag.data.files.streams import first_line, open_binary
from rag.data.files.tables import BEIR, COLBERT, TREC_QRELS, TREC_RUN
from rag.data.files.training_shapes import training_shape
from rag.data.questions import read_questions
from rag.data.text import AnswerMatcher


def _read_questions(path: Path) -> Iterator[Example]:
    """A question set with the passages that it quotes or names."""
    for question in read_questions(path):
        pages = [page for places in question.provenance for page in places if "wikipedia_id" in page]
        named = {str(page["wikipedia_id"]): str(page.get("title") or "") for page in pages}
        gold = [item.passage for item in question.gold] or [Passage(*page, "") for page in named.items()]
        ids = question.gold_passage_ids
        if len(gold) == len(ids):
            gold = [
                passage if passage.id else replace(passage, id=id)
                for passage, id in zip(gold, ids, strict=True)
            ]
        gold = gold or [Passage(id, "", "") for id in ids]
        others = [Candidate(item.passage, "hard_negative") for item in question.context]
        example = Example.of(question, [*(Candidate(passage, "positive") for passage in gold), *others])
        yield replace(example, meta={k: v for k, v in question.meta.items() if k not in ROLES})


_QUESTIONS = {
    "kilt": "KILT task files (JSON lines)",
    "hotpot": "HotpotQA's JSON (also 2WikiMultiHopQA, MuSiQue)",
    "squad": "SQuAD 1.1 and 2.0",
    "questions": "any other question set that `rag evaluate` reads",
}
_ALL = (
    *(DPR_RESULTS, DPR_TRAINING, FID, PYSERINI, NQ_OPEN, TREC_RUN, TREC_QRELS, BEIR, COLBERT),
    *(Format(name, about, _read_questions) for name, about in _QUESTIONS.items()),
)
FORMATS: Mapping[str, Format] = {fmt.name: fmt for fmt in _ALL}

_ROLES = frozenset({"contexts", "positives"})  # at least one record must have them
_OF_RECORD = frozenset({"id", "question", "answers"})  # every record must have them
_FILL = "give --questions and --index to fill it in, or convert from a format that has it"


@dataclass(slots=True)
class ConversionReport:
    """Result of a conversion.

    Attributes:
        dropped: part of a record → number of records that lost it, because the target has no place for it.
    """

    records: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def summary(self) -> str:
        """One or two lines of text."""
        lines = [f"{self.records:,} questions converted"]
        if self.dropped:
            lost = ", ".join(f"{name} ({count:,})" for name, count in sorted(self.dropped.items()))
            lines.append(f"no place in the new format for: {lost}")
        return "\n".join(lines)


def get_format(name: str) -> Format:
    """A format by name.

    Raises:
        ConfigError: unknown; the hint lists all.
    """
    if name not in FORMATS:
        raise ConfigError(f"unknown format {name!r}", hint=f"use one of: {', '.join(FORMATS)}")
    return FORMATS[name]


def guess_format(path: str | Path) -> str:
    """The format of a file or folder, guessed from its content.

    Raises:
        DataError: no such file or folder, or a folder of another kind.
    """
    place = Path(path)
    if not place.exists():
        raise DataError(f"{path}: no such file or folder")
    if place.is_dir():
        for name, file in (("beir", "corpus.jsonl"), ("colbert", "collection.tsv")):
            if in_folder(place, file):
                return name
        raise DataError(f"{path}: neither a BEIR folder nor one of ColBERT", hint="name its format: --from")
    record = training_shape(first_record(place))
    if isinstance(record, Mapping) and record:
        lists = {"positive_ctxs": "dpr-train", "ctxs": "dpr-results", "contexts": "pyserini"}
        return next((fmt for name, fmt in lists.items() if isinstance(record.get(name), list)), "questions")
    with open_binary(place) as stream:
        line = first_line(stream)
    return _guess_table(line.split(), line.split("\t"), place)


def _guess_table(fields: Sequence[str], cells: Sequence[str], place: Path) -> str:
    """The format of a file whose first line has these fields between blanks, and these between tabs."""
    if len(fields) > 4 and fields[1] == "Q0":
        return "trec-run"
    is_whole = bool(fields) and fields[-1].lstrip("-").isdecimal()
    if fields[:1] == ["query-id"] or (len(fields) == 4 and fields[1] in ("0", "Q0") and is_whole):
        return "trec-qrels"
    if len(fields) in (3, 4) and len(cells) == len(fields):
        if re.fullmatch(r"-?\d+\.\d+(e-?\d+)?", fields[-1]):
            return "trec-run"
        if is_whole:
            raise DataError(
                f"{place}: {len(fields)} columns without a header may be judgements, a ranking or triples",
                hint="name the format: --from trec-qrels (query, passage, grade), or --from trec-run (query, "
                "passage, rank, and perhaps a score)",
            )
    return "questions"


def convert(
    source: str | Path,
    source_format: str,
    target: str | Path,
    target_format: str,
    *,
    questions: Mapping[str, Question] | None = None,
    passages: Callable[[str], Passage | None] | None = None,
    strict: bool = False,
) -> ConversionReport:
    """Convert, streaming; the target is written atomically.

    Args:
        source_format: one of `FORMATS`, or "auto" to decide by `guess_format`.
        questions: id → question, to fill in question texts and answers (for runs and qrels).
        passages: id → passage, to fill in titles and texts (for runs, qrels and KILT).
        strict: refuse if anything would be lost.

    Raises:
        ConfigError: unknown format, or one that is only read.
        DataError: a record is malformed, lacks what the target needs, or (strict) would lose something.

    Note:
        Retrieved lists become training sets by answer: with answers known, passages that hold one are
        positives and the others hard negatives. Training sets become result lists of their positives, then
        negatives.
    """
    reader = get_format(guess_format(source) if source_format == "auto" else source_format)
    writer = get_format(target_format)
    if writer.write is None:
        written = ", ".join(name for name, known in FORMATS.items() if known.write is not None)
        raise ConfigError(f"{target_format} is read, but not written", hint=f"write one of: {written}")
    if not Path(source).exists():
        raise DataError(f"{source}: no such file or folder")
    if Path(target).resolve() == Path(source).resolve():
        raise ConfigError(f"{target}: the source would be overwritten", hint="choose another place")
    check_target(target, folder=writer.is_folder, is_new=writer.is_folder)
    report = ConversionReport()
    roles: set[str] = set()

    def prepared() -> Iterator[Example]:
        for number, example in enumerate(reader.read(Path(source)), start=1):
            filled = _fill(example, questions, passages, writer)
            if not filled.id and "id" in writer.needs:
                filled = replace(filled, id=f"q{number}")
            filled = _recast(filled, writer)
            parts = parts_of(filled)
            where = f"record {number}" + (f" ({filled.id!r})" if filled.id else "")
            missing = sorted((writer.needs & _OF_RECORD) - parts | _missing_in_passages(filled, writer))
            if missing:
                raise DataError(
                    f"{source}: {where} has no {', no '.join(missing)}, which {target_format} needs",
                    hint=_FILL,
                )
            roles.update(parts & _ROLES)
            lost = (parts - writer.keeps) | _lost_by_recast(example, filled)
            if writer is TREC_RUN and set(filled.meta) <= {"tag"} and not filled.target_answer:
                lost -= {"meta"}
            report.dropped.update(lost)
            if strict and lost:
                raise DataError(
                    f"{source}: {where} holds {', '.join(sorted(lost))}, for which {target_format} "
                    "has no place",
                    hint="allow losses, or choose another format",
                )
            report.records += 1
            yield filled
        if not report.records:
            raise DataError(f"{source}: no questions in it")
        absent = sorted(writer.needs & _ROLES - roles)
        if absent:
            raise DataError(
                f"{source}: no record has {' or '.join(absent)}, which {target_format} is made of", hint=_FILL
            )

    writer.write(Path(target), prepared())
    return report


def _fill(
    example: Example,
    questions: Mapping[str, Question] | None,
    passages: Callable[[str], Passage | None] | None,
    writer: Format,
) -> Example:
    known = questions.get(example.id) if questions is not None else None
    if known is not None:
        example = replace(
            example,
            question=example.question or known.text,
            answers=example.answers or known.answers,
            answers_are_regex=example.answers_are_regex or known.answers_are_regex,
        )
    if passages is None:
        return example
    matcher: AnswerMatcher | None = None
    if example.answers and {"contexts", "has_answer"} <= writer.keeps:
        matcher = AnswerMatcher(example.answers, example.answer_mode)

    def full(candidate: Candidate) -> Candidate:
        stored = None if candidate.passage.text else passages(candidate.passage.id)
        if stored is None:
            return candidate
        has_answer = candidate.has_answer
        if has_answer is None and matcher is not None:
            has_answer = matcher.matches(stored.text)
        return replace(candidate, passage=replace(stored, id=candidate.passage.id), has_answer=has_answer)

    return replace(example, candidates=tuple(map(full, example.candidates)))


def _recast(example: Example, writer: Format) -> Example:
    """Give passages the roles that the target knows."""
    retrieved = example.of_role("retrieved")
    if "contexts" in writer.keeps and not retrieved:
        ordered = (*example.of_role("positive"), *example.negatives, *example.of_role("negative"))
        scores = [math.nan if candidate.score is None else candidate.score for candidate in ordered]
        is_one_search = all(first >= second for first, second in pairwise(scores))
        kept: dict[str, Any] = {} if is_one_search or writer is not TREC_RUN else {"score": None}
        return replace(example, candidates=tuple(replace(c, role="retrieved", **kept) for c in ordered))
    if "positives" in writer.keeps and retrieved and example.answers and not example.positives:
        matcher = AnswerMatcher(example.answers, example.answer_mode)
        holds = [matcher.matches(c.passage.text) if c.has_answer is None else c.has_answer for c in retrieved]
        judged = (
            replace(c, role="positive" if right else "hard_negative")
            for c, right in zip(retrieved, holds, strict=True)
        )
        return replace(example, candidates=tuple(sorted(judged, key=lambda c: c.role != "positive")))
    return example


def _missing_in_passages(example: Example, writer: Format) -> set[str]:
    """The parts that the target needs of every passage and at least one lacks."""
    complete = [parts_of(replace(example, candidates=(candidate,))) for candidate in example.candidates]
    needed = writer.needs & PASSAGE_PARTS
    return {name for name in needed if not all(name in parts for parts in complete)}


def _lost_by_recast(before: Example, after: Example) -> set[str]:
    """Parts that are lost: lists do not state which passage is positive, and a run's scores fall."""
    lost = {"positives"} if before.positives and not after.positives and after.candidates else set()
    return lost | ((parts_of(before) - parts_of(after)) & {"scores"})
