"""The one training loop.

batch → forward → loss → backward → clip → step → schedule → log → evaluate → save
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

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
        tokens: number of their tokens, padding not counted, for the same.
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
        they cannot be made while the step before computes; by default, whether a recipe has a
        `before_step`.
        """
        return type(self).before_step is not FitHooks.before_step

    def log_fields(self, step: int) -> Mapping[str, float]:
        """More numbers for log lines and metrics records, such as an index's age; called after
        every step.
        """
        return {}

    def extra_state(self) -> Mapping[str, object]:
        """Further state for checkpoints: tensors, and JSON values."""
        return {}

    def load_extra_state(self, state: Mapping[str, object]) -> None:
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


class Fitted(NamedTuple):
    """The result of the loop: the best weights by `select_by`, or the last.

    Attributes:
        step: number of steps after which the model had these weights.
        weights: mixed with the start as `start_share` says.
        scores: of these weights on held-out data; empty if nothing is held out.
    """

    step: int
    weights: Weights
    scores: Mapping[str, float]


def fit(method: Method, config: TrainConfig, world: World) -> Fitted:
    """Train over all batches, resuming from the newest checkpoint in `config.out` if there is one.

    Every process calls this.

    Raises:
        RagError: if the loss is not a finite number.
    """
    run = _Run(method, config, world)
    with closing(method.hooks), closing(run.gradients), run.progress:
        while run.step < run.total_steps:
            run.take_step()
            is_best = run.evaluate()
            run.save(is_best=is_best)
    # What the main process wrote is there for all.
    world.barrier()
    step = run.state["best_step"] or run.step
    weights: Tensors = method.master.state()
    if step != run.step:
        weights = read_checkpoint(checkpoint_path(config.out, step), "weights")
    weights = _mix(weights, run.start, config.start_share)
    return Fitted(step, weights, run.state["scores"])


class _Run:
    """A run in progress: optimiser, counters, the best score so far.

    Attributes:
        step: number of steps taken.
        start: the weights that training starts from, where they are mixed into the trained ones.
        state: of the newest checkpoint; `best_step`, `best_score` and `scores` are up to date.
    """

    def __init__(self, method: Method, config: TrainConfig, world: World) -> None:
        bound_kernel_caches()
        keep_freed_memory()
        config.out.mkdir(parents=True, exist_ok=True)
        self.method = method
        self.config = config
        self.world = world
        self.gradients = _Gradients(method, config, world)
        self.total_steps = -(-len(method.batches) // config.accumulate)
        master = method.master
        groups = master.groups(config.learning_rate, config.weight_decay, config.learning_rates)
        self._optimizer = torch.optim.AdamW(groups, lr=config.learning_rate, eps=1e-8, fused=True)
        # All processes start from the same numbers.
        world.broadcast_(master.master)
        master.write_back()
        self.start = master.copy() if config.start_share else {}
        self.state = self._resume()
        self.step: int = self.state["step"]
        self.progress = Progress(
            self.total_steps, "steps", "train", initial=self.step, silent=not world.is_main
        )
        self._log = RunLog(config, self.total_steps, self.state, writes=world.is_main)
        self._saved = time.monotonic()
        method.model.train()

    def _resume(self) -> dict[str, Any]:
        """The state of the newest checkpoint, whose weights are loaded; without one that of the
        start.
        """
        newest = max(complete_checkpoints(self.config.out), default=None)
        newest = self.world.broadcast_object(newest)
        if newest is None:
            return {"step": 0, "best_step": None, "best_score": -math.inf, "scores": {}}
        load_checkpoint(newest, self.method.master, self._optimizer)
        state = read_checkpoint(newest, "state")
        self.method.hooks.load_extra_state({**state["hooks"], **read_checkpoint(newest, "hooks")})
        if self.world.is_main:
            log.info("resumed from %s", newest)
        return state

    def take_step(self) -> None:
        """Update the weights once.

        Raises:
            RagError: loss or gradient is not finite.
        """
        config = self.config
        method = self.method
        started = time.monotonic()
        method.hooks.before_step(self.step)
        factor = schedule_factor(config, self.step, self.total_steps)
        for group in self._optimizer.param_groups:
            group["lr"] = group["peak"] * factor
        counts, means = self.gradients.compute(self.step)
        master = method.master
        if self.step == 0 and self.world.is_main:
            _warn_of_untrained(method)
        norm = float(torch.nn.utils.clip_grad_norm_(master.master, config.clip_norm))
        if not (math.isfinite(means["loss"]) and math.isfinite(norm)):
            raise RagError(
                f"step {self.step}: loss {means['loss']} with gradient norm {norm} is not finite",
                hint="lower the learning rate, or train with precision fp32",
            )
        self._optimizer.step()
        master.write_back()
        self.step += 1
        self.progress.update()
        counts["seconds"] = time.monotonic() - started
        rate = config.learning_rate * factor
        values = {"rate": rate, "norm": norm, **method.hooks.log_fields(self.step)}
        self._log.record(self.step, counts, means, values)

    def evaluate(self) -> bool:
        """Measure the model on held-out data where that is due; whether it is the best so far."""
        config = self.config
        every = config.validate_every_steps
        is_due = self.step == self.total_steps or (every and self.step % every == 0)
        if self.method.evaluate is None or not is_due:
            return False
        scores = _scores(self.method, self.start, config.start_share, self.world)
        # A score that is not a number is never best.
        score = -math.inf
        if config.select_by != "last":
            score = scores[config.select_by] * (-1.0 if config.select_by in config.lowest else 1.0)
        is_best = score > self.state["best_score"]
        if is_best:
            self.state |= {"best_step": self.step, "best_score": score}
        if is_best or self.state["best_step"] is None:
            self.state["scores"] = scores
        self._log.scores(self.step, scores, note="  (best so far)" if is_best else "")
        return is_best

    def save(self, *, is_best: bool) -> None:
        """Write a checkpoint, in the main process, if it is due, the best or the last."""
        config = self.config
        is_due = time.monotonic() - self._saved > config.save_every_s
        if self.world.is_main and (is_due or is_best or self.step == self.total_steps):
            hooks = self.method.hooks
            state = {**self.state, **self._log.state(), "hooks": hooks.extra_state()}
            save_checkpoint(config.out, self.step, self.method.master, self._optimizer, state)
            hooks.on_checkpoint()
            self._saved = time.monotonic()


def _warn_of_untrained(method: Method) -> None:
    """Name the networks of the model that are to be trained, and that no gradient has reached."""
    master = method.master
    for network, module in method.model.named_modules():
        gradients = [
            tensor.grad
            for name, tensor in zip(master.names, master.master, strict=True)
            if name.startswith(f"{network}.")
        ]
        is_unreached = gradients and all(gradient is None for gradient in gradients)
        if is_unreached and hasattr(module, "to_compute"):
            log.warning("%s is to be trained, but no gradient reaches it in step 0", network)


def _mix(weights: Tensors, start: Tensors, share: float) -> Weights:
    """Trained weights, mixed with the start as `start_share` says."""
    mixed = dict(weights)
    for name, initial in start.items():
        mixed[name] = weights[name].to(initial.device).lerp(initial, share)
    return mixed


def _scores(method: Method, start: Tensors, share: float, world: World) -> dict[str, float]:
    """Scores of the model, mixed with the start, from the main process to all."""
    scores: dict[str, float] = {}
    if world.is_main:
        master = method.master
        trained = master.copy() if start else {}
        if start:
            master.load(_mix(trained, start, share))
        assert method.evaluate is not None
        scores = {name: float(value) for name, value in method.evaluate().items()}
        if start:
            master.load(trained)
        method.model.train()
    return dict(world.broadcast_object(scores))


class _Gradients:
    """Computes the gradients of a run's steps, in order; a thread makes the next batch if the
    method allows it.
    """

    def __init__(self, method: Method, config: TrainConfig, world: World) -> None:
        self._method = method
        self._config = config
        self._world = world
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rag-batch")
        self._next: Future[Any] | None = None

    def compute(self, step: int) -> tuple[dict[str, float], dict[str, float]]:
        """Add up the gradients of a step's batches over all processes.

        Returns:
            Sums of "examples" and "tokens"; and means of "loss" and its parts over the batches.
        """
        method = self._method
        world = self._world
        accumulate = self._config.accumulate
        numbers = range(len(method.batches))[step * accumulate : (step + 1) * accumulate]
        counts = dict.fromkeys(("examples", "tokens"), 0.0)
        means: dict[str, float] = defaultdict(float)
        for batch_number in numbers:
            # The same dropout in a resumed run.
            draw = generator(self._config.seed, batch_number, world.rank)
            torch.manual_seed(int(draw.integers(1 << 62)))
            batch = self._take(batch_number)
            is_divided = world.size > 1 and not method.shares
            loss = _divided_loss(method, batch, world) if is_divided else method.loss(batch)
            loss.compute_gradients(method.master.gather_gradients)
            counts["examples"] += loss.examples
            counts["tokens"] += loss.tokens
            for name, value in {**loss.parts, "loss": loss.value}.items():
                number = value.detach() if isinstance(value, torch.Tensor) else value
                means[name] += float(number) / len(numbers)
        _combine_gradients(method.master, world, len(numbers))
        return _sum(counts, world), _sum(means, world)

    def _take(self, number: int) -> Any:
        """Batch `number`, which follows the one that was taken before."""
        batches = self._method.batches
        batch = batches[number] if self._next is None else self._next.result()
        self._next = None
        if self._can_make_ahead(number + 1):
            self._next = self._thread.submit(batches.__getitem__, number + 1)
        return batch

    def _can_make_ahead(self, number: int) -> bool:
        """Whether a batch can be made before its step begins."""
        method = self._method
        if not method.makes_ahead or number >= len(method.batches):
            return False
        step, number_in_step = divmod(number, self._config.accumulate)
        return number_in_step > 0 or not method.hooks.changes_batches(step)

    def close(self) -> None:
        """Wait for the batch that is being made, and end the thread."""
        self._thread.shutdown(cancel_futures=True)


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
    # A process without examples computes one that counts nothing: it names the same parts, and
    # takes part in the sums.
    loss = method.loss(batch[:1] if is_idle else part)
    if loss.backward is not None:
        raise ConfigError("a loss with its own backward pass is not divided", hint=hint)
    terms = loss.examples if loss.terms is None else loss.terms
    if is_idle:
        terms = 0
        loss = replace(loss, examples=0, tokens=0)
    total = world.total(terms)
    parts: Mapping[str, float | torch.Tensor] = dict.fromkeys(loss.parts, 0.0)
    if not terms:
        # The mean of no terms is not a number, nor is its gradient: neither is to count.
        nothing = loss.value.new_zeros(())
        return replace(loss, value=nothing, parts=parts, backward=lambda flush: None)
    share = terms / total
    parts = {name: share * number for name, number in loss.parts.items()}
    return replace(loss, value=share * loss.value, parts=parts)


def _sum(numbers: Mapping[str, float], world: World) -> dict[str, float]:
    """Numbers summed over the processes, each of which has the same names."""
    names = sorted(numbers)
    values = torch.tensor(
        [numbers[name] for name in names], dtype=torch.float64, device=world.device
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
