"""Results of a long run, question by question on disk, so that a stopped run goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rag.core.errors import ConfigError, DataError

__all__ = ["Record", "ResultLog"]

Record = dict[str, Any]


class ResultLog:
    """One JSON line a question, behind a first line that says what was run.

    Args:
        path: the file; None keeps results in memory only.
        settings: what decides the results; a file begun with other settings is refused.

    Raises:
        ConfigError: the file belongs to another run.

    Example:
        >>> log = ResultLog(None, {"top_k": 20})
        >>> log.add([{"id": "q1", "prediction": "Basel"}])
        >>> log.results["q1"]["prediction"]
        'Basel'
    """

    def __init__(self, path: str | Path | None, settings: Mapping[str, Any]) -> None:
        self.path = None if path is None else Path(path)
        self.results: dict[str, Record] = {}
        header = {"settings": json.loads(json.dumps(settings, default=str))}
        if self.path is None:
            return
        if self.path.exists() and self.path.stat().st_size:
            self._read(header)
        else:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps(header, ensure_ascii=False) + "\n", encoding="utf-8")

    def _read(self, header: Mapping[str, Any]) -> None:
        assert self.path is not None
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        try:
            found, *records = [json.loads(line) for line in whole.splitlines()]
        except ValueError as error:
            raise DataError(
                f"{self.path} is not a result log ({error})", hint="choose another --results"
            ) from error
        if found != header:
            raise ConfigError(
                f"{self.path} was begun with other settings: {found.get('settings', found)}",
                hint="choose another --results, or delete the file",
            )
        if whole != data:  # a killed run left half a line
            self.path.write_bytes(whole)
        self.results = {record["id"]: record for record in records}

    def add(self, records: Sequence[Record]) -> None:
        """Keep the records and append them to the file."""
        self.results.update({record["id"]: record for record in records})
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
