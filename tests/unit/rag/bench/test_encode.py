import json

import pytest

from rag.bench.encode import run_encode_benchmark
from rag.runtime.hardware import precisions


@pytest.fixture
def corpus(tmp_path):
    lines = [
        {"id": str(n), "title": "Danube", "text": "the river rises " * (n % 5 + 1)}
        for n in range(24)
    ]
    path = tmp_path / "corpus.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def test_it_times_all_and_compares_the_vectors(tiny, tmp_path, corpus):
    folder = tiny.sentence_transformer(tmp_path)
    report = run_encode_benchmark(
        [corpus], n=20, split="none", encoder=str(folder), batch_size=4, rounds=2
    )
    speeds, text = report.figures["passages_per_s"], report.to_text()
    assert "at most 4 texts per batch and 24 tokens per text" in text
    if "bf16" in precisions():
        assert set(speeds) == {"ours bf16", "ours fp32", "peer bf16", "peer fp32"}
        assert report.figures["ours bf16 / peer fp32"]["value"] > 0
    else:
        assert set(speeds) == {"ours fp32", "peer fp32"}
        assert "fp32 alone was measured" in text
    report.write(tmp_path / "out.json")
