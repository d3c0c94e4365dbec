"""`rag train` under torchrun with two processes takes the steps that one process takes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from rag.core.types import Passage
from rag.data.examples import Example, write_examples
from rag.training.run_log import read_metrics


def _run(
    tmp_path: Path, name: str, encoder: Path, processes: int, recipe: str
) -> tuple[list[dict[str, Any]], Path]:
    words = [f"{a}{b}" for a in "abcdefgh" for b in "ijklmn"]
    passages = [Passage(str(n), "title", f"the river {word} rises") for n, word in enumerate(words)]
    train = tmp_path / "train.json"
    write_examples(
        train,
        (
            Example.labelled(str(n), f"who wrote {word}", (), (passages[n],), (passages[n - 1],))
            for n, word in enumerate(words)
        ),
    )
    out = tmp_path / name
    if recipe == "mdr":
        records = [
            {
                "id": str(n),
                "question": f"who wrote {passage.text}",
                "gold_titles": [f"x{n}", f"y{n}"],
                "context": [[f"x{n}", [passage.text]], [f"y{n}", [f"the river {words[n - 1]}"]]],
            }
            for n, passage in enumerate(passages)
        ]
        train.write_text(json.dumps(records))
    settings = {
        "question_tokens": 16,
        "passage_tokens": 16,
        "batch_size": 9,
        "max_steps": 4,
        "dropout": 0.1,
        "precision": "fp32",
        "log_every_steps": 1,
        "validation_fraction": 0.2,
        "threads": 1,
        "chunk_size": 1,
    }
    if recipe == "mdr":
        settings |= {"query_tokens": 24}
    arguments = ["train", recipe, "--train", str(train), "--out", str(out), "--from", str(encoder)]
    arguments += [f"--set={key}={value}" for key, value in settings.items()]
    start = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={processes}",
    ]
    done = subprocess.run(
        [*start, "-m", "rag.cli.main", *arguments, "--debug"],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("encoder → ") == 1
    return read_metrics(out / "metrics.jsonl"), out / "encoder"


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["dpr", "mdr"])
def test_two_processes_train_as_one(tmp_path: Path, tiny_bert: Path, recipe: str) -> None:
    (one, encoder), (two, other) = (_run(tmp_path, str(n), tiny_bert, n, recipe) for n in (1, 2))
    assert len(one) == len(two) == 5
    for a, b in zip(one, two, strict=True):
        assert a.keys() == b.keys()
        for key in a.keys() & {"loss", "norm", "eval/nll", "examples", "tokens"}:
            assert a[key] == pytest.approx(b[key], rel=1e-4), key
    weights, others = (
        load_file(encoder / "model.safetensors"),
        load_file(other / "model.safetensors"),
    )
    assert weights.keys() == others.keys()
    for name, tensor in weights.items():
        np.testing.assert_allclose(tensor, others[name], atol=2e-5, err_msg=name)
