import pytest

from indexers.build import BuildSettings
from indexers.plan import plan
from rag.bench.memory import fill_memory
from rag.bench.report import Report


@pytest.mark.parametrize(("measured", "is_met"), [(1.1, True), (0.9, True), (1.2, False), (0.8, False)])
def test_memory_is_judged_by_its_distance_from_the_plan(measured: float, is_met: bool) -> None:
    planned = plan(200_000, 384, settings=BuildSettings(index_type="sq8"), questions=500)
    total = int(measured * planned.serving_total_bytes)
    memory = {"rss": total, "anonymous": total // 2, "file_backed": total - total // 2, "private": total // 2}
    report = Report("memory", {})
    fill_memory(report, memory, memory, 500, planned)
    assert report.figures["measured_over_planned"] == pytest.approx(measured)
    assert [goal.is_met for goal in report.goals] == [is_met]
    assert "after 500 questions" in report.to_text()
    report.to_json()
