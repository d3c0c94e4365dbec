"""`rag train dpr` learns, its encoder is what was validated, and errors are said."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rag.core.errors import DataError, RagError
from rag.core.files import read_json
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.examples.data import split_examples
from retrievers.training.config import DprTrainConfig
from retrievers.training.validation import pool_rank
from tests.support.messages import refusal
from tests.support.training import falls, named, records
from tests.unit.retrievers.conftest import TINY, mrr_of

_SMALL: dict[str, Any] = {**TINY, "batch_size": 32, "learning_rate": 3e-3}


@pytest.mark.parametrize(
    "settings",
    [
        {
            "shared": False,
            "pooling": "cls",
            "normalize": False,
            "layout": "pair",
        },  # DPR's own shape
        {
            "shared": False,
            "pooling": "mean",
            "normalize": True,
            "projection_dim": 16,
            "chunk_size": 16,
        },
        {"shared": True, "pooling": "mean", "normalize": True},
    ],
)
def test_the_loss_falls_and_retrieval_rises(
    tmp_path: Path, tiny_bert: Path, cipher_file: Callable[..., Path], settings: dict[str, Any]
) -> None:
    train = cipher_file(240)
    config = DprTrainConfig(
        out=tmp_path / "run",
        train_files=(train,),
        question_encoder=str(tiny_bert),
        epochs=10,
        validate_every_steps=40,
        select_by="nll",
        **{**_SMALL, **settings},
    )
    finished = config.train_model()
    assert finished == tmp_path / "run" / "encoder"
    assert falls(config.out, 0.5, over=5)
    held_out = split_examples(config, config.out / "data").held_out
    before = mrr_of(tiny_bert, held_out, pooling="mean")
    assert before < 25
    assert mrr_of(finished, held_out) > before + 30
    encoder = BiEncoder.load(finished, precision="fp32")

    figures = read_json(config.out / "figures.json")
    best = min((r["eval/nll"], r["step"]) for r in records(config.out, "eval/nll"))
    assert (figures["figures"]["nll"], figures["step"]) == best
    assert figures["figures"]["average_rank"] == pytest.approx(
        pool_rank(held_out, encoder.encode_queries, encoder.encode_passages), abs=0.2
    )
    assert "--encoder FOLDER " in named(finished, "dpr")  # and not the name of a preset
    assert (finished / "passage_encoder" / "modules.json").exists() != config.shared
    assert (finished / "modules.json").exists() == config.shared


WRONG = {
    "loss that is not finite": ({"learning_rate": 1e30}, RagError),
    "absent training file": ({"train_files": (Path("nowhere.json"),)}, DataError),
    "absent encoder": ({"question_encoder": "./nowhere"}, RagError),
}


@pytest.mark.parametrize(("settings", "error"), WRONG.values(), ids=WRONG)
def test_wrong_inputs_are_said(
    tmp_path: Path,
    tiny_bert: Path,
    cipher_file: Callable[..., Path],
    settings: dict[str, Any],
    error: type[Exception],
) -> None:
    given = {
        "out": tmp_path / "run",
        "train_files": (cipher_file(60),),
        "question_encoder": str(tiny_bert),
        "max_steps": 3,
        **_SMALL,
        "batch_size": 8,
        **settings,
    }
    with refusal(error):
        DprTrainConfig(**given).train_model()
