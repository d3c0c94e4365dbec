"""A recipe of a user's own: what it trains with two processes is what it trains with one."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rag
from indexers.index_writer import write_index
from rag.core.errors import ConfigError
from rag.data.examples import write_examples
from rag.data.files.rows import write_json_lines
from rag.recipes import recipe_class
from rag.training.config import TrainConfig
from rag.training.distributed import World
from rag.training.fit import Loss, fit
from rag.training.run_log import read_metrics
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.training.bi_encoder import load_model
from retrievers.training.config import DprTrainConfig
from tests.support.messages import refusal
from tests.support.training import check_trained_alike
from tests.unit.retrievers.conftest import TINY, cipher_examples
from tests.worlds import run_world, torchrun, toy_method

PAGE = Path(__file__).parents[2] / "rag" / "docs" / "extending.md"
RECIPES = {
    "margin": "margin.py:MarginConfig",
    "margin-mse": "margin_mse.py:MarginMseConfig",
    "retro": "retro.py:RetroConfig",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recipes of the page, and data to train them with."""
    folder = tmp_path_factory.mktemp("recipes")
    page = PAGE.read_text(encoding="utf-8")
    for block in re.findall(r"^```python\n(# \w+\.py\n.*?)^```$", page, re.M | re.S):
        (folder / block.split()[1]).write_text(block)
    examples = []
    for example in cipher_examples(40):
        aimed = [replace(c, target=-float(n)) for n, c in enumerate(example.candidates)]
        examples.append(replace(example, candidates=tuple(aimed)))
    write_examples(folder / "train.json", examples)
    passages = (example.positives[0] for example in examples)
    rows = [{"id": p.id, "title": p.title, "text": p.text} for p in passages]
    write_json_lines(folder / "corpus.jsonl", rows)
    return folder


def settings(files: Path, name: str, base: Path | None, **more: Any) -> dict[str, Any]:
    given = {**TINY, "batch_size": 7, "max_steps": 4, "learning_rate": 1e-3, **more}
    if base is not None:
        given["question_encoder"] = str(base)
    if name == "retro":
        given.pop("validation_fraction")
        return {**given, "train_files": [files / "corpus.jsonl"], "split": "none"}
    return {**given, "train_files": [files / "train.json"]}


def train(files: Path, name: str, out: Path, given: dict[str, Any]) -> Path:
    return rag.train(f"{files}/{RECIPES[name]}", out, **given)


@pytest.mark.parametrize("name", RECIPES)
def test_two_processes_train_as_one(
    files: Path, tmp_path: Path, tiny_bert: Path, name: str
) -> None:
    given = settings(files, name, tiny_bert)
    one = train(files, name, tmp_path / "one", given)
    two = torchrun(2, tmp_path / "ranks", train, files, name, tmp_path / "two", given)[0]
    check_trained_alike(one, two)


@pytest.mark.parametrize("name", RECIPES)
def test_a_new_projection_trains_in_bf16(
    files: Path, tmp_path: Path, tiny_bert: Path, name: str
) -> None:
    given = settings(files, name, tiny_bert, precision="bf16", projection_dim=24, max_steps=2)
    if name != "retro":
        given["validation_fraction"] = 0
    finished = train(files, name, tmp_path / "run", given)
    assert BiEncoder.load(finished).identity.dim == 24


def test_the_index_gives_the_encoder(files: Path, tmp_path: Path, tiny_bert: Path) -> None:
    """The first loss is that of a run which names this encoder."""
    passages = [example.positives[0] for example in cipher_examples(40)]
    write_index(tmp_path / "built", passages, encoder=BiEncoder.load(tiny_bert, precision="fp32"))
    runs = {
        "named": settings(files, "retro", tiny_bert, pooling="mean"),
        "index": settings(files, "retro", None, index=tmp_path / "built", pooling="mean"),
    }
    losses = {}
    for run, given in runs.items():
        finished = train(files, "retro", tmp_path / run, given)
        losses[run] = read_metrics(tmp_path / run / "metrics.jsonl")[0]["loss"]
        assert "started from tiny-bert" in (finished / "README.md").read_text()
    assert losses["index"] == pytest.approx(losses["named"], abs=1e-6)


def test_a_fixed_index_gives_the_encoder_too(tmp_path: Path, tiny_bert: Path) -> None:
    passages = [example.positives[0] for example in cipher_examples(9)]
    encoder = BiEncoder.load(tiny_bert, precision="fp32")
    index = write_index(tmp_path / "built", passages, encoder=encoder).directory
    given = {"index": index, "frozen": "passage", "shared": False, "train_files": ("t.json",)}
    config = load_model(DprTrainConfig(out=tmp_path / "run", **given), "cpu").config
    assert config.question_encoder == config.passage_encoder == str(tiny_bert)


def test_the_card_names_the_file(files: Path, tmp_path: Path, tiny_bert: Path) -> None:
    """The command of a card exists: what it names is the recipe."""
    finished = train(files, "retro", tmp_path / "run", settings(files, "retro", tiny_bert))
    named = re.search(r"`rag train (\S+) --config", (finished / "README.md").read_text())
    assert named is not None
    assert recipe_class(f"{files}/{named[1]}") is recipe_class(f"{files}/{RECIPES['retro']}")


def test_a_tower_that_is_not_trained_is_refused(
    files: Path, tmp_path: Path, tiny_bert: Path
) -> None:
    with refusal(ConfigError):
        train(files, "retro", tmp_path / "run", settings(files, "retro", tiny_bert, shared=False))


def test_a_recipe_that_does_not_train_is_refused(tmp_path: Path) -> None:
    (tmp_path / "none.py").write_text(
        "from typing import ClassVar\n"
        "from rag.recipe import TrainConfig\n"
        "class Nameless(TrainConfig): name: str = 'idle'\n"
        "class Idle(Nameless): recipe: ClassVar[str] = 'idle'\n"
    )
    with refusal(ConfigError):
        rag.train(f"{tmp_path}/none.py:Idle", tmp_path / "run")
    with refusal(ConfigError):
        rag.train(f"{tmp_path}/none.py:Nameless", tmp_path / "run")


def test_a_file_that_cannot_be_imported_says_so_every_time(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import no_such_module_at_all\n")
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="no_such_module_at_all"):
            rag.train(f"{tmp_path}/broken.py:Any", tmp_path / "run")


class Squares:
    """Batches of rows (x, y), of a list, an array or a tensor."""

    def __init__(self, kind: Callable[[Any], Any]) -> None:
        self.kind = kind

    def __len__(self) -> int:
        return 3

    def __getitem__(self, number: int) -> Any:
        rows = (5, 1, 4)[number]  # of one row there is none for the second process
        return self.kind(np.random.default_rng(number).random((rows, 2), np.float32).tolist())


def masked_squares(model: torch.nn.Module, batch: Any) -> Loss:
    """The mean over rows whose x is large: of other numbers of terms in either process."""
    rows = torch.stack([torch.as_tensor(row, dtype=torch.float32) for row in batch])
    x = rows[:, :1]
    counted = x > 0.46  # of the last batch nothing in the second process
    errors = ((model(x) - rows[:, 1:]).square() * counted).sum() / counted.sum()
    return Loss(errors, len(rows), 0, parts={"error": errors}, terms=int(counted.sum()))


def fitted(world: World, out: Path, kind: Callable[[Any], Any]) -> list[float]:
    torch.manual_seed(world.rank)  # What the main process starts from counts.
    model = torch.nn.Linear(1, 1)
    given = TrainConfig(out=out, name="toy", learning_rate=0.1, log_every_steps=1)
    method = toy_method(model, Squares(kind), lambda batch: masked_squares(model, batch))
    weights = fit(method, given, world).weights
    records = read_metrics(out / "metrics.jsonl")
    figures = [record[name] for record in records for name in ("loss", "error", "norm", "examples")]
    return [*figures, *(float(tensor) for tensor in weights.values())]


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_means_are_weighed_by_their_terms(tmp_path: Path, kind: Callable[[Any], Any]) -> None:
    one = fitted(World(), tmp_path / "one", kind)
    for rank in run_world(2, tmp_path / "ranks", fitted, tmp_path / "two", kind):
        assert rank == pytest.approx(one, abs=1e-5)


def refused(world: World, out: Path, kind: Callable[[Any], Any]) -> str:
    try:
        fitted(world, out, kind)
    except ConfigError as error:
        return error.message
    return ""


def test_a_batch_that_cannot_be_divided_is_refused(tmp_path: Path) -> None:
    for message in run_world(2, tmp_path / "ranks", refused, tmp_path / "run", tuple):
        assert "a batch is a tuple" in message
