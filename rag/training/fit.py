"""The one training loop.

batch → forward → loss → backward → clip → step → schedule → log → evaluate → save
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from rag.core.errors import RagError
from rag.core.files import remove_temporaries
from rag.core.log import get_logger
from rag.core.progress import Progress
from rag.runtime.hardware import bound_kernel_caches, keep_freed_memory
from rag.training.checkpoints import (
    Checkpoint,
    Selection,
    generator_states,
    latest_checkpoint,
    load_checkpoint,
    restore_generators,
    save_checkpoint,
)
from rag.training.config import LOG_EVERY_STEPS, OptimConfig, RunConfig, schedule_factor
from rag.training.distributed import World
from rag.training.interrupt import Interrupt
from rag.training.precision import MasterWeights
from rag.training.run_log import RunLog

BatchT = TypeVar("BatchT")
BatchT_co = TypeVar("BatchT_co", covariant=True)

log = get_logger(__name__)


class BatchSource(Protocol[BatchT_co]):
    """All batches of a run, by number.

    Batch `number` is the same whenever it is requested, which makes an exact resume possible.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> BatchT_co: ...


@dataclass(frozen=True, slots=True)
class Loss:
    """The result of a batch's forward pass.

    Attributes:
        value: the scalar to minimise; with several processes the share of this one, to be summed.
        examples: number of examples of this process, for the speed in the log.
        backward: computes the gradients of `value` where that takes more than one backward pass; it is given
            a function to call after each of them. None: `value.backward()` does it.
        parts: more numbers to log, by name, such as the losses that `value` is the sum of; shares like
            `value`, averaged over batches and steps. Every process names the same ones.
    """

    value: torch.Tensor
    examples: int
    tokens: int
    backward: Callable[[Callable[[], None]], None] | None = None
    parts: Mapping[str, float | torch.Tensor] = field(default_factory=dict)

    def compute_gradients(self, flush: Callable[[], None]) -> None:
        """Backward pass or passes, `flush` after each."""
        if self.backward is not None:
            self.backward(flush)
        else:
            self.value.backward()
            flush()

    def shares(self) -> dict[str, float]:
        """Values to add up over the processes, by name."""
        values = {"_loss": self.value, "_examples": self.examples, "_tokens": self.tokens, **self.parts}
        return {k: float(v.detach() if isinstance(v, torch.Tensor) else v) for k, v in values.items()}


class FitHooks:
    """Hooks of a recipe inside the loop. Derive from this class and override what is needed.

    The hooks that save (`extra_state`, `extra_tensors`, `on_checkpoint`, `asks_for_checkpoint`) are called in
    the main process only, all others in every process.
    """

    def before_step(self, step: int) -> None:
        """Called before step `step` (from 0) requests its batches: the place to exchange negatives."""

    def after_step(self, step: int) -> None:
        """Called after `step` steps have been taken: the place to update a momentum encoder."""

    def log_fields(self, step: int) -> Mapping[str, Any]:
        """More entries for log lines and metrics records, such as an index's age; called after every step."""
        return {}

    def extra_state(self) -> Mapping[str, Any]:
        """Further state for checkpoints, as JSON values."""
        return {}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Called with what `extra_state` returned, when a run is resumed."""

    def extra_tensors(self) -> Mapping[str, torch.Tensor]:
        """Further state for checkpoints, as tensors."""
        return {}

    def load_extra_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Called with what `extra_tensors` returned, on the CPU, when a run is resumed."""

    def asks_for_checkpoint(self) -> bool:
        """Whether to save after this step, regardless of the time since the last checkpoint."""
        return False

    def on_checkpoint(self, path: Path, step: int) -> None:
        """Called when the checkpoint of `step` is complete on disk, in the folder `path`."""


@dataclass(frozen=True, slots=True)
class FitResult:
    """Result of a run.

    Attributes:
        loss: mean of the last reported steps.
        weights: fp32, by parameter name: the best or the last ones, mixed with the start.
        best_step: step of the selected weights; None if nothing was selected.
    """

    steps: int
    loss: float
    weights: dict[str, torch.Tensor]
    best_step: int | None = None

    @property
    def chosen_step(self) -> int:
        """The step that `weights` are of."""
        return self.steps if self.best_step is None else self.best_step


def fit(
    model: torch.nn.Module,
    master: MasterWeights,
    batches: BatchSource[BatchT],
    compute_loss: Callable[[BatchT], Loss],
    optim: OptimConfig,
    run: RunConfig,
    out: Path,
    *,
    evaluate: Callable[[], Mapping[str, float]] | None = None,
    hooks: FitHooks | None = None,
    world: World | None = None,
    keep_checkpoints: int = 2,
) -> FitResult:
    """Train `model` over all `batches`, resuming from the newest checkpoint under `out` if there is one.

    With several processes each calls this with the same batches; `compute_loss` returns its share. `out` must
    be the same folder for all of them.

    Args:
        model: in its compute dtype; gradients flow into its trainable parameters.
        master: fp32 copies of those parameters, which the optimiser updates.
        batches: the whole run's batches by number; step s takes the next `accumulate` of them.
        compute_loss: forward pass of `model` for one batch.
        out: folder for `metrics.jsonl`, `checkpoints/` and `best.safetensors`.
        evaluate: scores `model` every `validate_every_steps` steps and at the end; in the main process.

    Raises:
        RagError: if the loss is not a finite number.
        ConfigError: if `select_by` names no score.
    """
    world = World.single() if world is None else world
    hooks = FitHooks() if hooks is None else hooks
    bound_kernel_caches()
    keep_freed_memory()
    out.mkdir(parents=True, exist_ok=True)
    total_steps = -(-len(batches) // optim.accumulate)
    if total_steps < (optim.max_steps or 0) and world.is_main:
        log.warning(
            "the run ends after %d steps, not after max_steps=%d: epochs=%g gives no more; raise epochs",
            *(total_steps, optim.max_steps, optim.epochs),
        )
    optimizer = master.optimizer(optim.learning_rate, optim.weight_decay, optim.learning_rates)
    world.broadcast_(master.master)  # all start from the same numbers
    master.write_back()
    start = {name: tensor.clone() for name, tensor in master.state().items()} if optim.start_share else {}
    select_by = "" if run.select_by == "last" else run.select_by
    selection = Selection(
        out / "best.safetensors", select_by, lowest=select_by in run.lowest, patience=run.early_stop
    )
    state = _State(
        model, master, optimizer, start, optim.start_share, selection, hooks, world,
        out / "checkpoints",
    )  # fmt: skip
    resumed = state.resume(total_steps)
    step = 0 if resumed is None else resumed["step"]
    saved = time.monotonic()
    model.train()
    run_log = RunLog(
        out, step=step, total_steps=total_steps, state=resumed,
        every=run.log_every_steps or min(LOG_EVERY_STEPS, max(1, total_steps // 10)),
        writes=world.is_main,
    )  # fmt: skip
    steps = Progress(total_steps, "steps", "train", initial=step) if world.is_main else nullcontext()
    with steps as progress, Interrupt() as interrupt:
        while step < total_steps and not selection.stopped:
            hooks.before_step(step)
            factor = schedule_factor(
                optim.schedule, step, total_steps,
                warmup_fraction=optim.warmup_fraction, warmup_steps=optim.warmup_steps,
            )  # fmt: skip
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * factor

            # batch, forward, loss, backward
            first = step * optim.accumulate
            numbers = range(first, min(first + optim.accumulate, len(batches)))
            counts: dict[str, float] = defaultdict(float)
            for number in numbers:
                loss = compute_loss(batches[number])
                loss.compute_gradients(master.gather_gradients)
                for name, share in loss.shares().items():
                    counts[name] += share
            # all save together, when the main process says so
            is_late = time.monotonic() - saved > run.save_every_s
            counts["_save"] = float(world.is_main and (is_late or hooks.asks_for_checkpoint()))
            counts["_stop"] = float(interrupt.asked)  # by Ctrl-C, in whichever process
            counts = _sum_counts(counts, world)
            _combine_gradients(master, world, len(numbers))
            value = counts.pop("_loss") / len(numbers)

            # clip, step
            norm = float(torch.nn.utils.clip_grad_norm_(master.master, optim.clip_norm))
            if not (math.isfinite(value) and math.isfinite(norm)):
                raise RagError(
                    f"step {step}: loss {value} with gradient norm {norm} is not finite",
                    hint="lower the learning rate, or train with precision fp32",
                )
            optimizer.step()
            master.write_back()
            step += 1
            hooks.after_step(step)
            if progress is not None:
                progress.update()

            # log
            due, stop, examples, tokens = (
                int(counts.pop(name)) for name in ("_save", "_stop", "_examples", "_tokens")
            )
            run_log.count(value, examples, tokens, {k: total / len(numbers) for k, total in counts.items()})
            run_log.report(step, optim.learning_rate * factor, norm, hooks.log_fields(step))

            # evaluate
            every = run.validate_every_steps
            if evaluate is not None and (step == total_steps or (every and step % every == 0)):
                scores = state.scores(evaluate)
                better = selection.update(step, scores, state.weights, write=world.is_main)
                run_log.scores(step, scores, note="  (best so far)" if better else "")
                run_log.restart_clock()

            # save
            if due or stop or step == total_steps or selection.stopped:
                state.save(step, run_log, keep=keep_checkpoints)
                saved = time.monotonic()
                run_log.restart_clock()
            if stop:
                world.barrier()  # nobody ends before the main process has saved
                raise KeyboardInterrupt
    if step < total_steps and world.is_main:
        log.info("stopped at step %d: no better %s since step %s", step, selection.name, selection.step)
    world.barrier()  # what the main process wrote is there for all
    return FitResult(step, run_log.loss, selection.best(state.weights), selection.step)


@dataclass(frozen=True, slots=True)
class _State:
    """Everything that a run changes and its checkpoints hold."""

    model: torch.nn.Module
    master: MasterWeights
    optimizer: torch.optim.Optimizer
    start: dict[str, torch.Tensor]
    start_share: float
    selection: Selection
    hooks: FitHooks
    world: World
    folder: Path  # of the checkpoints

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """The weights that are scored and returned: the trained ones, mixed with the start."""
        trained = self.master.state()
        if not self.start_share:
            return trained
        return {name: trained[name].lerp(begun, self.start_share) for name, begun in self.start.items()}

    def resume(self, total_steps: int) -> dict[str, Any] | None:
        """Restore the newest checkpoint; its JSON state, or None if there is no checkpoint."""
        checkpoint = _newest_checkpoint(self.folder, self.world)
        if checkpoint is None:
            return None
        load_checkpoint(checkpoint, self.model, self.master, self.optimizer)
        self.selection.load_state(checkpoint.state["selection"])
        self.hooks.load_extra_state(checkpoint.state["hooks"])
        self.hooks.load_extra_tensors(checkpoint.tensors("hooks"))
        restore_generators(checkpoint, self.world)  # last: what came before may have drawn
        if self.world.is_main:
            self.selection.restore(checkpoint.path)
            step = checkpoint.state["step"]
            log.info("resumed from %s (step %d of %d)", checkpoint.path, step, total_steps)
        return checkpoint.state

    def save(self, step: int, run_log: RunLog, *, keep: int) -> None:
        """Write the checkpoint of `step`; every process calls this, the main one writes."""
        generators = generator_states(self.world)
        if not self.world.is_main:
            return
        values = {"selection": self.selection.state(), "hooks": self.hooks.extra_state()}
        tensors = {
            "hooks": self.hooks.extra_tensors(),
            "generators": generators,
        }
        path = save_checkpoint(
            self.folder, step, self.model, self.master, self.optimizer, {**run_log.state(), **values},
            tensors=tensors, keep=keep, add=self.selection.keep,
        )  # fmt: skip
        self.hooks.on_checkpoint(path, step)

    def scores(self, evaluate: Callable[[], Mapping[str, float]]) -> dict[str, float]:
        """Scores of `weights`, from the main process to all."""
        scores: dict[str, float] = {}
        if self.world.is_main:
            if self.start_share:
                self.master.show(self.weights)
            scores = {name: float(value) for name, value in evaluate().items()}
            if self.start_share:
                self.master.write_back()
        self.model.train()
        shared: dict[str, float] = self.world.broadcast_object(scores)
        return shared


def _newest_checkpoint(folder: Path, world: World) -> Checkpoint | None:
    """The main process removes what a killed run left and looks, all take the checkpoint it found."""
    found = None
    if world.is_main:
        remove_temporaries(folder)
        found = latest_checkpoint(folder)
    name = world.broadcast_object(None if found is None else found.path.name)
    if name is None or found is not None:
        return found
    return Checkpoint.open(folder / str(name))


def _sum_counts(counts: dict[str, float], world: World) -> dict[str, float]:
    """Summed over the processes, which count the same things."""
    if world.size == 1:
        return counts
    names = sorted(counts)
    values = torch.tensor([counts[name] for name in names], dtype=torch.float64, device=world.device)
    world.sum_([values])
    return dict(zip(names, values.tolist(), strict=True))


def _combine_gradients(master: MasterWeights, world: World, batches: int) -> None:
    """Sum the processes' gradients and average the batches', in fp32.

    A parameter without gradient everywhere keeps none, so the optimiser leaves it alone.
    """
    if world.size > 1:
        used = torch.tensor([tensor.grad is not None for tensor in master.master], dtype=torch.float32)
        used = used.to(world.device)
        world.sum_([used])
        for tensor, count in zip(master.master, used.tolist(), strict=True):
            if count and tensor.grad is None:
                tensor.grad = torch.zeros_like(tensor)
    gradients = [tensor.grad for tensor in master.master if tensor.grad is not None]
    world.sum_(gradients)
    if batches > 1:
        torch._foreach_div_(gradients, float(batches))
