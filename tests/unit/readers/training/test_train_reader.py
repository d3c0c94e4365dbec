"""The whole recipe on a tiny model and a task it can learn: loss falls, EM rises, the result reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from rag.core.errors import DataError, MismatchedArtifactError
from rag.core.types import Passage
from readers.extractive.reader import ExtractiveReader
from readers.training.config import ReaderStage, ReaderTrainConfig
from readers.training.evaluation import gold_paragraph_scores
from readers.training.recipe import train_reader
from tests.tiny_reader import tiny_encoder, tiny_squad


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("run")
    results = folder / "results.json"
    train = tiny_squad(folder / "train.json", 24, 0, results)
    first = ReaderStage(epochs=16, max_tokens=96, full_tokens=96, tokens_per_batch=1024)
    second = ReaderStage(
        epochs=8, negatives=1, no_answer_fraction=0.2, max_tokens=96, full_tokens=96, tokens_per_batch=1024
    )
    values: dict[str, Any] = {
        "train_file": train, "negatives_file": results, "test_file": tiny_squad(folder / "test.json", 4, 9),
        "out": folder / "out", "encoder": str(tiny_encoder(folder / "encoder")), "stages": (first, second),
        "validation_articles": 6, "validation_questions": 24, "calibration_questions": 24,
        "question_tokens": 32, "title_tokens": 8, "learning_rate": 5e-3, "precision": "fp32",
        "freeze_word_embeddings": False, "threads": 1, "evaluate_every_steps": 1000,
    }  # fmt: skip
    train_reader(ReaderTrainConfig(**values))
    return folder, values


def test_loss_falls_and_exact_match_rises(run: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = run
    records = [json.loads(line) for line in (folder / "out" / "metrics.jsonl").read_text().splitlines()]
    losses = [record["loss"] for record in records if "loss" in record]
    assert losses[-1] < losses[0] / 2
    figures = json.loads((folder / "out" / "figures.json").read_text())["figures"]
    assert figures["gold paragraph, test, shipped weights"]["em"] >= 80.0
    assert figures["retrieved, held-out"]["em"] >= 80.0


def test_the_finished_reader_is_whole(run: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = run
    out = folder / "out" / "reader"
    names = {path.name for path in out.iterdir()}
    assert {
        "reader.json",
        "config.json",
        "tokenizer.json",
        "weights.int8.safetensors",
        "ranges.safetensors",
        "README.md",
    } <= names
    card = (out / "README.md").read_text()
    assert "rag train reader" in card
    assert "CC BY-SA 4.0" in card
    assert str(folder) not in card
    reader = ExtractiveReader.load(out)
    assert reader.calibration.questions > 24
    passages = [
        Passage("1", "River", "the river is near the city."),
        Passage("2", "Tower", "the tower is 57 high."),
    ]
    [result] = reader.read(["how many meters has the tower 1 1?"], [passages], [[1.0, 1.0]])
    assert (result.answers[0].text, result.answers[0].passage_index) == ("57", 1)
    [nothing] = reader.read(["how many meters has the tower 1 1?"], [passages[:1]], [[1.0]])
    assert nothing.no_answer_confidence > result.no_answer_confidence


def test_a_finished_run_is_recognised_and_a_foreign_one_refused(run: tuple[Path, dict[str, Any]]) -> None:
    _, values = run
    before = (values["out"] / "metrics.jsonl").read_text()
    train_reader(ReaderTrainConfig(**{**values, "name": "renamed"}))
    assert (values["out"] / "metrics.jsonl").read_text() == before
    with pytest.raises(MismatchedArtifactError, match="learning_rate"):
        train_reader(ReaderTrainConfig(**{**values, "learning_rate": 1e-3}))


def test_configurations_that_cannot_work_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="negatives_file"):
        ReaderTrainConfig(train_file=tmp_path, out=tmp_path)
    with pytest.raises(ValidationError, match="full_tokens"):
        ReaderStage(epochs=1, max_tokens=128, full_tokens=64)
    with pytest.raises(ValidationError, match="no_answer_fraction"):
        ReaderStage(epochs=1, no_answer_fraction=0.5)
    with pytest.raises(ValidationError, match="tokens_per_batch"):
        ReaderStage(epochs=1, negatives=3, tokens_per_batch=500)
    with pytest.raises(ValidationError, match="colour"):
        ReaderStage(epochs=1, colour=1)  # type: ignore[call-arg]


def test_bad_files_are_named(run: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    _, values = run
    config = {**values, "out": tmp_path / "out"}
    with pytest.raises(DataError, match=r"absent\.json"):
        train_reader(ReaderTrainConfig(**{**config, "train_file": tmp_path / "absent.json"}))
    (tmp_path / "odd.json").write_text('{"data": [{"paragraphs": []}]}')
    with pytest.raises(DataError, match="not SQuAD"):
        train_reader(ReaderTrainConfig(**{**config, "train_file": tmp_path / "odd.json"}))
    (tmp_path / "results.json").write_text('[{"question": "another?", "ctxs": []}]')
    with pytest.raises(DataError, match="knows only 0"):
        train_reader(ReaderTrainConfig(**{**config, "negatives_file": tmp_path / "results.json"}))
    (tmp_path / "shape.json").write_text('[{"q": 1}]')
    with pytest.raises(DataError, match="record 1"):
        train_reader(ReaderTrainConfig(**{**config, "negatives_file": tmp_path / "shape.json"}))


def test_missing_predictions_count_as_wrong() -> None:
    class Silent:
        def read(self, questions: Any, passages: Any, scores: Any, n_best: int = 5) -> list[Any]:
            from readers.protocols import ReadResult

            return [ReadResult((), 1.0)] * len(questions)

    from readers.training.data import SquadQuestion

    question = SquadQuestion("1", "where?", "t", "in Oslo", ("Oslo",), 3)
    assert gold_paragraph_scores(Silent(), [question]) == {"em": 0.0, "f1": 0.0}
