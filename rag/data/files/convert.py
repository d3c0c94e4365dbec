"""Convert a file of one format into another, and say what does not fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from rag.core.errors import ConfigError, DataError
from rag.core.types import Passage, Question
from rag.data.files.benchmarks import HOTPOT, KILT, SQUAD
from rag.data.files.dpr_family import DPR_RESULTS, DPR_TRAINING, FID, NQ_OPEN, PYSERINI
from rag.data.files.record import Context, Format, Record
from rag.data.files.tables import BEIR, COLBERT, TREC_QRELS, TREC_RUN
from rag.data.text import AnswerMatcher

_ALL = (
    *(DPR_RESULTS, DPR_TRAINING, FID, PYSERINI, NQ_OPEN, TREC_RUN, TREC_QRELS, KILT, BEIR, HOTPOT, SQUAD),
    COLBERT,
)
FORMATS: Mapping[str, Format] = {fmt.name: fmt for fmt in _ALL}

_ROLES = frozenset({"contexts", "positives"})  # at least one record must have them
_OF_RECORD = frozenset({"id", "question", "answers"})  # every record must have them
_FILL = "give --questions and --index to fill it in, or convert from a format that has it"


@dataclass(slots=True)
class ConversionReport:
    """What a conversion did.

    Attributes:
        dropped: part of a record → in how many records it was lost, because the target has no place for it.
    """

    records: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def summary(self) -> str:
        """One or two lines of text."""
        lines = [f"{self.records:,} questions converted"]
        if self.dropped:
            lost = ", ".join(f"{name} ({count:,})" for name, count in self.dropped.most_common())
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
    """Convert, streaming; the target appears whole or not at all.

    Args:
        questions: id → question, to fill in question texts and answers (for runs and qrels).
        passages: id → passage, to fill in titles and texts (for runs, qrels and KILT).
        strict: refuse if anything would be lost.

    Raises:
        ConfigError: unknown format.
        DataError: a record is malformed, lacks what the target needs, or (strict) would lose something.

    Note:
        Retrieved lists become training sets by answer: with answers known, passages that hold one are
        positives
        and the others hard negatives. Training sets become result lists of their positives, then negatives.
    """
    reader, writer = get_format(source_format), get_format(target_format)
    if not Path(source).exists():
        raise DataError(f"{source}: no such file or folder")
    if writer.is_folder and Path(target).exists():
        raise DataError(f"{target} exists", hint="choose another place, or delete it")
    report = ConversionReport()
    roles: set[str] = set()

    def prepared() -> Iterator[Record]:
        for number, record in enumerate(reader.read(Path(source)), start=1):
            filled = _fill(record, questions, passages, writer)
            if not filled.id and "id" in writer.needs:
                filled = replace(filled, id=f"q{number}")
            filled = _recast(filled, writer)
            parts = filled.parts()
            where = f"record {number}" + (f" ({filled.id!r})" if filled.id else "")
            missing = sorted((writer.needs & _OF_RECORD) - parts | _missing_in_passages(filled, writer))
            if missing:
                raise DataError(
                    f"{source}: {where} has no {', no '.join(missing)}, which {target_format} needs",
                    hint=_FILL,
                )
            roles.update(parts & _ROLES)
            lost = (parts - writer.keeps) | _lost_by_recast(record, filled)
            report.dropped.update(lost)
            if strict and lost:
                raise DataError(
                    f"{source}: {where} holds {', '.join(sorted(lost))}, for which {target_format} "
                    "has no place",
                    hint="allow losses, or choose another format",
                )
            report.records += 1
            yield filled
        absent = sorted(writer.needs & _ROLES - roles)
        if absent:
            raise DataError(
                f"{source}: no record has {' or '.join(absent)}, which {target_format} is made of", hint=_FILL
            )

    writer.write(Path(target), prepared())
    return report


def _fill(
    record: Record,
    questions: Mapping[str, Question] | None,
    passages: Callable[[str], Passage | None] | None,
    writer: Format,
) -> Record:
    known = questions.get(record.id) if questions is not None else None
    if known is not None:
        record = replace(
            record,
            question=known.text if record.question is None else record.question,
            answers=known.answers if record.answers is None else record.answers,
        )
    if passages is None:
        return record

    matcher: AnswerMatcher | None = None
    if record.answers and {"contexts", "has_answer"} <= writer.keeps:
        is_regex = known is not None and known.answers_are_regex
        matcher = AnswerMatcher(record.answers, "regex" if is_regex else "tokens")

    def full(context: Context) -> Context:
        found = passages(context.id) if context.text is None else None
        if found is None:
            return context
        has_answer = context.has_answer
        if has_answer is None and matcher is not None:
            has_answer = matcher.matches(found.text)
        return replace(context, title=found.title, text=found.text, has_answer=has_answer)

    roles = ("contexts", "positives", "negatives", "hard_negatives")
    changes = {role: tuple(full(context) for context in getattr(record, role)) for role in roles}
    return replace(record, **changes)  # type: ignore[arg-type]


def _recast(record: Record, writer: Format) -> Record:
    """Give passages the roles that the target knows."""
    if writer.predicts and record.contexts and not record.positives:
        return replace(record, answers=None)  # accepted answers are none of a system's own
    if "contexts" in writer.keeps and "positives" not in writer.keeps and not record.contexts:
        every = (*record.positives, *record.hard_negatives, *record.negatives)
        return replace(record, contexts=every, positives=(), negatives=(), hard_negatives=())
    trains = "positives" in writer.keeps and "contexts" not in writer.keeps
    if trains and not record.positives and record.contexts and record.answers:
        matcher = AnswerMatcher(record.answers)
        sides: dict[bool, list[Context]] = {True: [], False: []}
        for c in record.contexts:
            sides[matcher.matches(c.text or "") if c.has_answer is None else c.has_answer].append(c)
        right, wrong = tuple(sides[True]), tuple(sides[False])
        return replace(record, contexts=(), positives=right, hard_negatives=wrong)
    if "contexts" not in writer.keeps and record.contexts and (record.positives or record.hard_negatives):
        given = {*map(id, record.positives), *map(id, record.hard_negatives)}
        if all(id(context) in given for context in record.contexts):
            return replace(record, contexts=())
    if "positives" not in writer.keeps and record.contexts:
        listed = set(map(id, record.contexts))
        every = (*record.positives, *record.negatives, *record.hard_negatives)
        if all(id(context) in listed for context in every):
            return replace(record, positives=(), negatives=(), hard_negatives=())
    return record


def _missing_in_passages(record: Record, writer: Format) -> set[str]:
    """What the target needs of every passage and at least one lacks."""
    lacks = {
        "passage ids": any(not context.id for context in record.passages),
        "passage texts": any(context.text is None for context in record.passages),
        "titles": any(not context.title for context in record.passages),
    }
    return {name for name, is_missing in lacks.items() if is_missing} & writer.needs


def _lost_by_recast(before: Record, after: Record) -> set[str]:
    """What was given up: result lists cannot say which passage is positive, nor predictions what is right."""
    lost = {"positives"} if before.positives and not after.positives and after.contexts else set()
    return lost | ({"answers"} if before.answers and after.answers is None else set())
