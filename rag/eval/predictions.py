"""Official prediction files, written question by question from the per-question records."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from rag.core.errors import DataError
from rag.core.files import atomic_path
from rag.core.log import get_logger
from rag.data.files.record import Context
from rag.data.files.record import Record as Ranking
from rag.data.files.tables import TREC_RUN

__all__ = ["read_records", "write_predictions"]

Record = Mapping[str, Any]
_LOG = get_logger(__name__)


def read_records(path: str | Path) -> Iterator[dict[str, Any]]:
    """The per-question records of an evaluation, one at a time.

    Raises:
        DataError: the file is missing or a line is not a JSON object; names file and line.
    """
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                try:
                    record = json.loads(line)
                except json.JSONDecodeError as error:
                    raise DataError(f"{path}:{number}: not valid JSON ({error.msg})") from error
                if not isinstance(record, dict):
                    raise DataError(f"{path}:{number}: expected a JSON object, found {type(record).__name__}")
                yield record
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file", hint="this is not a finished evaluation") from error


def write_predictions(records_path: Path, out: Path, profile: str) -> list[str]:
    """Write every official prediction file that the records allow.

    - `predictions.squad.json`: `{question id: answer}`
    - `predictions.nq_open.jsonl`: `{"question", "prediction"}` a line
    - `predictions.hotpot.json`: `{"answer": {id: …}, "sp": {id: [[title, sentence], …]}}`, profile "hotpot"
        only
    - `predictions.kilt.jsonl`: `{"id", "output": [{"answer", "provenance"}]}`, profile "kilt" only
    - `run.trec`: `qid Q0 passage rank score tag`; left out, with a warning, where the format cannot hold it

    Returns:
        Names of the files written. A question without an answer gets "".
    """

    def records() -> Iterator[dict[str, Any]]:  # opened anew for every file
        return read_records(records_path)

    names: list[str] = []
    try:
        hits = ((r["id"], (Context(hit["id"], score=hit["score"]) for hit in r["hits"])) for r in records())
        TREC_RUN.write(out / "run.trec", (Ranking(name, contexts=tuple(found)) for name, found in hits))
        names.append("run.trec")
    except DataError as error:
        _LOG.warning("run.trec is not written: %s", error.message)
    first = next(iter(records()), None)
    if first is None or "prediction" not in first:
        return names
    writers: dict[str, Callable[[TextIO], None]] = {
        "predictions.squad.json": lambda file: _write_object(file, ((r["id"], _text(r)) for r in records())),
        "predictions.nq_open.jsonl": lambda file: _write_lines(
            file, ({"question": r["question"], "prediction": _text(r)} for r in records())
        ),
    }
    if profile == "hotpot":
        writers["predictions.hotpot.json"] = lambda file: _write_hotpot(file, records)
    if profile == "kilt":
        writers["predictions.kilt.jsonl"] = lambda file: _write_lines(file, (_kilt(r) for r in records()))
    for name, write in writers.items():
        _write(out / name, write)
    return [*names, *writers]


def _text(record: Record) -> str:
    return record.get("prediction") or ""


def _write(path: Path, write: Callable[[TextIO], None]) -> None:
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as file:
        write(file)


def _write_lines(file: TextIO, rows: Iterable[Record]) -> None:
    for row in rows:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")


def _write_object(file: TextIO, items: Iterable[tuple[str, Any]]) -> None:
    separator = "{"
    for key, value in items:
        file.write(
            f"{separator}\n  {json.dumps(key, ensure_ascii=False)}: {json.dumps(value, ensure_ascii=False)}"
        )
        separator = ","
    file.write("{}\n" if separator == "{" else "\n}\n")


def _write_hotpot(file: TextIO, records: Callable[[], Iterator[Record]]) -> None:
    file.write('{"answer": ')
    _write_object(file, ((r["id"], _text(r)) for r in records()))
    file.write(', "sp": ')
    _write_object(file, ((r["id"], r.get("facts") or []) for r in records()))
    file.write("}\n")


def _kilt(record: Record) -> Record:
    return {
        "id": record["id"],
        "output": [{"answer": _text(record), "provenance": record.get("provenance", [])}],
    }
