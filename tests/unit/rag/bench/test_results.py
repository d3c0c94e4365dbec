from pathlib import Path

import pytest

from rag.bench.results import ResultLog
from rag.core.errors import ConfigError, DataError


def test_a_second_run_goes_on_and_half_a_line_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "results.jsonl"
    ResultLog(path, {"top_k": 20}).add([{"id": "1", "prediction": "Basel"}, {"id": "2", "prediction": ""}])
    with path.open("ab") as file:
        file.write(b'{"id": "3", "predic')
    log = ResultLog(path, {"top_k": 20})
    assert list(log.results) == ["1", "2"]
    log.add([{"id": "3", "prediction": "Zürich"}])
    assert ResultLog(path, {"top_k": 20}).results["3"]["prediction"] == "Zürich"


def test_a_log_of_another_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    ResultLog(path, {"top_k": 20})
    with pytest.raises(ConfigError, match="other settings"):
        ResultLog(path, {"top_k": 10})
    path.write_text("no json\n")
    with pytest.raises(DataError, match="not a result log"):
        ResultLog(path, {"top_k": 20})
