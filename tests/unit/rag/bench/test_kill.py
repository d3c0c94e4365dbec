import json
from pathlib import Path

from rag.bench.differences import byte_differences, finished_shards
from rag.bench.kill import Survival


def index(directory: Path, *, lucene: bytes = b"lucene", vectors: bytes = b"1") -> Path:
    (directory / "embeddings").mkdir(parents=True)
    (directory / "bm25").mkdir()
    (directory / "bm25" / "segments_1").write_bytes(lucene)
    (directory / "embeddings" / "shard-00000.npy").write_bytes(vectors)
    (directory / "embeddings" / "ledger.jsonl").write_text('{"shard": 0}\n{"shard": 1}\n{"sha')
    files = {"embeddings/shard-00000.npy": {"sha256": "a"}, "bm25/segments_1": {"sha256": lucene.hex()}}
    (directory / "manifest.json").write_text(json.dumps({"kind": "index", "files": files}))
    (directory / ".lock").write_bytes(b"")
    return directory


def test_lucene_may_differ_and_nothing_else(tmp_path: Path) -> None:
    reference = index(tmp_path / "a")
    assert byte_differences(index(tmp_path / "b", lucene=b"other"), reference) == []
    assert byte_differences(index(tmp_path / "c", vectors=b"2"), reference) == ["embeddings/shard-00000.npy"]
    extra = index(tmp_path / "d")
    (extra / "left.partial-1").write_bytes(b"")
    (extra / "embeddings" / "ledger.jsonl").unlink()
    assert byte_differences(extra, reference) == ["embeddings/ledger.jsonl", "left.partial-1"]


def test_finished_shards_are_those_in_whole_lines_of_the_ledger(tmp_path: Path) -> None:
    directory = index(tmp_path / "a")
    before = finished_shards(directory)
    assert list(before) == ["shard-00000.npy"]
    path = directory / "embeddings" / "shard-00000.npy"
    path.rename(path.with_suffix(".old"))
    path.write_bytes(b"1")
    assert finished_shards(directory) != before


def test_a_run_is_sound_if_one_shard_at_most_was_made_twice() -> None:
    assert Survival(1.0, finished=3, in_flight=1).is_sound
    assert not Survival(1.0, finished=3, in_flight=1, rewritten=1).is_sound
    assert not Survival(1.0, differences=["manifest.json"]).is_sound
    assert not Survival(1.0, looked_complete=True).is_sound
    assert not Survival(1.0, bm25_differs=True).is_sound
