"""`rag train` in two processes takes the steps that it takes in one."""

from pathlib import Path

import pytest

from rag.data.examples import write_examples
from rag.data.files.rows import write_json_lines
from tests.commands import run_command
from tests.support.training import check_trained_alike
from tests.unit.retrievers.conftest import TINY, cipher_examples
from tests.worlds import torchrun

SETTINGS = {
    **TINY,
    "batch_size": 9,
    "max_steps": 4,
    "accumulate": 2,
    "clip_norm": 0.5,
    "dropout": 0.1,
    "learning_rate": 1e-3,
    "chunk_size": 1,
}


def write_training_file(path: Path, recipe: str) -> None:
    examples = cipher_examples(48)
    if recipe == "dpr":
        write_examples(path, examples)
        return
    hops = [
        {
            "id": example.id,
            "question": example.question,
            "gold_titles": [f"x{example.id}", f"y{example.id}"],
            "context": [
                [f"x{example.id}", [example.positives[0].text]],
                [f"y{example.id}", [before.positives[0].text]],
            ],
        }
        for example, before in zip(examples, examples[-1:] + examples[:-1], strict=True)
    ]
    write_json_lines(path, hops)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["dpr", "mdr"])
def test_two_processes_train_as_one(tmp_path: Path, tiny_bert: Path, recipe: str) -> None:
    train = tmp_path / "train.jsonl"
    write_training_file(train, recipe)
    given = ["--train", str(train), "--from", str(tiny_bert)]
    given += [f"--set={name}={value}" for name, value in SETTINGS.items()]
    if recipe == "mdr":
        given.append("--set=query_tokens=24")
    for size in (1, 2):
        out = str(tmp_path / f"{size}")
        command = ("train", recipe, *given, "--out", out, "--debug")
        ranks = torchrun(size, tmp_path / f"ranks-{size}", run_command, *command)
        assert [rank.exit_code for rank in ranks] == [0] * size, ranks
        assert sum("encoder → " in rank.out for rank in ranks) == 1
    check_trained_alike(tmp_path / "1" / "encoder", tmp_path / "2" / "encoder")
