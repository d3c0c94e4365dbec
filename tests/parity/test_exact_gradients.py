"""Gradients of 1, 2 and 4 processes, with and without the cache, are those of one big batch.

The oracle is transformers and torch alone: every text encoded by itself, all scores in one matrix,
cross-entropy, one backward pass.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers import BertModel

from rag.core.types import Passage, Query
from rag.training.config import TrainConfig
from rag.training.distributed import World
from rag.training.fit import Loss, fit
from rag.training.precision import MasterWeights
from rag.training.run_log import read_metrics
from retrievers.examples.batches import IGNORED, NEGATIVE, OTHER, POSITIVE, RetrieverBatch
from retrievers.training import bi_encoder as model_module
from retrievers.training.bi_encoder import BiEncoderModel
from retrievers.training.losses import in_batch_loss, pairwise_loss
from retrievers.training.step import contrastive_step
from tests.conftest import TinyModels
from tests.spelled import ids_of, spell
from tests.token_towers import bi_encoder, spelled, token_model
from tests.worlds import run_world, toy_method

B = 8
Gradients = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def folders(tiny: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    base = tmp_path_factory.mktemp("towers")
    return tiny.bert(base / "questions", seed=1), tiny.bert(base / "passages", seed=2)


def texts(draw: np.random.Generator, count: int, low: int, high: int) -> list[str]:
    return [spell(draw.integers(5, 120, draw.integers(low, high))) for _ in range(count)]


def make_batch(seed: int, *, equal_lengths: bool = False, negatives: int = 1) -> RetrieverBatch:
    """B questions with 1 + `negatives` passages each, the positive anywhere, some passages
    ignored.
    """
    draw = np.random.default_rng(seed)
    each = 1 + negatives
    positives = np.arange(B) * each + draw.integers(0, each, B)
    ignored = draw.random((B, B * each)) < 0.2
    ignored[np.arange(B), positives] = False
    labels = np.full(ignored.shape, OTHER, np.int8)
    labels[np.repeat(np.arange(B), each), np.arange(B * each)] = NEGATIVE
    labels[ignored] = IGNORED
    labels[np.arange(B), positives] = POSITIVE
    short, long = ((9, 10), (13, 14)) if equal_lengths else ((3, 12), (4, 30))
    questions = [Query(text) for text in texts(draw, B, *short)]
    passages = [Passage("", "", text) for text in texts(draw, B * each, *long)]
    return RetrieverBatch(questions, passages, torch.from_numpy(labels))


def load(
    folders: tuple[Path, Path], *, shared: bool = False, dropout: float = 0.0
) -> BiEncoderModel:
    return spelled(
        bi_encoder(
            folders[0],
            None if shared else folders[1],
            shared=shared,
            pooling="mean",
            normalize=True,
            temperature=0.1,
            question_tokens=16,
            passage_tokens=32,
            dropout=dropout,
        )
    )


def step_gradients(
    world: World,
    model: BiEncoderModel,
    batch: RetrieverBatch,
    chunk: int | None = None,
    loss_of: Any = in_batch_loss,
) -> tuple[float, Gradients]:
    """Loss and gradients as the fit loop combines them."""
    master = MasterWeights(model, "fp32")
    torch.manual_seed(5 + world.rank)  # processes need not agree on this
    loss = contrastive_step(model, batch, world, chunk, loss=loss_of)
    loss.compute_gradients(master.gather_gradients)
    value = loss.value.detach().double().reshape(1)
    world.sum_([value])
    gradients = {
        n: m.grad for n, m in zip(master.names, master.master, strict=True) if m.grad is not None
    }
    ordered = dict(sorted(gradients.items()))
    world.sum_(list(ordered.values()))
    return float(value), ordered


def plain_bert(folder: Path) -> BertModel:
    return BertModel.from_pretrained(folder, add_pooling_layer=False).eval()


def token_vectors(tower: BertModel, text: str) -> torch.Tensor:
    return tower(torch.tensor([ids_of(text)])).last_hidden_state[0]


def backward(
    scores: torch.Tensor, batch: RetrieverBatch, **towers: BertModel
) -> tuple[float, Gradients]:
    """Loss and gradients of all scores of a batch."""
    scores = scores.masked_fill(batch.labels == IGNORED, -torch.inf)
    loss = functional.cross_entropy(scores, batch.labels.argmax(1))
    loss.backward()
    gradients: Gradients = {}
    for side, tower in towers.items():
        for name, parameter in tower.named_parameters():
            if parameter.grad is not None:
                gradients[f"{side}.encoder.{name}"] = parameter.grad
    return float(loss.detach()), gradients


def oracle(
    folders: tuple[Path, Path], batch: RetrieverBatch, *, shared: bool = False
) -> tuple[float, Gradients]:
    towers = {"question": plain_bert(folders[0])}
    if not shared:
        towers["passage"] = plain_bert(folders[1])

    def vectors(side: str, texts: list[str]) -> torch.Tensor:
        tower = towers.get(side, towers["question"])
        means = [token_vectors(tower, text).mean(0) for text in texts]
        return functional.normalize(torch.stack(means), dim=1)

    questions = vectors("question", [query.question for query in batch.questions])
    passages = vectors("passage", [passage.text for passage in batch.passages])
    return backward(questions @ passages.T / 0.1, batch, **towers)


def assert_same(found: tuple[float, Gradients], expected: tuple[float, Gradients]) -> None:
    assert found[0] == pytest.approx(expected[0], abs=1e-6)
    assert found[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        assert float(gradient.abs().max()) > 0 or "key.bias" in name, name
        torch.testing.assert_close(
            found[1][name], gradient, rtol=1e-4, atol=2e-6, msg=lambda m, n=name: f"{n}: {m}"
        )


def assert_exact(
    size: int, out: Path, run: Callable[[World], Any], expected: tuple[float, Gradients]
) -> None:
    """Every process of a world of this size finds the loss and the gradients expected."""
    for found in run_world(size, out, run):
        assert_same(found, expected)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("size", "chunk"), [(1, None), (1, 3), (2, None), (3, 2), (4, 1)])
def test_two_towers_and_one(
    folders: tuple[Path, Path], tmp_path: Path, shared: bool, size: int, chunk: int | None
) -> None:
    batch = make_batch(1, negatives=2)

    def run(world: World) -> tuple[float, Gradients]:
        return step_gradients(world, load(folders, shared=shared), batch, chunk)

    assert_exact(size, tmp_path, run, oracle(folders, batch, shared=shared))


@pytest.mark.parametrize(("size", "chunk"), [(1, 2), (2, None), (4, 2)])
def test_dropout_is_the_same_for_any_number_of_processes(
    folders: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    size: int,
    chunk: int | None,
) -> None:
    """Texts of one length in chunks of two: every process draws the masks one process would have
    drawn.
    """
    monkeypatch.setattr(model_module, "_CPU_CHUNK", (2, 1 << 20))
    batch = make_batch(3, equal_lengths=True)

    def run(world: World) -> tuple[float, Gradients]:
        model_module._CPU_CHUNK = (2, 1 << 20)  # in a process of its own
        return step_gradients(world, load(folders, dropout=0.3), batch, chunk)

    expected = step_gradients(World(), load(folders, dropout=0.3), batch)
    without = step_gradients(World(), load(folders), batch)
    assert abs(expected[0] - without[0]) > 1e-3
    assert_exact(size, tmp_path, run, expected)


@pytest.mark.parametrize("size", [1, 2])
def test_pairs_are_exact_too(folders: tuple[Path, Path], tmp_path: Path, size: int) -> None:
    batch = make_batch(5, negatives=2)

    def run(world: World, chunk: int | None = 4) -> tuple[float, Gradients]:
        return step_gradients(world, load(folders), batch, chunk, pairwise_loss)

    assert_exact(size, tmp_path, run, run(World(), None))


@pytest.mark.parametrize(("size", "chunk"), [(1, None), (1, 3), (2, None), (4, 3)])
def test_a_vector_a_token_is_exact(
    folders: tuple[Path, Path], tmp_path: Path, size: int, chunk: int | None
) -> None:
    """MaxSim of every pair of texts by itself, and one backward pass."""
    batch = make_batch(7)
    tower = plain_bert(folders[0])

    def tokens(text: str) -> torch.Tensor:
        return functional.normalize(token_vectors(tower, text), dim=-1)

    def run(world: World) -> tuple[float, Gradients]:
        return step_gradients(
            world, token_model(folders[0], dropout=0.0, temperature=2.0), batch, chunk
        )

    passages = [tokens(passage.text) for passage in batch.passages]
    rows = []
    for query in batch.questions:
        vectors = tokens(query.question)
        rows.append(torch.stack([(vectors @ p.T).amax(1).sum() for p in passages]))
    assert_exact(size, tmp_path, run, backward(torch.stack(rows) / 2, batch, question=tower))


class Batches:
    def __len__(self) -> int:
        return 4

    def __getitem__(self, number: int) -> RetrieverBatch:
        return make_batch(10 + number)


def train(world: World, folders: tuple[Path, Path], out: Path, chunk: int | None) -> dict[str, Any]:
    model = load(folders, shared=True)
    if world.rank:  # what the main process starts from counts
        torch.nn.init.normal_(model.question.encoder.embeddings.word_embeddings.weight)  # type: ignore[union-attr,arg-type]

    def loss(batch: RetrieverBatch) -> Loss:
        return contrastive_step(model, batch, world, chunk)

    settings = TrainConfig(
        out=out,
        name="toy",
        learning_rate=0.001,
        accumulate=2,
        clip_norm=0.5,
        schedule="constant",
        log_every_steps=1,
    )
    weights = fit(toy_method(model, Batches(), loss, shares=True), settings, world).weights
    return {"loss": read_metrics(out / "metrics.jsonl")[-1]["loss"], **weights}


def test_a_run_of_two_processes_is_a_run_of_one(folders: tuple[Path, Path], tmp_path: Path) -> None:
    """Accumulation, clipping (which sees the scale of gradients), and the optimiser included."""
    one = train(World(), folders, tmp_path / "one", None)
    both = run_world(2, tmp_path / "ranks", train, folders, tmp_path / "two", 3)
    for name, value in both[0].items():
        if name != "loss":
            assert torch.equal(value, both[1][name]), name
            # a gradient that is nothing but rounding (all of key.bias) still gives Adam steps of
            # full length
            close = (value - one[name]).abs() < 1e-5
            assert "key.bias" in name or close.float().mean() > 0.99, name
    assert both[0]["loss"] == pytest.approx(one["loss"], abs=1e-5)
    assert len((tmp_path / "two" / "metrics.jsonl").read_text().splitlines()) == 2
