"""`rag mine` killed with SIGKILL at any moment: no half result, and the same bytes when it is run again."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from indexers.build import build_index
from indexers.settings import BuildSettings
from rag.core.types import Passage
from retrievers.negatives import mine as module
from retrievers.negatives.mine import mine
from retrievers.negatives.settings import MiningSettings

SETTINGS = MiningSettings(per_question=4, pick="random", last_rank=12)
BLOCK = 5

WORKER = """
import sys, time
from pathlib import Path
from retrievers.negatives import mine as module
from retrievers.negatives.settings import MiningSettings
module.BLOCK_QUESTIONS = {block}
real = module.mine_block
def slow(*args, **kwargs):
    time.sleep(0.1)
    return real(*args, **kwargs)
module.mine_block = slow
print("ready", flush=True)
settings = MiningSettings(per_question=4, pick="random", last_rank=12)
module.mine({index!r}, {questions!r}, {out!r}, settings)
"""


@pytest.mark.parametrize("seed", [1, 2])
def test_killed_runs_end_in_equal_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    index, questions = tmp_path / "index", tmp_path / "questions.jsonl"
    passages = [Passage(f"p{n}", f"Title {n % 7}", f"word{n} river {n % 5} town {n}") for n in range(60)]
    build_index(passages, index, settings=BuildSettings(retriever="bm25"))
    rows = [
        {"question": f"river {n % 5} word{n}", "answers": [f"town {n}"], "gold_passage_ids": [f"p{n}"]}
        for n in range(60)
    ]
    questions.write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.setattr(module, "BLOCK_QUESTIONS", BLOCK)
    mine(index, questions, tmp_path / "whole.json", SETTINGS)

    out, blocks = tmp_path / "out.json", tmp_path / "out.json.mining"
    code = WORKER.format(block=BLOCK, index=str(index), questions=str(questions), out=str(out))
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    deadline = time.monotonic() + 120
    while not list(blocks.glob("block-*.counts.json")) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(random.Random(seed).uniform(0, 0.6))
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert not out.exists()
    assert list(blocks.glob("block-*.counts.json"))

    mine(index, questions, out, SETTINGS)
    assert out.read_bytes() == (tmp_path / "whole.json").read_bytes()
    assert not blocks.exists()
    ours, theirs = (
        json.loads(Path(f"{path}.report.json").read_text()) for path in (out, tmp_path / "whole.json")
    )
    assert ours == theirs
