"""SQuAD and retrieved negatives as token arrays, and every batch of a run by its step."""

from __future__ import annotations

import gzip
import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt

from rag.core.errors import DataError
from rag.core.log import get_logger
from rag.data.files.json_stream import iter_json_array
from readers.extractive.tokens import TokenTable, tokenize_texts

__all__ = [
    "ReaderExamples",
    "SquadQuestion",
    "load_examples",
    "read_negatives",
    "read_results",
    "read_squad",
    "split_by_article",
]

_RESULTS_SHAPE = (
    "expected [{question, answers, ctxs: [{id, title, text, score, has_answer}]}] from `rag retrieve`"
)


@dataclass(frozen=True, slots=True)
class SquadQuestion:
    """One SQuAD question with its paragraph; `start` is the character offset of the first answer."""

    id: str
    question: str
    title: str
    context: str
    answers: tuple[str, ...]
    start: int


@dataclass(frozen=True, slots=True)
class ReaderExamples:
    """Training questions as arrays. Q questions, N passages (gold ones first, then negatives).

    Attributes:
        questions: Q tokenised questions.
        titles, texts: N tokenised titles and texts.
        gold: (Q,) passage of each question.
        spans: (Q, 2) first and last token of the answer in that passage's text.
        negatives: (Q, K) passages without the answer, best first, -1 where there are fewer.
        special: ids of [CLS], [SEP] and [PAD].
    """

    questions: TokenTable
    titles: TokenTable
    texts: TokenTable
    gold: npt.NDArray[np.int64]
    spans: npt.NDArray[np.int64]
    negatives: npt.NDArray[np.int64]
    special: tuple[int, int, int]

    def __len__(self) -> int:
        return len(self.gold)


@contextmanager
def _stream(path: Path) -> Iterator[Any]:
    """The bytes of a file, decompressed if its name ends in .gz."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as stream:
            yield stream
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file") from error


def _read(path: Path) -> Any:
    try:
        with _stream(path) as stream:
            return json.loads(stream.read())
    except (OSError, EOFError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a readable JSON file ({error})") from error


def read_squad(path: Path) -> list[SquadQuestion]:
    """Read SQuAD v1.1 JSON; article titles lose their underscores and percent codes.

    Raises:
        DataError: if the file has another shape, or a question has no answer in its paragraph.
    """
    found: list[SquadQuestion] = []
    try:
        for article in _read(path)["data"]:
            title = unquote(article["title"]).replace("_", " ")
            for paragraph in article["paragraphs"]:
                for item in paragraph["qas"]:
                    answers = tuple(answer["text"] for answer in item["answers"])
                    start = item["answers"][0]["answer_start"] if answers else -1
                    found.append(
                        SquadQuestion(
                            item["id"], item["question"], title, paragraph["context"], answers, start
                        )
                    )
    except (KeyError, TypeError) as error:
        raise DataError(
            f"{path}: not SQuAD v1.1 JSON (missing {error})",
            hint="expected {data: [{title, paragraphs: [{context, qas: [{id, question, answers}]}]}]}",
        ) from error
    if not found:
        raise DataError(f"{path}: holds no question")
    return found


def split_by_article(
    questions: Sequence[SquadQuestion], held_out: int, seed: int
) -> tuple[list[SquadQuestion], list[SquadQuestion]]:
    """Training and validation questions; `held_out` whole articles go to validation.

    Raises:
        DataError: if that would leave no article to train on.
    """
    titles = sorted({question.title for question in questions})
    if held_out >= len(titles):
        raise DataError(
            f"{held_out} validation articles were asked for, but there are only {len(titles)} articles"
        )
    order = np.random.default_rng([seed, 1]).permutation(len(titles))
    chosen = {titles[i] for i in order[:held_out]}
    return (
        [question for question in questions if question.title not in chosen],
        [question for question in questions if question.title in chosen],
    )


def read_results(path: Path, wanted: Collection[str]) -> dict[str, list[dict[str, Any]]]:
    """What was retrieved for the `wanted` question texts, from a DPR-style results JSON: question → its ctxs.

    Raises:
        DataError: if the file has another shape, or knows fewer than half of the questions.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    needed = {"title", "text", "score", "has_answer"}
    with _stream(path) as stream:
        for number, record in iter_json_array(stream, str(path)):
            if not isinstance(record, dict) or not {"question", "ctxs"} <= record.keys():
                raise DataError(f"{path}: record {number} has no question and ctxs", hint=_RESULTS_SHAPE)
            if record["question"] not in wanted:
                continue
            for ctx in record["ctxs"]:
                if not needed <= ctx.keys():
                    missing = ", ".join(sorted(needed - ctx.keys()))
                    raise DataError(f"{path}: a ctx of record {number} has no {missing}", hint=_RESULTS_SHAPE)
            found[record["question"]] = record["ctxs"]
    if len(found) < len(set(wanted)) / 2:
        raise DataError(f"{path}: knows only {len(found)} of {len(set(wanted))} questions")
    return found


def read_negatives(
    path: Path, questions: Sequence[SquadQuestion], top_k: int
) -> tuple[list[list[int]], list[tuple[str, str]]]:
    """Passages without the answer, per question, from a DPR-style results JSON.

    Only passages of articles among `questions` are taken, so that held-out articles stay unseen.

    Returns:
        For each question at most `top_k` indices into the second value, the list of (title, text).

    Raises:
        DataError: as `read_results`.
    """
    titles = {question.title for question in questions}
    passages: dict[tuple[str, str], int] = {}
    by_question: dict[str, list[int]] = {}
    for question, ctxs in read_results(path, {q.question for q in questions}).items():
        taken = [ctx for ctx in ctxs if not ctx["has_answer"] and ctx["title"] in titles][:top_k]
        by_question[question] = [
            passages.setdefault((ctx["title"], ctx["text"]), len(passages)) for ctx in taken
        ]
    return [by_question.get(question.question, []) for question in questions], list(passages)


def load_examples(
    questions: Sequence[SquadQuestion], tokenizer: Any, *, negatives_file: Path | None = None, top_k: int = 6
) -> ReaderExamples:
    """Tokenise everything once. Questions whose answer is not where the file says are dropped and counted."""
    log = get_logger(__name__)
    passages: dict[tuple[str, str], int] = {}
    gold = np.array([passages.setdefault((q.title, q.context), len(passages)) for q in questions], np.int64)
    negatives = np.full((len(questions), top_k), -1, np.int64)
    if negatives_file is not None:
        rows, extra = read_negatives(negatives_file, questions, top_k)
        place = np.array([passages.setdefault(key, len(passages)) for key in extra] or [0], np.int64)
        for index, found in enumerate(rows):
            negatives[index, : len(found)] = place[found] if found else []
    texts = tokenize_texts(tokenizer, [text for _, text in passages])
    titles = tokenize_texts(tokenizer, [title for title, _ in passages])
    spans = np.full((len(questions), 2), -1, np.int64)
    for index, question in enumerate(questions):
        end = question.start + len(question.answers[0]) if question.answers else -1
        if not question.answers or question.context[question.start : end] != question.answers[0]:
            continue
        offsets = texts.spans(int(gold[index]))
        first = int(np.searchsorted(offsets[:, 1], question.start, side="right"))
        last = int(np.searchsorted(offsets[:, 0], end, side="left")) - 1
        if first <= last < len(offsets):
            spans[index] = first, last
    kept = np.flatnonzero(spans[:, 0] >= 0)
    if len(kept) < len(questions):
        odd = [questions[i].id for i in np.flatnonzero(spans[:, 0] < 0)[:3]]
        log.warning("%d questions dropped: answer not at its offset (%s)", len(questions) - len(kept), odd)
    if len(kept) < 0.9 * len(questions):
        raise DataError(f"only {len(kept)} of {len(questions)} questions have their answer at its offset")
    table = tokenize_texts(tokenizer, [questions[i].question for i in kept.tolist()])
    special = (tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id)
    return ReaderExamples(table, titles, texts, gold[kept], spans[kept], negatives[kept], special)
