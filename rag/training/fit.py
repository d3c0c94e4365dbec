"""The one training loop.

batch → forward → loss → backward → clip → step → schedule → log → evaluate → save
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from rag.core.errors import ConfigError, RagError
from rag.core.files import remove_temporaries
from rag.core.log import get_logger
from rag.core.progress import Progress
from rag.runtime.hardware import bound_kernel_caches, keep_freed_memory
from rag.training.checkpoints import (
    Checkpoint,
    Tensors,
    checkpoint_path,
    generator_states,
    latest_checkpoint,
    load_checkpoint,
    restore_generators,
    save_checkpoint,
)
from rag.training.config import LOG_EVERY_STEPS, FitConfig, schedule_factor
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

    The hooks that save (`extra_state`, `extra_tensors`, `on_checkpoint`) are called in the main process only,
    all others in every process. Hooks of one run differ in the names of what they save and log.
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
        """Called with the state of all hooks when a run is resumed."""

    def extra_tensors(self) -> Mapping[str, torch.Tensor]:
        """Further state for checkpoints, as tensors."""
        return {}

    def load_extra_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Called with the tensors of all hooks, on the CPU, when a run is resumed."""

    def on_checkpoint(self, path: Path, step: int) -> None:
        """Called when the checkpoint of `step` is complete on disk, in the folder `path`."""

    def close(self) -> None:
        """Called when the loop ends, however it ends."""


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
    config: FitConfig,
    out: Path,
    *,
    evaluate: Callable[[], Mapping[str, float]] | None = None,
    hooks: Sequence[FitHooks] = (),
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
        out: folder for `metrics.jsonl` and `checkpoints/`.
        evaluate: scores `model` every `validate_every_steps` steps and at the end; in the main process.

    Raises:
        RagError: if the loss is not a finite number.
        ConfigError: if `select_by` names no score.
    """
    world = World.single() if world is None else world
    bound_kernel_caches()
    keep_freed_memory()
    out.mkdir(parents=True, exist_ok=True)
    folder = out / "checkpoints"
    total_steps = -(-len(batches) // config.accumulate)
    if total_steps < (config.max_steps or 0) and world.is_main:
        log.warning(
            "the run ends after %d steps, not after max_steps=%d: epochs=%g gives no more; raise epochs",
            *(total_steps, config.max_steps, config.epochs),
        )
    optimizer = master.optimizer(config.learning_rate, config.weight_decay, config.learning_rates)
    world.broadcast_(master.master)  # all start from the same numbers
    master.write_back()
    start = {name: tensor.clone() for name, tensor in master.state().items()} if config.start_share else {}
    best = _Best(config)
    step, resumed = 0, _newest_checkpoint(folder, world)
    if resumed is not None:
        load_checkpoint(resumed, model, master, optimizer)
        best.load_state(resumed.state)
        tensors = resumed.tensors("hooks")
        for hook in hooks:
            hook.load_extra_state(resumed.state["hooks"])
            hook.load_extra_tensors(tensors)
        restore_generators(resumed, world)  # last: what came before may have drawn
        step = int(resumed.state["step"])
        if world.is_main:
            log.info("resumed from %s (step %d of %d)", resumed.path, step, total_steps)
    saved = time.monotonic()
    model.train()
    run_log = RunLog(
        out, step=step, total_steps=total_steps, state=None if resumed is None else resumed.state,
        every=config.log_every_steps or min(LOG_EVERY_STEPS, max(1, total_steps // 10)), writes=world.is_main,
    )  # fmt: skip
    steps = Progress(total_steps, "steps", "train", initial=step) if world.is_main else nullcontext()
    with ExitStack() as stack:
        for hook in hooks:
            stack.enter_context(closing(hook))
        progress, interrupt = stack.enter_context(steps), stack.enter_context(Interrupt())
        while step < total_steps:
            for hook in hooks:
                hook.before_step(step)
            factor = schedule_factor(
                config.schedule, step, total_steps,
                warmup_fraction=config.warmup_fraction, warmup_steps=config.warmup_steps,
            )  # fmt: skip
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * factor

            # batch, forward, loss, backward
            first = step * config.accumulate
            numbers = range(first, min(first + config.accumulate, len(batches)))
            counts: dict[str, float] = defaultdict(float)
            for number in numbers:
                loss = compute_loss(batches[number])
                loss.compute_gradients(master.gather_gradients)
                for name, share in loss.shares().items():
                    counts[name] += share
            # all save together, when the main process says so
            counts["_save"] = float(world.is_main and time.monotonic() - saved > config.save_every_s)
            counts["_stop"] = float(interrupt.requested)  # in whichever process
            counts = _sum_counts(counts, world)
            _combine_gradients(master, world, len(numbers))
            value = counts.pop("_loss") / len(numbers)

            # clip, step
            norm = float(torch.nn.utils.clip_grad_norm_(master.master, config.clip_norm))
            if not (math.isfinite(value) and math.isfinite(norm)):
                raise RagError(
                    f"step {step}: loss {value} with gradient norm {norm} is not finite",
                    hint="lower the learning rate, or train with precision fp32",
                )
            optimizer.step()
            master.write_back()
            step += 1
            for hook in hooks:
                hook.after_step(step)
            if progress is not None:
                progress.update()

            # log
            due, stop, examples, tokens = (
                int(counts.pop(name)) for name in ("_save", "_stop", "_examples", "_tokens")
            )
            run_log.count(value, examples, tokens, {k: total / len(numbers) for k, total in counts.items()})
            fields = _merged(hook.log_fields(step) for hook in hooks)
            run_log.report(step, config.learning_rate * factor, norm, fields)

            # evaluate
            every, is_best = config.validate_every_steps, False
            if evaluate is not None and (step == total_steps or (every and step % every == 0)):
                mixed = _mixed(master.state(), start, config.start_share) if start else {}
                scores = _scores(evaluate, model, master, mixed, world)
                is_best = best.update(step, scores)
                run_log.scores(step, scores, note="  (best so far)" if is_best else "")
                run_log.restart_clock()

            # save
            if due or stop or is_best or step == total_steps:
                generators = generator_states(world)
                if world.is_main:
                    extra = _merged(hook.extra_state() for hook in hooks)
                    tensors = _merged(hook.extra_tensors() for hook in hooks)
                    path = save_checkpoint(
                        folder, step, model, master, optimizer,
                        {**run_log.state(), **best.state(), "hooks": extra},
                        tensors={"hooks": tensors, "generators": generators}, keep=keep_checkpoints,
                    )  # fmt: skip
                    for hook in hooks:
                        hook.on_checkpoint(path, step)
                saved = time.monotonic()
                run_log.restart_clock()
            if stop:
                world.barrier()  # nobody ends before the main process has saved
                raise KeyboardInterrupt
    world.barrier()  # what the main process wrote is there for all
    weights: Tensors = master.state()
    if best.step is not None:
        weights = Checkpoint.open(checkpoint_path(folder, best.step)).tensors("weights", required=True)
    return FitResult(step, run_log.loss, _mixed(weights, start, config.start_share), best.step)


class _Best:
    """The best validation so far, by `select_by`.

    Attributes:
        step: step of the best weights, None before the first validation or if nothing is selected.
    """

    def __init__(self, config: FitConfig) -> None:
        self._name = "" if config.select_by == "last" else config.select_by
        self._sign = -1.0 if self._name in config.lowest else 1.0
        self.step: int | None = None
        self._score = 0.0

    def update(self, step: int, scores: Mapping[str, float]) -> bool:
        """Whether a validation's score is the best so far; one that is not a number never is.

        Raises:
            ConfigError: there is no score of that name.
        """
        if not self._name:
            return False
        if self._name not in scores:
            raise ConfigError(
                f"weights are selected by {self._name!r}, but a validation measures {', '.join(scores)}",
                hint="set select_by to one of these",
            )
        score = self._sign * scores[self._name]
        if math.isnan(score) or (self.step is not None and score <= self._score):
            return False
        self.step, self._score = step, score
        return True

    def state(self) -> dict[str, Any]:
        """The state to save in a checkpoint."""
        return {"best_step": self.step, "best_score": self._score}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state from a checkpoint."""
        self.step, self._score = state["best_step"], state["best_score"]


def _mixed(weights: Tensors, start: Tensors, share: float) -> dict[str, torch.Tensor]:
    """Trained weights, mixed with the start as `start_share` says."""
    mixed = {name: weights[name].to(old.device).lerp(old, share) for name, old in start.items()}
    return {**weights, **mixed}


def _scores(
    evaluate: Callable[[], Mapping[str, float]],
    model: torch.nn.Module,
    master: MasterWeights,
    weights: Tensors,
    world: World,
) -> dict[str, float]:
    """Scores of the model, or of `weights` if there are any, from the main process to all."""
    scores: dict[str, float] = {}
    if world.is_main:
        if weights:
            master.show(weights)
        scores = {name: float(value) for name, value in evaluate().items()}
        if weights:
            master.write_back()
    model.train()
    shared: dict[str, float] = world.broadcast_object(scores)
    return shared


def _merged(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {name: value for part in parts for name, value in part.items()}


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
