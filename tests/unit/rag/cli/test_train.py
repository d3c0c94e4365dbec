"""`rag train`: what is retrieved for a generator's questions; a reranker that starts from a reader."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from indexers.build import build_index
from indexers.settings import BuildSettings
from rag.cli.main import app
from rag.core.errors import ConfigError
from rag.core.types import Passage, Question
from rag.data.examples import Example, write_examples
from rag.eval import runs
from rag.pipeline import Pipeline
from rag.recipes import resolve, train
from readers.extractive.files import load_span_model, plain_encoder
from readers.generative.training.config import GeneratorTrainConfig
from retrievers.encoders.cross_encoder import CrossEncoder


def test_every_file_gets_passages_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def stub(pipeline: Pipeline, questions: list[Question], out: Path, top_k: int) -> None:
        asked.append(questions[0].text)
        out.write_text(json.dumps([{"question": "q", "answers": ["x"], "ctxs": [{"text": "t"}]}]))

    monkeypatch.setattr(runs, "write_results", stub)
    lexical = BuildSettings(retriever="bm25", java_heap_mib=256)
    for name in ("one", "two"):
        build_index([Passage("a", "", f"text {name}")], tmp_path / name, settings=lexical)
        (tmp_path / f"set-{name}").mkdir()
        (tmp_path / f"set-{name}" / "train.jsonl").write_text(
            json.dumps({"question": f"{name}?", "answers": ["x"]})
        )
    first, second = (tmp_path / f"set-{name}" / "train.jsonl" for name in ("one", "two"))

    def found(file: Path, index: str = "one", top_k: int = 5, **others: Path) -> Path:
        config = GeneratorTrainConfig(
            train_files=(file,), out=tmp_path / "run", index=tmp_path / index, top_k=top_k,
            stages=({"steps": 1},), **others,
        )  # fmt: skip
        resolved = resolve(config)
        (place,) = resolved.train_files
        assert (resolved.validation_file is None) is (not others)
        return Path(resolved.validation_file or place)

    places = [found(first), found(second), found(first, "two"), found(first, top_k=6)]
    assert len(set(places)) == len(asked) == 4
    assert found(first) == places[0]  # it is there
    assert len(asked) == 4
    first.write_text(json.dumps({"question": "corrected?", "answers": ["x"]}))
    assert found(first) not in places
    assert found(places[0]) == places[0]  # it has passages
    assert found(places[0], validation_file=second) == places[1]  # held-out questions get some too
    assert found(places[0], validation_file=places[2]) == places[2]


def test_nothing_is_retrieved_into_a_folder_that_is_no_run(tmp_path: Path) -> None:
    build_index(
        [Passage("a", "", "text")],
        tmp_path / "i",
        settings=BuildSettings(retriever="bm25", java_heap_mib=256),
    )
    (tmp_path / "train.jsonl").write_text(json.dumps({"question": "q?", "answers": ["x"]}))
    before = sorted(tmp_path.rglob("*"))
    for out, why in (("i", "holds an index, not a run"), ("train.jsonl", "is a file")):
        with pytest.raises(ConfigError, match=why):
            train("generator", tmp_path / out, train_files=[tmp_path / "train.jsonl"], index=tmp_path / "i",
                  stages=[{"steps": 1}])  # fmt: skip
    assert sorted(tmp_path.rglob("*")) == before


def test_a_cross_encoder_starts_from_the_encoder_of_the_reader_that_ships(tmp_path: Path) -> None:
    right, *wrong = (Passage(name, name, f"{name} is a river") for name in ("Inn", "Po", "Main"))
    examples = [Example.labelled("q", "which river is Inn", (), [right], wrong)]
    write_examples(tmp_path / "train.json", examples)
    command = ["train", "reranker", "--config", "reranker-small", "--train", str(tmp_path / "train.json"),
               "--set", "max_steps=1", "--set", "validation_fraction=0", "--set", "learning_rate=1e-12",
               "--set", "weight_decay=0",
               "--set", "precision=fp32", "--out", str(tmp_path / "run")]  # fmt: skip
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    model, _ = load_span_model("shipped") or (None, None)
    assert model is not None
    finished = load_file(tmp_path / "run" / "cross-encoder" / "model.safetensors")
    trained = {name.removeprefix("bert."): tensor for name, tensor in finished.items()}
    for name, tensor in model.encoder.state_dict().items():
        torch.testing.assert_close(trained[name], tensor, msg=name)
    assert len(CrossEncoder.load(tmp_path / "run" / "cross-encoder").score(["a"], [right])) == 1
    card = (tmp_path / "run" / "cross-encoder" / "README.md").read_text()
    assert "It started from shipped." in card
    assert '"question_encoder": "shipped"' in card
    again = CliRunner().invoke(app, command)  # finished: the same settings
    assert again.exit_code == 0, again.output


def test_what_is_no_reader_is_left_as_it_is(tiny_bert: Path, tmp_path: Path) -> None:
    assert plain_encoder(None, tmp_path) is None
    assert plain_encoder(str(tiny_bert), tmp_path) == str(tiny_bert)
    assert plain_encoder("owner/name", tmp_path) == "owner/name"
    assert not list(tmp_path.iterdir())
    first = plain_encoder("shipped", tmp_path)
    assert first is not None
    changed = (Path(first) / "model.safetensors").stat().st_mtime_ns
    assert plain_encoder("shipped", tmp_path) == first
    assert (Path(first) / "model.safetensors").stat().st_mtime_ns == changed
