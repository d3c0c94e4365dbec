"""The benchmark of whole questions: every retriever answers all of them, and says where its time went."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rag
from rag.bench.ask import run_ask_benchmark
from rag.core.errors import ConfigError


def test_retrievers_are_timed_stage_by_stage(tmp_path: Path) -> None:
    rivers = ("Danube", "Rhine", "Elbe")
    rag.Pipeline.from_texts([f"The {river} flows far." for river in rivers], out=tmp_path / "index").close()
    (tmp_path / "q.jsonl").write_text(
        "\n".join(json.dumps({"question": f"Where does the {river} flow?"}) for river in rivers)
    )
    given = tmp_path / "index", tmp_path / "q.jsonl"
    report = run_ask_benchmark(*given, retrievers=["dense", "multihop:beam=2", "stop=never"], top_k=2)
    dense, hops = (report.figures[name] for name in ("dense", "multihop:beam=2,stop=never"))
    assert (dense["ratio"].value, dense["ratio"].n) == (1.0, 3)
    assert hops["ratio"].value == pytest.approx(hops["p50_ms"] / dense["p50_ms"])
    assert {"hop_1", "hop_2", "read"} <= hops["stages_ms"].keys()
    assert "hop_2" in report.to_text()

    found = run_ask_benchmark(*given, retrievers=("dense",), read=False, sample=2, top_k=2)
    assert found.figures["dense"]["ratio"].n == 2
    assert "read" not in found.figures["dense"]["stages_ms"]
    with pytest.raises(ConfigError, match="sideways"):
        run_ask_benchmark(*given, retrievers=("sideways",))
