"""ANCE's trainer, its refresher, and the process that is both may be killed and started again."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexers.build import build_index
from indexers.protocols import EncoderIdentity
from indexers.settings import BuildSettings
from rag.core.arrays import Float32
from rag.core.manifest import verify_files
from rag.core.types import Passage
from rag.data.examples import Example, write_examples
from rag.training.checkpoints import latest_checkpoint
from rag.training.refresh.generations import Generations
from retrievers.training.ance import train_ance
from retrievers.training.ance_refresher import read_negatives
from retrievers.training.config import AnceTrainConfig

STEPS = 12
_CODE = """
import logging, sys
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
from rag.config import load_config
from retrievers.training.ance import refresh_negatives, train_ance
from retrievers.training.config import AnceTrainConfig
config = load_config(AnceTrainConfig, sys.argv[1])
if len(sys.argv) > 3:  # saved every so many steps, whatever time that takes
    import rag.training.fit
    class Clock:
        now = 0.0
        def monotonic(self):
            self.now += 1.0
            return self.now
    rag.training.fit.time = Clock()
    config = config.model_copy(update={"save_every_s": float(sys.argv[3])})
refresh_negatives(config) if sys.argv[2] == "refresher" else train_ance(config, role=sys.argv[2])
"""


class _Blind:
    dim = 4
    identity = EncoderIdentity("blind", "0", dim=4)

    def encode_passages(self, titles: Sequence[str], texts: Sequence[str]) -> Float32:
        return np.ones((len(texts), 4), np.float32)


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> dict[str, Any]:
    """Training file, index and model of a tiny run."""
    place = tmp_path_factory.mktemp("material")
    passages = [
        Passage(f"p{n}", "title", f"the river {chr(97 + n % 26)} {chr(97 + n // 3)}") for n in range(60)
    ]
    examples = [
        Example.labelled(f"q{n}", f"who wrote {p.text[-3:]}", (), (p,), (passages[n - 1],))
        for n, p in enumerate(passages)
    ]
    write_examples(place / "train.json", examples)
    build_index(passages, place / "index", encoder=_Blind(), settings=BuildSettings(probes=2))
    return {
        "train_files": [str(place / "train.json")], "index": str(place / "index"),
        "question_encoder": str(tiny_bert), "pooling": "mean", "normalize": True, "precision": "fp32",
        "question_tokens": 8, "passage_tokens": 8, "batch_size": 4, "dropout": 0.1, "threads": 1,
        "log_every_steps": 1, "save_every_s": 1e-6, "validation_fraction": 0.0, "learning_rate": 1e-3,
        "max_steps": STEPS, "depth": 20, "kept": 5, "probe_questions": 10, "probe_passages": 10,
        "poll_s": 0.02, "poll_every_steps": 2, "refresh": "every 4",
    }  # fmt: skip


def start(
    out: Path, material: dict[str, Any], role: str, save_every: int | None = None
) -> subprocess.Popen[str]:
    """The role in a process of its own, its log on stdout; it saves at every step, or every so many."""
    config = out.parent / f"{out.name}.json"
    config.write_text(json.dumps({**material, "out": str(out)}))
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-u", "-c", _CODE, str(config), role, *([str(save_every)] if save_every else [])],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, env=environment, text=True,
    )  # fmt: skip


def kill_when(process: subprocess.Popen[str], told: Callable[[str], bool]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if told(line):
            break
    process.kill()
    process.wait(timeout=60)
    process.stdout.close()


def losses(out: Path) -> list[tuple[Any, ...]]:
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return [(r["step"], r["loss"], r["index_version"], r["index_age_steps"]) for r in map(json.loads, lines)]


@pytest.fixture(scope="module")
def undisturbed(material: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    train_ance(AnceTrainConfig(out=out, **material))
    return out


def test_one_process_killed_twice_takes_the_same_steps(
    tmp_path: Path, material: dict[str, Any], undisturbed: Path
) -> None:
    out = tmp_path / "run"
    kill_when(start(out, material, "both"), lambda line: "snapshot" in line)  # before it has mined
    assert not (out / "metrics.jsonl").exists() or losses(out) == []
    kill_when(start(out, material, "both"), lambda line: "step 9/" in line)
    assert not (out / "encoder").exists()
    train_ance(AnceTrainConfig(out=out, **material))
    assert losses(out) == losses(undisturbed)
    weights = "encoder/model.safetensors"
    assert (out / weights).read_bytes() == (undisturbed / weights).read_bytes()


def test_several_refreshes_after_a_save_change_nothing(tmp_path: Path, material: dict[str, Any]) -> None:
    """What the last checkpoint was trained with is still there, and later negatives are left alone."""
    often = {**material, "refresh": "every 2", "keep_generations": 1}
    train_ance(AnceTrainConfig(out=tmp_path / "whole", **often))
    process = start(tmp_path / "run", often, "both", save_every=4)
    kill_when(process, lambda line: "step 10/" in line)
    train_ance(AnceTrainConfig(out=tmp_path / "run", **often))
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")


def test_trainer_and_refresher_are_killed_in_turn(tmp_path: Path, material: dict[str, Any]) -> None:
    out = tmp_path / "run"
    slow = {**material, "max_steps": 10, "refresh": "every 2"}
    miner = start(out, slow, "refresher")
    kill_when(start(out, slow, "trainer"), lambda line: "step 3/" in line)
    deadline = time.monotonic() + 120
    while Generations(out / "negatives").newest() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    miner.kill()  # anywhere: it is mining, publishing or asleep
    miner.wait(timeout=60)
    checkpoint = latest_checkpoint(out / "checkpoints")
    assert checkpoint is not None
    assert checkpoint.state["step"] >= 2
    miner, trainer = start(out, slow, "refresher"), start(out, slow, "trainer")
    assert trainer.wait(timeout=200) == 0
    assert miner.wait(timeout=100) == 0
    assert (out / "encoder" / "modules.json").exists()
    told = losses(out)
    assert [step for step, *_ in told] == list(range(1, 11))
    assert told[-1][2] != "file"
    newest = Generations(out / "negatives").newest()
    assert newest is not None
    verify_files(newest.path, newest.files, deep=True)
    mined = read_negatives(newest, examples=60, key=newest.meta["key"])
    assert (mined.lengths > 0).all()
