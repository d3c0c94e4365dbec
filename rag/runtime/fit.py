"""The one training loop.

batch → forward → loss → backward → clip → step → schedule → log → evaluate → save
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch

from rag.core.errors import RagError
from rag.core.log import get_logger
from rag.runtime.checkpoints import latest_checkpoint, load_checkpoint, save_checkpoint
from rag.runtime.precision import MasterWeights
from rag.runtime.schedule import linear_schedule

__all__ = ["BatchSource", "FitResult", "FitSettings", "Loss", "fit"]

BatchT = TypeVar("BatchT")
BatchT_co = TypeVar("BatchT_co", covariant=True)


class BatchSource(Protocol[BatchT_co]):
    """All batches of a run, by step.

    Batch `step` is the same whenever it is asked for: that makes resume exact.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, step: int) -> BatchT_co: ...


@dataclass(frozen=True, slots=True)
class Loss:
    """What a step's forward pass returns: the scalar to minimise and what to count."""

    value: torch.Tensor
    examples: int
    tokens: int


@dataclass(frozen=True, slots=True)
class FitSettings:
    """How to optimise. `learning_rate` is the peak; `save_every_s` bounds what a killed run loses."""

    learning_rate: float
    warmup_fraction: float = 0.05
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    log_every_steps: int = 20
    evaluate_every_steps: int = 0
    save_every_s: float = 300.0
    keep_checkpoints: int = 2


@dataclass(frozen=True, slots=True)
class FitResult(Generic[BatchT]):
    """How a run ended: steps taken in all, the last logged loss, fp32 weights by name."""

    steps: int
    loss: float
    weights: dict[str, torch.Tensor]


class _Metrics:
    """metrics.jsonl: one JSON object a line; lines after the resumed step are cut off."""

    def __init__(self, path: Path, step: int) -> None:
        self.path = path
        if path.exists():
            kept = []
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    if json.loads(line)["step"] <= step:
                        kept.append(line)
                except (json.JSONDecodeError, KeyError):
                    continue
            path.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")

    def write(self, record: Mapping[str, Any]) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())


def fit(
    model: torch.nn.Module,
    master: MasterWeights,
    batches: BatchSource[BatchT],
    compute_loss: Callable[[torch.nn.Module, BatchT], Loss],
    settings: FitSettings,
    out: Path,
    *,
    evaluate: Callable[[torch.nn.Module], Mapping[str, float]] | None = None,
) -> FitResult[BatchT]:
    """Train `model` over all `batches`, resuming from the newest checkpoint under `out` if there is one.

    Args:
        model: in its compute dtype; gradients flow into its trainable parameters.
        master: fp32 copies of those parameters, which the optimiser updates.
        batches: the whole run's batches by step.
        compute_loss: forward pass and loss of one batch.
        settings: optimisation settings.
        out: folder for `metrics.jsonl` and `checkpoints/`.
        evaluate: scores the model every `evaluate_every_steps` steps and at the end.

    Raises:
        RagError: if the loss is not a finite number.
    """
    log = get_logger(__name__)
    out.mkdir(parents=True, exist_ok=True)
    total_steps = len(batches)
    optimizer = torch.optim.AdamW(
        list(master.groups(settings.weight_decay)), lr=settings.learning_rate, eps=1e-8, fused=True
    )
    step, counters = 0, {"examples": 0, "tokens": 0, "seconds": 0.0}
    checkpoint = latest_checkpoint(out / "checkpoints")
    if checkpoint is not None:
        load_checkpoint(checkpoint, master, optimizer)
        step, counters = checkpoint.state["step"], checkpoint.state["counters"]
        log.info("resumed from %s (step %d of %d)", checkpoint.path, step, total_steps)
    metrics = _Metrics(out / "metrics.jsonl", step)
    started = saved = logged = time.monotonic()
    before = counters["seconds"]
    window = {"loss": 0.0, "steps": 0, "tokens": 0}
    mean_loss = math.nan
    model.train()
    while step < total_steps:
        rate = settings.learning_rate * linear_schedule(step, total_steps, settings.warmup_fraction)
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = compute_loss(model, batches[step])
        loss.value.backward()
        master.gather_gradients()
        norm = float(torch.nn.utils.clip_grad_norm_(master.master, settings.clip_norm))
        value = float(loss.value.detach())
        if not (math.isfinite(value) and math.isfinite(norm)):
            raise RagError(
                f"step {step}: loss {value} with gradient norm {norm} is not finite",
                hint="lower the learning rate, or train with precision fp32",
            )
        optimizer.step()
        master.write_back()
        step += 1
        counters["examples"] += loss.examples
        counters["tokens"] += loss.tokens
        window["loss"] += value
        window["steps"] += 1
        window["tokens"] += loss.tokens
        now = time.monotonic()
        counters["seconds"] = before + now - started
        if step % settings.log_every_steps == 0 or step == total_steps:
            mean_loss = window["loss"] / window["steps"]
            speed = window["tokens"] / max(now - logged, 1e-9)
            eta_s = (now - logged) / window["steps"] * (total_steps - step)
            metrics.write({"step": step, "loss": mean_loss, "rate": rate, "norm": norm, **counters})
            log.info(
                "step %d/%d  loss %.4f  norm %.2f  lr %.2e  %.0f tokens/s  ETA %d:%02d:%02d",
                *(step, total_steps, mean_loss, norm, rate, speed),
                *(eta_s // 3600, eta_s // 60 % 60, eta_s % 60),
            )
            window = {"loss": 0.0, "steps": 0, "tokens": 0}
            logged = time.monotonic()
        every = settings.evaluate_every_steps
        if evaluate is not None and (step == total_steps or (every and step % every == 0)):
            scores = evaluate(model)
            model.train()
            metrics.write({"step": step, **{f"eval/{k}": v for k, v in scores.items()}})
            log.info(
                "step %d/%d  %s", step, total_steps, "  ".join(f"{k} {v:.4f}" for k, v in scores.items())
            )
            logged = time.monotonic()
            window = {"loss": 0.0, "steps": 0, "tokens": 0}
        if step == total_steps or time.monotonic() - saved > settings.save_every_s:
            save_checkpoint(
                out / "checkpoints",
                step,
                master,
                optimizer,
                {"counters": counters},
                keep=settings.keep_checkpoints,
            )
            saved = time.monotonic()
    return FitResult(step, mean_loss, master.state())
