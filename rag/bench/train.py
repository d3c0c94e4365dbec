"""Training step beside sentence-transformers: time and peak memory, plain and with the gradient cache."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from rag.bench.common import Timings, time_interleaved
from rag.bench.report import Goal, Report, Table, format_bytes
from rag.bench.server_process import end_of_log
from rag.config import DEFAULT_SEED
from rag.core.errors import ConfigError, ResourceError
from rag.core.files import atomic_write_json
from rag.core.progress import Progress, format_seconds

SPEED_GOAL = 1.2
CONTESTANTS = {
    "ours": {"side": "ours", "cached": False, "precision": "auto"},
    "ours cached": {"side": "ours", "cached": True, "precision": "auto"},
    "ours fp32": {"side": "ours", "cached": False, "precision": "fp32"},
    "peer fp32": {"side": "peer", "cached": False, "precision": "fp32"},
    "peer bf16": {"side": "peer", "cached": False, "precision": "bf16"},
    "peer cached fp32": {"side": "peer", "cached": True, "precision": "fp32"},
    "peer cached bf16": {"side": "peer", "cached": True, "precision": "bf16"},
}
DEFAULT_CONTESTANTS = tuple(name for name in CONTESTANTS if name != "ours fp32")


def run_train_benchmark(
    train: Path,
    batch_size: int = 128,
    chunk_size: int = 32,
    tokens: int = 128,
    hard_negative: bool = True,
    rounds: int = 5,
    contestants: Sequence[str] = DEFAULT_CONTESTANTS,
    memory_goal_gib: float | None = None,
    encoder: str | None = None,
    device: str = "auto",
    seed: int = DEFAULT_SEED,
) -> Report:
    """Step time and memory of retriever training beside sentence-transformers' two losses.

    Peers are `MultipleNegativesRankingLoss` and `CachedMultipleNegativesRankingLoss`, in fp32 and under bf16
    autocast. All train the same model on the same batches with the same candidates, in turn, each in its own
    process.

    Args:
        train: Training examples of `rag mine`, or DPR's JSON.
        batch_size: Questions per step.
        chunk_size: Texts that go through the encoder at once, for contestants with the gradient cache.
        tokens: Maximum length of a text in tokens.
        hard_negative: Each question brings its first hard negative.
        rounds: Measured steps per contestant, after one that is not measured.
        contestants: Some of those in the table; default: all but ours fp32.
        memory_goal_gib: Bound for the peak memory of this system with the gradient cache.
        encoder: sentence-transformers folder or hub name; default: the embedded one.
        device: auto, cpu or cuda, for all.
        seed: Seed of the order of the examples.

    Raises:
        ConfigError: unknown contestant, or no rounds.
        ResourceError: a contestant ended early; the end of its output is shown.
    """
    if not contestants or set(contestants) - set(CONTESTANTS) or rounds < 1:
        raise ConfigError(
            f"contestants {', '.join(contestants)} and {rounds} rounds: expected some of "
            f"{', '.join(CONTESTANTS)}, and at least 1 round"
        )
    from rag.runtime.hardware import resolve_device, use_threads

    device = resolve_device(device)
    common = {
        "train_file": str(train), "encoder": encoder, "batch_size": batch_size, "chunk_size": chunk_size,
        "tokens": tokens, "hard_negative": hard_negative, "threads": use_threads(), "seed": seed,
        "device": device,
        "steps": rounds + 1, "questions": batch_size * (rounds + 1),
    }  # fmt: skip
    report = Report("train", {**common, "encoder": encoder or "all-MiniLM-L6-v2", "rounds": rounds})
    total = len(contestants) * (rounds + 1)
    with (
        tempfile.TemporaryDirectory() as folder,
        ExitStack() as stack,
        Progress(total, "steps", "train") as done,
    ):
        workers = {
            name: stack.enter_context(_Worker(name, {**common, **CONTESTANTS[name]}, Path(folder)))
            for name in contestants
        }

        def step(name: str) -> None:
            workers[name].step()
            done.update()

        timings = time_interleaved({name: partial(step, name) for name in workers}, rounds=rounds)
    peaks = {name: worker.peak_bytes for name, worker in workers.items()}
    _fill(report, timings, peaks, {name: worker.losses for name, worker in workers.items()}, batch_size)
    memory = (
        "of the whole process: Python, libraries, data and model"
        if device == "cpu"
        else "what PyTorch allocates on the GPU"
    )
    report.notes.append(f"peak memory is {memory}")
    if memory_goal_gib is not None and "ours cached" in peaks:
        share = peaks["ours cached"] / (memory_goal_gib * 2**30)
        report.goals.append(Goal("peak memory of ours cached / bound", share, "at most", 1.0))
    return report


def _fill(
    report: Report,
    timings: Timings,
    peaks: Mapping[str, int],
    losses: Mapping[str, Sequence[float]],
    size: int,
) -> None:
    peers = [name for name in timings.seconds if name.startswith("peer")]
    rows = []
    for name in timings.seconds:
        kind = "cached" in name
        rivals = [peer for peer in peers if ("cached" in peer) == kind]
        best = min(rivals, key=timings.median) if rivals else None
        figure = None if best is None else timings.ratio(best, name)
        rows.append(
            (
                name,
                format_seconds(timings.median(name)),
                f"{size / timings.median(name):.1f}",
                "" if figure is None else f"{figure:.2f}",
                format_bytes(peaks[name]),
                f"{losses[name][0]:.4f}",
            )
        )
        if figure is not None and name in ("ours", "ours cached"):
            report.figures[f"examples/s, {name} / {best}"] = figure.to_json()
            report.goals.append(Goal(f"examples/s, {name} / {best}", figure.value, "at least", SPEED_GOAL))
    columns = ("step", "median", "questions/s", "× best peer", "peak memory", "first loss")
    title = "training step; peer is sentence-transformers; intervals are 95 % bootstrap over rounds"
    report.tables.append(Table(title, columns, rows))
    report.figures.update(timings=timings.to_json(), peak_bytes=dict(peaks), losses=dict(losses))
    report.notes.append("texts are tokenised before the clock starts; dropout is 0; nothing is masked")


class _Worker:
    """A contestant's process.

    Attributes:
        losses: of every step.
        peak_bytes: most memory so far.
    """

    def __init__(self, name: str, settings: Mapping[str, Any], folder: Path) -> None:
        self.name, self.peak_bytes = name, 0
        self.losses: list[float] = []
        path = folder / f"{name.replace(' ', '-')}.json"
        atomic_write_json(path, dict(settings))
        self._log = path.with_suffix(".log").open("w+", encoding="utf-8", errors="replace")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rag.bench.train_worker", str(path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
        )  # fmt: skip

    def __enter__(self) -> _Worker:
        self._answer()
        return self

    def step(self) -> None:
        """One step, to its end."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `_answer` says what it died of
            self._process.stdin.write("step\n")
            self._process.stdin.flush()
        found = self._answer()
        self.losses.append(found["loss"])
        self.peak_bytes = found["peak_bytes"]

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        code = self._process.wait()
        raise ResourceError(
            f"{self.name!r} ended with code {code}; its last output: {end_of_log(self._log)}",
            hint="with code -9 the memory was not enough: lower --batch-size or leave it out",
        )

    def __exit__(self, *raised: object) -> None:
        with self._log, contextlib.suppress(BrokenPipeError), self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()  # which ends it
            try:
                self._process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self._process.kill()
