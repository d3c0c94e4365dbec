from rag.bench.common import time_interleaved
from rag.bench.report import Report
from rag.core.files import read_json
from rag.metrics.significance import Interval


def test_rounds_run_everyone_and_alternate_their_order() -> None:
    ran = []
    timings = time_interleaved(
        {"a": lambda: ran.append("a"), "b": lambda: ran.append("b")}, rounds=2, warm_up=1
    )
    assert ran == ["a", "b", "a", "b", "b", "a"]
    assert {name: len(rounds) for name, rounds in timings.items()} == {"a": 2, "b": 2}


def test_a_report_prints_hardware_tables_and_notes_and_writes_json(tmp_path) -> None:
    report = Report("search", {"index": tmp_path})
    report.add_table("times", ("what", "ms"), [("flat", "1.20")])
    report.figures["ratio"] = Interval(float("nan"), 1.0, 1.1, 9)
    report.notes.append("fp32 alone was measured")
    text = report.to_text()
    assert "torch threads" in text
    assert "flat  1.20" in text
    assert text.endswith("note  fp32 alone was measured")
    report.write(tmp_path / "out.json")
    written = read_json(tmp_path / "out.json")
    assert written["figures"]["ratio"] == {
        "value": None,
        "low": 1.0,
        "high": 1.1,
        "n": 9,
        "level": 0.95,
    }
    assert written["environment"]["cores"] >= 1
    assert written["settings"]["index"] == str(tmp_path)
