from pathlib import Path

from rag.bench.report import Report
from rag.core.files import read_json
from rag.metrics.significance import Interval


def test_a_report_is_a_table_with_hardware_and_notes_and_json(tmp_path: Path) -> None:
    report = Report("times")
    report.rows["flat"] = {"ms": 1.2}
    report.rows["ivf"] = {"ratio": Interval(float("nan"), 1.0, 1.1, 9)}
    report.notes.append("fp32 alone was measured")
    text = report.to_text("search", {"index": tmp_path})
    assert "torch_threads=" in text
    assert [line.split()[:2] for line in text.splitlines()[-4:-2]] == [
        ["ms", "ratio"],
        ["flat", "1.200"],
    ]
    assert text.endswith("note  fp32 alone was measured")
    report.write(tmp_path / "out.json", "search", {"index": tmp_path})
    written = read_json(tmp_path / "out.json")
    undefined = {"value": None, "low": 1.0, "high": 1.1, "n": 9, "level": 0.95}
    assert written["figures"] == {"flat": {"ms": 1.2}, "ivf": {"ratio": undefined}}
    assert written["settings"]["index"] == str(tmp_path)
