import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexers.protocols import EncoderIdentity
from rag.bench.overhead import run_overhead_benchmark
from rag.core.errors import ConfigError, DataError


class HashEncoder:
    dim = 8
    identity = EncoderIdentity("hash", "", dim=8)

    def encode_passages(self, titles: Sequence[str], texts: Sequence[str]) -> Any:
        digests = [hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts]
        return np.array([list(digest) for digest in digests], dtype=np.float32)


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("retrievers.encoders.bi_encoder.BiEncoder.load", lambda *_, **__: HashEncoder())
    path = tmp_path / "corpus.jsonl"
    records = [{"id": str(n), "title": "", "text": f"text number {n}"} for n in range(30)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_building_and_encoding_take_turns_over_the_same_passages(corpus: Path, tmp_path: Path) -> None:
    report = run_overhead_benchmark([corpus], n=20, split="none", rounds=2, work_dir=tmp_path)
    assert report.settings["passages"] == 20
    assert report.figures["ratio"].n == 2
    assert report.figures["build"]["median_s"] > report.figures["encode"]["median_s"]
    assert not list(tmp_path.glob("rag-overhead-*"))
    report.to_json()


def test_nothing_to_encode_is_refused(corpus: Path) -> None:
    with pytest.raises(ConfigError, match="nothing to encode"):
        run_overhead_benchmark([corpus], retriever="bm25")
    with pytest.raises(DataError):
        run_overhead_benchmark([corpus.parent / "missing.jsonl"])
