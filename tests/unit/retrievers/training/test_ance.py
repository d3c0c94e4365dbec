"""`train_ance` learns from what it mines itself, in one process and in two, and says what cannot work."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexers.build import build_index
from indexers.protocols import EncoderIdentity
from indexers.settings import BuildSettings
from rag.core.arrays import Float32
from rag.core.errors import ConfigError
from rag.core.types import Passage
from retrievers.examples.data import split_examples
from retrievers.training.ance import AnceTrainConfig, train_ance
from retrievers.training.dpr import DprTrainConfig, train_dpr
from tests.unit.retrievers.conftest import mrr_of

_SMALL: dict[str, Any] = {
    "precision": "fp32", "question_tokens": 16, "passage_tokens": 16, "batch_size": 32, "dropout": 0.0,
    "threads": 1, "log_every_steps": 10, "validation_fraction": 0.2,
}  # fmt: skip
_MINING: dict[str, Any] = {"depth": 50, "kept": 10}


class _Blind:
    """Only the passages of the index are used."""

    dim = 4
    identity = EncoderIdentity("blind", "0", dim=4)

    def encode_passages(self, titles: Sequence[str], texts: Sequence[str]) -> Float32:
        return np.ones((len(texts), 4), np.float32)


def make_index(train: Path, out: Path) -> Path:
    passages = [example["positive_ctxs"][0] for example in json.loads(train.read_text())]
    store = [Passage(p["passage_id"], p["title"], p["text"]) for p in passages]
    return build_index(store, out, encoder=_Blind(), settings=BuildSettings(probes=2))


def records(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def mrr(config: AnceTrainConfig, encoder: str | Path) -> float:
    split = split_examples(config, config.out / "data")
    return mrr_of(Path(encoder), split.held_out, split.training)


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> tuple[Path, Path, Path]:
    """(training file, index, encoder trained a little with in-batch negatives)."""
    from rag.data.examples import write_examples
    from tests.unit.retrievers.conftest import cipher_examples

    place = tmp_path_factory.mktemp("warm")
    write_examples(place / "train.json", cipher_examples(400))
    config = DprTrainConfig(
        out=place / "run", train_files=(place / "train.json",), question_encoder=str(tiny_bert), epochs=8,
        hard_negatives=0, learning_rate=3e-3, pooling="mean", normalize=True, **_SMALL,
    )  # fmt: skip
    return place / "train.json", make_index(place / "train.json", place / "index"), train_dpr(config)


def ance(out: Path, warm: tuple[Path, Path, Path], **settings: Any) -> AnceTrainConfig:
    given = {
        "out": out, "train_files": (warm[0],), "index": warm[1], "question_encoder": str(warm[2]), **_SMALL,
        **_MINING, **settings,
    }  # fmt: skip
    return AnceTrainConfig(**given)


def test_mined_negatives_make_retrieval_rise(tmp_path: Path, warm: tuple[Path, Path, Path]) -> None:
    settings = {"loss": "in_batch", "hard_negatives": 2, "learning_rate": 2e-3, "epochs": 10}
    config = ance(tmp_path / "run", warm, refresh_every_steps=30, **settings)
    finished = train_ance(config)
    assert mrr(config, finished) > mrr(config, warm[2]) + 5
    told = [record for record in records(config.out) if "loss" in record]
    ages = [(record["step"], record["index_age_steps"]) for record in told]
    assert ages[:4] == [(10, 10), (20, 20), (30, 30), (40, 10)]
    assert len({record["index_version"] for record in told}) == 3
    card = (finished / "README.md").read_text()
    assert "rag train ance" in card
    assert str(tmp_path) not in card


def test_the_models_own_negatives_beat_the_files_under_the_published_loss(
    tmp_path: Path, warm: tuple[Path, Path, Path]
) -> None:
    settings = {"loss": "pairwise", "hard_negatives": 2, "learning_rate": 1e-3, "epochs": 10}
    with_mined = ance(tmp_path / "mined", warm, refresh_every_steps=30, **settings)
    with_files = ance(tmp_path / "file", warm, refresh_every_steps=0, **settings)
    reached = [mrr(config, train_ance(config)) for config in (with_mined, with_files)]
    assert reached[0] > reached[1] + 5
    assert {r["index_version"] for r in records(with_files.out) if "loss" in r} == {"file"}


def test_no_negatives_at_all_is_said(
    tmp_path: Path, warm: tuple[Path, Path, Path], cipher_file: Callable[..., Path]
) -> None:
    bare = cipher_file(60, negatives=0)
    config = ance(tmp_path / "run", warm, refresh_every_steps=0).replaced(train_files=(bare,))
    with pytest.raises(ConfigError, match="refresh_every_steps is 0"):
        train_ance(config)
