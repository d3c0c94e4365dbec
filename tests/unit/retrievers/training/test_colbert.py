"""`train_colbert` learns; a start that no index takes is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexers.build import build_index
from indexers.settings import BuildSettings
from rag.config import load_config
from rag.core.errors import ConfigError
from rag.core.types import Passage
from rag.training.run_log import read_metrics
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.training.colbert import ColbertTrainConfig, train_colbert
from tests.unit.retrievers.conftest import cipher_examples


def config(out: Path, train: Path, encoder: Path, **settings: Any) -> ColbertTrainConfig:
    return load_config(
        ColbertTrainConfig,
        overrides={
            "out": out, "train_files": [train], "question_encoder": str(encoder),
            "projection_dim": 32, "temperature": 0.2, "question_tokens": 12, "passage_tokens": 16,
            "batch_size": 32, "precision": "fp32", "learning_rate": 3e-3, "dropout": 0.0, "threads": 1,
            "log_every_steps": 1, "validation_fraction": 0.2, **settings,
        },
    )  # fmt: skip


def test_the_loss_falls_and_retrieval_rises(
    tmp_path: Path, tiny_bert: Path, cipher_file: Callable[..., Path]
) -> None:
    train = cipher_file(200)
    passages = [example.positives[0] for example in cipher_examples(200, negatives=0)]
    build_index(passages, tmp_path / "index", encoder=BiEncoder.load(tiny_bert, pooling="mean"))
    chosen = config(
        tmp_path / "run", train, tiny_bert, index=tmp_path / "index", validate_every_steps=1000, epochs=24
    )
    finished = train_colbert(chosen)
    records = list(read_metrics(chosen.out / "metrics.jsonl"))
    losses = [record["loss"] for record in records if "loss" in record]
    assert np.mean(losses[-4:]) < 0.7 * np.mean(losses[:4])
    untrained = train_colbert(config(tmp_path / "no", train, tiny_bert, index=tmp_path / "index",
                                     max_steps=1, learning_rate=1e-9)).parent  # fmt: skip
    before = next(r["eval/mrr"] for r in read_metrics(untrained / "metrics.jsonl") if "eval/mrr" in r)
    after = [record["eval/mrr"] for record in records if "eval/mrr" in record][-1]
    assert after > before + 15
    encoder = BiEncoder.load(finished)
    assert (encoder.identity.similarity, encoder.dim) == ("maxsim", 32)
    card = (finished / "README.md").read_text()
    assert "late interaction" in card
    assert "library_name: sentence-transformers" in card


def test_a_start_that_no_index_takes_is_refused_and_trained_with_unit_vectors(
    tmp_path: Path, tiny: Any, cipher_file: Callable[..., Path]
) -> None:
    tiny.late_interaction(tmp_path / "start")
    path = tmp_path / "start" / "config_sentence_transformers.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "normalize": False}))
    given = {"projection_dim": 0, "max_steps": 1, "validation_fraction": 0.0}
    with pytest.raises(ConfigError, match="needs unit vectors"):
        train_colbert(config(tmp_path / "a", cipher_file(40), tmp_path / "start", **given))
    assert not (tmp_path / "a").exists()
    unit = config(tmp_path / "b", cipher_file(40), tmp_path / "start", normalize=True, **given)
    encoder = BiEncoder.load(train_colbert(unit), precision="fp32")
    build_index([Passage("1", "", "the river"), Passage("2", "", "title text")], tmp_path / "index",
                encoder=encoder, settings=BuildSettings(index_type="plaid", probes=2))  # fmt: skip
