from pathlib import Path
from typing import Any

import pytest

from indexers.build import build_index
from indexers.plan import plan
from indexers.settings import BuildSettings
from rag.bench import memory
from rag.bench.memory import fill_memory, plan_of_serving
from rag.bench.report import Report
from rag.core.types import Passage
from retrievers.encoders.bi_encoder import BiEncoder


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


def test_an_index_of_token_vectors_is_planned_as_one(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "loaded_model_bytes", lambda *given, **named: 7.0)
    tiny.late_interaction(tmp_path / "model", dim=16)
    build_index(
        [Passage(f"p{n}", "", "the black river rises in the forest") for n in range(60)], tmp_path / "index",
        encoder=BiEncoder.load(tmp_path / "model", precision="fp32"),
        settings=BuildSettings(retriever="hybrid", index_type="plaid", token_bits=4),
    )  # fmt: skip
    planned = {
        kind: plan_of_serving(tmp_path / "index", kind, None, "fp32", 10, 5)
        for kind in ("auto", "colbert", "bm25")
    }
    assert planned["auto"].serving_bytes["models"] == 7.0
    parts = {"centroids", "lucene, mapped"}
    assert [parts & set(planned[kind].serving_bytes) for kind in ("auto", "colbert", "bm25")] == [
        parts, {"centroids"}, {"lucene, mapped"}
    ]  # fmt: skip
    assert planned["auto"].dim == 16
