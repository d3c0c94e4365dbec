"""Training sets of a reader from the questions of this folder.

    python -m rag.bench.questions.training INDEX SETS OUT

INDEX is over the documents of `sources.json`; SETS holds a folder for each set that was reworded,
with its `train….json…` (SQuAD: the official file, in `squad`). OUT gets `written-PART.jsonl` for
each part, with the texts of the gold passages, and `reworded-prose.jsonl`, `reworded-tables.jsonl`.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cyclopts import run

from indexers.index import Index
from rag.core.errors import DataError
from rag.core.files import atomic_path
from rag.core.types import Passage, Question
from rag.data.questions import read_questions

FOLDER = Path(__file__).parent
PARTS = ("train", "validation", "test", "more")
TABLES = "wikitablequestions"

Record = Mapping[str, Any]


def read_records(name: str) -> list[Record]:
    """The records of a file of this folder."""
    lines = (FOLDER / name).read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def with_gold(record: Record, passages: Mapping[str, Passage]) -> Record:
    """The record with the texts of its gold passages, as DPR's files have them."""
    gold = [passages[passage_id] for passage_id in record["gold_passage_ids"]]
    contexts = [{"title": passage.title, "text": passage.text} for passage in gold]
    return {**record, "positive_ctxs": contexts, "is_impossible": not record["answers"]}


def reworded(question: Question, text: str) -> Record:
    """The question in other words, with the context and answers of its set. Where the set does not
    say where an answer stands (NQ), it is the first place in the context.
    """
    gold = question.gold[0].passage
    starts = question.answer_starts or [gold.text.find(answer) for answer in question.answers]
    answers = []
    for answer, start in zip(question.answers, starts, strict=False):
        if start >= 0:
            answers.append({"text": answer, "start": start})
    return {
        "id": question.id,
        "title": gold.title,
        "context": gold.text,
        "question": text,
        "answers": answers,
    }


def _read_passages(index: Path, ids: Iterable[str]) -> dict[str, Passage]:
    passages = {}
    with Index.open(index) as opened:
        for passage_id in ids:
            passage = opened.passages.find(passage_id)
            if passage is None:
                raise DataError(
                    f"{index}: has no passage {passage_id}",
                    hint="index the documents of sources.json: rag index DOCUMENTS",
                )
            passages[passage_id] = passage
    return passages


def _reworded_sets(sets: Path) -> dict[str, list[Record]]:
    texts: dict[str, dict[str, str]] = {}
    for record in read_records("reworded.jsonl"):
        texts.setdefault(record["set"], {})[record["id"]] = record["question"]
    records: dict[str, list[Record]] = {"prose": [], "tables": []}
    for name, of_set in texts.items():
        (path,) = (sets / name).glob("train*.json*")
        kind = "tables" if name == TABLES else "prose"
        for question in read_questions(path):
            if question.id in of_set:
                records[kind].append(reworded(question, of_set[question.id]))
    return records


def _write(path: Path, records: Iterable[Record]) -> None:
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as lines:
        for record in records:
            lines.write(json.dumps(record, ensure_ascii=False) + "\n")
    print(path)


def main(index: Path, sets: Path, out: Path, /) -> None:
    """Write the training sets.

    Args:
        index: Over the documents, as `rag index` cuts them by default.
        sets: The sets whose questions were reworded.
        out: The folder to write into.
    """
    out.mkdir(parents=True, exist_ok=True)
    written = read_records("written.jsonl")
    ids = {passage_id for record in written for passage_id in record["gold_passage_ids"]}
    passages = _read_passages(index, ids)
    for part in PARTS:
        of_part = (with_gold(record, passages) for record in written if record["part"] == part)
        _write(out / f"written-{part}.jsonl", of_part)
    for kind, records in _reworded_sets(sets).items():
        _write(out / f"reworded-{kind}.jsonl", records)


if __name__ == "__main__":
    run(main)
