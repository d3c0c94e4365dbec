"""ANCE killed in a refresh and in training takes the same steps, with the same bytes at the end."""

from pathlib import Path
from typing import Any

import pytest

from indexers.index_writer import write_index
from indexers.settings import BuildSettings
from rag.data.examples import write_examples
from rag.training import fit, refresh
from rag.training.checkpoints import complete_checkpoints
from rag.training.run_log import read_metrics
from retrievers.training.config import AnceTrainConfig
from tests.unit.indexers.conftest import WordEncoder
from tests.unit.retrievers.conftest import TINY, cipher_examples
from tests.worlds import killed_at

STEPS = 12


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> dict[str, Any]:
    """Training file, index and model of a tiny run."""
    place = tmp_path_factory.mktemp("material")
    examples = cipher_examples(60)
    passages = [example.positives[0] for example in examples]
    write_examples(place / "train.json", examples)
    write_index(place / "index", passages, encoder=WordEncoder(4), settings=BuildSettings(probes=2))
    return {
        **TINY,
        "train_files": [str(place / "train.json")],
        "index": str(place / "index"),
        "question_encoder": str(tiny_bert),
        "pooling": "mean",
        "normalize": True,
        "batch_size": 4,
        "dropout": 0.1,
        "save_every_s": 1e-6,
        "validation_fraction": 0.0,
        "learning_rate": 1e-3,
        "max_steps": STEPS,
        "depth": 20,
        "kept": 5,
        "refresh_every_steps": 4,
    }


def losses(out: Path) -> list[tuple[Any, ...]]:
    records = read_metrics(out / "metrics.jsonl")
    return [(r["step"], r["loss"], r["index_age_steps"]) for r in records]


def test_killed_twice_it_takes_the_same_steps(tmp_path: Path, material: dict[str, Any]) -> None:
    whole, killed = (
        AnceTrainConfig(out=tmp_path / name, **material) for name in ("whole", "killed")
    )
    whole.train_model()
    killed_at(refresh, "fsync_tree", 0, AnceTrainConfig.train_model, killed)
    assert not complete_checkpoints(killed.out)
    killed_at(fit, "schedule_factor", 6, AnceTrainConfig.train_model, killed)
    assert not (killed.out / "encoder").exists()
    killed.train_model()
    assert losses(killed.out) == losses(whole.out)
    assert len({step - age for step, _, age in losses(whole.out)}) == 3
    weights = "encoder/model.safetensors"
    assert (killed.out / weights).read_bytes() == (whole.out / weights).read_bytes()


def test_a_process_beside_the_training_mines_the_same(
    tmp_path: Path, material: dict[str, Any]
) -> None:
    turn = AnceTrainConfig(out=tmp_path / "turn", **{**material, "max_steps": 1})
    beside = AnceTrainConfig(
        out=tmp_path / "beside", refresh_device="cpu", **{**material, "max_steps": 6}
    )
    turn.train_model()
    beside.train_model()
    records = read_metrics(beside.out / "metrics.jsonl")
    assert all("mined/negatives_per_question" in record for record in records)
    mined = "refresh/step-00000000/result/negatives.npy"
    assert (beside.out / mined).read_bytes() == (turn.out / mined).read_bytes()
