import json
import sys
from pathlib import Path

import pytest

from rag.core.errors import ResourceError
from tests.recovery.index_killer import Survival, byte_differences, finished_shards, kill_and_resume


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


INDEXER = """
import json, pathlib, sys, time
out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
shards = out / "embeddings"
shards.mkdir(parents=True, exist_ok=True)
(shards / "embeddings.json").write_text("{}")
ledger = shards / "ledger.jsonl"
done = len(ledger.read_text().splitlines()) if ledger.exists() else 0
for number in range(CAREFUL * done, 4):
    time.sleep(0.2)
    (shards / f"shard-{number:05d}.npy").write_bytes(bytes([number]) * 100)
    if number >= done:
        with ledger.open("a") as file:
            file.write(json.dumps({"shard": number}) + "\\n")
(out / "manifest.json").write_text("{}")
"""


def test_a_careful_indexer_survives_and_one_that_starts_over_is_found_out(tmp_path: Path) -> None:
    kills = {}
    for careful in (1, 0):
        script = tmp_path / f"indexer{careful}.py"
        script.write_text(INDEXER.replace("CAREFUL", str(careful)))
        place = tmp_path / f"place{careful}"
        place.mkdir()
        program = (sys.executable, str(script))
        kills[careful] = list(kill_and_resume(["corpus"], place, times=2, program=program))
    assert [kill.is_sound for kill in kills[1]] == [True, True]
    assert max(kill.redone for kill in kills[0]) > 1


def test_a_failing_indexer_is_reported_with_its_log(tmp_path: Path) -> None:
    script = tmp_path / "failing.py"
    script.write_text("raise SystemExit('the corpus is empty')")
    with pytest.raises(ResourceError, match="the corpus is empty"):
        list(kill_and_resume(["corpus"], tmp_path, times=1, program=(sys.executable, str(script))))
