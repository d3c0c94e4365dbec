import json

from rag.bench.encode import run_encode_benchmark
from rag.runtime.hardware import precisions


def test_it_times_all_beside_each_other(tiny, tmp_path):
    folder = tiny.sentence_transformer(tmp_path)
    lines = [
        json.dumps({"id": str(n), "title": "Danube", "text": "the river rises " * (n % 5 + 1)})
        for n in range(24)
    ]
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("\n".join(lines))
    report = run_encode_benchmark(
        [corpus], n=20, split="none", encoder=str(folder), batch_size=4, rounds=2
    )
    expected = ["ours fp32", "peer fp32"]
    if "bf16" in precisions():
        expected = ["ours bf16", "ours fp32", "peer bf16", "peer fp32"]
    assert list(report.rows) == expected
    assert report.rows["peer fp32"]["× peer fp32"].value == 1
    assert "at most 4 texts per batch and 24 tokens per text for all" in report.notes
