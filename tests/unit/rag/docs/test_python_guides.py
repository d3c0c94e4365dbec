"""Every example of the pages on Python and on extending runs, in the order of the page."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import rag
from rag.core.errors import ConfigError
from rag.core.types import Passage
from rag.data.examples import write_examples
from rag.data.files.rows import write_json_lines
from rag.eval.results import Evaluation
from retrievers.encoders.bi_encoder import BiEncoder
from tests.commands import run_successfully
from tests.support.messages import refusal
from tests.support.training import records
from tests.support.verifying import WordVerifier
from tests.unit.retrievers.conftest import cipher_examples

FOLDER = Path(__file__).parents[4] / "rag" / "docs"
FILE = re.compile(r"# (\S+\.(?:py|yaml))\n")
TINY = """
question_tokens: 16
passage_tokens: 24
dropout: 0.0
precision: fp32
threads: 1
log_every_steps: 1
pooling: mean
normalize: true
learning_rate: 0.003
batch_size: 16
"""


def run(page: str, shared: dict[str, Any]) -> None:
    """Write the files of a page, type its commands, execute its Python."""
    text = (FOLDER / page).read_text(encoding="utf-8").replace("minilm-qa", "my-base")
    for number, (kind, block) in enumerate(
        re.findall(r"^```(\w+)\n(.*?)^```$", text, re.M | re.S), 1
    ):
        if match := FILE.match(block):
            Path(match[1]).write_text(block + (TINY if kind == "yaml" else ""))
        elif kind == "python":
            exec(compile(block, f"{page}, block {number}", "exec"), shared)
        elif kind == "console":
            for line in block.splitlines():
                run_successfully(*line.removeprefix("$ rag ").split())


def losses(folder: str) -> list[float]:
    return [record["loss"] for record in records(Path(folder))]


def test_the_page_on_python(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny.sentence_transformer(tmp_path / "built").rename(tmp_path / "my-model")
    documents = [
        {"id": "d1", "title": "Danube", "text": "The Danube rises in the Black Forest."},
        {"id": "d2", "title": "Rhine", "text": "The Rhine ends in the North Sea."},
        {"id": "d3", "title": "Sea", "text": "Where a river has its end the sea begins."},
    ]
    write_json_lines(Path("corpus.jsonl"), documents)
    question = {
        "question": "Where does the Rhine end?",
        "answers": ["North Sea"],
        "gold_passage_ids": ["d2"],
    }
    write_json_lines(Path("questions.jsonl"), [question])
    trained: list[Any] = []
    monkeypatch.setattr("readers.verifying.open.load_verifier", lambda *_: WordVerifier())
    monkeypatch.setattr("rag.recipes.run", lambda config: trained.append(config) or Path("run"))
    monkeypatch.setattr(
        "rag.rounds.rounds.run_rounds", lambda config, training: trained.append(config) or []
    )
    shared: dict[str, Any] = {}
    run("python.md", shared)
    printed = capsys.readouterr().out
    assert "Black Forest" in printed
    assert "Who painted it? no answer" in printed
    assert (
        "AnswerSet(question='Where does the Danube rise?', answers=(Answer(text='in the Black F"
        in printed
    )
    assert "'examples': 1" in printed
    assert "supported {'supported': " in printed
    assert len(Path("found.run").read_text().splitlines()) >= 1
    assert trained[0].learning_rate == 2e-5
    assert trained[1].rounds == 2
    assert shared["before"].figures["top1"].value == 1.0


def test_the_page_on_extending(
    tiny_bert: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my-base").symlink_to(tiny_bert)
    examples = cipher_examples(120)
    write_examples(tmp_path / "train.json", examples)
    hamlet = Passage("h", "Hamlet", "Hamlet was written by William Shakespeare. It is a play.")
    passages = [*(example.positives[0] for example in examples), hamlet]
    rows = ({"id": p.id, "title": p.title, "text": p.text} for p in passages)
    write_json_lines(Path("corpus.jsonl"), rows)
    shared: dict[str, Any] = {}
    run("extending.md", shared)
    values = losses("margin")
    assert sum(values[-5:]) < 0.8 * sum(values[:5])
    assert json.loads(Path("margin/config.json").read_text())["margin"] == 0.3
    for name in ("retro", "margin-mse"):
        assert losses(name)[-1] < 0.9 * losses(name)[0]
    encoder = BiEncoder.load(shared["encoder"], precision="fp32")
    assert encoder.encode_passages([""], ["river a b"]).shape == (1, 32)
    mine: Evaluation = shared["mine"]
    assert mine.figures["mrr"].value == 1.0
    printed = capsys.readouterr().out.splitlines()
    assert printed[-3:] == [
        "Hamlet was written by William Shakespeare.",
        "William Shakespeare",
        "1.0",
    ]

    for name in ("none.py:A", "retro.py:Restorer", "dprr"):
        with refusal(ConfigError):
            rag.train(name, "run")
    with refusal(ConfigError):
        rag.train("dpr", "run", train_files=["train.json"], data={"batch_size": 3})
