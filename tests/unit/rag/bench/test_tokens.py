"""The benchmark of token vectors on a corpus of a few dozen passages, against one pair at a time."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from indexers.build import build_index
from indexers.passages import PassageStore
from indexers.settings import BuildSettings
from rag.bench.tokens import StoredTokens, exhaustive, run_tokens_benchmark
from rag.core.errors import ConfigError, MissingDependencyError
from rag.core.types import Passage
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.encoders.vectors import max_sim

WORDS = ["danube", "forest", "river", "black", "title", "text", "wrote", "who", "rises", "the"]


class Peer:
    """Searches by brute force, behind what the benchmark uses of PyLate."""

    def __init__(self, *, nbits: int, embedding_size: int = 8, **_: Any) -> None:
        self.size = embedding_size

    def add_documents(self, ids: list[str], vectors: list[np.ndarray]) -> None:
        assert all(own.shape[1] == self.size for own in vectors)
        self.documents = list(zip(ids, vectors, strict=True))

    def __call__(self, asked: list[np.ndarray], k: int) -> list[list[dict[str, Any]]]:
        print("a word that is not the report's")
        scores = [(float((own @ asked[0].T).max(0).sum()), name) for name, own in self.documents]
        return [[{"id": name, "score": score} for score, name in sorted(scores, reverse=True)[:k]]]


def test_figures_and_exhaustive_scores(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = np.random.default_rng(2)
    passages = [Passage(f"p{n}", "title", " ".join(draw.choice(WORDS, 6))) for n in range(50)]
    passages.append(Passage("again", passages[3].title, passages[3].text))
    build_index(passages, tmp_path / "index", settings=BuildSettings(retriever="bm25"), until="passages")
    folder = tmp_path / "model"
    tiny.late_interaction(folder, dim=8)
    lines = [{"question": f"who wrote {word}", "answers": [word]} for word in WORDS[:4]]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, lines)))
    monkeypatch.setitem(sys.modules, "pylate.indexes", SimpleNamespace(PLAID=Peer))
    report = run_tokens_benchmark(
        tmp_path / "index", tmp_path / "q.jsonl", str(folder), bits=(1, 4), nprobes=(2, 512), top_k=10,
        rounds=1, pylate=True, work_dir=tmp_path,
    )  # fmt: skip
    figures = report.figures["4 bits"]
    assert figures["4 bits, nprobe 512"]["overlap"].value > 0.8
    assert figures["4 bits, nprobe 512"]["of_exhaustive"] == 1.0
    assert figures["bytes_a_token"] > report.figures["1 bits"]["bytes_a_token"]
    assert "of the best 10" in report.to_text()
    assert report.figures["1 bits, PyLate"]["1 bits, PyLate"]["overlap"].value > 0.95
    assert not capsys.readouterr().out

    store, encoder = PassageStore.open(tmp_path / "index/passages"), BiEncoder.load(folder)
    stored = StoredTokens.encode(store, encoder, tmp_path / "v")
    again = stored.passage_tokens([passages[3].title], [passages[3].text])
    own = stored.values[stored.starts[3] : stored.starts[4]]
    np.testing.assert_array_equal(again.values, own.astype(np.float32))
    asked = encoder.question_tokens(["who wrote", "the black river"])
    found = encoder.passage_tokens([p.title for p in passages], [p.text for p in passages])
    assert asked.lengths is not None
    got = exhaustive(stored, asked.values.numpy(), asked.lengths.numpy())
    np.testing.assert_allclose(got, max_sim(asked, found).numpy(), atol=0.02)

    monkeypatch.setitem(sys.modules, "pylate.indexes", None)
    monkeypatch.setattr(StoredTokens, "encode", None)  # refused before anything is encoded
    with pytest.raises(MissingDependencyError, match="PyLate"):
        run_tokens_benchmark(tmp_path / "index", tmp_path / "q.jsonl", str(folder), bits=(1,), pylate=True)
    with pytest.raises(ConfigError, match="3 bits per number"):
        run_tokens_benchmark(tmp_path / "index", tmp_path / "q.jsonl", str(folder), bits=(1, 3))
