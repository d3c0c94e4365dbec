"""The one training loop.

batch → forward → loss → backward → clip → step → schedule → log → evaluate → save
"""

import math
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from rag.core.errors import ConfigError, RagError
from rag.core.files import clean_directory
from rag.core.log import Progress, get_logger
from rag.runtime.hardware import bound_kernel_caches, keep_freed_memory
from rag.runtime.seeds import seed_torch
from rag.training.checkpoints import (
    Checkpoint,
    Tensors,
    checkpoint_path,
    complete_checkpoints,
    load_checkpoint,
    save_checkpoint,
)
from rag.training.config import LOG_EVERY_STEPS, FitConfig, schedule_factor
from rag.training.distributed import World
from rag.training.precision import MasterWeights
from rag.training.run_log import RunLog

log = get_logger(__name__)


class BatchSource(Protocol):
    """All batches of a run, by number.

    Batch `number` is the same whenever it is requested, which makes an exact resume possible.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> Any: ...


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


class FitHooks:
    """Hooks of a recipe inside the loop, to be overridden as needed.

    The hooks that save (`extra_state`, `on_checkpoint`) are called in the main process only, all others in
    every process. Hooks of one run differ in the names of what they save and log.
    """

    def before_step(self, step: int) -> None:
        """Called before step `step` (from 0) requests its batches: the place to exchange negatives."""

    def after_step(self, step: int) -> None:
        """Called after `step` steps have been taken: the place to update a momentum encoder."""

    def log_fields(self, step: int) -> Mapping[str, Any]:
        """More entries for log lines and metrics records, such as an index's age; called after every step."""
        return {}

    def extra_state(self) -> Mapping[str, Any]:
        """Further state for checkpoints: tensors, and JSON values."""
        return {}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Called with the state of all hooks, tensors on the CPU, when a run is resumed."""

    def on_checkpoint(self, path: Path, step: int) -> None:
        """Called when the checkpoint of `step` is complete on disk, in the folder `path`."""

    def close(self) -> None:
        """Called when the loop ends, however it ends."""


def fit(
    model: torch.nn.Module,
    master: MasterWeights,
    batches: BatchSource,
    compute_loss: Callable[[Any], Loss],
    config: FitConfig,
    out: Path,
    *,
    evaluate: Callable[[], Mapping[str, float]] | None = None,
    hooks: Sequence[FitHooks] = (),
    world: World | None = None,
) -> tuple[int, dict[str, torch.Tensor]]:
    """Train `model` over all `batches`, resuming from the newest checkpoint under `out` if there is one.

    With several processes each calls this with the same batches and folder; `compute_loss` returns its share.

    Args:
        model: in its compute dtype; gradients flow into its trainable parameters.
        master: fp32 copies of those parameters, which the optimiser updates.
        batches: the whole run's batches by number; step s takes the next `accumulate` of them.
        compute_loss: forward pass of `model` for one batch.
        out: folder for `metrics.jsonl` and `checkpoints/`.
        evaluate: scores `model` every `validate_every_steps` steps and at the end; in the main process.

    Returns:
        The step of the best weights by `select_by`, or the last; and these weights, fp32 by parameter name,
        mixed with the start.

    Raises:
        RagError: if the loss is not a finite number.
        ConfigError: if `select_by` names no score.
    """
    world = World() if world is None else world
    bound_kernel_caches()
    keep_freed_memory()
    out.mkdir(parents=True, exist_ok=True)
    folder = out / "checkpoints"
    total_steps = -(-len(batches) // config.accumulate)
    groups = master.groups(config.learning_rate, config.weight_decay, config.learning_rates)
    optimizer = torch.optim.AdamW(groups, lr=config.learning_rate, eps=1e-8, fused=True)
    world.broadcast_(master.master)  # all start from the same numbers
    master.write_back()
    start = {name: tensor.clone() for name, tensor in master.state().items()} if config.start_share else {}
    step = 0
    best: dict[str, Any] = {"best_step": None, "best_score": -math.inf}
    resumed, state = _newest_checkpoint(folder, world), {}
    if resumed is not None:
        load_checkpoint(resumed, master, optimizer)
        state = resumed.state
        step = state["step"]
        best = {name: state[name] for name in best}
        for hook in hooks:
            hook.load_extra_state({**state["hooks"], **resumed.tensors("hooks")})
        if world.is_main:
            log.info("resumed from %s (step %d of %d)", resumed.path, step, total_steps)
    saved = time.monotonic()
    model.train()
    run_log = RunLog(
        out, step=step, total_steps=total_steps, state=state,
        every=config.log_every_steps or min(LOG_EVERY_STEPS, max(1, total_steps // 10)), writes=world.is_main,
    )  # fmt: skip
    shown = Progress(total_steps, "steps", "train", initial=step) if world.is_main else nullcontext()
    with ExitStack() as stack:
        for hook in hooks:
            stack.enter_context(closing(hook))
        progress, interrupt = stack.enter_context(shown), stack.enter_context(_stop_requests())
        while step < total_steps:
            started = time.monotonic()
            for hook in hooks:
                hook.before_step(step)
            factor = schedule_factor(config, step, total_steps)
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * factor

            # batch, forward, loss, backward
            first = step * config.accumulate
            numbers = range(first, min(first + config.accumulate, len(batches)))
            counts: dict[str, float] = defaultdict(float)
            for number in numbers:
                seed_torch(config.seed, number, world.rank)  # the same dropout in a resumed run
                loss = compute_loss(batches[number])
                loss.compute_gradients(master.gather_gradients)
                shares: dict[str, float | torch.Tensor] = {
                    "_loss": loss.value, "_examples": loss.examples, "_tokens": loss.tokens, **loss.parts
                }  # fmt: skip
                for name, share in shares.items():
                    counts[name] += float(share.detach() if isinstance(share, torch.Tensor) else share)
            # all save together, when the main process says so
            counts["_save"] = float(world.is_main and time.monotonic() - saved > config.save_every_s)
            counts["_stop"] = float(interrupt.is_set())  # in whichever process
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
            seconds = time.monotonic() - started
            parts = {name: total / len(numbers) for name, total in counts.items()}
            run_log.count(value, examples, tokens, seconds, parts)
            fields = _merged(hook.log_fields(step) for hook in hooks)
            run_log.report(step, config.learning_rate * factor, norm, fields)

            # evaluate
            every, is_best = config.validate_every_steps, False
            if evaluate is not None and (step == total_steps or (every and step % every == 0)):
                scores = _scores(evaluate, master, start, config.start_share, world)
                model.train()
                if config.select_by != "last":
                    score = _selecting(scores, config)
                    is_best = score > best["best_score"]
                if is_best:
                    best = {"best_step": step, "best_score": score}
                run_log.scores(step, scores, note="  (best so far)" if is_best else "")

            # save
            if due or stop or is_best or step == total_steps:
                if world.is_main:
                    extra = _merged(hook.extra_state() for hook in hooks)
                    tensors = {k: v for k, v in extra.items() if isinstance(v, torch.Tensor)}
                    values = {k: v for k, v in extra.items() if k not in tensors}
                    path = save_checkpoint(
                        folder, step, master, optimizer, {**run_log.state(), **best, "hooks": values},
                        tensors,
                    )  # fmt: skip
                    for hook in hooks:
                        hook.on_checkpoint(path, step)
                saved = time.monotonic()
            if stop:
                world.barrier()  # nobody ends before the main process has saved
                raise KeyboardInterrupt
    world.barrier()  # what the main process wrote is there for all
    weights = master.state()
    if best["best_step"] is not None:
        step = best["best_step"]
        weights = Checkpoint(checkpoint_path(folder, step)).tensors("weights")
    return step, _mixed(weights, start, config.start_share)


@contextmanager
def _stop_requests() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C or SIGTERM inside the block sets, so that the run ends when its step is
    saved; the second ends the program at once. Only the main thread can watch; ignored signals stay so.
    """
    requested = threading.Event()

    def request(*_: object) -> None:
        if requested.is_set():
            raise KeyboardInterrupt
        requested.set()
        log.warning("the run ends when this step is saved; once more ends it now")

    is_main, ignored = threading.current_thread() is threading.main_thread(), signal.SIG_IGN
    numbers = (signal.SIGINT, signal.SIGTERM) if is_main else ()
    before = {n: signal.signal(n, request) for n in numbers if signal.getsignal(n) not in (None, ignored)}
    try:
        yield requested
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _selecting(scores: Mapping[str, float], config: FitConfig) -> float:
    """The score that selects weights, larger is better; one that is not a number is never best.

    Raises:
        ConfigError: there is no score of that name.
    """
    if config.select_by not in scores:
        raise ConfigError(
            f"weights are selected by {config.select_by!r}, but a validation measures {', '.join(scores)}",
            hint="set select_by to one of these",
        )
    return scores[config.select_by] * (-1.0 if config.select_by in config.lowest else 1.0)


def _mixed(weights: Tensors, start: Tensors, share: float) -> dict[str, torch.Tensor]:
    """Trained weights, mixed with the start as `start_share` says."""
    mixed = {name: weights[name].to(old.device).lerp(old, share) for name, old in start.items()}
    return {**weights, **mixed}


def _scores(
    evaluate: Callable[[], Mapping[str, float]],
    master: MasterWeights,
    start: Tensors,
    share: float,
    world: World,
) -> dict[str, float]:
    """Scores of the model, mixed with the start, from the main process to all."""
    scores: dict[str, float] = {}
    if world.is_main:
        trained = {name: tensor.clone() for name, tensor in master.state().items()} if start else {}
        if start:
            master.load(_mixed(trained, start, share))
        scores = {name: float(value) for name, value in evaluate().items()}
        if start:
            master.load(trained)
    shared: dict[str, float] = world.broadcast_object(scores)
    return shared


def _merged(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {name: value for part in parts for name, value in part.items()}


def _newest_checkpoint(folder: Path, world: World) -> Checkpoint | None:
    """The main process removes what a killed run left and looks, all take the checkpoint it found."""
    name = None
    if world.is_main:
        clean_directory(folder)
        name = next((path.name for path in reversed(complete_checkpoints(folder))), None)
    name = world.broadcast_object(name)
    return None if name is None else Checkpoint(folder / name)


def _sum_counts(counts: dict[str, float], world: World) -> dict[str, float]:
    """Summed over the processes, which count the same things."""
    names = sorted(counts)
    values = torch.tensor([counts[name] for name in names], dtype=torch.float64, device=world.device)
    world.sum_([values])
    return dict(zip(names, values.tolist(), strict=True))


def _combine_gradients(master: MasterWeights, world: World, batches: int) -> None:
    """Sum the processes' gradients and average the batches', in fp32.

    A parameter without gradient everywhere keeps none, so the optimiser leaves it alone.
    """
    used = torch.tensor([float(tensor.grad is not None) for tensor in master.master], device=world.device)
    world.sum_([used])
    for tensor, count in zip(master.master, used.tolist(), strict=True):
        if count and tensor.grad is None:
            tensor.grad = torch.zeros_like(tensor)
    gradients = [tensor.grad for tensor in master.master if tensor.grad is not None]
    world.sum_(gradients)
    if batches > 1:
        torch._foreach_div_(gradients, float(batches))
