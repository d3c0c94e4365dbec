"""Rounds of distillation on a task that a tiny model learns; stopped before every stage and gone on with."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from indexers.build import build_index
from indexers.index import Index
from indexers.settings import BuildSettings
from rag.core.errors import ConfigError, DataError, MismatchedArtifactError
from rag.core.types import Passage
from rag.data.examples import Example
from rag.joint.questions import answered
from rag.rounds import rounds, signals
from rag.rounds.config import DistillRoundsConfig, SignalName
from rag.rounds.rounds import RoundResult, run_rounds, table
from rag.rounds.signals import Judge, matcher_of
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.training import distill
from retrievers.training.distill import DistillTrainConfig
from tests.commands import exit_code
from tests.conftest import TinyModels
from tests.unit.retrievers.conftest import cipher_examples


class Reader(Judge):
    """Knows where answers stand."""

    def __init__(self) -> None:
        self.signal, self.model = "span-likelihood", None
        self.identity = {"name": "knowing", "kind": "extractive", "weights_sha256": "0" * 64}

    def judge(self, asked: Sequence[Example]) -> list[Any]:
        return [np.array([4.0 * matcher_of(a).matches(p.text) for p in a.passages]) for a in asked]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> dict[str, Any]:
    """80 passages of letters, an index of them, and two questions about each."""
    folder = tmp_path_factory.mktemp("rounds")
    passages, lines = [], []
    for number, example in enumerate(cipher_examples(80, negatives=0)):
        code = " ".join(example.positives[0].text.split()[2:6])
        passages.append(Passage(str(number), "title", f"the river {code} text"))
        for asked in ("who wrote", "in the black forest"):
            lines.append({"id": f"{number}-{asked[:2]}", "question": f"{asked} {code}", "answer": [code]})
    (folder / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    encoder = BiEncoder.load(tiny_bert, pooling="mean")
    build_index(passages, folder / "index", encoder=encoder)
    return {"folder": folder, "encoder": str(tiny_bert)}


def configs(
    world: dict[str, Any], out: Path, steps: int | None = None, **more: Any
) -> tuple[DistillRoundsConfig, DistillTrainConfig]:
    folder = world["folder"]
    settings = DistillRoundsConfig(
        out=out, index=folder / "index", questions=str(folder / "train.jsonl"), validation_fraction=0.4,
        top_k=40, figure="top5", **{"rounds": 2, **more},
    )  # fmt: skip
    training = DistillTrainConfig(
        out=out, train_files=(out / "x",), question_encoder=world["encoder"], pooling="mean", normalize=True,
        temperature=0.1, dropout=0.0, question_tokens=16, passage_tokens=16, batch_size=16, per_question=12,
        epochs=24, max_steps=steps, learning_rate=3e-3, validation_fraction=0.0, precision="fp32", threads=1,
    )  # fmt: skip
    return settings, training


def stop_before(
    monkeypatch: pytest.MonkeyPatch, stages: Sequence[tuple[Any, str]], run: Callable[[], Any]
) -> None:
    """Run once for each of a method's `stages` (module, function) and those that all have, stopped before."""
    for home, name in (*stages, (rounds, "build_index"), (rounds, "evaluate")):
        with monkeypatch.context() as patch:
            real = getattr(home, name)

            def stop(*given: Any, _real: Any = real, **more: Any) -> Any:
                if "round-1" in f"{given} {more}":
                    raise KeyboardInterrupt
                return _real(*given, **more)

            patch.setattr(home, name, stop)
            with pytest.raises(KeyboardInterrupt):
                run()


def test_a_round_gains(world: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Judge, "open", lambda *_: Reader())
    start, first = run_rounds(*configs(world, tmp_path / "run", rounds=1))
    assert first.figures["top5"] > start.figures["top5"] + 10
    assert first.gained
    assert first.facts["no passage holds an answer"] == first.facts["constant"]
    told = json.loads((tmp_path / "run" / "rounds.json").read_text())
    assert (told["best"], Path(told["encoder"]).parts[-3:]) == (1, ("round-1", "retriever", "encoder"))
    lines = table([start, first], "top5")
    assert lines[2].split()[0] == "1"
    assert ", p = " in lines[2]


def test_rounds_of_questions_alone_encode_nothing(
    world: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Judge, "open", lambda *_: Reader())
    settings, training = configs(world, tmp_path / "run", steps=6)
    training = training.replaced(question_encoder=None, shared=False, frozen="passage", select_by="last")
    run_rounds(settings.replaced(restart=True), training)
    for folder in (tmp_path / "run").glob("round-[1-9]"):
        assert (folder / "retriever" / "index").is_dir()
        assert not (folder / "index").exists()


def test_rounds_start_from_the_encoder_of_the_index_or_say_that_they_do_not(
    world: dict[str, Any], tmp_path: Path, tiny: TinyModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Judge, "open", lambda *_: Reader())
    monkeypatch.setattr(RoundResult, "gained", property(lambda self: False))
    settings, training = configs(world, tmp_path / "same", steps=1)
    same = run_rounds(settings, training.replaced(question_encoder=None, pooling="auto"))
    begun = json.loads((tmp_path / "same/round-1/retriever/config.json").read_text())
    assert (begun["question_encoder"], begun["pooling"]) == (world["encoder"], "mean")
    assert not any("starts from" in line for line in table(same, "top5"))
    other = str(tiny.bert(tmp_path / "other", seed=9))
    settings, training = configs(world, tmp_path / "differs", steps=1)
    lines = table(run_rounds(settings, training.replaced(question_encoder=other)), "top5")
    assert f"training starts from {other}" in lines[1]


def test_rounds_go_on_after_a_stop_before_any_stage(
    world: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Judge, "open", lambda *_: Reader())
    monkeypatch.setattr(RoundResult, "gained", property(lambda self: True))
    whole = run_rounds(*configs(world, tmp_path / "whole", steps=2))
    assert [result.number for result in whole] == [0, 1, 2]
    stages = [(rounds, "write_results"), (rounds, "score_examples"), (distill, "train_distill")]
    stop_before(monkeypatch, stages, lambda: run_rounds(*configs(world, tmp_path / "cut", steps=2)))
    cut = run_rounds(*configs(world, tmp_path / "cut", steps=2))
    assert [result.figures for result in cut] == [result.figures for result in whole]
    for name in ("found.json", "examples.json", "retriever/encoder/model.safetensors"):
        for number in (1, 2):
            path = Path(f"round-{number}") / name
            assert (tmp_path / "cut" / path).read_bytes() == (tmp_path / "whole" / path).read_bytes()
    settings, training = configs(world, tmp_path / "cut", steps=2)
    run_rounds(settings, training.replaced(threads=2, save_every_s=7))  # of no matter to what is learnt
    with pytest.raises(MismatchedArtifactError, match="batch_size"):
        run_rounds(settings, training.replaced(batch_size=8))
    with pytest.raises(MismatchedArtifactError, match="whose top_k"):
        run_rounds(settings.replaced(top_k=9), training)


@pytest.mark.parametrize("restart", [False, True])
def test_what_a_round_has_trained_is_not_made_random_again(
    restart: bool, world: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Judge, "open", lambda *_: Reader())
    monkeypatch.setattr(RoundResult, "gained", property(lambda self: True))
    reset: list[int] = []
    train = distill.train_distill
    monkeypatch.setattr(
        distill, "train_distill", lambda said: (reset.append(said.reset_layers), train(said))[1]
    )
    settings, training = configs(world, tmp_path / "run", steps=1, restart=restart)
    run_rounds(settings, training.replaced(reset_layers=1))
    assert reset == [1, int(restart)]


def test_vectors_are_compared_with_vectors(
    world: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Judge, "open", lambda *_: Reader())
    with Index.open(world["folder"] / "index") as index:
        build_index(
            index.passages, tmp_path / "hybrid", encoder=BiEncoder.load(world["encoder"], pooling="mean"),
            settings=BuildSettings(retriever="hybrid"),
        )  # fmt: skip
    opened: list[str] = []
    real = rounds.evaluate

    def evaluate(*given: Any, **more: Any) -> Any:
        opened.append(more["retriever"])
        return real(*given, **more)

    monkeypatch.setattr(rounds, "evaluate", evaluate)
    counts = []
    for asked in ("auto", "bm25"):
        settings, training = configs(world, tmp_path / asked, steps=1, rounds=1, retriever=asked)
        run_rounds(settings.replaced(index=tmp_path / "hybrid", top_k=80), training)
        ranked = json.loads((tmp_path / asked / "round-1" / "found.json").read_text())
        counts.append(min(len(example["ctxs"]) for example in ranked))
    assert opened == ["dense", "dense", "bm25", "dense"]
    assert counts[0] == 80 > counts[1]  # round 1 itself learns from all that is found, as asked


def test_a_gain_within_noise_is_none() -> None:
    assert RoundResult(1, {}, (2.0, 0.5, 3.0)).gained
    assert not RoundResult(1, {}, (2.0, -0.5, 3.0)).gained


def test_wrong_settings_are_refused(
    world: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert get_args(SignalName) == tuple(signals._SIGNALS)
    (tmp_path / "q").touch()
    given = [
        "rounds",
        "--recipe",
        "distill",
        "--index",
        str(world["folder"] / "index"),
        "--questions",
        str(tmp_path / "q"),
        "--out",
        str(tmp_path / "run"),
    ]
    for more, said in (
        (["--signal", "entropy"], "is not one of 'attention'"),
        (["--positives", "1,9"], "--positives is not read with --recipe distill"),
        (
            ["--signal", "attention"],
            "the shipped reader (extractive) cannot give attention",
        ),
    ):
        assert exit_code(*given, *more) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    unanswered = tmp_path / "q.jsonl"
    unanswered.write_text('{"question": "who?"}\n')
    with pytest.raises(DataError, match="none of its 1 questions has answers"):
        answered(unanswered)
    with pytest.raises(ConfigError, match="test"):
        run_rounds(
            DistillRoundsConfig(out=tmp_path / "r", index=tmp_path, questions="q", held_out="nq-test.jsonl"),
            DistillTrainConfig(out=tmp_path, train_files=(tmp_path / "x",)),
        )
