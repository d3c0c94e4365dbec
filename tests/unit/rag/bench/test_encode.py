import json

import pytest

from rag.bench.encode import run_encode_benchmark
from rag.core.errors import ConfigError, DataError
from rag.runtime.hardware import has_bf16


@pytest.fixture
def corpus(tmp_path):
    lines = [{"id": str(n), "title": "Danube", "text": "the river rises " * (n % 5 + 1)} for n in range(24)]
    path = tmp_path / "corpus.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def test_it_times_all_and_compares_the_vectors(tiny, tmp_path, corpus):
    folder = tiny.sentence_transformer(tmp_path)
    report = run_encode_benchmark([corpus], n=20, split="none", encoder=str(folder), batch_size=4, rounds=2)
    speeds, text = report.figures["passages_per_s"], report.to_text()
    assert "at most 4 texts per batch and 24 tokens per text" in text
    if has_bf16():
        assert set(speeds) == {"ours bf16", "ours fp32", "peer bf16", "peer fp32"}
        assert report.figures["ours bf16 / peer fp32"]["value"] > 0
    else:
        assert set(speeds) == {"ours fp32", "peer fp32"}
        assert "fp32 alone was measured" in text
    json.dumps(report.to_json())


def test_a_part_of_the_contestants(tiny, tmp_path, corpus):
    folder = tiny.sentence_transformer(tmp_path)
    report = run_encode_benchmark(
        [corpus], n=9, split="none", encoder=str(folder), rounds=1, contestants=("ours fp32", "peer fp32")
    )
    assert [len(row) for row in report.tables[0].rows] == [3, 3]


def test_unknown_contestants_and_empty_corpora(tmp_path, corpus):
    with pytest.raises(ConfigError, match="ours int8"):
        run_encode_benchmark([corpus], contestants=("ours int8",))
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(DataError):
        run_encode_benchmark([tmp_path / "empty.jsonl"])
