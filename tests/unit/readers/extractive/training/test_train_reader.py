"""The whole recipe on a tiny model and a task it can learn: loss falls, EM rises, the result
reads.
"""

from pathlib import Path
from typing import Any

import pytest

from rag.core.types import AnswerSet, Passage
from readers.extractive.reader import ExtractiveReader
from readers.extractive.training.config import ReaderTrainConfig
from tests.support.reading import read_one
from tests.support.training import falls, figures_of
from tests.tiny_reader import TINY_TRAINING, tiny_encoder, tiny_squad

QUESTION = "how many meters has the tower 1 1?"
PASSAGES = [
    Passage("1", "River", "the river is near the city."),
    Passage("2", "Tower", "the tower is 57 high."),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    results = folder / "results.json"
    train = tiny_squad(folder / "train.json", 24, 0, results)
    stage = {"max_tokens": 96, "full_tokens": 96, "tokens_per_batch": 1024}
    values: dict[str, Any] = {
        **TINY_TRAINING,
        "train": [{"questions": train, "retrieved": results, "held_out": 0.25, "name": "towers"}],
        "out": folder / "out",
        "encoder": str(tiny_encoder(folder / "encoder")),
        "stages": [
            {**stage, "epochs": 16},
            {**stage, "epochs": 8, "negatives": 1, "no_answer_fraction": 0.2},
        ],
        "validate_every_steps": 1000,
        "answer_types": True,
        "selection_weight": 0.1,
    }
    ReaderTrainConfig(**values).train_model()
    return folder


def read_rightly(reader: ExtractiveReader) -> AnswerSet:
    result = read_one(reader, QUESTION, PASSAGES)
    assert (result.answers[0].text, result.answers[0].evidence.passage_id) == ("57", "2")
    return result


def test_loss_falls_and_exact_match_rises(run: Path) -> None:
    assert falls(run / "out", 0.5)
    figures = figures_of(run / "out")
    assert figures["gold passages, held-out towers"]["em"] >= 80.0
    assert figures["retrieved, held-out"]["em"] >= 80.0


def test_the_finished_reader_is_whole(run: Path) -> None:
    out = run / "out" / "reader"
    names = {path.name for path in out.iterdir()}
    assert {"reader.json", "weights.int8.safetensors", "ranges.safetensors", "README.md"} <= names
    card = (out / "README.md").read_text()
    assert "rag train reader" in card
    assert "CC BY-SA 4.0" in card
    assert str(run) not in card
    reader = ExtractiveReader.load(out)
    assert reader.calibration.questions > 24
    assert (reader.settings.question_tokens, reader.settings.title_tokens) == (32, 8)
    result = read_rightly(reader)
    nothing = read_one(reader, QUESTION, PASSAGES[:1])
    assert nothing.no_answer_confidence > result.no_answer_confidence


def test_dpr_s_objective_learns_from_answers_alone(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    tiny_squad(tmp_path / "train.json", 16, 0, results)  # its results have no gold passage
    stage = {"epochs": 10, "negatives": 2, "max_tokens": 96, "full_tokens": 96}
    config = ReaderTrainConfig(
        **TINY_TRAINING,
        train=[{"questions": results, "held_out": 0.2}],
        out=tmp_path / "out",
        encoder=str(tiny_encoder(tmp_path / "encoder")),
        stages=[{**stage, "tokens_per_batch": 1024}],
        spans="marginal",
        normalisation="passage",
        selection_weight=0.5,
    )
    reader = ExtractiveReader.load(config.train_model())
    assert reader.settings.select
    read_rightly(reader)
