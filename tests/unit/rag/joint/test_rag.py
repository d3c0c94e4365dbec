"""RAG and EMDR² on a made-up task: they learn, the finished folder answers, what does not fit is
refused.
"""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from indexers.index_writer import write_index
from indexers.settings import BuildSettings
from rag.config import load_config
from rag.core.errors import ConfigError, DataError, MismatchedArtifactError
from rag.core.types import Passage
from rag.eval.api import evaluate
from rag.joint.config import EmdrTrainConfig, RagTrainConfig
from rag.joint.rag import train_emdr2, train_rag
from rag.pipeline import Pipeline
from rag.training.run_log import read_metrics
from readers.manifest import READER_FILE
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
    return train_rag(config(RagTrainConfig, world, out, epochs=20))


def records(out: Path) -> list[dict[str, Any]]:
    return [record for record in read_metrics(out / "metrics.jsonl") if "loss" in record]


def test_rag_learns_from_answers_alone(frozen: Path) -> None:
    assert "(RAG-Sequence), trained by `rag train rag`" in (frozen / "README.md").read_text()
    first, *_, last = records(frozen.parent)
    assert last["loss"] < 0.5 * first["loss"]
    assert last["p_gold"] > first["p_gold"] + 0.15  # the question encoder
    assert (
        last["posterior_gold"] >= last["p_gold"] - 0.02
    )  # it learns from what the generator makes of it
    figures = json.loads((frozen.parent / "figures.json").read_text())["figures"]
    assert figures["em"] >= 40
    assert figures["top1"] >= 40  # of five passages about a thing one is right
    assert {"found", "p_gold"} <= last.keys()


def test_a_trained_rag_is_one_folder_that_answers_over_its_index(
    frozen: Path, world: dict[str, Any], tmp_path: Path
) -> None:
    pipeline = Pipeline.open(world["index"], reader=str(frozen), precision="fp32")
    records = [json.loads(line) for line in Path(world["validation_file"]).read_text().splitlines()]
    result = pipeline.ask_many([record["question"] for record in records], top_k=5, n_best=1)
    right = [a.answers[0].text in q["answers"] for a, q in zip(result, records, strict=True)]
    figures = json.loads((frozen.parent / "figures.json").read_text())["figures"]
    assert 100 * sum(right) / len(right) == pytest.approx(figures["em"], abs=4)
    best = result[0].answers[0]
    assert best.text in best.evidence.text
    [deeper] = pipeline.ask_many(
        [records[0]["question"]], top_k=8, n_best=1
    )  # more than it was trained with
    assert deeper.answers
    assert "question_encoder" in pipeline.identity
    moved = Path(shutil.copytree(frozen, tmp_path / "elsewhere"))
    again = Pipeline.open(world["index"], reader=str(moved), precision="fp32")
    assert again.ask(records[0]["question"], top_k=5).answers[0].text == best.text
    pipeline.close()


def test_evaluation_searches_with_the_readers_own_questions(
    frozen: Path, world: dict[str, Any]
) -> None:
    figures = json.loads((frozen.parent / "figures.json").read_text())["figures"]
    searched: dict[str, Any] = {
        "index": world["index"],
        "questions": world["validation_file"],
        "ks": (1, 5),
    }
    own = evaluate(**searched, reader=str(frozen), reads=False, precision="fp32").figures
    assert 100 * own["top1"].value == pytest.approx(figures["top1"], abs=0.01)
    assert "em" not in own
    with pytest.raises(ConfigError, match="no question encoder in it"):
        evaluate(**searched, reader=world["generator"], reads=False)
    assert (
        evaluate(**searched, reader=False, precision="fp32").figures["top1"].value
        < own["top1"].value
    )


def test_end_to_end_makes_its_index_anew_and_ends_with_one_of_its_own(
    world: dict[str, Any], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    reader = train_rag(
        config(
            RagTrainConfig,
            world,
            out,
            document_side="reencode",
            marginal="token",
            refresh_every_steps=20,
            epochs=12,
        )
    )
    shown = records(out)
    assert len({record["step"] - record["index_age_steps"] for record in shown}) >= 3  # indexes
    assert shown[-1]["p_gold"] > shown[0]["p_gold"] + 0.15
    with pytest.raises(MismatchedArtifactError):
        Pipeline.open(world["index"], reader=str(reader))
    answer = Pipeline.open(out / "index", reader=str(reader), precision="fp32").ask(
        "tower q q how", top_k=5
    )
    assert answer.answers


def test_a_generator_learns_over_bm25_and_answers_over_it(
    world: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    passages = [Passage(str(n), "", f"{thing} has {n + 2}") for n, thing in enumerate(THINGS)]
    write_index(tmp_path / "index", passages, settings=BuildSettings(retriever="bm25"))
    for name, words, more in (
        ("train", "qv", [{"question": "zebra", "answers": ["2"]}]),
        ("dev", "w", []),
    ):
        labelled = [
            {"question": f"{t} {word}", "answers": [str(n + 2)]}
            for n, t in enumerate(THINGS)
            for word in words
        ]
        lines = [json.dumps(record) + "\n" for record in [*labelled, *more]]
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    given = {
        "index": str(tmp_path / "index"),
        "train_files": [str(tmp_path / "train.jsonl")],
        "top_k": 2,
        "validation_file": str(tmp_path / "dev.jsonl"),
        "retriever": "bm25",
        "prior_scale": 0.5,
    }
    with caplog.at_level(logging.WARNING):
        reader = train_rag(
            config(RagTrainConfig, world, tmp_path / "run", **given, epochs=8, log_every_steps=1)
        )
    assert "of a sample of 13, 12 questions have a passage that is retrieved" in caplog.text
    shown = records(tmp_path / "run")
    assert shown[-1]["loss"] < shown[0]["loss"]
    figures = json.loads((reader.parent / "figures.json").read_text())["figures"]
    searched = {
        "index": tmp_path / "index",
        "questions": tmp_path / "dev.jsonl",
        "retriever": "bm25",
    }
    read = evaluate(**searched, reader=str(reader), read=2, precision="fp32").figures
    assert 100 * read["em"].value == pytest.approx(figures["em"], abs=0.1)
    assert figures["top1"] == 100
    assert json.loads((reader / READER_FILE).read_text())["retriever"] == {"kind": "bm25"}
    caplog.clear()
    Pipeline.open(tmp_path / "index", reader=str(reader)).close()
    assert "other scores" not in caplog.text
    Pipeline.open(world["index"], reader=str(reader)).close()
    assert "was trained with the scores of bm25; those of dense are not comparable" in caplog.text


def test_emdr2_learns_to_retrieve_from_more_passages_than_are_read(
    world: dict[str, Any], tmp_path: Path
) -> None:
    reader = train_emdr2(
        config(
            EmdrTrainConfig,
            world,
            tmp_path / "run",
            over_retrieve=12,
            epochs=12,
            refresh_every_steps=0,
            log_every_steps=5,
        )
    )
    shown = records(tmp_path / "run")
    assert shown[-1]["p_gold"] > shown[0]["p_gold"] + 0.1
    index = tmp_path / "run" / "index"
    assert Pipeline.open(index, reader=str(reader)).ask("tower q q how", top_k=5).answers


def test_what_cannot_work_is_refused(world: dict[str, Any], tmp_path: Path) -> None:
    other = tiny_encoder(tmp_path / "other", seed=5)
    with pytest.raises(ConfigError, match="top_k is 99, the index has 30"):
        train_rag(config(RagTrainConfig, world, tmp_path / "a", top_k=99))
    with pytest.raises(ConfigError, match="bm25 retrieval needs a bm25 index"):
        train_rag(config(RagTrainConfig, world, tmp_path / "f", retriever="bm25"))
    with pytest.raises(MismatchedArtifactError, match="was built with the encoder"):
        train_rag(config(RagTrainConfig, world, tmp_path / "e", question_encoder=str(other)))
    (tmp_path / "silent.jsonl").write_text('{"question": "who", "answers": []}\n')
    with pytest.raises(DataError, match="none of its 1 questions has answers"):
        train_rag(
            config(
                RagTrainConfig, world, tmp_path / "b", train_files=[str(tmp_path / "silent.jsonl")]
            )
        )
    (tmp_path / "regex.jsonl").write_text(
        '{"question": "who", "answers": ["zz+y"], "answers_are_regex": true}\n'
    )
    regex = {"train_files": [str(tmp_path / "regex.jsonl")], "validation_file": None}
    with pytest.raises(DataError, match="regular expressions, and a generator learns"):
        train_rag(config(RagTrainConfig, {**world, **regex}, tmp_path / "c", validation_fraction=0))
    for wrong, message in (
        ({"over_retrieve": 3}, "must be more than top_k"),
        ({"chunk_size": 4}, "unknown setting 'chunk_size'"),
        ({"retriever": "bm25", "document_side": "reencode"}, "retriever bm25 is fixed"),
        ({"prior_scale": 2.0}, "prior_scale is for a fixed retriever"),
    ):
        with pytest.raises((ConfigError, ValidationError), match=message):
            config(RagTrainConfig, world, tmp_path / "d", **wrong)
