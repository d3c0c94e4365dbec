"""A corpus of the contexts of a question set, in windows, and its questions.

    python -m rag.bench.reading tatqa/dev-a.jsonl.gz --out tatqa

Writes `passages.jsonl` for `rag index --split none` and `questions.jsonl` for `rag evaluate` and
`rag mine`.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cyclopts import run

from rag.data.files.rows import json_records, write_json_lines
from readers.extractive.training.data import window_bounds

Record = dict[str, Any]


def cut(records: Iterable[Record], words: int) -> tuple[list[Record], list[Record]]:
    """The windows of all contexts, each text once, and the questions with the windows that hold an
    answer.

    No border depends on where an answer stands, so that a question may have no window that holds
    an answer whole.
    """
    passages: dict[str, Record] = {}
    bounds_of: dict[str, list[tuple[int, int]]] = {}
    questions = []
    for record in records:
        context = record["context"]
        if context not in bounds_of:
            bounds_of[context] = list(window_bounds(context, words, []))
            for number, (begin, end) in enumerate(bounds_of[context]):
                name = f"{len(bounds_of) - 1}-{number}"
                text = context[begin:end]
                passages.setdefault(text, {"id": name, "title": record["title"], "text": text})
        gold = []
        for begin, end in bounds_of[context]:
            if any(_stands_within(answer, begin, end) for answer in record["answers"]):
                gold.append(passages[context[begin:end]]["id"])
        answers = [answer["text"] for answer in record["answers"]]
        question = {"id": record["id"], "question": record["question"]}
        questions.append({**question, "answers": answers, "gold_passage_ids": gold})
    return list(passages.values()), questions


def _stands_within(answer: Record, begin: int, end: int) -> bool:
    return begin <= answer["start"] and answer["start"] + len(answer["text"]) <= end


def main(file: Path, /, *, out: Path, words: int = 150) -> None:
    """Write the windows and the questions of a question set.

    Args:
        file: Questions with context, title and answers (text, start).
        out: Folder of both files.
        words: Words of a window.
    """
    passages, questions = cut(json_records(file), words)
    out.mkdir(parents=True, exist_ok=True)
    write_json_lines(out / "passages.jsonl", passages)
    write_json_lines(out / "questions.jsonl", questions)


if __name__ == "__main__":
    run(main)
