"""`rag train ict` killed in the middle and started again: the same losses, the same encoder."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from retrievers.training.ict import IctBatches, IctTrainConfig, train_ict
from tests.recovery.test_dpr_kill import _losses
from tests.unit.retrievers.training.test_ict import write_corpus
from tests.worlds import start_process


def _train(config: IctTrainConfig, kill_at: int) -> None:
    get = IctBatches.__getitem__

    def deadly(batches: IctBatches, step: int) -> Any:
        if step == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return get(batches, step)

    IctBatches.__getitem__ = deadly  # type: ignore[method-assign]
    train_ict(config)


def test_kill_and_resume_change_nothing(tmp_path: Path, tiny_bert: Path) -> None:
    texts = [f"Who wrote {a} in {b} rises. The river {b} in {a} text." for a in "abcdef" for b in "ghij"]
    common: dict[str, Any] = {
        "train_files": (write_corpus(tmp_path / "corpus.jsonl", texts),), "question_encoder": str(tiny_bert),
        "question_tokens": 16, "passage_tokens": 16, "batch_size": 8, "chunk_size": 3, "dropout": 0.1,
        "max_steps": 6, "epochs": 9, "precision": "fp32", "log_every_steps": 1, "save_every_s": 1e-9,
        "validation_fraction": 0.2, "threads": 1, "split": "none", "reset_layers": 1,
    }  # fmt: skip
    train_ict(IctTrainConfig(out=tmp_path / "whole", **common))
    killed = IctTrainConfig(out=tmp_path / "killed", **common)
    child = start_process(_train, killed, 4)
    child.join()
    assert child.exitcode == -signal.SIGKILL
    train_ict(killed)
    assert _losses(killed.out) == _losses(tmp_path / "whole")
    model = "encoder/model.safetensors"
    assert (killed.out / model).read_bytes() == (tmp_path / "whole" / model).read_bytes()
