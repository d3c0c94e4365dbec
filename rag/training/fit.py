"""The one training loop.

batch → forward → loss → backward → clip → step → schedule → log → evaluate → save
"""

import math
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch

from rag.core.errors import ConfigError, RagError
from rag.core.log import Progress, get_logger
from rag.runtime.hardware import bound_kernel_caches, keep_freed_memory
from rag.runtime.seeds import generator
from rag.training.card import Card
from rag.training.checkpoints import (
    checkpoint_path,
    complete_checkpoints,
    load_checkpoint,
    read_checkpoint,
    save_checkpoint,
)
from rag.training.config import TrainConfig, schedule_factor
from rag.training.distributed import World
from rag.training.precision import MasterWeights
from rag.training.run_log import RunLog

log = get_logger(__name__)

Tensors = Mapping[str, torch.Tensor]


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
        value: the scalar to minimise. It is a mean over the examples that the loss was given, or
            over `terms`; of a method that `shares`, the part of the batch's mean that is this
            process's, to be summed.
        examples: number of examples that the loss was given, for the speed in the log.
        backward: computes the gradients of `value` where that takes more than one backward pass; it
            is given a function to call after each of them. None: `value.backward()` does it.
        parts: more numbers to log, by name, such as the losses that `value` is the sum of; means
            or shares like `value`, averaged over batches and steps. Every process names the same
            ones.
        terms: number of terms that `value` is the mean of, such as predicted tokens; None: the
            examples.
    """

    value: torch.Tensor
    examples: int
    tokens: int
    backward: Callable[[Callable[[], None]], None] | None = None
    parts: Mapping[str, float | torch.Tensor] = field(default_factory=dict)
    terms: float | None = None

    def compute_gradients(self, flush: Callable[[], None]) -> None:
        """Backward pass or passes, `flush` after each."""
        if self.backward is not None:
            self.backward(flush)
        else:
            self.value.backward()
            flush()


class FitHooks:
    """Hooks of a recipe inside the loop, to be overridden as needed.

    The hooks that save (`extra_state`, `on_checkpoint`) are called in the main process only, all
    others in every process.
    """

    def before_step(self, step: int) -> None:
        """Called before step `step` (from 0) requests its batches: the place to exchange negatives,
        or to update a momentum encoder."""

    def changes_batches(self, step: int) -> bool:
        """Whether `before_step(step)` may change what the batches from that step on hold, so that
        they cannot be made while the step before computes.
        """
        return type(self).before_step is not FitHooks.before_step

    def log_fields(self, step: int) -> Mapping[str, Any]:
        """More entries for log lines and metrics records, such as an index's age; called after
        every step.
        """
        return {}

    def extra_state(self) -> Mapping[str, Any]:
        """Further state for checkpoints: tensors, and JSON values."""
        return {}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Called with the state in the checkpoint, tensors on the CPU, when a run is resumed."""

    def on_checkpoint(self) -> None:
        """Called when a checkpoint is complete on disk."""

    def close(self) -> None:
        """Called when the loop ends, however it ends."""


Weights = dict[str, torch.Tensor]
"""The result of a run: fp32, by the model's parameter names, those that were not trained too."""

LossFunction = Callable[[Any], Loss]
"""The forward pass of a batch."""


@dataclass(frozen=True, slots=True)
class Method:
    """The parts of a recipe that a run calls.

    Attributes:
        model: in its compute dtype; gradients flow into its trainable parameters.
        master: fp32 copies of those parameters, which the optimiser updates.
        batches: the whole run's batches by number; step s takes the next `accumulate` of them.
        loss: forward pass of one batch. With several processes the loop gives each process a part
            of the batch, and weighs the means by their terms. So a batch is a list, an array or a
            tensor of examples, of which none changes the loss of another.
        export: writes the finished model, in the main process; returns its figures, or None if
            those of the training run are its figures.
        card: model card of the folder that the run returns.
        evaluate: scores the model on held-out data, in the main process; None in all processes if
            nothing is held out.
        hooks: hooks of the loop.
        facts: facts about the data for the log and the model card, as name → value.
        shares: with several processes `loss` is given the whole batch, and returns the share of its
            process: for losses that compare the examples of a batch with each other.
        makes_ahead: a thread makes the next batch while the model computes: for batches that share
            nothing with the loss that either changes, such as a tokenizer of transformers.
    """

    model: torch.nn.Module
    master: MasterWeights
    batches: BatchSource
    loss: LossFunction
    export: Callable[[Weights], Mapping[str, Any] | None]
    card: Card
    evaluate: Callable[[], Mapping[str, float]] | None = None
    hooks: FitHooks = field(default_factory=FitHooks)
    facts: Mapping[str, object] = field(default_factory=dict)
    shares: bool = False
    makes_ahead: bool = False


def fit(method: Method, config: TrainConfig, world: World) -> tuple[int, Weights]:
    """Train over all batches, resuming from the newest checkpoint in `config.out` if there is one.

    Every process calls this.

    Returns:
        The step of the best weights by `select_by`, or the last; and these weights, fp32 by
        parameter name, mixed with the start.

    Raises:
        RagError: if the loss is not a finite number.
        ConfigError: if `select_by` names no score.
    """
    master = method.master
    hooks = method.hooks
    bound_kernel_caches()
    keep_freed_memory()
    config.out.mkdir(parents=True, exist_ok=True)
    total_batches = len(method.batches)
    total_steps = -(-total_batches // config.accumulate)
    groups = master.groups(config.learning_rate, config.weight_decay, config.learning_rates)
    optimizer = torch.optim.AdamW(groups, lr=config.learning_rate, eps=1e-8, fused=True)
    world.broadcast_(master.master)  # all start from the same numbers
    master.write_back()
    start = (
        {name: tensor.clone() for name, tensor in master.state().items()}
        if config.start_share
        else {}
    )
    step = 0
    state = dict[str, Any]()
    best: dict[str, Any] = {"best_step": None, "best_score": -math.inf}
    resumed = world.broadcast_object(max(complete_checkpoints(config.out), default=None))
    if resumed is not None:
        load_checkpoint(resumed, master, optimizer)
        state = read_checkpoint(resumed, "state")
        step = state["step"]
        best = {name: state[name] for name in best}
        hooks.load_extra_state({**state["hooks"], **read_checkpoint(resumed, "hooks")})
        if world.is_main:
            log.info("resumed from %s (step %d of %d)", resumed, step, total_steps)
    saved = time.monotonic()
    method.model.train()
    run_log = RunLog(config, step=step, total_steps=total_steps, state=state, writes=world.is_main)
    shown = (
        Progress(total_steps, "steps", "train", initial=step) if world.is_main else nullcontext()
    )
    with (
        closing(hooks),
        closing(_Batches(method, config.accumulate)) as batches,
        shown as progress,
        _stop_requests() as interrupt,
    ):
        while step < total_steps:
            started = time.monotonic()
            hooks.before_step(step)
            factor = schedule_factor(config, step, total_steps)
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * factor

            # batch, forward, loss, backward
            first = step * config.accumulate
            numbers = range(first, min(first + config.accumulate, total_batches))
            counts = _accumulate(method, batches, numbers, config.seed, world)
            counts["_stop"] = float(interrupt.is_set())  # in whichever process
            counts = _sum_counts(counts, world)
            _combine_gradients(master, world, len(numbers))
            value = counts.pop("_loss") / len(numbers)
            if step == 0 and world.is_main:
                _warn_of_untrained(method)

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
            if progress is not None:
                progress.update()

            # log
            stop, examples, tokens = (
                int(counts.pop(name)) for name in ("_stop", "_examples", "_tokens")
            )
            run_log.record(
                step,
                {"examples": examples, "tokens": tokens, "seconds": time.monotonic() - started},
                {"loss": value, **{name: total / len(numbers) for name, total in counts.items()}},
                {"rate": config.learning_rate * factor, "norm": norm, **hooks.log_fields(step)},
            )

            # evaluate
            every = config.validate_every_steps
            is_best = False
            if method.evaluate is not None and (
                step == total_steps or (every and step % every == 0)
            ):
                scores = _scores(method, start, config.start_share, world)
                if config.select_by != "last":
                    score = _selecting(scores, config)
                    is_best = score > best["best_score"]
                if is_best:
                    best = {"best_step": step, "best_score": score}
                run_log.scores(step, scores, note="  (best so far)" if is_best else "")

            # save
            is_due = time.monotonic() - saved > config.save_every_s
            if world.is_main and (is_due or stop or is_best or step == total_steps):
                state = {**run_log.state(), **best}
                save_checkpoint(config.out, step, master, optimizer, state, hooks.extra_state())
                hooks.on_checkpoint()
                saved = time.monotonic()
            if stop:
                world.barrier()  # nobody ends before the main process has saved
                raise KeyboardInterrupt
    world.barrier()  # what the main process wrote is there for all
    weights = master.state()
    if best["best_step"] is not None:
        step = best["best_step"]
        weights = read_checkpoint(checkpoint_path(config.out, step), "weights")
    return step, _mixed(weights, start, config.start_share)


@contextmanager
def _stop_requests() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C or SIGTERM inside the block sets, so that the run ends when
    its step is saved; the second ends the program at once. Only the main thread can watch; ignored
    signals stay so.
    """
    requested = threading.Event()

    def request(*_: object) -> None:
        if requested.is_set():
            raise KeyboardInterrupt
        requested.set()
        log.warning("the run ends when this step is saved; once more ends it now")

    is_main = threading.current_thread() is threading.main_thread()
    ignored = signal.SIG_IGN
    numbers = (signal.SIGINT, signal.SIGTERM) if is_main else ()
    before = {
        n: signal.signal(n, request) for n in numbers if signal.getsignal(n) not in (None, ignored)
    }
    try:
        yield requested
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _selecting(scores: Mapping[str, float], config: TrainConfig) -> float:
    """The score that selects weights, larger is better; one that is not a number is never best."""
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


def _scores(method: Method, start: Tensors, share: float, world: World) -> dict[str, float]:
    """Scores of the model, mixed with the start, from the main process to all."""
    scores: dict[str, float] = {}
    if world.is_main:
        master = method.master
        trained = {name: tensor.clone() for name, tensor in master.state().items()} if start else {}
        if start:
            master.load(_mixed(trained, start, share))
        assert method.evaluate is not None
        scores = {name: float(value) for name, value in method.evaluate().items()}
        if start:
            master.load(trained)
        method.model.train()
    return dict(world.broadcast_object(scores))


class _Batches:
    """The batches of a run in order, of which a thread makes the next one if the method allows it.

    Args:
        accumulate: batches of a step.
    """

    def __init__(self, method: Method, accumulate: int) -> None:
        self._method = method
        self._accumulate = accumulate
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rag-batch")
        self._next: Future[Any] | None = None

    def take(self, number: int) -> Any:
        """Batch `number`, which follows the one that was taken before."""
        batches = self._method.batches
        batch = batches[number] if self._next is None else self._next.result()
        self._next = None
        if self._may_make(number + 1):
            self._next = self._thread.submit(batches.__getitem__, number + 1)
        return batch

    def _may_make(self, number: int) -> bool:
        """Whether a batch can be made before its step begins."""
        if not self._method.makes_ahead or number >= len(self._method.batches):
            return False
        step, place = divmod(number, self._accumulate)
        return place > 0 or not self._method.hooks.changes_batches(step)

    def close(self) -> None:
        """Wait for the batch that is being made, and end the thread."""
        self._thread.shutdown(cancel_futures=True)


def _accumulate(
    method: Method, batches: _Batches, numbers: range, seed: int, world: World
) -> dict[str, float]:
    """Add up the gradients of a step's batches; returns this process's sums of losses, examples,
    …
    """
    sums: dict[str, float] = defaultdict(float)
    for number in numbers:
        # the same dropout in a resumed run
        torch.manual_seed(int(generator(seed, number, world.rank).integers(1 << 62)))
        batch = batches.take(number)
        is_divided = world.size > 1 and not method.shares
        loss = _divided_loss(method, batch, world) if is_divided else method.loss(batch)
        loss.compute_gradients(method.master.gather_gradients)
        shares = {
            "_examples": loss.examples,
            "_tokens": loss.tokens,
            **loss.parts,
            "_loss": loss.value,
        }
        for name, share in shares.items():
            sums[name] += float(share.detach() if isinstance(share, torch.Tensor) else share)
    return sums


def _warn_of_untrained(method: Method) -> None:
    """Name the networks of the model that are to be trained, and that no gradient has reached."""
    master = method.master
    tensors = zip(master.names, master.master, strict=True)
    unreached = {name for name, tensor in tensors if tensor.grad is None}
    for network, module in method.model.named_modules():
        inside = {name for name in master.names if name.startswith(f"{network}.")}
        if hasattr(module, "to_compute") and inside and inside <= unreached:
            log.warning("%s is to be trained, but no gradient reaches it in step 0", network)


def _divided_loss(method: Method, batch: Any, world: World) -> Loss:
    """The loss of this process's part of a batch, as its share of the batch's mean.

    Raises:
        ConfigError: the batch cannot be divided, or the loss has a backward pass of its own.
    """
    hint = "start it without torchrun, or share the batch in the loss: Method(…, shares=True)"
    if not isinstance(batch, list | np.ndarray | torch.Tensor):
        raise ConfigError(
            f"a batch is a {type(batch).__name__}, and {world.size} processes divide a list, an "
            "array or a tensor of examples",
            hint=hint,
        )
    part = batch[world.rank :: world.size]
    is_idle = len(part) == 0
    # without examples a process computes with one that counts nothing, and names the same parts
    loss = method.loss(batch[:1] if is_idle else part)
    if loss.backward is not None:
        raise ConfigError("a loss with its own backward pass is not divided", hint=hint)
    terms = loss.examples if loss.terms is None else loss.terms
    if is_idle:
        terms = 0
        loss = replace(loss, examples=0, tokens=0)
    total = torch.tensor([float(terms)], dtype=torch.float64, device=world.device)
    world.sum_([total])
    parts: Mapping[str, float | torch.Tensor] = dict.fromkeys(loss.parts, 0.0)
    if not terms:
        # the mean of nothing is not a number, and counts nothing
        return replace(loss, value=0.0 * loss.value.nan_to_num(), parts=parts)
    share = terms / float(total)
    parts = {name: share * number for name, number in loss.parts.items()}
    return replace(loss, value=share * loss.value, parts=parts)


def _sum_counts(counts: dict[str, float], world: World) -> dict[str, float]:
    """Summed over the processes, which count the same things."""
    names = sorted(counts)
    values = torch.tensor(
        [counts[name] for name in names], dtype=torch.float64, device=world.device
    )
    world.sum_([values])
    return dict(zip(names, values.tolist(), strict=True))


def _combine_gradients(master: MasterWeights, world: World, batches: int) -> None:
    """Sum the processes' gradients and average the batches', in fp32.

    A parameter without gradient everywhere keeps none, so the optimiser leaves it alone.
    """
    used = torch.tensor(
        [float(tensor.grad is not None) for tensor in master.master], device=world.device
    )
    world.sum_([used])
    for tensor, count in zip(master.master, used.tolist(), strict=True):
        if count and tensor.grad is None:
            tensor.grad = torch.zeros_like(tensor)
    gradients = [tensor.grad for tensor in master.master if tensor.grad is not None]
    world.sum_(gradients)
    if batches > 1:
        torch._foreach_div_(gradients, float(batches))
