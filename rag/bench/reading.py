"""A corpus of the contexts of a question set, in windows, and its questions.

    python -m rag.bench.reading tatqa/dev-a.jsonl.gz --out tatqa

Writes `passages.jsonl` for `rag index --split none` and `questions.jsonl` for `rag evaluate` and
`rag mine`.
"""

import argparse
from pathlib import Path
from typing import Any

from rag.data.files.rows import json_records, write_json_lines
from readers.extractive.training.data import window_bounds

Record = dict[str, Any]


def cut(records: list[Record], words: int) -> tuple[list[Record], list[Record]]:
    """The windows of all contexts, each text once, and the questions with the windows that hold an
    answer.

    No border depends on where an answer stands, so that a question may have no window that holds
    one whole.
    """
    passages = dict[str, Record]()
    bounds = dict[str, list[tuple[int, int]]]()
    for record in records:
        if (context := record["context"]) in bounds:
            continue
        bounds[context] = list(window_bounds(context, words, []))
        for place, (begin, end) in enumerate(bounds[context]):
            text, name = context[begin:end], f"{len(bounds) - 1}-{place}"
            passages.setdefault(text, {"id": name, "title": record["title"], "text": text})
    questions = []
    for record in records:
        spans = [(a["start"], a["start"] + len(a["text"])) for a in record["answers"]]
        gold = [
            passages[record["context"][begin:end]]["id"]
            for begin, end in bounds[record["context"]]
            if any(begin <= first and last <= end for first, last in spans)
        ]
        answers = [a["text"] for a in record["answers"]]
        questions.append(
            {
                "id": record["id"],
                "question": record["question"],
                "answers": answers,
                "gold_passage_ids": gold,
            }
        )
    return list(passages.values()), questions


def main(file: Path, out: Path, *, words: int) -> None:
    """Write both files."""
    passages, questions = cut(list(json_records(file)), words)
    out.mkdir(parents=True, exist_ok=True)
    write_json_lines(out / "passages.jsonl", passages)
    write_json_lines(out / "questions.jsonl", questions)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--words", type=int, default=150)
    main(**vars(parser.parse_args()))
