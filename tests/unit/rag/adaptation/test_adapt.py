"""`rag adapt` on a tiny corpus with a tiny reader: from the index to a reader, killed, resumed, refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexers.build import build_index
from indexers.index import Index
from indexers.settings import BuildSettings
from rag.adaptation import adapt as module
from rag.cli.main import main
from rag.core.errors import ConfigError, DataError, MismatchedArtifactError
from rag.core.types import Passage, Query
from rag.data.examples import read_examples
from rag.jobs import adapt
from rag.pipeline import Pipeline
from readers.extractive.settings import ReaderManifest
from readers.extractive.training.config import ReaderModelConfig, ReaderStage, ReaderTrainConfig
from readers.extractive.training.recipe import train_reader
from readers.extractive.training.start import kept_ranking
from readers.manifest import load_manifest
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.negatives import blocks
from tests.commands import exit_code
from tests.tiny_reader import WORDS, tiny_encoder, tiny_squad
from tests.worlds import killed_at

FEW = 4  # kept questions that are enough here: the tiny reader agrees with one in ten
TRAINING: dict[str, Any] = {
    "question_tokens": 32, "title_tokens": 8, "max_steps": 3,
    "precision": "fp32", "threads": 1,
    "stages": [{"epochs": 1, "max_tokens": 96, "full_tokens": 96, "tokens_per_batch": 1024}],
}  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An index of 70 passages with a number each, and a reader that gives the number of a passage."""
    folder = tmp_path_factory.mktemp("adapt")
    results = folder / "results.json"
    train = tiny_squad(folder / "train.json", 24, 0, results)
    stage = ReaderStage(epochs=16, max_tokens=96, full_tokens=96, tokens_per_batch=1024)
    reader = train_reader(
        ReaderTrainConfig(
            train=({"questions": train, "retrieved": results, "held_out": 0.25},),
            out=folder / "start",
            encoder=str(tiny_encoder(folder / "encoder")),
            stages=(stage,),
            question_tokens=32,
            title_tokens=8,
            learning_rate=5e-3,
            precision="fp32",
            threads=1,
            freeze_word_embeddings=False,
            validation_questions=4,
            calibration_questions=12,
        )
    )
    draw = np.random.default_rng(1)
    passages = []
    for number in range(70):
        name = " ".join(str(word) for word in draw.choice(WORDS[:8], 4, replace=False))
        place = f"{chr(97 + number % 26)}{chr(97 + number // 26)}"
        text = f"The {name} near {place} has {draw.integers(10, 100)} meters."
        passages.append(Passage(str(number), "", text))
    build_index(passages, folder / "index", settings=BuildSettings(retriever="bm25", java_heap_mib=256))
    return folder / "index", reader


def test_a_corpus_becomes_a_reader(
    world: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index, reader = world
    settings = [part for name, value in TRAINING.items() for part in ("--set", f"{name}={json.dumps(value)}")]
    command = ["adapt", "--index", index, "--reader", reader, "--kinds", "sentence", "--out", tmp_path]
    monkeypatch.setattr(module, "_LEAST", FEW)
    assert exit_code(*command, *settings) == 0
    shown = capsys.readouterr().out
    report = json.loads((tmp_path / "questions.report.json").read_text())
    assert report["made"] == 70
    assert report["retrieved"] >= report["kept"] == report["kept sentence"] >= FEW
    assert f"{report['kept']} kept (sentence {report['kept']})" in shown
    examples = list(read_examples(tmp_path / "questions.json"))
    assert len(examples) == report["kept"]
    for example in examples:
        assert example.question.startswith("How many meters The")
        assert example.answers[0] in example.positives[0].text
        assert not any(example.answers[0] in one.passage.text for one in example.negatives)
    before, after = (load_manifest(ReaderManifest, folder) for folder in (reader, tmp_path / "reader"))
    assert before.weights_sha256 != after.weights_sha256
    assert (before.settings, before.calibration) == (after.settings, after.calibration)
    assert after.calibration.questions > 0
    assert after.ranges_file is not None
    with Pipeline.open(index, reader=tmp_path / "reader") as pipeline:
        first = examples[0]
        assert pipeline.ask(first.question).answers[0].text.isdigit()


@pytest.mark.parametrize(
    ("owner", "name", "call"), [(blocks, "atomic_write_json", 1), (module, "write_examples", 0)]
)
def test_killed_runs_end_in_the_same_questions(
    world: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    call: int,
) -> None:
    index, reader = world
    monkeypatch.setattr(module, "_BLOCK", 30)
    monkeypatch.setattr(module, "_LEAST", FEW)
    given: dict[str, Any] = {
        "reader": str(reader),
        "kinds": "sentence",
        "training": {**TRAINING, "max_steps": 1},
    }
    whole, out = tmp_path / "whole", tmp_path / "out"
    adapt(index, whole, **given)
    killed_at(owner, name, call, _adapt, index, out, given)
    assert not (out / "questions.json").exists()
    assert list((out / "questions" / "blocks").glob("block-*.counts.json"))
    adapt(index, out, **given)
    for file in ("questions.json", "questions.report.json", "reader/weights.int8.safetensors"):
        assert (out / file).read_bytes() == (whole / file).read_bytes()
    with pytest.raises(MismatchedArtifactError, match="seed"):
        adapt(index, out, **given, seed=14)


def _adapt(index: Path, out: Path, given: dict[str, Any]) -> None:
    module._BLOCK, module._LEAST = 30, FEW
    adapt(index, out, **given)


def test_a_corpus_teaches_the_encoder_of_its_index(
    world: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Index.open(world[0]) as numbers:
        passages = list(numbers.passages)
    encoder = BiEncoder.load(tiny_encoder(tmp_path / "encoder"))
    build_index(passages, tmp_path / "index", encoder=encoder, settings=BuildSettings(probes=2))
    training = ("batch_size=8", "max_steps=2", "validation_questions=8", "precision=fp32", "threads=1")
    settings = [part for value in training for part in ("--set", value)]
    out = tmp_path / "out"
    command = ["adapt", "--model", "retriever", "--index", tmp_path / "index", "--out", out]
    assert exit_code(*command, "--kinds", "sentence", *settings) == 0
    shown = capsys.readouterr().out
    assert "70 questions made" in shown
    assert "70 kept" in shown
    assert f"rag index … --encoder {out / 'encoder'}" in shown
    for example in read_examples(out / "questions.json"):
        assert example.answers[0] in example.positives[0].text
        assert not any(example.answers[0] in one.passage.text for one in example.negatives)
    before, after = (BiEncoder.load(folder) for folder in (tmp_path / "encoder", out / "encoder"))
    assert before.dim == after.dim
    texts = [Query(passage.text) for passage in passages[:8]]
    moved = np.abs(before.encode_queries(texts) - after.encode_queries(texts)).max()
    assert 0 < moved < 0.5  # trained from the index's encoder, two steps


def test_what_cannot_work_is_refused(world: tuple[Path, Path], tmp_path: Path) -> None:
    index, reader = world
    given: dict[str, Any] = {"reader": str(reader), "training": TRAINING}
    with pytest.raises(DataError, match="its 70 passages have no tables to make questions from"):
        adapt(index, tmp_path / "a", kinds="table", **given)
    with pytest.raises(DataError, match="of 20 made questions are kept, expected at least 50"):
        adapt(index, tmp_path / "b", kinds="sentence", questions=20, **given)
    with pytest.raises(ConfigError, match="no reader that can be trained further"):
        adapt(index, tmp_path / "c", reader=str(tiny_encoder(tmp_path / "encoder")))
    with pytest.raises(ConfigError, match="kinds"):
        adapt(index, tmp_path / "d", kinds="tables", **given)
    with pytest.raises(ConfigError, match="answer_types is True here, and False"):
        kept_ranking(ReaderModelConfig(encoder=str(reader), answer_types=True))
    assert not (tmp_path / "d").exists()


def test_the_command_names_a_missing_index(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["adapt", "--index", str(tmp_path / "none"), "--out", str(tmp_path / "out")])
    assert "index names it" in capsys.readouterr().err
