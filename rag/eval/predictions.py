"""Official prediction files, written question by question from the per-question records."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rag.core.errors import DataError
from rag.core.files import atomic_write_json
from rag.core.log import get_logger
from rag.core.types import Passage
from rag.data.examples import Candidate, Example, write_run
from rag.data.files.rows import json_records, write_json_lines

_LOG = get_logger(__name__)


def write_predictions(records_path: Path, out: Path, profile: str) -> list[str]:
    """Write every official prediction file that the records allow.

    - `predictions.squad.json`: `{question id: answer}`
    - `predictions.nq_open.jsonl`: one `{"question", "prediction"}` per line
    - `predictions.hotpot.json`: `{"answer": {id: …}, "sp": {id: [[title, sentence], …]}}`, profile "hotpot"
        only
    - `run.trec`: `qid Q0 passage rank score tag`; left out, with a warning, where the format cannot hold it

    Returns:
        Names of the files written. A question without an answer gets "".
    """

    def records() -> Iterator[dict[str, Any]]:  # opened anew for every file
        return json_records(records_path)

    names: list[str] = []
    try:
        write_run(out / "run.trec", map(_ranking, records()))
        names.append("run.trec")
    except DataError as error:
        _LOG.warning("run.trec is not written: %s", error.message)
    first = next(iter(records()), None)
    if first is None or "prediction" not in first:
        return names
    answers = {record["id"]: record.get("prediction") or "" for record in records()}
    atomic_write_json(out / "predictions.squad.json", answers)
    pairs = ({"question": record["question"], "prediction": answers[record["id"]]} for record in records())
    write_json_lines(out / "predictions.nq_open.jsonl", pairs)
    names += ["predictions.squad.json", "predictions.nq_open.jsonl"]
    if profile == "hotpot":
        facts = {record["id"]: record.get("facts") or [] for record in records()}
        atomic_write_json(out / "predictions.hotpot.json", {"answer": answers, "sp": facts})
        names.append("predictions.hotpot.json")
    return names


def _ranking(record: dict[str, Any]) -> Example:
    hits = (Candidate(Passage(h["id"], "", ""), "retrieved", score=h["score"]) for h in record["hits"])
    return Example(record["id"], "", candidates=tuple(hits))
