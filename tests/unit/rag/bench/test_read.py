"""The benchmark of reading: what it counts, by effort, and that a missing peer is named."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

import rag
from rag.bench import read
from rag.bench.read import run_read_benchmark
from rag.core.errors import ConfigError, MissingDependencyError

FACTS = {"Danube": "Black Forest", "Rhine": "Swiss Alps", "Elbe": "Giant Mountains"}


def test_efforts_are_compared_on_the_same_questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passages = [f"The {river} rises in the {place}. It flows far." for river, place in FACTS.items()]
    rag.Pipeline.from_texts(passages * 4, out=tmp_path / "index", reader=False).close()
    lines = [
        {"question": f"Where does the {river} rise?", "answers": [place]} for river, place in FACTS.items()
    ]
    lines[2]["answers"] = ["somewhere else"]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, lines)))
    given = tmp_path / "index", tmp_path / "q.jsonl"
    report = run_read_benchmark(*given, efforts=("full", "low"), sample=3, top_k=8, batch_size=2)
    full, low = report.figures["full"], report.figures["low"]
    assert full["em"].value == low["em"].value == pytest.approx(2 / 3)
    assert full["token_layers"] == full["faster"].value == 1.0
    assert 0 < low["token_layers"] < 0.6
    assert low["ms"] > 0
    assert low["batched_ms"] > 0
    assert "token-layers" in report.to_text()

    given_numbers = {"sample": 3, "top_k": 8, "batch_size": 1, "precision": ("fp32", "auto")}
    report = run_read_benchmark(*given, efforts=("low",), **given_numbers)
    assert list(report.figures) == ["low, fp32", "low, auto"]
    assert report.figures["low, fp32"]["cpu_share"].value == 1.0
    assert report.figures["low, auto"]["cpu_p50_s"].value > 0

    monkeypatch.setattr(read, "_haystack", lambda *_: lambda asked, _: [("Swiss Alps", None)] * len(asked))
    report = run_read_benchmark(*given, efforts=("full",), sample=3, top_k=8, batch_size=1, haystack=True)
    full, peer = report.figures["full"], report.figures["Haystack"]
    assert full["batched_ms"] is None
    assert full["em_gain"].value == pytest.approx(1 / 3)
    assert peer["em"].value == pytest.approx(1 / 3)
    assert peer["faster"].value > 1
    assert full["faster_than_haystack"].value * peer["faster"].value == pytest.approx(1)
    monkeypatch.undo()

    with pytest.raises(ConfigError, match="frantic"):
        run_read_benchmark(*given, efforts=("frantic",), sample=1)
    if find_spec("haystack") is None:
        with pytest.raises(MissingDependencyError, match="haystack"):
            run_read_benchmark(*given, efforts=("full",), sample=1, haystack=True)
