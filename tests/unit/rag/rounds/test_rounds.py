"""Rounds on a task that a tiny model learns, by a reader and by answers; stopped before every
stage.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from indexers.index import Index
from indexers.index_writer import write_index
from indexers.settings import BuildSettings
from rag.config import load_config
from rag.core.errors import ConfigError, DataError, MismatchedArtifactError
from rag.core.files import read_json
from rag.core.types import Passage
from rag.data.examples import Example
from rag.data.files.rows import write_json_lines
from rag.joint.questions import answered
from rag.rounds import judges, rounds
from rag.rounds.config import RoundsConfig, SignalName
from rag.rounds.rounds import run_rounds
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.examples.data import answer_matcher
from retrievers.training import distill
from retrievers.training.config import BiEncoderConfig, ColbertTrainConfig, DistillTrainConfig
from tests.commands import run_command
from tests.conftest import TinyModels
from tests.support.messages import refusal
from tests.unit.retrievers.conftest import cipher_examples

COMMON: dict[str, Any] = {
    "batch_size": 16,
    "passage_tokens": 16,
    "epochs": 24,
    "learning_rate": 3e-3,
    "validation_fraction": 0.0,
    "precision": "fp32",
    "threads": 1,
    "dropout": 0.0,
}


class Reader:
    """Knows where answers stand."""

    signal = "span-likelihood"

    def __init__(self) -> None:
        self.identity = {"name": "knowing", "kind": "extractive", "weights_sha256": "0" * 64}

    def judge(self, asked: Sequence[Example]) -> list[Any]:
        targets = []
        for example in asked:
            matcher = answer_matcher(example)
            targets.append(np.array([4.0 * matcher.matches(p.text) for p in example.passages]))
        return targets


@pytest.fixture(autouse=True)
def knowing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "open_judge", lambda *_: Reader())


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> dict[str, Any]:
    """80 passages of letters, an index of them, and two questions about each."""
    folder = tmp_path_factory.mktemp("rounds")
    passages = []
    lines = []
    for number, example in enumerate(cipher_examples(80, negatives=0)):
        code = " ".join(example.positives[0].text.split()[2:6])
        passages.append(Passage(str(number), "title", f"the river {code} text"))
        for asked in ("who wrote", "in the black forest"):
            lines.append(
                {"id": f"{number}-{asked[:2]}", "question": f"{asked} {code}", "answer": [code]}
            )
    write_json_lines(folder / "train.jsonl", lines)
    encoder = BiEncoder.load(tiny_bert, pooling="mean")
    write_index(folder / "index", passages, encoder=encoder)
    return {"folder": folder, "encoder": str(tiny_bert)}


def settings(world: dict[str, Any], out: Path, **more: Any) -> RoundsConfig:
    usual = {
        "method": "distill",
        "index": world["folder"] / "index",
        "questions": world["folder"] / "train.jsonl",
        "validation_fraction": 0.4,
        "top_k": 40,
        "positives": "1,40",
        "negatives": 8,
        "restart": False,
    }
    given = usual | more
    return load_config(
        RoundsConfig, overrides={**given, "out": out, "questions": str(given["questions"])}
    )


def by_reader(
    world: dict[str, Any], out: Path, steps: int | None = None, **more: Any
) -> tuple[RoundsConfig, BiEncoderConfig]:
    training = {"pooling": "mean", "normalize": True, "temperature": 0.1, "per_question": 12}
    return settings(world, out, **more), trained(DistillTrainConfig, world, out, steps, training)


def by_answers(
    world: dict[str, Any], out: Path, steps: int | None = None, **more: Any
) -> tuple[RoundsConfig, BiEncoderConfig]:
    training = {"projection_dim": 32, "hard_negatives": 2, "temperature": 0.2}
    config = settings(world, out, **{"method": "colbert", "rounds": 1, **more})
    return config, trained(ColbertTrainConfig, world, out, steps, training)


def trained(
    kind: type[BiEncoderConfig],
    world: dict[str, Any],
    out: Path,
    steps: int | None,
    more: dict[str, Any],
) -> BiEncoderConfig:
    given: dict[str, Any] = {
        "out": out,
        "train_files": (out / "x",),
        "question_encoder": world["encoder"],
        "question_tokens": 14,
        "max_steps": steps,
    }
    return kind(**COMMON, **given, **more)


@pytest.mark.parametrize("method", [by_reader, by_answers])
def test_a_round_gains(method: Any, world: dict[str, Any], tmp_path: Path) -> None:
    start, first = run_rounds(*method(world, tmp_path / "run", rounds=1))
    assert first["figures"]["top5"] > start["figures"]["top5"] + 10
    assert (first["facts"].get("positives", 0) > 40) == (method is by_answers)
    written = read_json(tmp_path / "run" / "rounds.json")
    assert written["rounds"] == [start, first]
    assert written["best"] == 1
    assert Path(written["encoder"]) == tmp_path / "run" / "round-1" / "retriever" / "encoder"


def test_rounds_of_questions_alone_encode_nothing(world: dict[str, Any], tmp_path: Path) -> None:
    config, training = by_reader(world, tmp_path / "run", steps=6, restart=True)
    training = training.replaced(
        question_encoder=None, shared=False, frozen="passage", select_by="last"
    )
    run_rounds(config, training)
    for folder in (tmp_path / "run").glob("round-[1-9]"):
        assert (folder / "retriever" / "index").is_dir()
        assert not (folder / "index").exists()


def test_rounds_start_from_the_encoder_of_the_index_or_say_that_they_do_not(
    world: dict[str, Any], tmp_path: Path, tiny: TinyModels
) -> None:
    other = str(tiny.bert(tmp_path / "other", seed=9))
    for encoder, expected in ((None, world["encoder"]), (other, other)):
        config, training = by_reader(world, tmp_path / f"run-{encoder is None}", steps=1, rounds=1)
        start, _ = run_rounds(config, training.replaced(question_encoder=encoder, pooling="auto"))
        begun = read_json(config.out / "round-1/retriever/config.json")
        assert begun["question_encoder"] == start["facts"]["training starts from"] == expected
        assert start["facts"]["encoder"] == world["encoder"]


def test_rounds_go_on_after_a_stop_before_any_stage(
    world: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run_rounds(*by_reader(world, tmp_path / "whole", steps=2))
    assert [row["round"] for row in whole] == [0, 1, 2]
    for home, name in (
        (rounds, "write_results"),
        (rounds, "score_examples"),
        (distill, "build"),
        (rounds, "write_index"),
        (rounds, "evaluate"),
    ):
        with monkeypatch.context() as patch:
            real = getattr(home, name)

            def stop(*given: Any, _real: Any = real, **more: Any) -> Any:
                if "round-1" in f"{given} {more}":
                    raise KeyboardInterrupt
                return _real(*given, **more)

            patch.setattr(home, name, stop)
            with pytest.raises(KeyboardInterrupt):
                run_rounds(*by_reader(world, tmp_path / "cut", steps=2))
    assert run_rounds(*by_reader(world, tmp_path / "cut", steps=2)) == whole
    for name in ("retrieved.json", "examples.json", "retriever/encoder/model.safetensors"):
        for number in (1, 2):
            path = Path(f"round-{number}") / name
            made, expected = (tmp_path / run / path for run in ("cut", "whole"))
            assert made.read_bytes() == expected.read_bytes()
    config, training = by_reader(world, tmp_path / "cut", steps=2)
    run_rounds(
        config, training.replaced(threads=2, save_every_s=7)
    )  # of no matter to what is learnt
    with refusal(MismatchedArtifactError):
        run_rounds(config, training.replaced(batch_size=8))
    with refusal(MismatchedArtifactError):
        run_rounds(config.replaced(top_k=9), training)


@pytest.mark.parametrize("restart", [False, True])
def test_what_a_round_has_trained_is_not_made_random_again(
    restart: bool, world: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reset: list[int] = []
    build = distill.build
    monkeypatch.setattr(
        distill,
        "build",
        lambda config, world: (reset.append(config.reset_layers), build(config, world))[1],
    )
    config, training = by_reader(world, tmp_path / "run", steps=1, restart=restart)
    run_rounds(config, training.replaced(reset_layers=1))
    assert reset == [1, int(restart)]


def test_vectors_are_compared_with_vectors_and_words_stay(
    world: dict[str, Any], tmp_path: Path
) -> None:
    with Index.open(world["folder"] / "index") as index:
        write_index(
            tmp_path / "hybrid",
            index.passages,
            encoder=BiEncoder.load(world["encoder"], pooling="mean"),
            settings=BuildSettings(retriever="hybrid"),
        )
        write_index(tmp_path / "bm25", index.passages, settings=BuildSettings(retriever="bm25"))
    more = {"steps": 1, "rounds": 1, "index": tmp_path / "hybrid", "top_k": 80}
    rows = run_rounds(*by_reader(world, tmp_path / "dense", **more))
    assert [row["facts"]["searched"] for row in rows] == ["dense", "dense"]
    ranked = read_json(tmp_path / "dense" / "round-1" / "retrieved.json")
    assert min(len(example["ctxs"]) for example in ranked) == 80  # the vectors too propose passages
    rows = run_rounds(*by_answers(world, tmp_path / "run", **{**more, "index": tmp_path / "bm25"}))
    assert [row["facts"]["searched"] for row in rows] == ["bm25", "colbert"]
    with Index.open(tmp_path / "run" / "round-1" / "index") as made:
        assert made.parts == ("tokens", "bm25")


def test_wrong_settings_are_refused(
    world: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert get_args(SignalName) == tuple(judges._SIGNALS)
    strange = tmp_path / "strange.jsonl"
    write_json_lines(strange, ({"question": f"who {n}", "answer": ["zzz"]} for n in range(30)))
    index = world["folder"] / "index"
    command = ("rounds", "--index", index, "--questions", strange, "--out")
    rules = [("colbert", "--positives", rule, "expected rules b,k") for rule in ("3", "5,3", "a,b")]
    for recipe, option, value, words in (
        ("distill", "--signal", "entropy", 'Choose from: "attention"'),
        ("distill", "--positives", "1,9", "--positives is not read by the recipe distill"),
        ("colbert", "--signal", "likelihood", "--signal is not read by the recipe colbert"),
        *rules,
        ("colbert", "--set", "select_by=mrr", "select_by=mrr is not measured here"),
    ):
        refused = run_command(*command, tmp_path / "run", "--recipe", recipe, option, value)
        assert refused.exit_code == 2
        assert words in refused.err
    assert not (tmp_path / "run").exists()
    with refusal(DataError):
        run_rounds(*by_answers(world, tmp_path / "b", questions=strange))
    strange.write_text('{"question": "who?"}\n')
    with refusal(DataError):
        answered(strange)
    with refusal(ConfigError):
        run_rounds(*by_reader(world, tmp_path / "r", held_out="nq-test.jsonl"))
