"""Divide question sets by document, for `rag train reader --config reader-domains` and `reader-domains-long`.

    python -m rag.bench.reading.prepare SETS OUT --squad SQUAD_TRAIN --nq NQ_TRAIN --manuals /usr/share/man

SETS holds a folder per question set, each with `train.jsonl.gz`, whose records have id, title, context,
question and answers ([{text, start}]).
"""

import argparse
import gzip
import hashlib
import json
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rag.bench.reading.manuals import manual_questions
from rag.core.files import atomic_path
from rag.data.files.record import json_records

Record = dict[str, Any]

SEED = 13
_SHARES = {  # held out, by document
    "squad2_unanswerable": 0.045, "qamr_wikinews": 0.05, "doc2dial": 0.13, "wikitablequestions": 0.07,
    "squadshifts_amazon": 0.05, "squadshifts_reddit": 0.05, "cuad_rebuilt": 0.06,
}  # fmt: skip
_UNTITLED = ("qamr_wikinews", "squadshifts_reddit")  # have one title or none: divided by passage
_SQUAD, _SQUAD_HELD_OUT = 8_000, 1_200  # questions drawn
_PER_PAGE, _CLOUD_PAGES = 8, 250
_SOURCES = Path(__file__).parents[1] / "documents" / "sources.json"


def prepare(sets: Path, out: Path, *, squad: Path, nq: Path, manuals: Path) -> None:
    """Write `SET-train.jsonl.gz` and `SET-held-out.jsonl.gz` of every set into `out`."""
    for name, share in _SHARES.items():
        records = _read(sets / name / "train.jsonl.gz")
        if name == "wikitablequestions":
            records = [_with_bars(record) for record in records]
        _divide(out, name, records, _passage if name in _UNTITLED else _title, share)
    learnt, held_out = _sides(_squad(squad), _title, 0.045)
    _write(out / "squad-all-train.jsonl.gz", learnt)
    _write(out / "squad-train.jsonl.gz", random.Random(SEED).sample(learnt, _SQUAD))
    held_out = random.Random(5).sample(held_out, _SQUAD_HELD_OUT)
    _write(out / "squad-held-out.jsonl.gz", held_out)
    without = _read(out / "squad2_unanswerable-held-out.jsonl.gz")
    _write(out / "squad2-held-out.jsonl.gz", [*without, *random.Random(7).sample(held_out, len(without))])
    _divide(out, "nq", _read(nq), lambda r: str(r["question"]), 0.1)
    _divide(out, "manuals", _manuals(manuals), _title, 0.06)


def _place(text: str) -> float:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64


def _title(record: Record) -> str:
    return str(record["title"]).replace("_", " ")


def _passage(record: Record) -> str:
    return str(record["context"])[:60]


def _sides(
    records: Sequence[Record], key: Callable[[Record], str], share: float
) -> tuple[list[Record], list[Record]]:
    learnt = [record for record in records if _place(key(record)) >= share]
    return learnt, [record for record in records if _place(key(record)) < share]


def _divide(
    out: Path, name: str, records: Sequence[Record], key: Callable[[Record], str], share: float
) -> None:
    for part, chosen in zip(("train", "held-out"), _sides(records, key, share), strict=True):
        _write(out / f"{name}-{part}.jsonl.gz", chosen)


def _with_bars(record: Record) -> Record:
    """A third of the tables as rows of cells with bars between them, under one row of headers."""
    rows = record["context"].split("\n")
    if _place("bars" + record["title"]) >= 1 / 3 or len(rows) < 3:
        return record
    cells = [[cell.split(": ", 1) for cell in re.split(r"; (?=[^;:]*: )", row)] for row in rows]
    if any(len(cell) != 2 for row in cells for cell in row):
        return record
    headers = max(([header for header, _ in row] for row in cells), key=len)
    values = [[dict(row).get(header, "") for header in headers] for row in cells]
    context = "\n".join(" | ".join(row) for row in [headers, *values])
    answers = [answer["text"] for answer in record["answers"]]
    return (
        {**record, "context": context, "answers": answers} if all(a in context for a in answers) else record
    )


def _squad(path: Path) -> list[Record]:
    return [
        {
            "id": question["id"], "title": article["title"].replace("_", " "),
            "context": paragraph["context"], "question": question["question"],
            "answers": [{"text": a["text"], "start": a["answer_start"]} for a in question["answers"]],
        }
        for article in _read(path)
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]  # fmt: skip


def _manuals(folder: Path) -> list[Record]:
    """Of sections 1, 5, 7 and 8, without the software that the documents' question set is about."""
    draw = random.Random(SEED)
    packages = {row["package"].lower() for row in json.loads(_SOURCES.read_text("utf-8"))}
    left_out = tuple(re.split(r"[-.]", package)[0] for package in packages)
    pages = sorted(page for section in "1578" for page in (folder / f"man{section}").glob("*.gz"))
    cloud = [page for page in pages if page.name.startswith("gcloud")]
    pages = [page for page in pages if not page.name.startswith("gcloud")]
    pages += draw.sample(cloud, min(_CLOUD_PAGES, len(cloud)))
    kept = (page for page in pages if not page.is_symlink() and not page.name.startswith(left_out))
    found = {
        (record["question"], record["answers"][0]["text"]): record
        for page in kept
        for record in reversed(list(manual_questions(page, draw, _PER_PAGE)))
    }
    return list(found.values())


def _read(path: Path) -> list[Record]:
    return [record for _, record in json_records(path)]


def _write(path: Path, records: Sequence[Record]) -> None:
    with atomic_path(path) as temporary, gzip.open(temporary, "wt", encoding="utf-8") as lines:
        lines.writelines(json.dumps(record) + "\n" for record in records)
    print(f"{len(records):,} questions → {path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sets", type=Path)
    parser.add_argument("out", type=Path)
    for name in ("squad", "nq", "manuals"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    prepare(**vars(parser.parse_args()))
