"""RAG and EMDR² on a made-up task: they learn, the finished folder answers, what does not fit is
refused.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from indexers.index_writer import write_index
from indexers.settings import BuildSettings
from rag.config import load_config
from rag.core.errors import ConfigError, DataError, MismatchedArtifactError
from rag.core.files import read_json
from rag.core.types import Passage, Question
from rag.data.files.rows import json_records, write_json_lines
from rag.eval.api import evaluate
from rag.joint import rag as joint
from rag.joint.config import EmdrTrainConfig, JointTrainConfig, RagTrainConfig
from rag.metrics.significance import Interval
from rag.pipeline import Pipeline
from readers.manifest import READER_FILE
from tests.support.messages import refusal
from tests.support.training import figures_of, records
from tests.tiny_joint import THINGS, joint_world
from tests.tiny_reader import tiny_encoder

LEARNING = {"learning_rate": 3e-3, "learning_rates": {"generator": 1e-4}, "log_every_steps": 20}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return joint_world(tmp_path_factory.mktemp("joint"))


def config(kind: type[Any], world: dict[str, Any], out: Path, **changes: Any) -> Any:
    return load_config(kind, overrides={**world, **LEARNING, "out": str(out), **changes})


@pytest.fixture(scope="module")
def frozen(world: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("frozen") / "run"
    return config(RagTrainConfig, world, out, epochs=20).train_model()


@pytest.fixture(scope="module")
def figures(frozen: Path) -> dict[str, float]:
    return figures_of(frozen.parent)


def test_rag_learns_from_answers_alone(frozen: Path, figures: dict[str, float]) -> None:
    assert "(RAG-Sequence), trained by `rag train rag`" in (frozen / "README.md").read_text()
    first, *_, last = records(frozen.parent)
    assert last["loss"] < 0.5 * first["loss"]
    assert last["p_gold"] > first["p_gold"] + 0.15  # the question encoder
    # It learns from what the generator makes of it.
    assert last["posterior_gold"] >= last["p_gold"] - 0.02
    assert figures["em"] >= 40
    assert figures["top1"] >= 40  # of five passages about a thing one is right


def test_a_trained_rag_is_one_folder_that_answers_over_its_index(
    frozen: Path, figures: dict[str, float], world: dict[str, Any], tmp_path: Path
) -> None:
    asked = list(json_records(world["validation_file"]))
    texts = [record["question"] for record in asked]
    with Pipeline.open(world["index"], reader=frozen, precision="fp32") as pipeline:
        answers = [result.answers[0] for result in pipeline.ask_many(texts, top_k=5, n_best=1)]
        [deeper] = pipeline.ask_many(texts[:1], top_k=8, n_best=1)  # more than it was trained with
        assert "question_encoder" in pipeline.identity
    right = [answer.text in q["answers"] for answer, q in zip(answers, asked, strict=True)]
    assert 100 * sum(right) / len(right) == pytest.approx(figures["em"], abs=4)
    assert answers[0].text in answers[0].evidence.text
    assert deeper.answers
    moved = shutil.copytree(frozen, tmp_path / "elsewhere")
    with Pipeline.open(world["index"], reader=moved, precision="fp32") as pipeline:
        assert pipeline.ask(texts[0], top_k=5).answers[0].text == answers[0].text


def test_evaluation_searches_with_the_readers_own_questions(
    frozen: Path, figures: dict[str, float], world: dict[str, Any]
) -> None:
    def searched(reader: Any, **more: Any) -> Mapping[str, Interval]:
        return evaluate(
            world["index"], world["validation_file"], ks=(1, 5), reader=reader, **more
        ).figures

    trained = searched(str(frozen), reads=False, precision="fp32")
    assert 100 * trained["top1"].value == pytest.approx(figures["top1"], abs=0.01)
    assert "em" not in trained
    with refusal(ConfigError):
        searched(world["generator"], reads=False)
    assert searched(False, precision="fp32")["top1"].value < trained["top1"].value


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (RagTrainConfig, {"frozen": None, "marginal": "token"}),
        (EmdrTrainConfig, {"over_retrieve": 12, "refresh_every_steps": 0}),
    ],
)
def test_end_to_end_ends_with_an_index_of_its_own(
    kind: type[JointTrainConfig], changes: dict[str, Any], world: dict[str, Any], tmp_path: Path
) -> None:
    settings = {"refresh_every_steps": 20, "epochs": 12, "log_every_steps": 5, **changes}
    reader = config(kind, world, tmp_path / "run", **settings).train_model()
    shown = records(tmp_path / "run")
    assert shown[-1]["p_gold"] > shown[0]["p_gold"] + 0.1
    indexes = {record["step"] - record.get("index_age_steps", record["step"]) for record in shown}
    assert len(indexes) >= (3 if settings["refresh_every_steps"] else 1)
    if kind is RagTrainConfig:
        with refusal(MismatchedArtifactError):
            Pipeline.open(world["index"], reader=reader)
    with Pipeline.open(tmp_path / "run" / "index", reader=reader, precision="fp32") as pipeline:
        assert pipeline.ask("tower q q how", top_k=5).answers


def write_questions(path: Path, words: str, *more: dict[str, Any]) -> str:
    """A question for each word and thing."""
    asked = list(more)
    for number, thing in enumerate(THINGS):
        asked += [{"question": f"{thing} {word}", "answers": [str(number + 2)]} for word in words]
    write_json_lines(path, asked)
    return str(path)


def test_a_generator_learns_over_bm25_and_answers_over_it(
    world: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    passages = []
    for number, thing in enumerate(THINGS):
        for place in ("in", "near"):  # of three that are asked for, two are found
            text = f"{thing} {place} has {number + 2}"
            passages.append(Passage(f"{number}-{place}", "", text))
    index = tmp_path / "index"
    write_index(index, passages, settings=BuildSettings(retriever="bm25"))
    dev = write_questions(tmp_path / "dev.jsonl", "w")
    unfound = {"question": "zebra", "answers": ["2"]}
    given = {
        "index": str(index),
        "train_files": [write_questions(tmp_path / "train.jsonl", "qv", unfound)],
        "validation_file": dev,
        "top_k": 3,
        "retriever": "bm25",
        "prior_scale": 0.5,
        "epochs": 8,
        "log_every_steps": 1,
    }
    reader = config(RagTrainConfig, world, tmp_path / "run", **given).train_model()
    assert "of a sample of 13, 12 questions have a passage that is retrieved" in caplog.text
    shown = records(tmp_path / "run")
    assert shown[-1]["loss"] < shown[0]["loss"]
    figures = figures_of(reader.parent)
    read = evaluate(index, dev, retriever="bm25", reader=reader, read=3, precision="fp32").figures
    assert 100 * read["em"].value == pytest.approx(figures["em"], abs=0.1)
    assert figures["top1"] == 100
    assert read_json(reader / READER_FILE)["retriever"] == {"kind": "bm25"}
    caplog.clear()
    Pipeline.open(index, reader=reader).close()
    assert "other scores" not in caplog.text
    Pipeline.open(world["index"], reader=reader).close()
    assert "was trained with the scores of bm25; those of dense are not comparable" in caplog.text


def test_the_loss_of_held_out_answers_passes_over_blank_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader = Mock()
    reader.log_likelihood.return_value = [-2.0]
    monkeypatch.setattr(joint, "GenerativeReader", lambda *_: reader)
    finder = Mock()
    finder.evaluate.return_value = ([], {})
    task = joint.JointTask(Mock(), Mock(), Mock(), Mock(), finder)
    assert task.measure([Question("q", "Which?", (" ", "blue"))]) == {"nll": 2.0}
    reader.log_likelihood.assert_called_once_with([], ["blue"])


SILENT = '{"question": "who", "answers": []}'
REGEX = '{"question": "who", "answers": ["zz+y"], "answers_are_regex": true}'


REFUSED = {
    "more than the index has": ({"top_k": 99}, ConfigError),
    "index without bm25": ({"retriever": "bm25"}, ConfigError),
    "other encoder": ({"question_encoder": "other"}, MismatchedArtifactError),
    "no answers": ({"train_files": SILENT}, DataError),
    "answers that are patterns": ({"train_files": REGEX}, DataError),
    "over_retrieve below top_k": ({"over_retrieve": 3}, ConfigError),
    "unknown setting": ({"chunk_size": 4}, ConfigError),
    "bm25 encoded again": ({"retriever": "bm25", "frozen": None}, ConfigError),
    "prior_scale of a trained retriever": ({"prior_scale": 2.0}, ConfigError),
}


@pytest.mark.parametrize(("changes", "error"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_work_is_refused(
    changes: dict[str, Any], error: type[Exception], world: dict[str, Any], tmp_path: Path
) -> None:
    if "question_encoder" in changes:
        changes = {"question_encoder": str(tiny_encoder(tmp_path / "other", seed=5))}
    if "train_files" in changes:
        (tmp_path / "asked.jsonl").write_text(changes["train_files"])
        changes = {"train_files": [str(tmp_path / "asked.jsonl")], "validation_fraction": 0}
        changes["validation_file"] = None
    with refusal(error):
        config(RagTrainConfig, world, tmp_path / "run", **changes).train_model()
