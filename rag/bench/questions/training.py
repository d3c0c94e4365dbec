"""Training sets of a reader from the questions of this folder.

    python -m rag.bench.questions.training INDEX SETS OUT

INDEX is over the documents of `sources.json`; SETS holds a folder for each set that was reworded,
with its `train….json…` (SQuAD: the official file, in `squad`). OUT gets `written-PART.jsonl` for
each part, with the texts of the gold passages, and `reworded-prose.jsonl`, `reworded-tables.jsonl`.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cyclopts import run

from indexers.index import Index
from rag.core.errors import DataError
from rag.core.types import Passage, Question
from rag.data.files.rows import json_records, write_json_lines
from rag.data.questions import read_questions

FOLDER = Path(__file__).parent
PARTS = ("train", "validation", "test", "more")
TABLES = "wikitablequestions"

Record = Mapping[str, Any]


def read_records(name: str) -> list[Record]:
    """The records of a file of this folder."""
    return list(json_records(FOLDER / name))


def with_gold(record: Record, passages: Mapping[str, Passage]) -> Record:
    """The record with the texts of its gold passages, as DPR's files have them."""
    gold = [passages[passage_id] for passage_id in record["gold_passage_ids"]]
    contexts = [{"title": passage.title, "text": passage.text} for passage in gold]
    return {**record, "positive_ctxs": contexts, "is_impossible": not record["answers"]}


def reworded(question: Question, text: str) -> Record:
    """The question in other words, with the context and answers of its set: with their places where
    the set states them, else (NQ) as words, which a reader's training looks for itself.
    """
    gold = question.gold[0].passage
    placed = []
    for answer, start in zip(question.answers, question.answer_starts, strict=False):
        placed.append({"text": answer, "start": start})
    return {
        "id": question.id,
        "title": gold.title,
        "context": gold.text,
        "question": text,
        "answers": placed or list(question.answers),
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


def main(index: Path, sets: Path, out: Path, /) -> None:
    """Write the training sets.

    Args:
        index: Over the documents, as `rag index` cuts them by default.
        sets: The sets whose questions were reworded.
        out: The folder to write into.
    """
    written = read_records("written.jsonl")
    ids = {passage_id for record in written for passage_id in record["gold_passage_ids"]}
    passages = _read_passages(index, ids)
    for part in PARTS:
        of_part = (with_gold(record, passages) for record in written if record["part"] == part)
        write_json_lines(out / f"written-{part}.jsonl", of_part)
    for kind, records in _reworded_sets(sets).items():
        write_json_lines(out / f"reworded-{kind}.jsonl", records)
    print(out)


if __name__ == "__main__":
    run(main)
