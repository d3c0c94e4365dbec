from rag.bench.common import time_interleaved
from rag.bench.report import Report, Table
from rag.core.files import read_json
from rag.metrics.significance import Interval


def test_rounds_run_everyone_and_alternate_their_order() -> None:
    ran = []
    timings = time_interleaved(
        {"a": lambda: ran.append("a"), "b": lambda: ran.append("b")}, rounds=2, warm_up=1
    )
    assert ran == ["a", "b", "a", "b", "b", "a"]
    assert {name: len(rounds) for name, rounds in timings.seconds.items()} == {"a": 2, "b": 2}


def test_a_ratio_is_that_of_the_medians() -> None:
    clock = iter([0.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0, 6.0, 6.0, 26.0, 26.0, 27.0])
    timings = time_interleaved({"slow": int, "fast": int}, rounds=3, warm_up=0, clock=lambda: next(clock))
    assert timings.seconds == {"slow": (2.0, 2.0, 20.0), "fast": (1.0, 1.0, 1.0)}
    figure = timings.ratio("slow", "fast")
    assert (figure.value, figure.low, figure.n) == (2.0, 2.0, 3)


def test_a_report_prints_hardware_tables_and_notes_and_writes_json(tmp_path) -> None:
    report = Report("search", {"index": tmp_path})
    report.tables.append(Table("times", ("what", "ms"), [("flat", "1.20")]))
    report.figures["ratio"] = Interval(float("nan"), 1.0, 1.1, 9)
    report.notes.append("fp32 alone was measured")
    text = report.to_text()
    assert "torch threads" in text
    assert "flat  1.20" in text
    assert text.endswith("note  fp32 alone was measured")
    report.write(tmp_path / "out.json")
    written = read_json(tmp_path / "out.json")
    assert written["figures"]["ratio"] == {"value": None, "low": 1.0, "high": 1.1, "n": 9, "level": 0.95}
    assert written["environment"]["cores"] >= 1
    assert written["settings"]["index"] == str(tmp_path)
