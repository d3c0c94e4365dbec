"""`rag train colbert` learns; a start that no index takes is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from indexers.index_writer import write_index
from indexers.settings import BuildSettings
from rag.config import load_config
from rag.core.types import Passage
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.examples.data import split_examples
from retrievers.training.config import ColbertTrainConfig
from tests.support.files import change_json
from tests.support.training import falls, named
from tests.unit.retrievers.conftest import TINY, mrr_of


def config(out: Path, train: Path, encoder: Path, **settings: Any) -> ColbertTrainConfig:
    return load_config(
        ColbertTrainConfig,
        overrides={
            "out": out,
            "train_files": [train],
            "question_encoder": str(encoder),
            "projection_dim": 32,
            "temperature": 0.2,
            "batch_size": 32,
            "learning_rate": 3e-3,
            **TINY,
            "question_tokens": 12,
            **settings,
        },
    )


def test_the_loss_falls_and_retrieval_rises(
    tmp_path: Path, tiny_bert: Path, cipher_file: Callable[..., Path]
) -> None:
    train = cipher_file(200)
    chosen = config(tmp_path / "run", train, tiny_bert, validate_every_steps=1000, epochs=24)
    finished = chosen.train_model()
    assert falls(chosen.out, 0.7, over=4)
    untrained = config(
        tmp_path / "no", train, tiny_bert, max_steps=1, learning_rate=1e-9
    ).train_model()
    held_out = split_examples(chosen, chosen.out / "data").held_out
    assert mrr_of(finished, held_out) > mrr_of(untrained, held_out) + 15
    encoder = BiEncoder.load(finished)
    assert (encoder.identity.similarity, encoder.dim) == ("maxsim", 32)
    card = named(finished, "colbert")
    assert "late interaction" in card
    assert "library_name: sentence-transformers" in card


def test_a_start_of_longer_vectors_is_trained_with_unit_vectors(
    tmp_path: Path, tiny: Any, cipher_file: Callable[..., Path]
) -> None:
    tiny.late_interaction(tmp_path / "start")
    path = tmp_path / "start" / "config_sentence_transformers.json"
    change_json(path, normalize=False)
    given = {"projection_dim": 0, "max_steps": 1, "validation_fraction": 0.0}
    unit = config(tmp_path / "run", cipher_file(40), tmp_path / "start", **given)
    encoder = BiEncoder.load(unit.train_model(), precision="fp32")
    write_index(
        tmp_path / "index",
        [Passage("1", "", "the river"), Passage("2", "", "title text")],
        encoder=encoder,
        settings=BuildSettings(index_type="plaid", probes=2),
    )
