"""A toy that searches an index of its own vectors learns, killed anywhere too, in one process or two."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from rag.runtime.seeds import generator
from rag.training.config import OptimConfig, RefreshedConfig, RunConfig
from rag.training.distributed import World
from rag.training.fit import Loss, fit
from rag.training.precision import MasterWeights
from rag.training.refresh.exchange import Exchange
from rag.training.refresh.generations import Generation
from rag.training.refresh.refresher import Refresher
from tests.refreshing import shelves
from tests.worlds import start_process

STEPS, PASSAGES, WIDTH, LABELS, TOP_K = 60, 64, 16, 8, 6
FEATURES = generator(1).normal(size=(PASSAGES, WIDTH)).astype(np.float32)
LABEL = generator(2).integers(0, LABELS, PASSAGES)
TURN = np.linalg.qr(generator(3).normal(size=(WIDTH, WIDTH)))[0].astype(np.float32)
SCALE = 0.5


class Towers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.question = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.passage = torch.nn.Linear(WIDTH, WIDTH, bias=False)


class Questions:
    """Questions are their passages turned: (passage numbers, vectors) by step."""

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, step: int) -> tuple[np.ndarray[Any, Any], torch.Tensor]:
        chosen = generator(4, step).choice(PASSAGES, 16, replace=False)
        return chosen, torch.from_numpy(FEATURES[chosen] @ TURN)


class IndexRefresher(Refresher):
    """Encodes the corpus with a snapshot, half by half: its vectors are the index."""

    killed_after = 99

    def build(self, snapshot: Generation, before: Generation | None, folder: Path) -> None:
        model = Towers()
        model.load_state_dict(load_file(snapshot.path / "model.safetensors"))
        for half in range(2):
            self.check()
            if (folder / f"{half}.npy").exists():
                continue
            rows = slice(half * PASSAGES // 2, (half + 1) * PASSAGES // 2)
            with torch.no_grad():
                np.save(folder / f"{half}.npy", model.passage(torch.from_numpy(FEATURES[rows])).numpy())
            self.killed_after -= 1
            if self.killed_after == 0:
                raise KeyboardInterrupt


class HeldIndex:
    """The index that the trainer searches; swapped at a refresh."""

    def __init__(self) -> None:
        self.halves: list[np.ndarray[Any, Any]] = []

    def take_up(self, generation: Generation) -> Mapping[str, float]:
        self.halves = [np.load(generation.path / f"{half}.npy", mmap_mode="r") for half in range(2)]
        return {"refresh/rows": float(sum(map(len, self.halves)))}

    def search(self, vectors: torch.Tensor) -> torch.Tensor:
        scores = vectors.detach().numpy() @ np.concatenate(self.halves).T
        return torch.from_numpy(np.argsort(-scores, axis=1)[:, :TOP_K].copy())  # (B, K)


def train(
    out: Path,
    refresh: str = "every 15",
    *,
    in_line: bool = True,
    kill_after: int = 99,
    die_at: int | None = None,
    save_every_s: float = 1e9,
) -> list[dict[str, Any]]:
    """Retrieve from the held index, marginalise over what was found: -log Σ p(z|q) p(y|z)."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, held = Towers(), HeldIndex()
    refresher = IndexRefresher(*shelves(out), key="toy", keep=1)
    refresher.killed_after = kill_after
    exchange = Exchange(
        RefreshedConfig(refresh=refresh, poll_every_steps=3, poll_s=0.01, keep_generations=1),
        *shelves(out), lambda folder: save_file(model.state_dict(), folder / "model.safetensors"),
        held.take_up, world=World.single("cpu"), key="toy", refresher=refresher if in_line else None,
        must_wait=lambda: not held.halves, in_line=in_line,
    )  # fmt: skip
    seen = 0

    def loss(module: torch.nn.Module, batch: tuple[np.ndarray[Any, Any], torch.Tensor]) -> Loss:
        nonlocal seen
        seen += 1
        if seen == die_at:
            raise KeyboardInterrupt
        chosen, vectors = batch
        asked = model.question(vectors)  # (B, D)
        found = held.search(asked)  # (B, K)
        passages = model.passage(torch.from_numpy(FEATURES)[found])  # (B, K, D), the model's own vectors
        logp = (SCALE * torch.einsum("bd,bkd->bk", asked, passages)).log_softmax(-1)
        right = torch.from_numpy(LABEL[found.numpy()] == LABEL[chosen][:, None])
        value = -(logp + torch.where(right, 0.95, 0.01).log()).logsumexp(-1).mean()
        hit = float((LABEL[found[:, 0].numpy()] == LABEL[chosen]).mean())
        return Loss(value, len(chosen), len(chosen), parts={"top1": hit})

    settings = (OptimConfig(learning_rate=0.02), RunConfig(log_every_steps=1, save_every_s=save_every_s))
    fit(model, MasterWeights(model), Questions(), loss, *settings, out, hooks=exchange)
    return [
        {k: v for k, v in json.loads(line).items() if k != "seconds"}
        for line in (out / "metrics.jsonl").read_text().splitlines()
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return train(tmp_path_factory.mktemp("whole"))


def top1(records: list[dict[str, Any]]) -> tuple[float, float]:
    hits = [record["top1"] for record in records]
    return float(np.mean(hits[:10])), float(np.mean(hits[-10:]))


def test_a_model_learns_with_an_index_that_it_holds_and_swaps(
    whole: list[dict[str, Any]], tmp_path: Path
) -> None:
    ages = [record["index_age_steps"] for record in whole]
    assert ages == [*range(1, 16)] * 4
    assert len({record["index_version"] for record in whole}) == 4
    assert whole[16]["refresh/rows"] == PASSAGES
    before, after = top1(whole)
    assert after > before + 0.3
    stale = train(tmp_path, "every 1000")
    assert len({record["index_version"] for record in stale}) == 1
    assert after > top1(stale)[1] + 0.05  # a fresh index is worth it


@pytest.mark.parametrize(
    "deaths",
    [
        [{"die_at": 40}],  # in the middle, two swaps after the last save by the clock
        [{"kill_after": 5}, {"die_at": 3}],  # in the middle of a refresh, and right after it
        [{"die_at": 31}, {"die_at": 2}],  # at the first step with a new index, before it is saved, twice
    ],
)
def test_killed_anywhere_it_takes_the_same_steps(
    deaths: list[dict[str, int]], whole: list[dict[str, Any]], tmp_path: Path
) -> None:
    for death in deaths:
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path, **death)
    assert train(tmp_path) == whole


def test_saved_every_few_steps_it_keeps_what_a_checkpoint_needs(
    whole: list[dict[str, Any]], tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, save_every_s=0.0, die_at=34)
    newest = sorted((tmp_path / "checkpoints").iterdir())[-1]
    for file in newest.iterdir():  # the newest is damaged: back to the one before
        file.unlink()
    newest.rmdir()
    assert train(tmp_path) == whole
    assert len(shelves(tmp_path)[1].all()) <= 3


def refresh_for_ever(out: Path) -> None:
    IndexRefresher(*shelves(out), key="toy", keep=1, poll_s=0.01).watch((out / "done").exists)


def test_trainer_and_refresher_are_two_processes_and_either_is_killed(tmp_path: Path) -> None:
    first = start_process(refresh_for_ever, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, "every 10", in_line=False, die_at=20)
    first.kill()
    first.join(60)
    kept = {r["step"]: r["index_version"] for r in map(json.loads, (tmp_path / "metrics.jsonl").open())}
    second = start_process(refresh_for_ever, tmp_path)
    records = train(tmp_path, "every 10", in_line=False)
    (tmp_path / "done").touch()
    second.join(60)
    assert second.exitcode == 0
    assert [record["step"] for record in records] == [*range(1, STEPS + 1)]
    assert all(record["index_age_steps"] > 0 for record in records)
    resumed = min(step for step, version in kept.items() if version == kept[max(kept)])
    assert all(record["index_version"] == kept[record["step"]] for record in records[:resumed])
    assert top1(records)[1] > top1(records)[0]
