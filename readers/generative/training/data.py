"""Questions with answers and passages, from every file that holds such."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rag.core.errors import DataError
from rag.core.log import get_logger
from rag.core.types import Passage
from rag.data.files.dpr_family import DPR_TRAINING, FID
from rag.data.files.record import Context, Record, json_records
from rag.data.text import AnswerMatcher

_SHAPE = (
    "expected {question, answers, ctxs: [{title, text}]} of `rag retrieve` or FiD, or {question, answers, "
    "positive_ctxs, hard_negative_ctxs} of `rag mine` or DPR"
)


@dataclass(frozen=True, slots=True)
class GeneratorExample:
    """A question to train on.

    Attributes:
        question: its text.
        answers: one of them is drawn as the target each time.
        passages: positives first, then as they were ranked.
        holds: for each passage whether it holds an answer.
        ranked: places of what a retriever found, best first; none where files say only what is right or not.
    """

    question: str
    answers: tuple[str, ...]
    passages: tuple[Passage, ...]
    holds: tuple[bool, ...]
    ranked: tuple[int, ...] = ()

    def retrieved(self, count: int) -> tuple[Passage, ...]:
        """The best-ranked `count` passages, as a retriever gave them; without one positives come first."""
        return tuple(self.passages[place] for place in self.ranked[:count]) or self.passages[:count]


def read_examples(paths: Sequence[Path]) -> list[GeneratorExample]:
    """Questions of all files; those that several files hold get the passages of all.

    Questions without an answer or a passage are left out and counted.

    Raises:
        DataError: no such file, another shape, an answer that is not text (with its place), or no question
            with answers and passages.
    """
    parts: dict[str, list[Record]] = {}
    for path in paths:
        for record in _read(Path(path)):
            parts.setdefault(str(record.question), []).append(record)
    made = [example for records in parts.values() if (example := _example(records)) is not None]
    if not made:
        names = ", ".join(map(str, paths))
        raise DataError(f"{names}: no question with answers and passages", hint=_SHAPE)
    if len(made) < len(parts):
        get_logger(__name__).warning(
            "%d of %d questions left out: no answer, or no passage with a text",
            len(parts) - len(made),
            len(parts),
        )
    return made


def has_passages(path: Path) -> bool:
    """Whether a file gives passages beside its questions, by its first record."""
    try:
        return _reader(path) is not None
    except DataError:  # no JSON records at all: a table, or SQuAD's articles
        return False


def _reader(path: Path) -> Callable[[Path], Iterator[Record]] | None:
    _, head = next(json_records(path), ("", {}))
    if "positive_ctxs" in head:
        return DPR_TRAINING.read
    return FID.read if "ctxs" in head or "contexts" in head else None


def _read(path: Path) -> Iterator[Record]:
    reader = _reader(path)
    if reader is None:
        raise DataError(
            f"{path}: no passages beside its questions", hint=f"{_SHAPE}; or give an index to search"
        )
    for record in reader(path):
        target = record.meta.get("target")
        if target is not None and not isinstance(target, str):
            raise DataError(f"{path}: the target of {record.question!r:.60} is not text ({target!r:.40})")
        yield record


def _example(records: Sequence[Record]) -> GeneratorExample | None:
    targets = [str(record.meta["target"]) for record in records if record.meta.get("target")]
    answers = dict.fromkeys(a.strip() for r in records for a in targets or r.answers or () if a.strip())
    positives = _texts(context for record in records for context in record.positives)
    ranked = _texts(
        context
        for record in records
        for context in (*record.contexts, *record.hard_negatives, *record.negatives)
    )
    passages = {**positives, **{key: value for key, value in ranked.items() if key not in positives}}
    if not answers or not passages:
        return None
    matcher = AnswerMatcher(answers)
    holds = tuple(
        key in positives or (matcher.matches(passage.text) if known is None else known)
        for key, (passage, known) in passages.items()
    )
    found = tuple(passage for passage, _ in passages.values())
    places = {key: place for place, key in enumerate(passages)}
    listed = _texts(context for record in records for context in record.contexts)
    ranks = tuple(places[key] for key in listed)
    return GeneratorExample(str(records[0].question), tuple(answers), found, holds, ranks)


def _texts(contexts: Iterable[Context]) -> Mapping[tuple[str, str], tuple[Passage, bool | None]]:
    """Different passages with a text, and whether the file says that they hold an answer."""
    return {
        (c.title, c.text): (Passage(c.id, c.title, c.text), c.has_answer)
        for c in contexts
        if c.text is not None and c.text.strip()
    }
