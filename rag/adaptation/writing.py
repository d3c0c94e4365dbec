"""Questions for the passages of an index, written by a language model and looked at twice."""

import json
import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from indexers.index import Index
from rag.adaptation.drafts import (
    KIND_OF_RULE,
    SCHEMA,
    Draft,
    Kind,
    agrees,
    draft_messages,
    fault_of,
    kinds_of,
    parse_draft,
    place_answer,
)
from rag.adaptation.questions import MadeQuestion, make_questions
from rag.config import DEFAULT_SEED
from rag.core.errors import ConfigError, DataError, ReaderError
from rag.core.files import check_target, directory_lock, records_of_journal
from rag.core.log import Progress, get_logger
from rag.core.manifest import claim
from rag.core.types import Passage
from rag.data.text import AnswerMatcher
from rag.pipeline import Pipeline
from rag.runtime.seeds import generator
from readers.llm.endpoint import Endpoint, endpoint_of
from readers.protocols import ReadRequest

log = get_logger(__name__)

Item = TypeVar("Item")
Answers = Literal["writer", "rules"]

# Passages among which a search must find those that a question was written for.
_TOP_K = 20
_REPLY_TOKENS = 160
# Passages with fewer words are headings and remains.
_LEAST_WORDS = 25
# Shares of the questions that compare two passages, and that are about held-out documents.
_COMPARED = 0.1
_HELD_OUT = 0.2
# After so many requests in a row without a reply the model server is gone.
_FAILURES = 3


class Task(NamedTuple):
    """What a question is to be written for.

    Attributes:
        passages: one, or two that are compared.
        is_held_out: their documents are not in the index that is searched.
        made: question that is to be said in better words, by the rules of `make_questions`.
    """

    passages: Sequence[Passage]
    kind: Kind
    is_held_out: bool = False
    made: MadeQuestion | None = None

    @property
    def id(self) -> str:
        """Unique within a run, and the same in every run."""
        kind = "unanswerable" if self.is_held_out else self.kind.replace(" ", "-")
        return f"{kind}:{self.passages[0].id}"


class Journal:
    """A JSONL file that grows by a record at a time; what a killed run has written is kept."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.records = list(records_of_journal(path))
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115  # closed by `close`

    def append(self, record: Mapping[str, object]) -> None:
        """Write a record, so that it is there when the process is killed."""
        self._file.write(json.dumps(record, ensure_ascii=False) + "\n")
        self._file.flush()
        self.records.append(dict(record))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def write_questions(
    index: str | Path,
    writer: str,
    out: str | Path,
    *,
    count: int = 200,
    answers: Answers = "writer",
    held_out: str | Path | None = None,
    reader: str | Path | None = None,
    seed: int = DEFAULT_SEED,
) -> Mapping[str, int]:
    """Write questions for passages in random order until `count` are kept: `rag questions`.

    A question is kept if its answer stands in the passage, its words are others, a search finds
    the passage, and a reader that is given the passage answers the same. It is appended to `out` at
    once, a rejected one to `OUT.writing/rejected.jsonl`; a killed run goes on behind both.

    Args:
        writer: "openai:BASE_URL#MODEL".
        answers: who chooses what is asked for: the "writer", or "rules" for English text, whose
            clumsy question the writer says in better words (quicker, for small models).
        held_out: index of documents that `index` does not hold; a fifth of the questions is
            written for these, and kept if nothing that a search of `index` finds has the answer.
        reader: takes the second look; the reader in the package by default. It may be the writer.

    Returns how many were kept, and how many were rejected for each reason.

    Raises:
        ConfigError, DataError: the writer's address is none, or the index has hardly any text.
        ReaderError: the model server is gone, or replies with something else than a chat.
        MismatchedArtifactError: `out` was begun with other settings.
    """
    target = Path(out)
    check_target(target)
    if count < 1:
        raise ConfigError(f"count is {count}, expected at least 1")
    model = endpoint_of(writer)
    folder = target.with_name(f"{target.name}.writing")
    with ExitStack() as stack:
        pipeline = stack.enter_context(Pipeline.open(index, reader=reader))
        indexes = [pipeline.index]
        if held_out is not None:
            indexes.append(stack.enter_context(Index.open(held_out)))
        settings = {
            "writer": model.name,
            "answers": answers,
            "seed": seed,
            "indexes": [opened.version for opened in indexes],
            "second_look": pipeline.identity["reader"],
        }
        stack.enter_context(directory_lock(folder))
        claimed = folder / "settings.json"
        if target.exists() and not claimed.exists():
            raise ConfigError(
                f"{target} exists, and `rag questions` has not begun it",
                hint="choose another {out}",
                arguments=["out"],
            )
        claim(claimed, settings, "questions of other settings")
        kept = stack.enter_context(closing(Journal(target)))
        rejected = stack.enter_context(closing(Journal(folder / "rejected.jsonl")))
        seen = {record["id"] for record in (*kept.records, *rejected.records)}
        tasks = (task for task in _tasks(pipeline, indexes, answers, seed) if task.id not in seen)
        if len(kept.records) < count:
            _write(pipeline, model, tasks, count, kept, rejected)
    if not kept.records and not rejected.records:
        raise DataError(
            f"{index}: no passage has {_LEAST_WORDS} words of which a question can be made",
            hint="index documents with more text; rules ask questions in English alone",
        )
    reasons = Counter(str(record["reason"]) for record in rejected.records)
    return {"kept": len(kept.records), **dict(reasons.most_common())}


def _write(
    pipeline: Pipeline,
    model: Endpoint,
    tasks: Iterable[Task],
    count: int,
    kept: Journal,
    rejected: Journal,
) -> None:
    """Have questions written and judge them, until so many are kept or nothing is left to ask."""
    with Progress(count, "questions", "write", initial=len(kept.records)) as progress:
        for task, reply in _replies(model, tasks):
            record, reason = _judge(pipeline, model.name, task, reply)
            if reason:
                rejected.append({**record, "reason": reason})
                continue
            kept.append(record)
            progress.update()
            if len(kept.records) == count:
                return


def _tasks(
    pipeline: Pipeline, indexes: Sequence[Index], answers: Answers, seed: int
) -> Iterator[Task]:
    """What may be asked, in random order; each passage is used once."""
    orders = []
    for number, index in enumerate(indexes):
        orders.append(generator(seed, number).permutation(len(index.passages)).tolist())
    sources = random.Random(f"{seed}:sources")
    while any(orders):
        number = int(len(orders) > 1 and sources.random() < _HELD_OUT)
        if not orders[number]:
            number = 1 - number
        passage = indexes[number].passages[orders[number].pop()]
        if len(passage.text.split()) < _LEAST_WORDS:
            continue
        draw = random.Random(f"{seed}:{passage.id}")
        is_held_out = number == 1
        if answers == "rules":
            for made in make_questions(passage, draw):
                # A heading alone is too little to say in other words.
                if made.kind != "heading" or made.text.startswith("How"):
                    yield Task((passage,), KIND_OF_RULE[made.kind], is_held_out, made)
                    break
        elif is_held_out or draw.random() >= _COMPARED:
            yield Task((passage,), draw.choice(kinds_of(passage.text)), is_held_out)
        else:
            other = _to_compare(pipeline, passage)
            if other is not None:
                yield Task((passage, other), "comparison")


def _to_compare(pipeline: Pipeline, passage: Passage) -> Passage | None:
    """The best passage beside this one that a search with its title and beginning finds."""
    words = f"{passage.title} {passage.text}".split()
    hits = pipeline.retrieve(" ".join(words[:_LEAST_WORDS]), 2)
    return next((other for _, other in hits if other.id != passage.id), None)


def _replies(model: Endpoint, tasks: Iterable[Task]) -> Iterator[tuple[Task, str]]:
    """The model's reply to each task; a task without a reply is left to a later run.

    Raises:
        ReaderError: three tasks in a row have no reply, or the last ones.
    """
    # Since the last reply.
    failures: list[ReaderError] = []

    def ask(task: Task) -> str:
        messages = draft_messages(task.passages, task.kind, task.made)
        return model.complete(messages, _REPLY_TOKENS, SCHEMA).text

    for task, request in map_ahead(ask, tasks, model.settings.parallel):
        try:
            reply = request.result()
        except ReaderError as error:
            failures.append(error)
            if len(failures) == _FAILURES:
                raise
            log.warning("a question could not be written: %s", error.message)
        else:
            failures.clear()
            yield task, reply
    if failures:
        raise failures[-1]


def map_ahead(
    function: Callable[[Item], str], items: Iterable[Item], at_once: int
) -> Iterator[tuple[Item, Future[str]]]:
    """Each item with the call of the function, in their order; so many calls run in threads.

    Example:
        >>> [(item, call.result()) for item, call in map_ahead(hex, [7, 8], at_once=2)]
        [(7, '0x7'), (8, '0x8')]
    """
    running: deque[tuple[Item, Future[str]]] = deque()
    with ThreadPoolExecutor(at_once) as pool:
        for item in items:
            running.append((item, pool.submit(function, item)))
            if len(running) == at_once:
                yield running.popleft()
        yield from running


def _judge(pipeline: Pipeline, writer: str, task: Task, reply: str) -> tuple[dict[str, Any], str]:
    """The record of a question, and why it is rejected; "" if it is kept."""
    record: dict[str, Any] = {"id": task.id}
    draft = parse_draft(reply)
    if draft is None:
        return {**record, "reply": reply}, "no JSON with question and answer"
    placed = place_answer(draft, task.passages)
    if placed is None:
        return {**record, **draft.model_dump()}, "answer not in the passage"
    record |= {"question": placed.question, "writer": writer}
    ids = [passage.id for passage in task.passages]
    if task.is_held_out:
        made_from = {"answer": placed.answer, "passages": ids}
        record |= {"kind": "unanswerable", "is_impossible": True, "made_from": made_from}
    else:
        record |= {"kind": task.kind, "answers": [placed.answer], "gold_passage_ids": ids}
    reason = fault_of(placed, task.passages)
    reason = reason or _second_look(pipeline, task, placed)
    return record, reason or _search(pipeline, task, placed)


def _second_look(pipeline: Pipeline, task: Task, draft: Draft) -> str:
    """Whether the reader, which is given the passages, finds the writer's answer in them."""
    assert pipeline.reader is not None  # it was opened with one
    [reading] = pipeline.reader.read([ReadRequest.of(draft.question, task.passages)], 1)
    return "" if agrees(reading, draft.answer) else "the second look finds another answer"


def _search(pipeline: Pipeline, task: Task, draft: Draft) -> str:
    """Whether a search finds the passages; of held out documents, whether it finds no answer."""
    missing = {passage.id for passage in task.passages}
    matcher = AnswerMatcher([draft.answer])
    for _, passage in pipeline.retrieve(draft.question, _TOP_K):
        missing.discard(passage.id)
        if task.is_held_out and matcher.matches(passage.text):
            return "answered without the held out document"
    return "" if task.is_held_out or not missing else "not found by a search"
