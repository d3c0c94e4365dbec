"""The whole recipe on a tiny model and a task it can learn: loss falls, EM rises, the result reads."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from transformers import BertModel

from rag.core.errors import ArtifactError, ConfigError, DataError, MismatchedArtifactError
from rag.core.types import Passage
from readers.extractive.model import LogitsModel
from readers.extractive.reader import ExtractiveReader
from readers.extractive.training.config import (
    ReaderStage,
    ReaderTrainConfig,
    TrainingSet,
)
from readers.extractive.training.recipe import train_reader
from tests.tiny_reader import tiny_config, tiny_encoder, tiny_squad, tiny_tokenizer


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
        "train": [{"questions": train, "retrieved": results, "held_out": 0.25, "name": "towers"}],
        "out": folder / "out", "encoder": str(tiny_encoder(folder / "encoder")), "stages": (first, second),
        "validation_questions": 24, "calibration_questions": 24,
        "question_tokens": 32, "title_tokens": 8, "learning_rate": 5e-3, "precision": "fp32",
        "freeze_word_embeddings": False, "threads": 1, "validate_every_steps": 1000,
    }  # fmt: skip
    train_reader(ReaderTrainConfig(**values))
    return folder, values


def test_loss_falls_and_exact_match_rises(run: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = run
    records = [json.loads(line) for line in (folder / "out" / "metrics.jsonl").read_text().splitlines()]
    losses = [record["loss"] for record in records if "loss" in record]
    assert losses[-1] < losses[0] / 2
    figures = json.loads((folder / "out" / "figures.json").read_text())["figures"]
    assert figures["gold passages, held-out towers"]["em"] >= 80.0
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
    assert (reader.settings.question_tokens, reader.settings.title_tokens) == (32, 8)  # as it was trained
    passages = [
        Passage("1", "River", "the river is near the city."),
        Passage("2", "Tower", "the tower is 57 high."),
    ]
    [result] = reader.read(["how many meters has the tower 1 1?"], [passages], [[1.0, 1.0]])
    assert (result.answers[0].text, result.answers[0].evidence.passage_id) == ("57", "2")
    [nothing] = reader.read(["how many meters has the tower 1 1?"], [passages[:1]], [[1.0]])
    assert nothing.no_answer_confidence > result.no_answer_confidence


def test_a_reader_is_in_place_only_with_its_ranking_and_confidence(
    run: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, values = run
    config = ReaderTrainConfig(**{**values, "out": tmp_path / "out", "max_steps": 2})

    def stopped(*_: Any, **__: Any) -> None:
        raise DataError("stopped")

    with monkeypatch.context() as patched:
        patched.setattr("readers.extractive.training.finish.tune", stopped)
        with pytest.raises(DataError, match="stopped"):
            train_reader(config)
    assert (tmp_path / "out" / "trained").exists()
    assert not (tmp_path / "out" / "reader").exists()
    train_reader(config)
    assert ExtractiveReader.load(tmp_path / "out" / "reader").calibration.questions > 24


@pytest.mark.parametrize(
    ("objective", "group"),
    [
        ({"spans": "marginal", "normalisation": "passage", "selection_weight": 0.5}, {}),
        ({"spans": "marginal", "selection_weight": 0.1}, {"positives": 2}),
    ],
    ids=["dpr", "marginal"],
)
def test_every_objective_learns_from_answers_alone(
    tmp_path: Path, objective: dict[str, Any], group: dict[str, Any]
) -> None:
    results = tmp_path / "results.json"
    tiny_squad(tmp_path / "train.json", 16, 0, results)  # its results have no gold passage
    stage = ReaderStage(epochs=10, negatives=2, max_tokens=96, full_tokens=96, tokens_per_batch=1024, **group)
    finished = train_reader(
        ReaderTrainConfig(
            train=(TrainingSet(questions=results, held_out=0.2),), out=tmp_path / "out",
            encoder=str(tiny_encoder(tmp_path / "encoder")), stages=(stage,), **objective,
            question_tokens=32, title_tokens=8, learning_rate=5e-3, precision="fp32", threads=1,
            freeze_word_embeddings=False, validation_questions=24, calibration_questions=24,
        )
    )  # fmt: skip
    reader = ExtractiveReader.load(finished)
    assert reader.settings.select == ("normalisation" in objective)
    passages = [
        Passage("1", "River", "the river is near the city."),
        Passage("2", "Tower", "the tower is 57 high."),
    ]
    [result] = reader.read(["how many meters has the tower 1 1?"], [passages], [[1.0, 1.0]])
    assert (result.answers[0].text, result.answers[0].evidence.passage_id) == ("57", "2")


def test_a_reader_learns_to_say_yes_and_no_and_another_goes_on_from_it(tmp_path: Path) -> None:
    records = []
    for n in range(96):
        word = ("near", "built")[n % 2]
        context = [["Tower", [f"The tower {n} is {word}."]], ["City", ["A city of the year."]]]
        answer = ("yes", "no")[n % 2]
        records.append(
            {
                "_id": f"q{n}", "question": "is the tower near?", "answer": answer, "context": context,
                "supporting_facts": [["Tower", 0]],
            }
        )  # fmt: skip
    (tmp_path / "hops.json").write_text(json.dumps(records))
    stage = ReaderStage(epochs=16, negatives=1, max_tokens=48, full_tokens=48, tokens_per_batch=1024)
    values: dict[str, Any] = {
        "train": (TrainingSet(questions=tmp_path / "hops.json", held_out=0.0),), "out": tmp_path / "out",
        "encoder": str(tiny_encoder(tmp_path / "encoder")), "answer_types": True, "skim_layer": 1,
        "question_tokens": 24, "title_tokens": 4, "freeze_word_embeddings": False,
        "spans": "marginal", "selection_weight": 0.1, "stages": (stage,),
        "learning_rate": 5e-3, "precision": "fp32", "threads": 1,
    }  # fmt: skip
    finished = train_reader(ReaderTrainConfig(**values))
    reader = ExtractiveReader.load(finished, precision="fp32")
    assert isinstance(reader.model, LogitsModel)
    assert reader.settings.skim_layer == 1
    both = [Passage("1", "City", "A city of the year."), Passage("2", "Tower", "The tower 7 is built.")]
    [result] = reader.read(["is the tower near?"], [both], [[1.0, 1.0]])
    first = result.answers[0]
    assert (first.text, first.evidence.passage_id, first.evidence.start) == ("no", "2", None)

    further = ReaderTrainConfig(
        **{**values, "out": tmp_path / "more", "encoder": str(finished), "learning_rate": 1e-9,
           "max_steps": 1}
    )  # fmt: skip
    again = ExtractiveReader.load(train_reader(further), precision="fp32")
    [same] = again.read(["is the tower near?"], [both], [[1.0, 1.0]])
    assert same.answers[0].text == "no"
    assert same.answers[0].score == pytest.approx(first.score, abs=0.1)


def test_configurations_that_cannot_work_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="train"):
        ReaderTrainConfig(out=tmp_path)
    with pytest.raises(ValidationError, match="full_tokens"):
        ReaderStage(epochs=1, max_tokens=128, full_tokens=64)
    with pytest.raises(ValidationError, match="no_answer_fraction"):
        ReaderStage(epochs=1, no_answer_fraction=0.5)
    with pytest.raises(ValidationError, match="tokens_per_batch"):
        ReaderStage(epochs=1, negatives=3, tokens_per_batch=500)
    with pytest.raises(ValidationError, match="positives"):
        ReaderStage(epochs=1, positives=2)
    with pytest.raises(ValidationError, match="colour"):
        ReaderStage(epochs=1, colour=1)  # type: ignore[call-arg]
    with pytest.raises(ValidationError, match="selection_weight"):
        ReaderTrainConfig(out=tmp_path, train=({"questions": "q"},), normalisation="passage")  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="two sets are called 'a'"):
        twice = ({"questions": "q", "name": "a"}, {"questions": "r", "name": "a"})
        ReaderTrainConfig(out=tmp_path, train=twice)  # type: ignore[arg-type]


def test_bad_files_are_named_before_a_step(run: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    _, values = run
    [one] = values["train"]

    def attempt(out: str = "out", **changes: Any) -> None:
        train_reader(ReaderTrainConfig(**{**values, "out": tmp_path / out, **changes}))

    with pytest.raises(DataError, match=r"absent\.json"):
        attempt(train=[{**one, "questions": tmp_path / "absent.json"}])
    (tmp_path / "odd.json").write_text('{"data": [{"paragraphs": []}]}')
    with pytest.raises(DataError, match="no questions"):
        attempt(train=[{**one, "questions": tmp_path / "odd.json"}])
    (tmp_path / "results.json").write_text('[{"question": "another?", "ctxs": []}]')
    with pytest.raises(DataError, match="knows only 0"):
        attempt(train=[{**one, "retrieved": tmp_path / "results.json"}])
    (tmp_path / "shape.json").write_text('[{"q": 1}]')
    with pytest.raises(DataError, match=r"shape\.json: record 1"):
        attempt(train=[{**one, "retrieved": tmp_path / "shape.json"}])
    assert not list(tmp_path.glob("*/checkpoints"))


def test_bad_models_are_named_before_a_step(run: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, values = run

    def attempt(encoder: Path, **changes: Any) -> None:
        train_reader(
            ReaderTrainConfig(**{**values, "out": tmp_path / "out", "encoder": str(encoder), **changes})
        )

    small = tmp_path / "small"
    BertModel(tiny_config(vocab_size=40)).save_pretrained(small)
    tiny_tokenizer().save_pretrained(small)
    with pytest.raises(MismatchedArtifactError, match=r"tokenizer has \d+ tokens, the encoder 40"):
        attempt(small)
    with pytest.raises(ConfigError, match="reads at most 128"):
        attempt(folder / "encoder", stages=(ReaderStage(epochs=1, full_tokens=200),))
    with pytest.raises(ConfigError, match="skim_layer is 5, the encoder has 2 layers"):
        attempt(folder / "encoder", skim_layer=5)
    cut = tmp_path / "cut"
    shutil.copytree(folder / "encoder", cut)
    weights = cut / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ArtifactError, match="transformers cannot load it"):
        attempt(cut)
    with pytest.raises(ArtifactError, match="absent"):
        attempt(tmp_path / "absent")
    assert not (tmp_path / "out" / "checkpoints").exists()
